"""Single-threaded times of functions in this process: the fastest call, and medians of blocks in turns."""

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from statistics import median

import numpy as np

from tilewright.codegen import compile_object, emit_llvm
from tilewright.expr.nodes import const
from tilewright.loops.ir import Func
from tilewright.loops.private_memory import workspace_of
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.machine import Target
from tilewright.runtime.call_frame import address_of
from tilewright.runtime.linker import link_functions
from tilewright.runtime.weights import align_array

BLOCKS, BLOCK_SECONDS = 30, 0.02
"""Number and length of the blocks that medians are taken of."""

Array = np.ndarray
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a function's parameters in order."""


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """Object code of several functions.

    Attributes:
        object: the object file.
        shapes: per function those of its parameters, all float32.
    """

    object: bytes
    shapes: Mapping[str, Shapes]


def compile_functions(funcs: Mapping[str, Func], target: Target) -> ObjectCode:
    """Functions with literal sizes, compiled together as in a model; their workspace becomes parameters."""
    ready = {n: expose_workspace(replace(f, name=n)) for n, f in funcs.items()}
    # one thread calls them
    rooms = {n: [workspace_of(f, b, const(1)) for b in f.params] for n, f in ready.items()}
    shapes = {n: {b.name: tuple(int(str(x)) for x in b.shape) for b in buffers} for n, buffers in rooms.items()}
    return ObjectCode(compile_object(emit_llvm(list(ready.values()), [], target), target), shapes)


@dataclass(slots=True)
class SharedOperands:
    """Random numbers by parameter's name: every function reads and writes the same memory, from the beginning of a
    line, so that where tensors lie does not differ from one program to the next."""

    arrays: dict[str, Array] = field(default_factory=dict[str, Array])

    def array(self, name: str, shape: tuple[int, ...]) -> Array:
        """The data of a parameter; equal names share memory."""
        size = prod(shape)
        if name not in self.arrays or self.arrays[name].size < size:
            self.arrays[name] = align_array(np.random.default_rng(0).standard_normal(size, dtype=np.float32))
        return self.arrays[name][:size].reshape(shape)


class FunctionTimer:
    """Functions of this process with their data.

    Args:
        funcs: by name, over float32 arrays of literal sizes; or their code.
        data: what they work on; data of their own without it.
    """

    def __init__(self, funcs: Mapping[str, Func] | ObjectCode, data: SharedOperands | None = None) -> None:
        code = funcs if isinstance(funcs, ObjectCode) else compile_functions(funcs, Target.host())
        self._library = link_functions(code.object, list(code.shapes), "measured functions")
        self._shapes = code.shapes
        self.data = data or SharedOperands()
        self.names = list(code.shapes)
        # functions take the addresses of their parameters and the number of threads
        self._calls = {n: _bind_function(self._library.addresses[n], len(s)) for n, s in code.shapes.items()}
        for shapes in code.shapes.values():
            for name, shape in shapes.items():
                self.data.array(name, shape)
        # only now, as a larger array may have taken the place of a smaller one
        self._arrays = {n: [self.data.array(*item) for item in s.items()] for n, s in code.shapes.items()}
        self._addresses = {n: [address_of(a) for a in arrays] for n, arrays in self._arrays.items()}

    def call(self, name: str) -> float:
        """Nanoseconds of one call."""
        function, addresses = self._calls[name], self._addresses[name]
        start = time.perf_counter_ns()
        function(*addresses, 1)
        return float(time.perf_counter_ns() - start)

    def run(self, name: str, inputs: Mapping[str, Array], result: str) -> Array:
        """A function's result from the data of its other parameters; those that are not known are workspace."""
        arrays = {n: align_array(inputs[n]) if n in inputs else align_array(np.zeros(shape, np.float32))
                  for n, shape in self._shapes[name].items()}  # fmt: skip
        self._calls[name](*map(address_of, arrays.values()), 1)
        return arrays[result]

    def fastest_calls(self, rounds: int, seconds: float) -> dict[str, float]:
        """Nanoseconds of the fastest call of each; functions take turns."""
        best = dict.fromkeys(self.names, float("inf"))
        for _ in range(rounds):
            for n in self.names:
                end = time.perf_counter() + seconds
                while True:
                    best[n] = min(best[n], self.call(n))
                    if time.perf_counter() > end:
                        break
        return best

    def block_medians(self, blocks: int = BLOCKS) -> dict[str, list[float]]:
        """Nanoseconds per function and block: the median call of a block of about 20 ms; functions take turns."""
        counts = {n: max(1, int(BLOCK_SECONDS * 1e9 / min(self.call(n) for _ in range(3)))) for n in self.names}
        medians: dict[str, list[float]] = {n: [] for n in self.names}
        for block in range(blocks):
            # every other round backwards, so that no function always follows the same one
            for n in list(counts)[:: 1 if block % 2 else -1]:
                medians[n].append(median(self.call(n) for _ in range(counts[n])))
        return medians


def _bind_function(address: int, parameters: int) -> Callable[..., None]:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * parameters, ctypes.c_int64)(address)
