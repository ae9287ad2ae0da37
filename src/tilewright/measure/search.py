"""Runs of a search of one task: batches that are measured one after the other, and a log that a later run goes on with.

The search (`optimize/search`) says what is measured next; every measurement is in the log before the next batch, and a
run that begins with a log tells the search what it holds.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.measure.build import decode_candidate, encode_candidate
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.measurer import Candidate, Failure, FailureKind, Measurement, Measurer, Timing
from tilewright.optimize.search.interface import Search
from tilewright.optimize.task import Task

BATCH = 48
"""Programs per batch of measurements."""


@dataclass(slots=True)
class SearchStatus:
    """The status of a search.

    Attributes:
        is_finished: whether the budget or the space is exhausted.
        is_exhausted: whether the space has no further program.
    """

    is_finished: bool = False
    is_exhausted: bool = False


def run_search(
    search: Search,
    task: Task,
    log: SearchLog,
    budget: int,
    deadline: float,
    measurer: Measurer,
    tell: Callable[[str], None] = lambda line: None,
) -> SearchStatus:
    """Measures programs until the log holds `budget` times, nothing new is found, or the time has come.

    Args:
        search: of the task; it is told what the log holds.
        task: the kernel, in canonical form.
        log: what was measured so far; grows.
        budget: how many programs are measured in all.
        deadline: on the monotonic clock.
        measurer: times programs.
        tell: called with a line about every batch, and about every program that fails.
    """
    search.tell([_logged_measurement(e) for e in log.entries])
    while (left := budget - len(timed_entries(log))) > 0:
        if time.monotonic() > deadline:
            return SearchStatus()
        batch = search.ask(BATCH)[:left]
        if not batch:
            return SearchStatus(True, True)
        start = time.perf_counter()
        measurements = _measure(task, log, batch, measurer)
        seconds = time.perf_counter() - start
        for m in measurements:
            _append(log, m, round(seconds / len(batch), 4))
            if isinstance(m.result, Failure):
                tell(f"{m.result}")
        search.tell(measurements)
        tell(f"{len(timed_entries(log))} programs; {len(batch)} measured in {seconds:.1f} s")
    return SearchStatus(True)


def _append(log: SearchLog, measurement: Measurement, seconds: float) -> None:
    entry: dict[str, Any] = {
        "trace": encode_candidate(measurement.candidate),
        "ns": measurement.nanoseconds,
        "seconds": seconds,
    }
    if isinstance(measurement.result, Failure):
        entry["failure"] = [str(measurement.result.kind), measurement.result.message]
    log.append(entry)


def _logged_measurement(entry: dict[str, Any]) -> Measurement:
    """What an entry of a log says of a candidate."""
    candidate = decode_candidate(entry["trace"])
    if entry["ns"]:
        return Measurement(candidate, Timing(entry["ns"], 0.0, entry["ns"], 1, 1, 0.0, False))
    kind, message = entry["failure"]
    return Measurement(candidate, Failure(FailureKind(kind), message))


def _measure(task: Task, log: SearchLog, candidates: Sequence[Candidate], measurer: Measurer) -> list[Measurement]:
    """Measures candidates in turns with the fastest program of the log, or with the first of them that runs."""
    best = fastest_programs(log, 1)
    incumbent = best[0] if best else None
    measured: list[Measurement] = []
    while incumbent is None and len(measured) < len(candidates):
        measured += measurer.measure(task, [candidates[len(measured)]])
        incumbent = None if measured[-1].nanoseconds is None else measured[-1].candidate
    rest = candidates[len(measured) :]
    return [*measured, *measurer.measure(task, rest, incumbent)] if rest else measured


def timed_entries(log: SearchLog) -> list[dict[str, Any]]:
    """The entries of a log that were timed."""
    return [e for e in log.entries if e["ns"]]


def fastest_programs(log: SearchLog, count: int) -> list[Candidate]:
    """The programs of the log that ran fastest, the best one first."""
    return [decode_candidate(e["trace"]) for e in sorted(timed_entries(log), key=lambda e: e["ns"])[:count]]
