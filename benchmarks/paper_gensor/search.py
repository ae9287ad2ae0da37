"""Measured search for the best program: random programs first, then mutations of the fastest.

Nothing of what the constructors answer goes in. Half of what is measured is drawn at random, the other half are those
of many drawn that the cost model likes best, so that few measurements are wasted; the model alone decides nothing.
Programs with equal loops are measured once, and count once.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np

from benchmarks.paper_gensor.program_space import Candidate, ProgramSpace, fingerprint
from benchmarks.paper_gensor.store import SearchLog
from benchmarks.paper_gensor.timer import FunctionTimer, SharedOperands
from benchmarks.paper_gensor.workers import CompileResult

RANDOM_FRACTION = 0.35
"""Fraction of the budget that is spent on random programs."""

BATCH, DRAWS_PER_BATCH, PARENTS = 48, 384, 12
"""Programs per compilation; draws per batch; programs that are mutated."""

MAX_EMPTY_DRAWS = 20
"""Draws without a new program after which the space counts as exhausted."""


class Compiler(Protocol):
    """What makes code of candidates, see `workers.CompileWorkers`."""

    def compile(
        self, candidates: Sequence[Candidate], checked: Sequence[bool], known_digests: frozenset[str]
    ) -> list[CompileResult]: ...


@dataclass(slots=True)
class SearchStatus:
    """The status of a search.

    Attributes:
        finished: whether the budget is used up, or the space.
        all: whether no further program was found.
    """

    is_finished: bool = False
    is_exhausted: bool = False


def search(programs: ProgramSpace, log: SearchLog, budget: int, deadline: float, compiler: Compiler) -> SearchStatus:
    """Measures programs until the log holds `budget` times, nothing new is found, or the time has come.

    Args:
        programs: of the kernel.
        log: what was measured so far; grows.
        budget: how many programs are measured in all.
        deadline: on the monotonic clock.
        compiler: makes code; idle while programs are measured.
    """
    data = SharedOperands()
    while (left := budget - len(timed_entries(log))) > 0:
        if time.monotonic() > deadline:
            return SearchStatus()
        rng = np.random.default_rng([len(log.entries), budget])
        batch = propose(programs, log, budget, rng)[:left]
        if not batch:
            return SearchStatus(True, True)
        forms = {e["form"] for e in log.entries}
        checked = [programs.sketch_name(c) not in forms
                   and all(programs.sketch_name(c) != programs.sketch_name(b) for b in batch[:k])
                   for k, c in enumerate(batch)]  # fmt: skip
        known = frozenset(e["digest"] for e in log.entries if "digest" in e)
        start = time.perf_counter()
        done = compiler.compile(batch, checked, known)
        between = time.perf_counter()
        _measure_batch(programs, log, batch, done, data, (between - start) / len(batch))
        end = time.perf_counter()
        print(f"{len(timed_entries(log))} programs; {len(batch)} compiled in {between - start:.1f} s, "
              f"measured in {end - between:.1f} s", file=sys.stderr, flush=True)  # fmt: skip
    return SearchStatus(True)


def _measure_batch(
    programs: ProgramSpace,
    log: SearchLog,
    batch: Sequence[Candidate],
    results: Sequence[CompileResult],
    data: SharedOperands,
    compiling: float,
) -> None:
    """A glance at every program of a batch that is new; `compiling` is what came before in seconds, per program."""
    clocks = {n: c for d in results if d.code is not None for c in [FunctionTimer(d.code, data)] for n in c.names}
    digests = dict(chain.from_iterable(d.digests.items() for d in results))
    for name, error in chain.from_iterable(d.errors.items() for d in results):
        print(f"{programs.key(batch[int(name[1:])])} is no legal program: {error}", file=sys.stderr)
    seen = {e["digest"] for e in log.entries if "digest" in e}
    best = min((e["ns"] for e in timed_entries(log)), default=float("inf"))
    for k, c in enumerate(batch):
        name, record = f"p{k}", {**to_entry(programs, c), "seconds": round(compiling, 4)}
        digest = digests.get(name)
        start = time.perf_counter()
        if digest is None:
            log.append({**record, "ns": None})
        elif digest in seen or name not in clocks:
            log.append({**record, "ns": None, "digest": digest})
        else:
            seen.add(digest)
            ns = clocks[name].time_quickly(name, best)
            best = min(best, ns)
            seconds = round(compiling + time.perf_counter() - start, 4)
            log.append({**record, "ns": ns, "digest": digest, "seconds": seconds})


def propose(programs: ProgramSpace, log: SearchLog, budget: int, rng: np.random.Generator) -> list[Candidate]:
    """The next programs, none of which was tried before; empty if none is left."""
    tried = {e["key"] for e in log.entries}
    parents = [] if len(timed_entries(log)) < RANDOM_FRACTION * budget else fastest_candidates(log, PARENTS)
    for attempt in range(MAX_EMPTY_DRAWS):
        # where the descendants of the fastest are all known, what is left are random programs
        if parents and attempt < MAX_EMPTY_DRAWS // 2:
            drawn = [programs.mutate(parents[int(rng.integers(len(parents)))], rng) for _ in range(DRAWS_PER_BATCH)]
        else:
            drawn = programs.random(DRAWS_PER_BATCH, rng)
        fresh = {programs.key(c): c for c in drawn}
        untried = [c for key, c in fresh.items() if key not in tried]
        if untried:
            order = [int(k) for k in np.argsort(programs.predicted_times(untried), kind="stable")]
            liked, others = order[: BATCH // 2], order[BATCH // 2 :]
            more = [others[int(k)] for k in rng.permutation(len(others))[: BATCH - len(liked)]]
            return [untried[k] for k in (*liked, *more)]
    return []


def timed_entries(log: SearchLog) -> list[dict[str, Any]]:
    """The entries of a log that were timed."""
    return [e for e in log.entries if e["ns"]]


def fastest_candidates(log: SearchLog, count: int) -> list[Candidate]:
    """The programs of the log that ran fastest, the best one first."""
    return [from_entry(e) for e in sorted(timed_entries(log), key=lambda e: e["ns"])[:count]]


def to_entry(programs: ProgramSpace, c: Candidate) -> dict[str, Any]:
    """A program as JSON values."""
    return {"key": programs.key(c), "form": programs.sketch_name(c), "family": c.family, "genes": list(c.genes)}


def from_entry(e: dict[str, Any]) -> Candidate:
    """The program of an entry."""
    return Candidate(e["family"], tuple(e["genes"]))


def current_log(programs: ProgramSpace, log: SearchLog) -> SearchLog:
    """The log, emptied where it is of another space or of other code: an older version wrote it."""
    current = fingerprint(programs)
    if log.fingerprint != current:
        log.clear(current)
    return log
