"""Row-wise kernels that store an operand and sum products of it: keys and values of a cache and what attention makes of
them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import TARGETS
from tests.optimize import programs
from tests.optimize.native import same
from tests.optimize.programs import Program, axes, buffer, check
from tests.optimize.tasks import optimizers, task_of

from tilewright.cost.rowwise import stage_traffic
from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Expr, Symbol, Var, as_expr
from tilewright.expr.operations import select
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.rowwise_programs import best_rowwise_programs, rowwise_problem
from tilewright.tile.rowwise import RowwiseProgram

PAST = Symbol("P", 0, 200)
a, b, c, i = (Var(n) for n in "abci")


def appended(rows: int, past: Expr | int, new: int, size: int) -> Computation:
    """present[row] = the past of a row, then what is new."""
    old, fresh = buffer("old", (rows, past, size)), buffer("new", (rows, new, size))
    body = select(b < as_expr(past), old[a, b, c], fresh[a, b - past, c])
    shape = (rows, as_expr(past) + new, size)
    return Computation(buffer("present", shape), axes("abc", shape), (), body)


def scores(present: Computation) -> Computation:
    """One product per row and position."""
    rows, total, size = present.output.shape
    body = buffer("q", (rows, size))[a, i] * present.output[a, b, i]
    return Computation(buffer("sums", (rows, total)), axes("ab", (rows, total)), axes("i", (size,)), body, Reducer.SUM)


def weighted_sums(present: Computation, queries: int) -> Computation:
    """The weighted sum of the positions of a row, for each of its queries."""
    rows, total, size = present.output.shape
    shape = (rows, queries, size)
    body = buffer("w", (rows, queries, total))[a, b, i] * present.output[a, i, c]
    return Computation(buffer("sums", shape), axes("abc", shape), axes("i", (total,)), body, Reducer.SUM)


@st.composite
def cached(draw) -> Program:
    """A cache that is a result and an operand, of one or several queries; sums as they are or with an epilogue."""
    past: Expr = draw(st.one_of(st.just(PAST), st.integers(1, 90).map(as_expr)))
    sizes: dict[Var, int] = {PAST: draw(st.integers(0, 40))} if past is PAST else {}
    rows, size = draw(st.sampled_from([1, 3, 16])), draw(st.sampled_from([1, 5, 16, 40, 64, 72]))
    present = appended(rows, past, draw(st.integers(1, 2)), size)
    stages = [present, scores(present) if draw(st.booleans()) else weighted_sums(present, draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        sums = stages[-1].output
        own = axes("abc"[: sums.rank], sums.shape)
        value = sums[tuple(x.var for x in own)] * buffer("factor", (rows,))[(a,)]
        stages.append(Computation(buffer("result", sums.shape), own, (), value))
    return Program(stages, sizes, outputs=frozenset(["present"]))


@settings(max_examples=40)
@given(cached(), st.sampled_from(programs.TARGETS))
def test_the_rule_preserves_semantics(program: Program, target: str) -> None:
    check(program, target)


@settings(max_examples=30)
@given(cached(), st.sampled_from(programs.TARGETS), st.integers(0, 1))
def test_constructed_programs_preserve_semantics(program: Program, target: str, which: int) -> None:
    check(program, target, optimizers(target)[which], any_kind=True)


@settings(max_examples=15)
@given(cached(), st.sampled_from(TARGETS), st.integers(0, 1))
def test_native_code_equals_the_interpreter(program: Program, target: str, which: int) -> None:
    same(program, target, optimizers(target)[which], any_kind=True)


def best_program(past: Expr | int, sizes: dict[Var, int]) -> RowwiseProgram:
    """The best program of weighted sums of 16 rows of 64 columns."""
    present = appended(16, past, 1, 64)
    task = task_of(Program([present, weighted_sums(present, 1)], sizes, outputs=frozenset(["present"])), "x86-64-v4")
    problem = rowwise_problem(task)
    assert problem is not None
    return best_rowwise_programs(problem, Target.parse("x86-64-v4"), machine_named("sapphire-rapids"), 1)[0][1]


def test_sums_over_few_positions_are_unrolled_where_their_number_is_known() -> None:
    for past, sizes, step in ((14, {}, 15), (Symbol("P", 0, 200), {Symbol("P", 0, 200): 14}, 1)):
        sums = best_program(past, sizes).stages[1]
        assert sums.problem.axes[sums.problem.reduce[0]].extent == 15
        assert sums.sizes[0][sums.problem.reduce[0]] == step


@pytest.mark.parametrize(("past", "share"), [(511, 0.0), (1 << 15, 1.0)])
def test_a_row_beyond_the_private_cache_is_fetched_again(past: int, share: float) -> None:
    program = best_program(past, {})
    problems = [x.problem for x in program.stages]
    present = next(x for x in problems[0].operands if x.written)
    beyond_l2 = stage_traffic(program.blocking, problems, machine_named("sapphire-rapids"))[1][1]
    others = sum(x.bytes for x in problems[1].read_operands if x.buffer != present.buffer)
    assert share * present.bytes <= beyond_l2 <= share * present.bytes + 4 * others
