"""Checking and timing of a built candidate in this process; `isolation.py` runs it where a crash does no harm."""

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.measure.build import BuiltCandidate, BuiltFunction
from tilewright.measure.interleaved_blocks import CANARY, BlockTimes, RunPlan, run_in_turns, times_of
from tilewright.measure.operand_data import relative_errors
from tilewright.measure.system_load import SystemLoad
from tilewright.measure.timing import time_block, time_calls
from tilewright.runtime.call_frame import address_of
from tilewright.runtime.linker import link_functions
from tilewright.runtime.weights import align_array, numpy_dtype

Array = np.ndarray[Any, Any]

CANDIDATE, INCUMBENT = "candidate", "incumbent"

CANARY_SIZE = 160
"""Rows and columns of the canary's matrices, float32: about 0.1 ms on one core."""

FIRST_CALLS, FIRST_SECONDS, MAX_FIRST_CALLS = 3, 0.002, 200
"""Calls after which a candidate that is far slower than the incumbent is given up: so many, and as many more as fit so
many seconds, at most. The first ones of a kernel of microseconds wait for threads and for code and data from memory."""

FIRST_CALL_FACTOR, MIN_FIRST_CALL_SECONDS = 4.0, 0.02
"""Its checked call, with cold caches and threads that are started for it, may take so many times as long as these, and
so many seconds."""

MAX_OTHER_LOAD = 0.2
"""Share of the processors that others may take of those that a candidate's threads need."""

MIN_LOAD_SECONDS = 0.05
"""Shortest time of which the load is known, as the system counts it in hundredths of a second."""

NOT_WRITTEN = 0xFF
"""Bytes of outputs and workspace before a checked call, NaN in all types of floats: what is not written is noticed."""


class WrongAnswerError(Exception):
    """Results differ from the reference; says which element and by how much."""


@dataclass(frozen=True, slots=True)
class OutputSample:
    """Reference elements of an output.

    Attributes:
        flat: their positions [point] in row-major order.
        values: the elements [point].
        tolerance: largest error relative to the largest element.
    """

    flat: Array
    values: Array
    tolerance: float


