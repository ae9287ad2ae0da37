"""Constructed programs, the rule's, and the best of a search, timed against each other on one thread.

One thread, because two share caches and clocks with whatever else the machine does; what threads gain is measured with
whole operators (`benchmarks.operators`).
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.statistics import quartile_spread
from benchmarks.one_thread import predicted_time
from tilewright.errors import ScheduleError, VerifyError
from tilewright.loops.printer import show
from tilewright.lower.prepack_constants import PrepackedKernel, evaluate_prepacked, prepack_constants
from tilewright.measure.function_timer import BLOCKS, FunctionTimer
from tilewright.measure.search import fastest_programs, timed_entries
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.construct.gensor import Annealing, Reading
from tilewright.optimize.construct.optimizer import Gensor, Roller
from tilewright.optimize.construct.program_tree import lower_kernel_program
from tilewright.optimize.rule import Rule
from tilewright.optimize.search.program_space import ProgramSpace
from tilewright.schedule.step import replay
from tilewright.verify.verifier import verify

FINALISTS = 6
"""Fastest programs of the search that take part, as quick timing is noisy."""

TOLERANCE = 1e-4
"""Largest difference of results, relative to the largest value; sums are in different orders."""

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Entrant:
    """A participant.

    Attributes:
        text: of its program.
        predicted: nanoseconds by the cost model, None where it does not know the program.
        kernel: the function that runs, and its prepacked constants.
    """

    text: str
    predicted: float | None
    kernel: PrepackedKernel


def run_duel(programs: ProgramSpace, log: SearchLog, blocks: int = BLOCKS) -> dict[str, Any]:
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
    entrants = {n: e for n, e in (constructed_entrants(programs) | finalists(programs, log)).items() if _is_legal(n, e)}
    first: dict[str, str] = {}
    same = {name: first.setdefault(show(e.kernel.func), name) for name, e in entrants.items()}
    running = {n: entrants[n].kernel for n in dict.fromkeys(same.values())}
    clock = FunctionTimer({n: s.func for n, s in running.items()})
    check_results(programs, running, clock)
    times = clock.block_medians(blocks)
    results = {n: entrant_result(entrants[n], times[same[n]]) for n in entrants}
    finalist_names = [n for n in results if n.startswith("found")]
    if finalist_names:
        best = min(finalist_names, key=lambda n: results[n]["ns"])
        low = min(results[n]["low"] for n in finalist_names)
        results["best"] = {**results[best], "low": low, "tried": len(timed_entries(log))}
    return {n: r for n, r in results.items() if n not in finalist_names}


def _is_legal(name: str, entrant: Entrant) -> bool:
    """Whether the verifier accepts an entrant; what was constructed must not be refused."""
    try:
        verify(entrant.kernel.func)
    except VerifyError as error:
        if not name.startswith("found"):
            raise
        print(f"{name} is no legal program: {error}", file=sys.stderr)
        return False
    return True


def constructed_entrants(programs: ProgramSpace) -> dict[str, Entrant]:
    """The best program of each optimizer that can be lowered."""
    machine = programs.machine
    ways = {
        "gensor": Gensor(machine), "printed": Gensor(machine, Annealing(reading=Reading.PRINTED)),
        "without vthreads": Gensor(machine, Annealing(vthreads=False)), "roller": Roller(machine),
    }  # fmt: skip
    entrants: dict[str, Entrant] = {}
    for name, way in ways.items():
        answer = way.construct(programs.task)
        for program in answer.programs if answer else ():
            try:
                schedule = lower_kernel_program(program, programs.task, parallel=False)
            except ScheduleError:
                continue
            predicted = predicted_time(program, machine)
            entrants[name] = Entrant(str(program), predicted, prepack_constants(schedule.func, programs.task.constants))
            break
    schedule = Rule().optimize(programs.task)
    if schedule is not None:
        entrants["rule"] = Entrant("", None, prepack_constants(schedule.func, programs.task.constants))
    return entrants


def finalists(programs: ProgramSpace, log: SearchLog) -> dict[str, Entrant]:
    """The fastest programs of a search, the best one first."""
    entrants: dict[str, Entrant] = {}
    for k, candidate in enumerate(fastest_programs(log, FINALISTS)):
        func = replay(programs.task.func, candidate.trace)
        entrants[f"found{k}"] = Entrant("", None, prepack_constants(func, programs.task.constants))
    return entrants


def check_results(programs: ProgramSpace, kernels: Mapping[str, PrepackedKernel], clock: FunctionTimer) -> None:
    """Compares all results with that of the first on random data.

    Raises:
        ValueError: results differ.
    """
    rng = np.random.default_rng(1)
    inputs, (result,) = programs.task.func.inputs, programs.task.func.outputs
    data = {b.name: rng.standard_normal([int(str(n)) for n in b.shape], dtype=np.float32) for b in inputs}
    reference: Array | None = None
    for name, split in kernels.items():
        known = {**data, **evaluate_prepacked(split.prepacked, data)}
        answer = clock.run(name, known, result.name)
        reference = answer if reference is None else reference
        error = float(np.abs(answer - reference).max()) / (float(np.abs(reference).max()) or 1.0)
        if not error <= TOLERANCE:
            raise ValueError(f"program {name!r} of {programs.task.func.name!r} errs by {error:.1e}")


def entrant_result(entrant: Entrant, blocks: list[float]) -> dict[str, Any]:
    """What is kept of one entrant."""
    return {"ns": median(blocks), "low": min(blocks), "spread": quartile_spread(blocks), "predicted": entrant.predicted,
            "program": entrant.text}  # fmt: skip


def relative_speed(entrants: Mapping[str, Any], name: str, over: str, by: str = "ns") -> float | None:
    """How many times as fast one entrant is as another, by their medians ("ns") or their fastest blocks ("low"); None
    where one is missing."""
    if name not in entrants or over not in entrants:
        return None
    return entrants[over][by] / entrants[name][by]


def gain_shares(roller: float, without: float, gensor: float) -> tuple[float, float]:
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
