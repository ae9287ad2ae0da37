"""Linker: object code into this process.

LLVM's JIT linker places the code, resolves libc and libm against the process and OpenMP against the library that
`openmp` finds, and returns addresses, which become ctypes functions. Calls through them release the GIL.
"""

import ctypes
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import ArtifactError
from tilewright.runtime.link_lock import hold_link_lock
from tilewright.runtime.object_archive import is_archive, read_archive
from tilewright.runtime.openmp import STUBS, OpenMP, find_openmp

CHECK_TYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
SHAPES_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
WORKSPACE_TYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
MAIN_TYPE = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)

_library_numbers = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """Linked code. It stays in memory as long as this object lives.

    Attributes:
        addresses: address of every exported function.
        omp: the OpenMP runtime that it was linked with.
        owners: LLVM objects that own the memory; the code first, then the linker.
    """

    addresses: dict[str, int]
    omp: OpenMP
    owners: tuple[object, ...]


def entry_symbols(prefix: str) -> tuple[str, str, str, str]:
    """Symbols of a step's four functions: check, shapes, workspace, main."""
    return f"{prefix}_check", f"{prefix}_shapes", f"{prefix}_workspace", f"{prefix}_main"


def link(code: bytes, prefixes: Iterable[str], where: str, others: Iterable[str] = ()) -> Library:
    """Links object code for this machine and looks up the functions of all prefixes, and others by name.

    Raises:
        ArtifactError: the code is no object file for this machine or archive of them, or a symbol is unresolved or
            missing.
    """
    return link_functions(code, [name for prefix in prefixes for name in entry_symbols(prefix)] + [*others], where)


def link_functions(code: bytes, names: Sequence[str], where: str) -> Library:
    """Links object code for this machine and looks up functions by name.

    Args:
        code: an object file, or an archive of them that use each other's functions.
        names: of the functions.
        where: the place in errors.

    Raises:
        ArtifactError: the code is no object file for this machine or archive of them, or a symbol is unresolved or
            missing.
    """
    objects = read_archive(code, where) if is_archive(code) else (code,)
    with hold_link_lock():
        return _link(objects, names, where)


def create_jit_linker() -> Any:
    """A linker that places all sections of an object file together (LLVM's JITLink).

    The default one, RuntimeDyld, maps each section where there is room, and ends the process where two of them are more
    than 2 GiB apart, as references between them reach no further.
    """
    import llvmlite.binding as llvm

    return llvm.create_lljit_compiler(use_jit_link=True)


def _link(objects: Sequence[bytes], names: Sequence[str], where: str) -> Library:
    import llvmlite.binding as llvm  # importing LLVM takes 40 ms, which `import tilewright` must not

    omp = find_openmp()
    # one linker per library: functions have the same names in every artifact
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    jit = create_jit_linker()
    builder = llvm.JITLibraryBuilder().add_current_process()
    for code in objects:
        builder.add_object_img(code)
    for name in names:
        builder.export_symbol(name)
    if omp.is_parallel:
        for name, address in omp.addresses.items():
            builder.import_symbol(name, address)
    else:
        builder.add_ir(STUBS)
    try:
        tracker = builder.link(jit, f"model{next(_library_numbers)}")
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "unknown reason"
        what = f"the code can't be linked: {reason}"
        raise ArtifactError(what, where=where, hint="compile the model again") from error
    return Library({name: tracker[name] for name in names}, omp, (tracker, jit))