@dataclass(frozen=True, slots=True)
class CaseData:
    """Operands for one case of sizes.

    Attributes:
        inputs: arrays by name.
        samples: reference elements by output.
    """

    inputs: Mapping[str, Array]
    samples: Mapping[str, OutputSample]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a candidate runs.

    Attributes:
        threads: threads per call.
        plan: blocks of calls.
        max_ratio: a candidate that takes so many times the incumbent's time in its first calls is given up.
    """

    threads: int
    plan: RunPlan
    max_ratio: float


def check_and_time(
    candidate: BuiltCandidate, incumbent: BuiltCandidate | None, cases: Sequence[CaseData], options: RunOptions
) -> dict[str, Any]:
    """Times a candidate after its results were compared with reference elements in every case.

    Args:
        candidate: what is timed.
        incumbent: what it is timed in turns with; its results are compared with the candidate's in full.
        cases: operands, small ones first, so that wrong answers are found early; the last one is timed.
        options: how it runs.

    Returns:
        The fields of `optimize.measurer.Timing`.

    Raises:
        WrongAnswerError: results differ.
        MemoryError: there is no memory for operands.
    """
    start = SystemLoad.now()
    linked = _LinkedCandidate(candidate, options.threads)
    bound: dict[str, _BoundCandidate] = {}
    operands: dict[str, Array] = {}
    first = _Checked({}, 0.0)
    for k, data in enumerate(cases):
        operands = _operands(candidate, k, data)
        bound[CANDIDATE] = linked.bind(k, operands)
        first = bound[CANDIDATE].checked_call()
        _compare_samples(first.results, data)
    if incumbent is not None:
        bound[INCUMBENT] = _LinkedCandidate(incumbent, options.threads).bind(len(cases) - 1, operands)
        _compare_in_full(first.results, bound[INCUMBENT].checked_call().results, cases[-1])
        best = _first_seconds(bound[INCUMBENT])
        seconds = _seconds_if_far_slower(bound[CANDIDATE], first.seconds, best, options.max_ratio)
        if seconds is not None:
            return _timing(BlockTimes(seconds, 0.0, seconds, 0, 0, 0), start, options.threads, best)
    return _time_in_turns(bound, start, options)


def _seconds_if_far_slower(candidate: "_BoundCandidate", first: float, best: float, max_ratio: float) -> float | None:
    """The time of a candidate whose first calls tell that it is far slower than the incumbent; None of others."""
    if first > max(MIN_FIRST_CALL_SECONDS, FIRST_CALL_FACTOR * max_ratio * best):
        return first
    seconds = _first_seconds(candidate)
    return seconds if seconds > max_ratio * best else None


def _first_seconds(candidate: "_BoundCandidate") -> float:
    """The fastest one of its first calls."""
    seconds = min(time_calls(candidate.call, FIRST_CALLS))
    more = min(MAX_FIRST_CALLS, int(FIRST_SECONDS / max(seconds, 1e-9)))
    return min([seconds, *time_calls(candidate.call, more)]) if more else seconds


def _time_in_turns(bound: Mapping[str, "_BoundCandidate"], start: SystemLoad, options: RunOptions) -> dict[str, Any]:
    calls = {name: b.call for name, b in bound.items()}
    matrix = np.random.default_rng(0).standard_normal((CANARY_SIZE, CANARY_SIZE), np.float32)
    calls[CANARY] = lambda: matrix @ matrix
    blocks = run_in_turns(tuple(bound), lambda name, seconds: time_block(calls[name], seconds), options.plan)
    incumbent = times_of(INCUMBENT, blocks).median if INCUMBENT in bound else None
    return _timing(times_of(CANDIDATE, blocks), start, options.threads, incumbent)


def _timing(times: BlockTimes, start: SystemLoad, threads: int, incumbent: float | None) -> dict[str, Any]:
    seconds = SystemLoad.now().elapsed - start.elapsed
    others = min(1.0, start.others_since()) if seconds >= MIN_LOAD_SECONDS else 0.0
    needed = min(1.0, threads / (os.cpu_count() or 1))
    is_contended = others > 1.0 - needed + MAX_OTHER_LOAD
    return {
        "nanoseconds": times.median * 1e9, "spread": times.spread, "fastest": times.fastest * 1e9,
        "blocks": times.blocks, "undisturbed": times.undisturbed, "others": others,
        "is_disturbed": is_contended or times.undisturbed < min(1, times.blocks),
        "incumbent": None if incumbent is None else incumbent * 1e9,
    }  # fmt: skip


def _compare_samples(results: Mapping[str, Array], data: CaseData) -> None:
    for name, sample in data.samples.items():
        _compare(name, sample.values, results[name].reshape(-1)[sample.flat], sample.tolerance, sample.flat)


def _compare_in_full(results: Mapping[str, Array], reference: Mapping[str, Array], data: CaseData) -> None:
    """Compares all elements of two candidates; each may be off by the tolerance."""
    for name, sample in data.samples.items():
        expected = reference[name].reshape(-1)
        _compare(name, expected, results[name].reshape(-1), 2 * sample.tolerance, np.arange(expected.size))


def _compare(name: str, expected: Array, actual: Array, tolerance: float, flat: Array) -> None:
    errors = relative_errors(expected, actual)
    if errors.size and not errors.max() <= tolerance:
        worst = int(errors.argmax())
        what = f"element {int(flat[worst])} of {name!r}: expected {expected[worst]}, got {actual[worst]}"
        count = int(np.count_nonzero(errors > tolerance))
        raise WrongAnswerError(f"{what}; {count} of {errors.size} differ by more than {tolerance:.1e} of the largest")


class _LinkedCandidate:
    """A candidate's functions in this process."""

    def __init__(self, built: BuiltCandidate, threads: int) -> None:
        self._built, self._threads = built, threads
        functions = [f for f in (built.kernel, built.prepack) if f is not None]
        self._library = link_functions(built.code, [f.name for f in functions], "a candidate")

    def bind(self, case: int, operands: Mapping[str, Array]) -> "_BoundCandidate":
        """The candidate with operands for a case; prepacked constants are computed."""
        arrays = dict(operands)
        for function in (self._built.prepack, self._built.kernel):
            for p in function.parameters if function is not None else ():
                if p.name not in arrays:
                    shape = p.shapes[case]
                    shape = (self._threads, *shape[1:]) if p.is_private else shape
                    arrays[p.name] = _poisoned(shape, p.dtype)
        if self._built.prepack is not None:
            self._call(self._built.prepack, case, arrays, 1)()
        call = self._call(self._built.kernel, case, arrays, self._threads)
        return _BoundCandidate(self._built.kernel, arrays, call, self)

    def _call(self, f: BuiltFunction, case: int, arrays: Mapping[str, Array], threads: int) -> Callable[[], object]:
        kinds = [ctypes.c_void_p] * len(f.parameters) + [ctypes.c_int64] * (len(f.symbols[case]) + 1)
        function = ctypes.CFUNCTYPE(None, *kinds)(self._library.addresses[f.name])
        arguments = (*(address_of(arrays[p.name]) for p in f.parameters), *f.symbols[case], threads)
        return lambda: function(*arguments)


