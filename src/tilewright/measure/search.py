"""Measured search for the best program: random programs first, then mutations of the fastest.

Nothing of what constructors answer goes in. Half of what is measured is drawn at random, the other half are those of
many drawn that the cost model likes best, so that few measurements are wasted; the model alone decides nothing.
Programs with equal loops are measured once, and count once.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol, TypeVar

import numpy as np

from tilewright.errors import ScheduleError
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.measurer import Candidate, Failure, Measurement, Measurer
from tilewright.optimize.task import Task
from tilewright.schedule.schedule import Schedule

RANDOM_FRACTION = 0.35
"""Fraction of the budget that is spent on random programs."""

BATCH, DRAWS_PER_BATCH, PARENTS = 48, 384, 12
"""Programs per batch of measurements; draws per batch; programs that are mutated."""

MAX_EMPTY_DRAWS = 20
"""Draws without a new program after which the space counts as exhausted."""

Program = TypeVar("Program")


class ProgramSpace(Protocol[Program]):
    """The programs of a task that a search chooses from."""

    @property
    def task(self) -> Task:
        """The kernel, in canonical form."""
        ...

    def random(self, count: int, rng: np.random.Generator) -> list[Program]:
        """Random programs."""
        ...

    def mutate(self, parent: Program, rng: np.random.Generator) -> Program:
        """A program that differs a little from another one."""
        ...

    def key(self, program: Program) -> str:
        """A text that is equal for equal programs alone."""
        ...

    def predicted_times(self, programs: Sequence[Program]) -> list[float]:
        """Nanoseconds by the cost model."""
        ...

    def schedule(self, program: Program) -> Schedule:
        """The program's loops; raises ScheduleError where a step of it is not legal."""
        ...

    def encode(self, program: Program) -> dict[str, Any]:
        """A program as JSON values."""
        ...

    def decode(self, entry: dict[str, Any]) -> Program:
        """The program of `encode`'s values, among others."""
        ...


@dataclass(slots=True)
class SearchStatus:
    """The status of a search.

    Attributes:
        is_finished: whether the budget or the space is exhausted.
        is_exhausted: whether the space has no further program.
    """

    is_finished: bool = False
    is_exhausted: bool = False


def search(
    space: ProgramSpace[Program],
    log: SearchLog,
    budget: int,
    deadline: float,
    measurer: Measurer,
    tell: Callable[[str], None] = lambda line: None,
) -> SearchStatus:
    """Measures programs until the log holds `budget` times, nothing new is found, or the time has come.

    Args:
        space: the programs of the kernel.
        log: what was measured so far; grows.
        budget: how many programs are measured in all.
        deadline: on the monotonic clock.
        measurer: times programs.
        tell: called with a line about every batch, and about every program that fails.
    """
    while (left := budget - len(timed_entries(log))) > 0:
        if time.monotonic() > deadline:
            return SearchStatus()
        rng = np.random.default_rng([len(log.entries), budget])
        batch = propose(space, log, budget, rng)[:left]
        if not batch:
            return SearchStatus(True, True)
        start = time.perf_counter()
        _measure_batch(space, log, batch, measurer, tell)
        count, seconds = len(timed_entries(log)), time.perf_counter() - start
        tell(f"{count} programs; {len(batch)} measured in {seconds:.1f} s")
    return SearchStatus(True)


def _measure_batch(
    space: ProgramSpace[Program],
    log: SearchLog,
    batch: Sequence[Program],
    measurer: Measurer,
    tell: Callable[[str], None],
) -> None:
    """Measures the programs of a batch whose loops are new, in turns with the fastest one known."""
    start = time.perf_counter()
    seen = {e["digest"] for e in log.entries if "digest" in e}
    fresh: dict[str, Candidate] = {}
    digests: list[str | None] = []
    for program in batch:
        schedule = _schedule_or_none(space, program)
        digest = None if schedule is None else sha256(schedule.show().encode()).hexdigest()[:16]
        digests.append(digest)
        if schedule is not None and digest is not None and digest not in seen and digest not in fresh:
            fresh[digest] = Candidate(schedule.trace)
    measured = dict(zip(fresh, _measure(space, log, list(fresh.values()), measurer), strict=True))
    seconds = round((time.perf_counter() - start) / len(batch), 4)
    for program, digest in zip(batch, digests, strict=True):
        entry: dict[str, Any] = {"key": space.key(program), **space.encode(program), "ns": None, "seconds": seconds}
        if digest is not None:
            entry["digest"] = digest
            # the first of equal programs has the time
            measurement = measured.pop(digest, None)
            if measurement is not None:
                entry["ns"] = measurement.nanoseconds
                if isinstance(measurement.result, Failure):
                    entry["failure"] = str(measurement.result)
                    tell(f"{entry['key']}: {measurement.result}")
        log.append(entry)


def _measure(
    space: ProgramSpace[Program], log: SearchLog, candidates: list[Candidate], measurer: Measurer
) -> list[Measurement]:
    """Measures candidates in turns with the fastest program of the log, or with the first of them that runs."""
    best = fastest_programs(space, log, 1)
    incumbent = Candidate(space.schedule(best[0]).trace) if best else None
    measured: list[Measurement] = []
    while incumbent is None and len(measured) < len(candidates):
        measured += measurer.measure(space.task, [candidates[len(measured)]])
        incumbent = None if measured[-1].nanoseconds is None else measured[-1].candidate
    rest = candidates[len(measured) :]
    return [*measured, *measurer.measure(space.task, rest, incumbent)] if rest else measured


def _schedule_or_none(space: ProgramSpace[Program], program: Program) -> Schedule | None:
    try:
        return space.schedule(program)
    except ScheduleError:
        return None


def propose(space: ProgramSpace[Program], log: SearchLog, budget: int, rng: np.random.Generator) -> list[Program]:
    """The next programs, none of which was tried before; empty if none is left."""
    tried = {e["key"] for e in log.entries}
    parents = [] if len(timed_entries(log)) < RANDOM_FRACTION * budget else fastest_programs(space, log, PARENTS)
    for attempt in range(MAX_EMPTY_DRAWS):
        # where the descendants of the fastest are all known, what is left are random programs
        if parents and attempt < MAX_EMPTY_DRAWS // 2:
            drawn = [space.mutate(parents[int(rng.integers(len(parents)))], rng) for _ in range(DRAWS_PER_BATCH)]
        else:
            drawn = space.random(DRAWS_PER_BATCH, rng)
        fresh = {space.key(p): p for p in drawn}
        untried = [p for key, p in fresh.items() if key not in tried]
        if untried:
            order = [int(k) for k in np.argsort(space.predicted_times(untried), kind="stable")]
            liked, others = order[: BATCH // 2], order[BATCH // 2 :]
            more = [others[int(k)] for k in rng.permutation(len(others))[: BATCH - len(liked)]]
            return [untried[k] for k in (*liked, *more)]
    return []


def timed_entries(log: SearchLog) -> list[dict[str, Any]]:
    """The entries of a log that were timed."""
    return [e for e in log.entries if e["ns"]]


def fastest_programs(space: ProgramSpace[Program], log: SearchLog, count: int) -> list[Program]:
    """The programs of the log that ran fastest, the best one first."""
    return [space.decode(e) for e in sorted(timed_entries(log), key=lambda e: e["ns"])[:count]]
