"""Constructed programs and the best ones that a search found, run against each other on one thread.

One thread, because two share caches and clocks with whatever else the machine does; what threads gain is measured with
whole operators (`benchmarks.operators`).
"""

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.common.statistics import spread
from benchmarks.paper_gensor.clock import BLOCKS, Clock
from benchmarks.paper_gensor.search import fastest, stale
from benchmarks.paper_gensor.space import Programs
from benchmarks.paper_gensor.store import Log
from tilewright.errors import ScheduleError
from tilewright.loops.ir import Func
from tilewright.loops.printer import show
from tilewright.optimize.construct.gensor import Annealing, Reading
from tilewright.optimize.construct.optimizer import Gensor, Roller
from tilewright.tile.program import TileProgram

FINALISTS = 4
"""Of the search's programs: a single glance may have flattered the first."""


def duel(programs: Programs, log: Log, blocks: int = BLOCKS) -> dict[str, Any]:
    """Times of every entrant; those that have the same program are measured once.

    Returns:
        Per entrant "ns" (the median of the blocks), "spread", "predicted" and "program"; "best" is the fastest finalist
        of the search, where there was one, with the number of programs that the search "tried".
    """
    entrants = constructed(programs)
    if log.entries and not stale(programs, log):
        entrants |= {f"found{k}": c.program for k, c in enumerate(fastest(programs, log, FINALISTS))}
    funcs: dict[str, Func] = {}
    same: dict[str, str] = {}
    by_text: dict[str, str] = {}
    for name, program in entrants.items():
        try:
            func = programs.func(program)
        except ScheduleError:
            continue
        same[name] = by_text.setdefault(show(func), name)
        funcs.setdefault(same[name], func)
    times = Clock(funcs).in_turns(blocks)
    found = {n: result(programs, entrants[n], times[same[n]]) for n in same}
    finalists = [n for n in found if n.startswith("found")]
    if finalists:
        best = min(finalists, key=lambda n: found[n]["ns"])
        found["best"] = {**found[best], "tried": len(log.entries)}
    return {n: r for n, r in found.items() if n not in finalists}


def constructed(programs: Programs) -> dict[str, TileProgram]:
    """What each way of construction answers."""
    machine = programs.machine
    ways = {
        "gensor": Gensor(machine), "printed": Gensor(machine, Annealing(reading=Reading.PRINTED)),
        "without vthreads": Gensor(machine, Annealing(vthreads=False)), "roller": Roller(machine),
    }  # fmt: skip
    found: dict[str, TileProgram] = {}
    for name, way in ways.items():
        answer = way.construct(programs.task)
        first = next((p for p in answer.programs if isinstance(p, TileProgram)), None) if answer else None
        if first is not None:
            found[name] = first
    return found


def result(programs: Programs, program: TileProgram, blocks: list[float]) -> dict[str, Any]:
    """What is kept of one entrant."""
    predicted = float(programs.predicted_program(program))
    return {"ns": median(blocks), "spread": spread(blocks), "predicted": predicted, "program": str(program)}


def speed(found: Mapping[str, Any], name: str, over: str) -> float | None:
    """How many times as fast one entrant is as another; None where one is missing."""
    if name not in found or over not in found:
        return None
    return found[over]["ns"] / found[name]["ns"]


def shares(roller: float, without: float, gensor: float) -> tuple[float, float]:
    """Of the gain of Gensor over Roller in all, the parts of the graph and of virtual threads (Gensor, Table VI).

    Args:
        roller, without, gensor: speeds; the gains are differences, as in the paper.

    Raises:
        ValueError: there is no gain.
    """
    gain = gensor - roller
    if gain == 0:
        raise ValueError("there is no gain to be divided")
    return (without - roller) / gain, (gensor - without) / gain