@dataclass(frozen=True, slots=True)
class _BoundCandidate:
    """A kernel with its operands, which a call without arguments runs on, and what owns its code."""

    kernel: BuiltFunction
    arrays: Mapping[str, Array]
    call: Callable[[], object]
    owner: "_LinkedCandidate"

    def checked_call(self) -> "_Checked":
        """One call on outputs and workspace in which nothing looks written."""
        written = [p.name for p in self.kernel.parameters if p.is_written]
        for name in written:
            self.arrays[name].reshape(-1).view(np.uint8)[...] = NOT_WRITTEN
        (seconds,) = time_calls(self.call, 1)
        return _Checked({name: self.arrays[name].copy() for name in written}, seconds)


@dataclass(frozen=True, slots=True)
class _Checked:
    """Copies of what a call wrote, by parameter, and how long it took."""

    results: Mapping[str, Array]
    seconds: float


def _operands(built: BuiltCandidate, case: int, data: CaseData) -> dict[str, Array]:
    """Inputs and outputs of a case, in which all candidates of a run work, so that places of tensors do not differ."""
    outputs = (p for p in built.kernel.parameters if p.name in data.samples)
    return {name: align_array(array) for name, array in data.inputs.items()} | {
        p.name: _poisoned(p.shapes[case], p.dtype) for p in outputs
    }


def _poisoned(shape: tuple[int, ...], dtype: str) -> Array:
    kind = numpy_dtype(dtype)
    raw = np.full(int(np.prod(shape, dtype=np.int64)) * kind.itemsize, NOT_WRITTEN, np.uint8)
    return align_array(raw).view(kind).reshape(shape)


def write_case(folder: Path, data: CaseData) -> dict[str, Any]:
    """Writes operands for other processes; returns what `read_case` needs besides the folder."""
    folder.mkdir(parents=True)
    described: dict[str, Any] = {"folder": str(folder), "inputs": {}, "samples": {}}
    for k, (name, array) in enumerate(data.inputs.items()):
        np.ascontiguousarray(array).tofile(folder / f"input{k}")
        described["inputs"][name] = [f"input{k}", array.dtype.name, array.shape]
    for k, (name, sample) in enumerate(data.samples.items()):
        sample.flat.astype(np.int64).tofile(folder / f"flat{k}")
        sample.values.tofile(folder / f"values{k}")
        described["samples"][name] = [f"flat{k}", f"values{k}", sample.values.dtype.name, sample.tolerance]
    return described


def read_case(described: Mapping[str, Any]) -> CaseData:
    """The operands that `write_case` wrote."""
    folder = Path(described["folder"])
    inputs = {
        name: np.fromfile(folder / file, numpy_dtype(dtype)).reshape(shape)
        for name, (file, dtype, shape) in described["inputs"].items()
    }
    samples = {
        name: OutputSample(np.fromfile(folder / f, np.int64), np.fromfile(folder / v, numpy_dtype(dtype)), tolerance)
        for name, (f, v, dtype, tolerance) in described["samples"].items()
    }
    return CaseData(inputs, samples)
