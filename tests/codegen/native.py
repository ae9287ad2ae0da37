"""Generated code run in this process: kernels called directly, every buffer adjacent to inaccessible pages."""

import ctypes
import mmap
from collections.abc import Mapping

import llvmlite.binding as llvm
import numpy as np

from tilewright.codegen import compile_object, emit_llvm
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func
from tilewright.machine import Target
from tilewright.runtime.linker import create_jit_linker
from tilewright.runtime.openmp import find_openmp

TARGETS = [name for name in ("x86-64-v4", "x86-64-v3", "x86-64") if Target.parse(name).runs_here]
"""The instruction sets that this machine can run."""

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class GuardedMemory:
    """An array between two inaccessible pages, flush with the one after or before it."""

    def __init__(self, array: np.ndarray, at_end: bool = True) -> None:
        pages = max(1, -(-array.nbytes // PAGE))
        self._map = mmap.mmap(-1, (pages + 2) * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for page in (base, base + (pages + 1) * PAGE):
            assert _libc.mprotect(page, PAGE, 0) == 0
        offset = PAGE + (pages * PAGE - array.nbytes if at_end else 0)
        self.address = base + offset
        self.array = np.frombuffer(self._map, np.uint8, array.nbytes, offset).view(array.dtype).reshape(array.shape)
        self.array[...] = array


class Native:
    """Functions compiled for a target that this machine can run.

    Raises:
        TargetError: it cannot; the test should take its targets from `TARGETS`.
    """

    def __init__(self, *funcs: Func, target: str = "host") -> None:
        self.target = Target.parse(target)
        self.target.check_host()
        self.text = emit_llvm(funcs, [], self.target)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._jit = create_jit_linker()
        library = llvm.JITLibraryBuilder().add_object_img(compile_object(self.text, self.target)).add_current_process()
        for func in funcs:
            library.export_symbol(func.name)
        for name, address in find_openmp().addresses.items():
            library.import_symbol(name, address)
        self._tracker = library.link(self._jit, f"test{id(self)}")
        self.funcs = {f.name: f for f in funcs}

    def __call__(
        self,
        arrays: Mapping[str, np.ndarray],
        symbols: Mapping[str, int] | None = None,
        threads: int = 1,
        name: str = "",
        at_end: bool = True,
    ) -> dict[str, np.ndarray]:
        """Calls a function on copies of the arrays and returns all of them."""
        func = self.funcs[name] if name else next(iter(self.funcs.values()))
        memories = {b.name: GuardedMemory(arrays[b.name], at_end) for b in func.params}
        kinds = [ctypes.c_void_p] * len(func.params) + [ctypes.c_int64] * (len(func.symbols) + 1)
        call = ctypes.CFUNCTYPE(None, *kinds)(self._tracker[func.name])
        sizes = [(symbols or {})[s.name] for s in func.symbols]
        call(*(memories[b.name].address for b in func.params), *sizes, threads)
        return {n: np.array(memory.array) for n, memory in memories.items()}


def check(
    func: Func,
    arrays: Mapping[str, np.ndarray],
    symbols: Mapping[str, int] | None = None,
    target: str = "host",
    rtol: float = 1e-5,
    threads: tuple[int, ...] = (1, 3),
) -> Native:
    """Compares native code with the interpreter, for several numbers of threads and both ends of the pages."""
    native = Native(func, target=target)
    compare(native, arrays, symbols, rtol, threads)
    return native


def compare(
    native: Native,
    arrays: Mapping[str, np.ndarray],
    symbols: Mapping[str, int] | None = None,
    rtol: float = 1e-5,
    threads: tuple[int, ...] = (1, 3),
) -> None:
    """As `check`, of code that is compiled once for several inputs; it has one function."""
    (func,) = native.funcs.values()
    expected = {n: np.array(a) for n, a in arrays.items()}
    interpret(func, expected, symbols or {})
    for count in threads:
        for at_end in (True, False):
            actual = native(arrays, symbols, count, at_end=at_end)
            for name, value in expected.items():
                close(actual[name], value, rtol, name)


def close(actual: np.ndarray, expected: np.ndarray, rtol: float = 1e-5, what: str = "") -> None:
    """Asserts equality of integers, and equality up to rounding (relative to the largest value) of floating point."""
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    wide, reference = actual.astype(np.float64), expected.astype(np.float64)
    finite = reference[np.isfinite(reference)]
    scale = float(np.abs(finite).max()) if finite.size else 1.0
    np.testing.assert_allclose(wide, reference, rtol=rtol, atol=rtol * scale, err_msg=what)
