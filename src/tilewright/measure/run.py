"""Checking and timing of a built candidate in this process; `isolation.py` runs it where a crash does no harm."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.measure.build import BuiltCandidate
from tilewright.measure.case_operands import CaseData, case_operands
from tilewright.measure.incumbent import PreparedIncumbent
from tilewright.measure.interleaved_blocks import CANARY, BlockTimes, RunPlan, TimedBlock, run_in_turns, times_of
from tilewright.measure.linked_candidate import Array, BoundCandidate, CheckedCall, LinkedCandidate
from tilewright.measure.operand_data import relative_errors
from tilewright.measure.system_load import SystemLoad
from tilewright.measure.timing import time_block, time_calls

CANDIDATE, INCUMBENT = "candidate", "incumbent"

CANARY_SIZE = 160
"""Rows and columns of the canary's matrices, float32: about 0.1 ms on one core."""

FIRST_CALL_FACTOR, MIN_FIRST_CALL_SECONDS = 6.0, 0.02
"""A candidate is given up whose checked call, with cold caches and threads that are started for it, and the call after
it both take more than so many times `max_ratio` times as long as the incumbent, and more than so many seconds."""

MIN_UNDISTURBED = 2
"""Blocks that count without which a timing of several blocks is not reliable: a single one has no spread, which would
make a lucky one win."""

LEAST_GAIN = 0.01
"""Part of the incumbent's time by which a program has to be faster to be of interest."""

MAX_OTHER_LOAD = 0.2
"""Share of the processors that others may take of those that a candidate's threads need."""

MIN_LOAD_SECONDS = 0.05
"""Shortest time of which the load is known, as the system counts it in hundredths of a second."""


class WrongAnswerError(Exception):
    """Results differ from the reference; says which element and by how much."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a candidate runs.

    Attributes:
        threads: threads per call.
        plan: blocks of calls.
        max_ratio: a candidate that takes so many times the incumbent's time in its first block is given up; see
            `is_decided`.
    """

    threads: int
    plan: RunPlan
    max_ratio: float


def check_and_time(
    candidate: BuiltCandidate, incumbent: PreparedIncumbent | None, cases: Sequence[CaseData], options: RunOptions
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
    linked = LinkedCandidate(candidate, options.threads)
    bound: dict[str, BoundCandidate] = {}
    operands: dict[str, Array] = {}
    first = CheckedCall({}, 0.0)
    for k, data in enumerate(cases):
        operands = case_operands(candidate, k, data)
        bound[CANDIDATE] = linked.bind(k, operands)
        first = bound[CANDIDATE].checked_call()
        _compare_samples(first.results, data)
    if incumbent is not None:
        bound[INCUMBENT] = incumbent.bind(len(cases) - 1, operands)
        _compare_in_full(first.results, incumbent.results, cases[-1])
        limit = max(MIN_FIRST_CALL_SECONDS, FIRST_CALL_FACTOR * options.max_ratio * incumbent.seconds)
        if first.seconds > limit:
            again = time_calls(bound[CANDIDATE].call, 1)
            if min(again) > limit:
                seconds = min(first.seconds, *again)
                return _timing(BlockTimes(seconds, 0.0, seconds, 2, 0, 0), start, options.threads, incumbent.seconds)
    return _time_in_turns(bound, start, options)


def _time_in_turns(bound: Mapping[str, BoundCandidate], start: SystemLoad, options: RunOptions) -> dict[str, Any]:
    calls = {name: b.call for name, b in bound.items()}
    matrix = np.random.default_rng(0).standard_normal((CANARY_SIZE, CANARY_SIZE), np.float32)
    calls[CANARY] = lambda: matrix @ matrix
    blocks = run_in_turns(
        tuple(bound),
        lambda name, seconds: time_block(calls[name], seconds),
        options.plan,
        is_decided=lambda done: INCUMBENT in bound and is_decided(done, options),
    )
    incumbent = times_of(INCUMBENT, blocks).median if INCUMBENT in bound else None
    return _timing(times_of(CANDIDATE, blocks), start, options.threads, incumbent)


def is_decided(blocks: Sequence[TimedBlock], options: RunOptions) -> bool:
    """Whether blocks of complete rounds show that the candidate does not win, so that it needs no further ones.

    It does not where the fastest call of all of its blocks is slower than the incumbent's median by more than a part of
    it, which is `max_ratio - 1` after one block that counts and shrinks with the square of their number. After the
    planned rounds it is enough that its median is not below the incumbent's by `LEAST_GAIN`: more rounds are for those
    that may win. Medians are those that are reported (`times_of`), so that what ends early is no win; without blocks of
    both that count nothing is decided.
    """
    own, other = (times_of(n, blocks) for n in (CANDIDATE, INCUMBENT))
    if not (own.undisturbed and other.undisturbed):
        return False
    if own.blocks >= options.plan.rounds and own.median >= (1.0 - LEAST_GAIN) * other.median:
        return True
    # a disturbance makes calls longer, so a fast one is a fact beside a slow canary, too; one of a faster state than
    # the typical one only spares a candidate
    fastest = min(min(b.calls) for b in blocks if b.name == CANDIDATE)
    return fastest > (1.0 + (options.max_ratio - 1.0) / own.undisturbed**2) * other.median


def _timing(times: BlockTimes, start: SystemLoad, threads: int, incumbent: float | None) -> dict[str, Any]:
    seconds = SystemLoad.now().elapsed - start.elapsed
    others = min(1.0, start.others_since()) if seconds >= MIN_LOAD_SECONDS else 0.0
    needed = min(1.0, threads / (os.cpu_count() or 1))
    is_contended = others > 1.0 - needed + MAX_OTHER_LOAD
    return {
        "nanoseconds": times.median * 1e9, "spread": times.spread, "fastest": times.fastest * 1e9,
        "blocks": times.blocks, "undisturbed": times.undisturbed, "others": others,
        "is_disturbed": is_contended or times.undisturbed < min(MIN_UNDISTURBED, times.blocks),
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
