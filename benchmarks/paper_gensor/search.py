"""The best program that measuring finds: random programs first, then descendants of the fastest.

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

from benchmarks.paper_gensor.clock import Clock, Data
from benchmarks.paper_gensor.space import Candidate, Programs, fingerprint
from benchmarks.paper_gensor.store import Log
from benchmarks.paper_gensor.workers import Done

RANDOM_PART = 0.35
"""The part of the budget that is spent on random programs."""

BATCH, DRAWN, PARENTS = 48, 384, 12
"""Programs that are compiled together; drawn for a batch; that have descendants."""

TRIES = 20
"""Draws without a new program after which there are taken to be no more."""


class Compiler(Protocol):
    """What makes code of candidates, see `workers.Workers`."""

    def compile(
        self, candidates: Sequence[Candidate], checked: Sequence[bool], known: frozenset[str]
    ) -> list[Done]: ...


@dataclass(slots=True)
class Progress:
    """What a search has done.

    Attributes:
        finished: whether the budget is used up, or the space.
        all: whether no further program was found.
    """

    finished: bool = False
    all: bool = False


def search(programs: Programs, log: Log, budget: int, deadline: float, compiler: Compiler) -> Progress:
    """Measures programs until the log holds `budget` times, nothing new is found, or the time has come.

    Args:
        programs: of the kernel.
        log: what was measured so far; grows.
        budget: how many programs are measured in all.
        deadline: on the monotonic clock.
        compiler: makes code; idle while programs are measured.
    """
    data = Data()
    while (left := budget - len(timed(log))) > 0:
        if time.monotonic() > deadline:
            return Progress()
        rng = np.random.default_rng([len(log.entries), budget])
        batch = proposed(programs, log, budget, rng)[:left]
        if not batch:
            return Progress(True, True)
        forms = {e["form"] for e in log.entries}
        checked = [programs.form(c) not in forms and all(programs.form(c) != programs.form(b) for b in batch[:k])
                   for k, c in enumerate(batch)]  # fmt: skip
        known = frozenset(e["digest"] for e in log.entries if "digest" in e)
        start = time.perf_counter()
        done = compiler.compile(batch, checked, known)
        between = time.perf_counter()
        _measure(programs, log, batch, done, data, (between - start) / len(batch))
        end = time.perf_counter()
        print(f"{len(timed(log))} programs; {len(batch)} compiled in {between - start:.1f} s, "
              f"measured in {end - between:.1f} s", file=sys.stderr, flush=True)  # fmt: skip
    return Progress(True)


def _measure(
    programs: Programs, log: Log, batch: Sequence[Candidate], done: Sequence[Done], data: Data, compiling: float
) -> None:
    """A glance at every program of a batch that is new; `compiling` is what came before in seconds, per program."""
    clocks = {n: c for d in done if d.code is not None for c in [Clock(d.code, data)] for n in c.names}
    digests = dict(chain.from_iterable(d.digests.items() for d in done))
    for name, error in chain.from_iterable(d.errors.items() for d in done):
        print(f"{programs.key(batch[int(name[1:])])} is no legal program: {error}", file=sys.stderr)
    seen = {e["digest"] for e in log.entries if "digest" in e}
    best = min((e["ns"] for e in timed(log)), default=float("inf"))
    for k, c in enumerate(batch):
        name, found = f"p{k}", {**entry(programs, c), "seconds": round(compiling, 4)}
        digest = digests.get(name)
        start = time.perf_counter()
        if digest is None:
            log.add({**found, "ns": None})
        elif digest in seen or name not in clocks:
            log.add({**found, "ns": None, "digest": digest})
        else:
            seen.add(digest)
            ns = clocks[name].glance(name, best)
            best = min(best, ns)
            seconds = round(compiling + time.perf_counter() - start, 4)
            log.add({**found, "ns": ns, "digest": digest, "seconds": seconds})


def proposed(programs: Programs, log: Log, budget: int, rng: np.random.Generator) -> list[Candidate]:
    """The next programs: none that was tried before; empty where no other ones are found."""
    tried = {e["key"] for e in log.entries}
    parents = [] if len(timed(log)) < RANDOM_PART * budget else fastest(log, PARENTS)
    for attempt in range(TRIES):
        # where the descendants of the fastest are all known, what is left are random programs
        if parents and attempt < TRIES // 2:
            drawn = [programs.changed(parents[int(rng.integers(len(parents)))], rng) for _ in range(DRAWN)]
        else:
            drawn = programs.random(DRAWN, rng)
        fresh = {programs.key(c): c for c in drawn}
        found = [c for key, c in fresh.items() if key not in tried]
        if found:
            order = [int(k) for k in np.argsort(programs.predicted(found), kind="stable")]
            liked, others = order[: BATCH // 2], order[BATCH // 2 :]
            more = [others[int(k)] for k in rng.permutation(len(others))[: BATCH - len(liked)]]
            return [found[k] for k in (*liked, *more)]
    return []


def timed(log: Log) -> list[dict[str, Any]]:
    """The programs of a log that ran."""
    return [e for e in log.entries if e["ns"]]


def fastest(log: Log, count: int) -> list[Candidate]:
    """The programs of the log that ran fastest, the best one first."""
    return [candidate(e) for e in sorted(timed(log), key=lambda e: e["ns"])[:count]]


def entry(programs: Programs, c: Candidate) -> dict[str, Any]:
    """A program as JSON values."""
    return {"key": programs.key(c), "form": programs.form(c), "family": c.family, "genes": list(c.genes)}


def candidate(e: dict[str, Any]) -> Candidate:
    """The program of an entry."""
    return Candidate(e["family"], tuple(e["genes"]))


def current(programs: Programs, log: Log) -> Log:
    """The log, emptied where it is of another space or of other code: an older version wrote it."""
    made = fingerprint(programs)
    if log.made != made:
        log.clear(made)
    return log
