"""The version of the code generator, which is part of every key of machine code."""

from functools import lru_cache

import llvmlite
import llvmlite.binding as llvm

from tilewright.version import __version__, source_hash


@lru_cache(maxsize=1)
def generator_version() -> str:
    """Package, hash of its sources, llvmlite and LLVM: "0.1.0+7e30ab1e093a033f llvmlite 0.50.0 LLVM 22.1.0".

    Where the sources have changed, it is "0.1.0+changed ...", by which nothing may be kept.
    """
    llvm_version = ".".join(map(str, llvm.llvm_version_info))
    return f"{__version__}+{source_hash() or 'changed'} llvmlite {llvmlite.__version__} LLVM {llvm_version}"
