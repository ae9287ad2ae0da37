"""The best program that measuring finds: random programs first, then descendants of the fastest.

Nothing of what the constructors answer goes in. Half of what is measured is drawn at random, the other half are those
of many drawn that the cost model likes best, so that few measurements are wasted; the model alone decides nothing.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.paper_gensor.clock import Clock
from benchmarks.paper_gensor.space import Candidate, Programs
from benchmarks.paper_gensor.store import Log
from tilewright.errors import ScheduleError
from tilewright.loops.ir import Func
from tilewright.tile.program import TileProgram

RANDOM_PART = 0.35
"""The part of the budget that is spent on random programs."""

BATCH, DRAWN, PARENTS = 6, 96, 12
"""Programs that are compiled together; drawn for a batch; that have descendants."""


def search(programs: Programs, log: Log, budget: int, deadline: float) -> bool:
    """Measures programs until the log holds `budget` of them or the time has come.

    Args:
        programs: of the kernel.
        log: what was measured so far; grows.
        budget: how many programs are measured in all.
        deadline: on the monotonic clock.

    Returns:
        Whether the budget is used up.
    """
    while len(log.entries) < budget:
        if time.monotonic() > deadline:
            return False
        rng = np.random.default_rng([len(log.entries), budget])
        batch = proposed(programs, log, budget, rng)
        funcs: dict[str, Func] = {}
        known: dict[str, Candidate] = {}
        for k, c in enumerate(batch):
            try:
                funcs[f"p{k}"] = programs.func(c.program)
                known[f"p{k}"] = c
            except ScheduleError:
                log.add({**entry(c), "ns": None})
        clock = Clock(funcs) if funcs else None
        best = min((e["ns"] for e in log.entries if e["ns"]), default=float("inf"))
        for name, c in known.items():
            assert clock is not None
            ns = clock.glance(name, best)
            best = min(best, ns)
            log.add({**entry(c), "ns": ns})
    return True


def proposed(programs: Programs, log: Log, budget: int, rng: np.random.Generator) -> list[Candidate]:
    """The next programs to be measured: none that was measured before."""
    tried = {(e["key"]) for e in log.entries}
    if len(log.entries) < RANDOM_PART * budget:
        drawn = programs.random(DRAWN, rng)
    else:
        parents = fastest(programs, log, PARENTS)
        drawn = [programs.changed(parents[int(rng.integers(len(parents)))], rng) for _ in range(DRAWN)]
    fresh = {c.key: c for c in drawn if c.key not in tried}
    found = list(fresh.values()) or programs.random(BATCH, rng)
    order = np.argsort(programs.predicted(found))
    liked = [found[int(k)] for k in order[: BATCH // 2]]
    others = [c for c in found if c not in liked]
    return liked + [others[int(k)] for k in rng.permutation(len(others))[: BATCH - len(liked)]]


def fastest(programs: Programs, log: Log, count: int) -> list[Candidate]:
    """The programs of the log that ran fastest, the best one first."""
    timed = sorted((e for e in log.entries if e["ns"]), key=lambda e: e["ns"])
    return [candidate(programs, e) for e in timed[:count]]


def entry(c: Candidate) -> dict[str, Any]:
    """A program as JSON values."""
    return {"key": c.key, "space": c.space, "form": c.form, "sizes": [list(level) for level in c.program.sizes]}


def candidate(programs: Programs, e: dict[str, Any]) -> Candidate:
    """The program of an entry."""
    space, forms = programs.spaces[e["space"]]
    sizes: Sequence[Sequence[int]] = e["sizes"]
    chains = [tuple(level[k] for level in sizes) for k in range(len(space.ladders))]
    state = tuple(ladder.number(chain) for ladder, chain in zip(space.ladders, chains, strict=True))  # type: ignore
    program = TileProgram(space.problem, forms[e["form"]], tuple(tuple(level) for level in sizes))
    return Candidate(e["space"], e["form"], state, program)


def stale(programs: Programs, log: Log) -> bool:
    """Whether a log is of another space: an older version of the constructors wrote it."""
    for e in log.entries:
        if e["space"] >= len(programs.spaces) or e["form"] >= len(programs.spaces[e["space"]][1]):
            return True
        if candidate(programs, e).key != e["key"]:
            return True
    return False
