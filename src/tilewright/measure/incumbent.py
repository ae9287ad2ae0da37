"""An incumbent that is prepared once for many runs: linked, with its prepacked constants and its results.

Every candidate runs in a process of its own, which is forked from one that holds all of this. The code of an incumbent
runs in a forked process, too, also where it is prepared: what comes back are numbers.
"""

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.machine.alignment import BUFFER_ALIGNMENT, aligned_empty
from tilewright.measure.build import BuiltCandidate, BuiltParameter
from tilewright.measure.case_operands import CaseData, case_operands
from tilewright.measure.isolation import Limits, call_isolated
from tilewright.measure.linked_candidate import Array, BoundCandidate, LinkedCandidate
from tilewright.measure.timing import time_calls
from tilewright.runtime.weights import numpy_dtype

TIMED_CALLS = 3
"""Calls of an incumbent while it is prepared, which tell about how long it takes."""


@dataclass(frozen=True, slots=True)
class PreparedIncumbent:
    """An incumbent for the last one of some cases.

    Attributes:
        linked: its functions.
        constants: its prepacked constants by name.
        results: what it gives, by output.
        seconds: of its fastest call while it was prepared.
    """

    linked: LinkedCandidate
    constants: Mapping[str, Array]
    results: Mapping[str, Array]
    seconds: float

    def bind(self, case: int, operands: Mapping[str, Array]) -> BoundCandidate:
        """The incumbent with a candidate's operands."""
        return self.linked.bind(case, {**operands, **self.constants})


def prepare_incumbent(built: BuiltCandidate, cases: Sequence[CaseData], threads: int) -> PreparedIncumbent:
    """Prepares an incumbent, whose code runs in this process.

    Args:
        built: its code.
        cases: operands; it runs on the last ones.
        threads: per call.
    """
    linked = LinkedCandidate(built, threads)
    bound = linked.bind(len(cases) - 1, case_operands(built, len(cases) - 1, cases[-1]))
    results = bound.checked_call().results
    constants = {name: bound.arrays[name] for name in linked.constants}
    seconds = min(time_calls(bound.call, TIMED_CALLS))
    return PreparedIncumbent(linked, constants, {name: results[name] for name in cases[-1].samples}, seconds)


def prepare_isolated(
    built: BuiltCandidate, cases: Sequence[CaseData], threads: int, limits: Limits
) -> PreparedIncumbent:
    """Prepares an incumbent, whose code runs in a process of its own.

    Raises:
        IsolatedError: that process crashed, took too long, or needs too much memory.
        TilewrightError: the code can't be linked.
    """
    linked = LinkedCandidate(built, threads)
    parameters = _kept_parameters(built, linked, cases[-1])
    shapes = {p.name: p.shapes[-1] for p in parameters}
    dtypes = {p.name: numpy_dtype(p.dtype) for p in parameters}
    sizes = {name: -(-prod(shape) * dtypes[name].itemsize // BUFFER_ALIGNMENT) for name, shape in shapes.items()}
    with mmap.mmap(-1, max(1, sum(sizes.values())) * BUFFER_ALIGNMENT) as shared:
        # an array over the shared memory would keep it from being closed, so none outlives its use
        def copy(arrays: Mapping[str, Array]) -> None:
            for name, place in places.items():
                shared[place : place + arrays[name].nbytes] = np.ascontiguousarray(arrays[name]).tobytes()

        ends = np.cumsum([0, *sizes.values()]) * BUFFER_ALIGNMENT
        places = dict(zip(sizes, map(int, ends), strict=False))

        def run() -> float:
            prepared = prepare_incumbent(built, cases, threads)
            copy({**prepared.constants, **prepared.results})
            return prepared.seconds

        seconds = float(call_isolated(run, limits))
        kept: dict[str, Array] = {}
        for name, place in places.items():
            kept[name] = aligned_empty(shapes[name], dtypes[name])
            raw = shared[place : place + kept[name].nbytes]
            kept[name].reshape(-1).view(np.uint8)[...] = np.frombuffer(raw, np.uint8)
    constants = {name: kept[name] for name in linked.constants}
    return PreparedIncumbent(linked, constants, {name: kept[name] for name in cases[-1].samples}, seconds)


def _kept_parameters(built: BuiltCandidate, linked: LinkedCandidate, case: CaseData) -> list[BuiltParameter]:
    """The parameters that are prepacked constants or outputs; none is private to a thread."""
    functions = [f for f in (built.prepack, built.kernel) if f is not None]
    kept = {p.name: p for f in functions for p in f.parameters if p.name in linked.constants or p.name in case.samples}
    return list(kept.values())
