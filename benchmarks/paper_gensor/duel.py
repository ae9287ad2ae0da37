"""Constructed programs, the plain rule's, and the best ones that a search found, run against each other on one thread.

One thread, because two share caches and clocks with whatever else the machine does; what threads gain is measured with
whole operators (`benchmarks.operators`).
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.statistics import spread
from benchmarks.paper_gensor.clock import BLOCKS, Clock
from benchmarks.paper_gensor.search import fastest, timed
from benchmarks.paper_gensor.space import Programs, predicted_program
from benchmarks.paper_gensor.store import Log
from tilewright.driver.offline import Split, evaluate_packed
from tilewright.errors import ScheduleError, VerifyError
from tilewright.loops.printer import show
from tilewright.loops.verify import verify
from tilewright.optimize.construct.chains import lower_chain
from tilewright.optimize.construct.gensor import Annealing, Reading
from tilewright.optimize.construct.lowering import Program
from tilewright.optimize.construct.optimizer import Gensor, Roller
from tilewright.optimize.rule import Rule
from tilewright.schedule.trace import Schedule
from tilewright.tile.chain import ChainProgram
from tilewright.tile.lower import lower

FINALISTS = 6
"""Of the search's programs: a single glance may have flattered the first."""

TOLERANCE = 1e-4
"""By how much results may differ, as a part of the largest: sums in another order."""

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Entrant:
    """What takes part.

    Attributes:
        text: of its program.
        predicted: nanoseconds by the cost model, None where it does not know the program.
        split: what runs, and what is packed before.
    """

    text: str
    predicted: float | None
    split: Split


def duel(programs: Programs, log: Log, blocks: int = BLOCKS) -> dict[str, Any]:
    """Times of every entrant; those that have the same loops are measured once.

    All loops are verified, and all results compared on random data, before anything is measured. Finalists whose loops
    are refused do not take part.

    Returns:
        Per entrant "ns" (the median of the blocks), "low" (the fastest block), "spread", "predicted" and "program";
        "best" is the finalist of the search, where there was one, with the least median, and the least "low" of all
        finalists, and the number of programs that the search "tried".

    Raises:
        VerifyError: loops that were constructed are wrong.
        ValueError: results differ.
    """
    entrants = {n: e for n, e in (constructed(programs) | finalists(programs, log)).items() if _legal(n, e)}
    first: dict[str, str] = {}
    same = {name: first.setdefault(show(e.split.func), name) for name, e in entrants.items()}
    running = {n: entrants[n].split for n in dict.fromkeys(same.values())}
    clock = Clock({n: s.func for n, s in running.items()})
    check_results(programs, running, clock)
    times = clock.in_turns(blocks)
    found = {n: result(entrants[n], times[same[n]]) for n in entrants}
    searched = [n for n in found if n.startswith("found")]
    if searched:
        best = min(searched, key=lambda n: found[n]["ns"])
        low = min(found[n]["low"] for n in searched)
        found["best"] = {**found[best], "low": low, "tried": len(timed(log))}
    return {n: r for n, r in found.items() if n not in searched}


def _legal(name: str, entrant: Entrant) -> bool:
    """Whether the verifier accepts an entrant; what was constructed must not be refused."""
    try:
        verify(entrant.split.func)
    except VerifyError as error:
        if not name.startswith("found"):
            raise
        print(f"{entrant.text} is no legal program: {error}", file=sys.stderr)
        return False
    return True


def constructed(programs: Programs) -> dict[str, Entrant]:
    """What each way of construction answers: the best of its programs that can be lowered."""
    machine = programs.machine
    ways = {
        "gensor": Gensor(machine), "printed": Gensor(machine, Annealing(reading=Reading.PRINTED)),
        "without vthreads": Gensor(machine, Annealing(vthreads=False)), "roller": Roller(machine),
    }  # fmt: skip
    found: dict[str, Entrant] = {}
    for name, way in ways.items():
        answer = way.construct(programs.task)
        for program in answer.programs if answer else ():
            try:
                schedule = _lowered(programs, program)
            except ScheduleError:
                continue
            predicted = predicted_program(program, machine)
            found[name] = Entrant(str(program), predicted, programs.split(schedule.func))
            break
    schedule = Rule().optimize(programs.task)
    if schedule is not None:
        found["rule"] = Entrant("", None, programs.split(schedule.func))
    return found


def _lowered(programs: Programs, program: Program) -> Schedule:
    if isinstance(program, ChainProgram):
        return lower_chain(program, programs.task, parallel=False)
    return lower(program, programs.task.func, parallel=False)


def finalists(programs: Programs, log: Log) -> dict[str, Entrant]:
    """The fastest programs of a search, the best one first."""
    found: dict[str, Entrant] = {}
    for k, c in enumerate(fastest(log, FINALISTS)):
        schedule = programs.families[c.family].schedule(c.genes)
        program = programs.program(c)
        predicted = predicted_program(program, programs.machine)
        found[f"found{k}"] = Entrant(str(program), predicted, programs.split(schedule.func))
    return found


def check_results(programs: Programs, running: Mapping[str, Split], clock: Clock) -> None:
    """Compares all results with that of the first on random data.

    Raises:
        ValueError: results differ.
    """
    rng = np.random.default_rng(1)
    *inputs, result = programs.task.func.params
    data = {b.name: rng.standard_normal([int(str(n)) for n in b.shape], dtype=np.float32) for b in inputs}
    reference: Array | None = None
    for name, split in running.items():
        known = {**data, **evaluate_packed(split.packed, data)}
        answer = clock.computed(name, known, result.name)
        reference = answer if reference is None else reference
        error = float(np.abs(answer - reference).max()) / (float(np.abs(reference).max()) or 1.0)
        if not error <= TOLERANCE:
            raise ValueError(f"program {name!r} of {programs.task.func.name!r} errs by {error:.1e}")


def result(entrant: Entrant, blocks: list[float]) -> dict[str, Any]:
    """What is kept of one entrant."""
    return {"ns": median(blocks), "low": min(blocks), "spread": spread(blocks), "predicted": entrant.predicted,
            "program": entrant.text}  # fmt: skip


def speed(found: Mapping[str, Any], name: str, over: str, by: str = "ns") -> float | None:
    """How many times as fast one entrant is as another, by their medians ("ns") or their fastest blocks ("low"); None
    where one is missing."""
    if name not in found or over not in found:
        return None
    return found[over][by] / found[name][by]


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
