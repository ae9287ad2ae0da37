"""Compiles functions of the loop IR into native functions of this process."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.codegen import compile_object, emit_llvm
from tilewright.errors import OptionError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, Var, const
from tilewright.loops.ir import Func
from tilewright.loops.private_memory import workspace_of
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.machine import Target
from tilewright.runtime.call_frame import address_of
from tilewright.runtime.linker import Library, link_functions


class NativeFunctions:
    """Several functions, compiled together and called by name.

    Workspace becomes additional parameters; the caller provides it (`loops.private_memory.workspace_of`).
    """

    def __init__(self, funcs: Sequence[Func], target: Target) -> None:
        """Compiles and links.

        Raises:
            TargetError: this machine can't execute code for the target.
        """
        target.check_host()
        self.funcs: Mapping[str, Func] = {f.name: expose_workspace(f) for f in funcs}
        code = compile_object(emit_llvm(list(self.funcs.values()), [], target), target)
        self._library: Library = link_functions(code, list(self.funcs), "measured functions")
        self._calls = {
            f.name: ctypes.CFUNCTYPE(None, *_argument_types(f))(self._library.addresses[f.name])
            for f in self.funcs.values()
        }

    def call(self, name: str, arrays: Sequence[np.ndarray], sizes: Sequence[int] = (), threads: int = 1) -> None:
        """Runs one function; arguments and errors are those of `bound`."""
        self.bound(name, arrays, sizes, threads)()

    def bound(
        self, name: str, arrays: Sequence[np.ndarray], sizes: Sequence[int] = (), threads: int = 1
    ) -> Callable[[], None]:
        """One function with its arguments, checked once; it keeps the arrays and the code alive.

        Args:
            name: the function's name.
            arrays: one per parameter, contiguous and of its dtype and shape; written in place.
            sizes: values of the function's symbols.
            threads: for parallel loops.

        Raises:
            OptionError: the number of arrays or sizes is wrong, or an array is not contiguous or of another dtype or
                shape.
        """
        func = self.funcs[name]
        if len(arrays) != len(func.params) or len(sizes) != len(func.symbols):
            expected = f"{len(func.params)} arrays and {len(func.symbols)} sizes"
            raise OptionError(f"expected {expected}, got {len(arrays)} and {len(sizes)}", where=f"function {name!r}")
        values: Mapping[Var, Expr] = {s: const(n) for s, n in zip(func.symbols, sizes, strict=True)}
        for array, buffer in zip(arrays, func.params, strict=True):
            room = workspace_of(func, buffer, const(threads))
            shape = tuple(substitute(n, values) for n in room.shape)
            if array.dtype != buffer.dtype.numpy or not array.flags.c_contiguous:
                what = f"expected a contiguous array of {buffer.dtype}, got {array.dtype}"
            elif tuple(map(const, array.shape)) != shape:
                what = f"expected shape {list(shape)}, got {list(array.shape)}"
            else:
                continue
            raise OptionError(what, where=f"array {buffer.name!r} of function {name!r}")
        return _BoundCall(self._calls[name], [*map(address_of, arrays), *sizes, threads], (self._library, *arrays))


@dataclass(frozen=True, slots=True, eq=False)
class _BoundCall:
    """A native function with its arguments, and what must outlive it: its code and the arrays."""

    function: Callable[..., None]
    arguments: Sequence[int]
    kept: tuple[object, ...]

    def __call__(self) -> None:
        """Runs it."""
        self.function(*self.arguments)


def _argument_types(func: Func) -> list[type]:
    return [ctypes.c_void_p] * len(func.params) + [ctypes.c_int64] * (len(func.symbols) + 1)
