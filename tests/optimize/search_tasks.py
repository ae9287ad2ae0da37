"""Small tasks of every kind that has a program space, and measurements that a formula makes up."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256

from tests.optimize.chains import Chain
from tests.optimize.chains import task_of as chain_task
from tests.optimize.computations import ROWS, M, image, normalised, product, relu, row_sums
from tests.optimize.programs import Program, axes, buffer
from tests.optimize.tasks import task_of

import tilewright as tw
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Var, const
from tilewright.graph.fusion import Fusion, FusionPattern
from tilewright.machine.model import Machine
from tilewright.machine.shipped import machine_named
from tilewright.optimize.measurer import Candidate, Failure, FailureKind, Measurement, Timing
from tilewright.optimize.search.evolution import EvolutionSettings
from tilewright.optimize.search.interface import Search
from tilewright.optimize.search.program_search import ProgramSearch
from tilewright.optimize.search.start_search import start_search
from tilewright.optimize.task import Task

MACHINE: Machine = replace(machine_named("zen5"), cores=2)

def transposed(rows: int, columns: int) -> Computation:
    """y[a, b] = x[b, a] + 1"""
    x, a, b = buffer("x", (columns, rows)), Var("a"), Var("b")
    value = x[b, a] + const(1, x.dtype)
    return Computation(buffer("y", (rows, columns)), axes("ab", (rows, columns)), (), value)


def halved_rows(rows: int, columns: int) -> Computation:
    """y[a, b] = x[a // 2, b]: an access that is not affine, so there is no program space."""
    x, a, b = buffer("x", (rows, columns)), Var("a"), Var("b")
    return Computation(buffer("y", (rows, columns)), axes("ab", (rows, columns)), (), x[a // 2, b])


STAGES: dict[str, Sequence[Computation]] = {
    "product": (p := product(24, 48, 40), relu(p)),
    "convolution": (image(1, 6, 16, 10, 3),),
    "rows": normalised(24, 40),
    "sums": (row_sums(30, 64),),
    "transposed": (transposed(40, 24),),
}

RANGED: dict[str, Sequence[Computation]] = {
    "ranged product": (product(M, 48, 40),),
    "ranged rows": normalised(ROWS, 40),
}
"""Stages whose sizes are symbols."""


@cache
def search_task(kind: str) -> Task:
    """A task in canonical form; the second operand of products and convolutions is constant."""
    if kind == "chain":
        return _chain_task()
    stages = [halved_rows(24, 16)] if kind == "none" else [*{**STAGES, **RANGED}[kind]]
    program = Program(stages, {M: 100} if kind == "ranged product" else {ROWS: 20} if kind in RANGED else {})
    inputs = [b.name for b in program.stages[0].inputs]
    return task_of(replace(program, constants=frozenset(inputs[1:]))).canonical()


def _chain_task() -> Task:
    """Attention of two heads: product, softmax, product."""
    func = tw.create_schedule(Chain((2,), 40, (16, 48, 16), softmax=True).tensor()).func
    task = replace(chain_task(func, "x86-64-v4"), fusion=Fusion(FusionPattern.CHAIN, 0, ()))
    return task.canonical()


def begin(
    task: Task,
    variant: str,
    seed: int = 0,
    starts: Sequence[Candidate] = (),
    history: Sequence[Measurement] = (),
) -> ProgramSearch:
    """A search on the tests' machine with small populations."""
    return start_search(task, MACHINE, variant, seed, starts, history, EvolutionSettings(population=96, generations=2))


def made_up_time(candidate: Candidate) -> float:
    """Nanoseconds that depend on the trace alone."""
    digest = sha256("\n".join(map(str, candidate.trace)).encode()).digest()
    return 1e3 + int.from_bytes(digest[:2], "big")


def timed(candidate: Candidate, nanoseconds: float) -> Measurement:
    """A candidate that took so long."""
    return Measurement(candidate, Timing(nanoseconds, 0.0, nanoseconds, 1, 1, 0.0, False))


def failed(candidate: Candidate) -> Measurement:
    """A candidate whose process ended."""
    return Measurement(candidate, Failure(FailureKind.CRASH, "signal 11"))


def run_rounds(search: Search, rounds: int, count: int) -> list[Measurement]:
    """Asks for batches and tells made-up times; every fifth candidate fails."""
    history: list[Measurement] = []
    for _ in range(rounds):
        batch = search.ask(count)
        answers = [failed(c) if made_up_time(c) % 5 < 1 else timed(c, made_up_time(c)) for c in batch]
        search.tell(answers)
        history += answers
    return history
