"""One case: what the system's variants choose for its sizes, against the oracle for exactly these sizes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.one_thread import one_thread_machine
from benchmarks.paper_vortex.cases import Case
from benchmarks.paper_vortex.kernels import CaseKernel, case_kernel
from benchmarks.paper_vortex.timer import CaseTimer, Entrant
from tilewright.machine.model import Machine
from tilewright.optimize.construct.optimizer import ConstructionResult, Gensor, ProgramConstructor, problem_for
from tilewright.optimize.vortex.analyser import Analyser
from tilewright.optimize.vortex.dietcode import DietCode
from tilewright.optimize.vortex.optimizer import Estimator, Levels, Vortex
from tilewright.tile.program import TileProgram
from tilewright.tile.shape_samples import value_of

ORACLE_BEST, ORACLE_RANDOM = 48, 48
"""Candidates of the oracle: the best by the analyser, and random ones of the library."""

FINALISTS = 5
"""The fastest candidates, which are timed again in turns with the variants."""


def variants(machine: Machine) -> dict[str, ProgramConstructor]:
    """The system's variants, by the name in results."""
    return {
        "vortex": Vortex(machine),
        "hybrid": Vortex(machine, estimator=Estimator.HYBRID),
        "analytical": Vortex(machine, estimator=Estimator.ANALYTICAL),
        "cost model": Vortex(machine, estimator=Estimator.COST_MODEL),
        "static1": Vortex(machine, levels=Levels.STATIC1),
        "static2": Vortex(machine, levels=Levels.STATIC2),
        "dietcode": DietCode(machine),
        "gensor": Gensor(machine),
    }


def run_duel(case: Case, scale: float, seed: int) -> dict[str, Any] | None:
    """Nanoseconds of every variant and of the oracle; None where the case has no tile problem.

    Args:
        case: the case.
        scale: of the oracle's numbers of candidates, 1 for the paper's experiment.
        seed: of the random candidates and the operands.
    """
    machine = one_thread_machine()
    dynamic, exact = case_kernel(case, True), case_kernel(case, False)
    entrants: dict[str, Entrant] = {}
    for name, optimizer in variants(machine).items():
        program = chosen_program(optimizer.construct(dynamic.task), dynamic)
        if program is not None:
            entrants[name] = Entrant(dynamic.task, program, dynamic.sizes)
    static = Gensor(machine).construct(exact.task)
    candidates = oracle_candidates(exact, machine, scale, seed)
    if static is not None and isinstance(static.programs[0], TileProgram):
        candidates["constructed"] = Entrant(exact.task, static.programs[0], {})
    if not candidates or "vortex" not in entrants:
        return None
    timer = CaseTimer(candidates, seed)
    first = timer.quick()
    finalists = sorted(first, key=lambda n: first[n])[:FINALISTS]
    if "constructed" in first and "constructed" not in finalists:
        finalists.append("constructed")
    final = CaseTimer({**entrants, **{n: candidates[n] for n in finalists}}, seed)
    final.check()
    times = final.block_medians()
    oracle = min(finalists, key=lambda n: times[n])
    return {
        "ns": {n: times[n] for n in entrants if n in times},
        "oracle": times[oracle],
        "oracle_is": oracle,
        "constructed": times.get("constructed"),
        "candidates": len(candidates),
    }


def chosen_program(construction: ConstructionResult | None, kernel: CaseKernel) -> TileProgram | None:
    """The program that a kernel of dynamic sizes takes for those of its case; None where there is none."""
    if construction is None:
        return None
    chosen = construction.variants
    if chosen is not None:
        return chosen.programs[value_of(chosen.selector, kernel.sizes)]
    program = construction.programs[0]
    return program if isinstance(program, TileProgram) else None


def oracle_candidates(kernel: CaseKernel, machine: Machine, scale: float, seed: int) -> dict[str, Entrant]:
    """The candidates of the oracle for a kernel of literal sizes."""
    problem = problem_for(kernel.task)
    if problem is None:
        return {}
    states = Vortex(machine).states(problem, kernel.task, machine)
    rng, analyser = np.random.default_rng(seed), Analyser(machine)
    scored = [(sketch, sizes, analyser.times(problem, sketch, sizes)) for sketch, sizes in states]
    flat = [(float(t), k, i) for k, (_, _, times) in enumerate(scored) for i, t in enumerate(times)]
    flat.sort()
    best = flat[: int(ORACLE_BEST * scale)]
    rest = flat[len(best) :]
    drawn = [rest[k] for k in rng.permutation(len(rest))[: int(ORACLE_RANDOM * scale)]]
    entrants: dict[str, Entrant] = {}
    for kind, some in (("best", best), ("random", drawn)):
        for number, (_, k, i) in enumerate(some):
            sketch, sizes, _ = scored[k]
            program = TileProgram.of(problem, sketch, sizes[i])
            entrants[f"{kind} {number}"] = Entrant(kernel.task, program, {})
    return entrants


def ratios(result: Mapping[str, Any]) -> dict[str, float]:
    """The speed of every variant over the oracle's: at most about 1."""
    return {name: result["oracle"] / ns for name, ns in result["ns"].items()}
