"""Programs of one case, checked against each other and timed in turns on one thread."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median

import numpy as np

from tilewright.errors import ScheduleError, VerifyError
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Var
from tilewright.lower.prepack_constants import PrepackedKernel, evaluate_prepacked, prepack_constants
from tilewright.machine import Target
from tilewright.measure.aligned_array import aligned_array
from tilewright.measure.native_functions import NativeFunctions
from tilewright.optimize.construct.program_tree import lower_kernel_program
from tilewright.optimize.task import Task
from tilewright.tile.program import TileProgram
from tilewright.tile.shape_samples import value_of
from tilewright.verify.verifier import verify

BLOCKS, BLOCK_SECONDS = 15, 0.01
"""Number and length of the blocks that medians are taken of."""

TOLERANCE = 1e-3
"""Largest difference of results, relative to the largest value: sums are in different orders."""


@dataclass(frozen=True, slots=True, eq=False)
class Entrant:
    """A program that takes part.

    Attributes:
        task: its kernel.
        program: the program.
        sizes: of the task's symbols.
    """

    task: Task
    program: TileProgram
    sizes: Mapping[Var, int]


class CaseTimer:
    """The programs of a case with one set of operands.

    Args:
        entrants: by name; those whose loops are refused do not take part.
        seed: of the operands.
    """

    def __init__(self, entrants: Mapping[str, Entrant], seed: int = 0) -> None:
        ready = {name: kernel for name, x in entrants.items() if (kernel := _verified_kernel(x)) is not None}
        self.names = list(ready)
        rng = np.random.default_rng(seed)
        self._operands: dict[tuple[int, int], np.ndarray] = {}
        self._results: dict[str, np.ndarray] = {}
        renamed = {n: replace(k.func, name=f"program{i}") for i, (n, k) in enumerate(ready.items())}
        native = NativeFunctions(list(renamed.values()), Target.host())
        self.calls = {n: self._bind(n, entrants[n], ready[n].prepacked, native, renamed[n].name, rng) for n in ready}

    def _bind(
        self,
        name: str,
        entrant: Entrant,
        prepacked: Sequence[Computation],
        native: NativeFunctions,
        func: str,
        rng: np.random.Generator,
    ) -> Callable[[], None]:
        """A call of a program on the shared operands, its packed weights and memory of its own."""
        origin, sizes = entrant.task.func, entrant.sizes
        shapes = {b.name: tuple(value_of(n, sizes) for n in b.shape) for b in origin.params}
        data: dict[str, np.ndarray] = {}
        for place, b in enumerate(origin.inputs):
            # tasks of one case have the same operands in the same order, under other names
            key = place, prod(shapes[b.name])
            if key not in self._operands:
                array = aligned_array(shapes[b.name])
                array[...] = rng.standard_normal(array.shape, dtype=np.float32)
                self._operands[key] = array
            data[b.name] = self._operands[key].reshape(shapes[b.name])
        packed = evaluate_prepacked(prepacked, {n: data[n] for n in entrant.task.constants})
        arrays: list[np.ndarray] = []
        ready = native.funcs[func]
        for b in ready.params:
            known = {**data, **packed}.get(b.name)
            array = aligned_array(tuple(value_of(n, sizes) for n in b.shape))
            array[...] = 0 if known is None else known
            arrays.append(array)
            if b.name in {x.name for x in origin.outputs}:
                self._results[name] = array
        return native.bound(func, arrays, [sizes[v] for v in ready.symbols])

    def check(self) -> None:
        """Compares the results of all programs with the first one's.

        Raises:
            ValueError: they differ.
        """
        reference: np.ndarray | None = None
        for name, call in self.calls.items():
            call()
            result = self._results[name].ravel()
            reference = result if reference is None else reference
            error = float(np.abs(result - reference).max()) / (float(np.abs(reference).max()) or 1.0)
            if not error <= TOLERANCE:
                raise ValueError(f"program {name!r} errs by {error:.1e}")

    def quick(self, seconds: float = 0.004, rounds: int = 2) -> dict[str, float]:
        """Nanoseconds of the fastest call of each, in turns."""
        best = dict.fromkeys(self.names, float("inf"))
        for _ in range(rounds):
            for name, call in self.calls.items():
                best[name] = min(best[name], *_call_times(call, seconds))
        return best

    def block_medians(self) -> dict[str, float]:
        """Nanoseconds of each: the lower quartile of the medians of blocks, which take turns in both directions."""
        medians: dict[str, list[float]] = {n: [] for n in self.names}
        for block in range(BLOCKS):
            for name in self.names[:: 1 if block % 2 else -1]:
                medians[name].append(median(_call_times(self.calls[name], BLOCK_SECONDS)))
        return {n: float(np.quantile(x, 0.25)) for n, x in medians.items()}


def _call_times(call: Callable[[], None], seconds: float) -> list[float]:
    """Nanoseconds of calls for some time, at least one."""
    end = time.perf_counter_ns() + int(seconds * 1e9)
    times: list[float] = []
    while not times or time.perf_counter_ns() < end:
        start = time.perf_counter_ns()
        call()
        times.append(float(time.perf_counter_ns() - start))
    return times


def _verified_kernel(entrant: Entrant) -> PrepackedKernel | None:
    """The verified loops of a program with its prepacked constants; None where they are refused."""
    try:
        schedule = lower_kernel_program(entrant.program, entrant.task, parallel=False)
        prepacked = prepack_constants(schedule.func, entrant.task.constants)
        verify(prepacked.func)
    except (ScheduleError, VerifyError):
        return None
    return prepacked
