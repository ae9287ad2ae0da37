"""Kernels with several outputs: statistics beside what is normalised by them, reductions of one operand, maxima with
their places."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import TARGETS
from tests.optimize import programs
from tests.optimize.computations import COLUMNS, ROWS, maxima_with_places, normalised
from tests.optimize.native import same
from tests.optimize.programs import Program, axes, buffer, check, scheduled
from tests.optimize.tasks import optimizers

from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.operations import maximum
from tilewright.graph.fusion import FusionPattern
from tilewright.loops.ir import For, LoopKind, walk
from tilewright.optimize.rule import Rule

a, b, c, i, p, q = (Var(n) for n in "abcipq")


@st.composite
def rowwise(draw) -> Program:
    """Reductions and element-wise stages over rows of one operand, which read each other; some results are stored."""
    rows = draw(st.sampled_from([1, 3, 32, 64, ROWS]))
    # results of symbolic length have no place on the stack
    columns = draw(st.one_of(st.integers(1, 90), st.just(COLUMNS)))
    values: list[Expr] = [buffer("x", (rows, columns))[a, b]]
    stages: list[Computation] = []
    stored: set[str] = set()
    for k in range(draw(st.integers(2, 5))):
        value = draw(st.sampled_from(values))
        if draw(st.booleans()):
            value = maximum(value + draw(st.sampled_from(values)), const(-2, value.dtype))
        name = f"s{k}"
        if draw(st.booleans()):
            reducer = draw(st.sampled_from([Reducer.SUM, Reducer.MAX, Reducer.MIN]))
            out = buffer(name, (rows,))
            # a sum of sums is no whole number that float32 has
            value = maximum(value, const(3, value.dtype)) if reducer is Reducer.SUM else value
            value = -maximum(-value, const(-9, value.dtype))
            stages.append(Computation(out, axes("a", (rows,)), axes("b", (columns,)), value, reducer))
            values.append(out[(a,)])
        else:
            out = buffer(name, (rows, columns))
            stages.append(Computation(out, axes("ab", (rows, columns)), (), value))
            values.append(out[a, b])
            stored |= {name} if columns is COLUMNS else set()
        stored |= {name} if draw(st.booleans()) else set()
    sizes: dict[Var, int] = {ROWS: 5} if rows is ROWS else {}
    return Program(stages, sizes | ({COLUMNS: 17} if columns is COLUMNS else {}), outputs=frozenset(stored))


@settings(max_examples=60)
@given(rowwise(), st.sampled_from(programs.TARGETS))
def test_the_rule_preserves_semantics(program: Program, target: str) -> None:
    check(program, target)


@settings(max_examples=30)
@given(rowwise(), st.sampled_from(programs.TARGETS), st.integers(0, 1))
def test_constructed_programs_preserve_semantics(program: Program, target: str, which: int) -> None:
    check(program, target, optimizers(target)[which], any_kind=True)


@settings(max_examples=15)
@given(rowwise(), st.sampled_from(TARGETS))
def test_native_code_equals_the_interpreter(program: Program, target: str) -> None:
    same(program, target, Rule())


@settings(max_examples=8)
@given(rowwise(), st.integers(0, 1))
def test_constructed_native_code_equals_the_interpreter(program: Program, which: int) -> None:
    same(program, "x86-64-v3", optimizers("x86-64-v3")[which], any_kind=True)


@settings(max_examples=25)
@given(
    st.sampled_from([1, 3, 16]), st.tuples(st.integers(3, 21), st.integers(3, 40)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)), st.integers(1, 3), st.sampled_from(programs.TARGETS),
    st.integers(0, 2),
)  # fmt: skip
def test_windows_before_the_last_stage(
    channels: int, size: tuple[int, int], taps: tuple[int, int], stride: int, target: str, which: int
) -> None:
    program = Program(maxima_with_places(channels, size, taps, stride), outputs=frozenset({"best"}))
    check(program, target, [Rule(), *optimizers(target)][which], any_kind=True)


@pytest.mark.parametrize("which", range(3))
def test_native_maxima_with_places(which: int) -> None:
    program = Program(maxima_with_places(16, (28, 30), (3, 3), 2), outputs=frozenset({"best"}))
    same(program, "x86-64-v3", [Rule(), *optimizers("x86-64-v3")][which], any_kind=True)


@st.composite
def elementwise_siblings(draw) -> Program:
    """Element-wise stages over one iteration space, which may read each other."""
    rank = draw(st.integers(1, 3))
    shape, sizes = draw(programs.extents(rank, 40 if rank < 3 else 9))
    names = "abc"[:rank]
    grid, index = axes(names, shape), tuple(Var(n) for n in names)
    order = draw(st.permutations(range(rank))) if draw(st.booleans()) else list(range(rank))
    transposed = buffer("z", [shape[k] for k in order])[tuple(index[k] for k in order)]
    values: list[Expr] = [buffer("x", shape)[index], transposed, buffer("row", shape[-1:])[index[-1:]]]
    stages: list[Computation] = []
    for k in range(draw(st.integers(2, 4))):
        value = draw(st.sampled_from(values)) + draw(st.sampled_from(values))
        out = buffer(f"s{k}", shape)
        stages.append(Computation(out, grid, (), maximum(value, const(-3, value.dtype))))
        values.append(out[index])
    return Program(stages, sizes, outputs=frozenset(s.output.name for s in stages))


@settings(max_examples=60)
@given(elementwise_siblings(), st.sampled_from(programs.TARGETS), st.integers(0, 2))
def test_element_wise_siblings_preserve_semantics(program: Program, target: str, which: int) -> None:
    check(program, target, [Rule(), *optimizers(target)][which], any_kind=True)


@settings(max_examples=15)
@given(elementwise_siblings(), st.sampled_from(TARGETS))
def test_native_element_wise_siblings(program: Program, target: str) -> None:
    same(program, target, Rule())


def test_element_wise_siblings_share_one_nest() -> None:
    x, grid = buffer("x", (64, 1000)), axes("ab", (64, 1000))
    stages = [Computation(buffer(f"s{k}", (64, 1000)), grid, (), x[a, b] + float(k)) for k in range(3)]
    kernel, _, s = scheduled(Program(stages, outputs=frozenset({"s0", "s1"})), "x86-64-v4")
    assert kernel.fusion.pattern is FusionPattern.ELEMENTWISE
    assert parallel_loops([x for x, _ in walk(s.func.body)]) == 1


def parallel_loops(loops: Sequence[object]) -> int:
    """The number of parallel loops."""
    return sum(isinstance(x, For) and x.kind is LoopKind.PARALLEL for x in loops)


@pytest.mark.parametrize("stored", [{"top"}, {"low"}, {"top", "low", "total"}])
def test_one_parallel_loop_computes_all_outputs(stored: set[str]) -> None:
    for optimizer in (Rule(), *optimizers("x86-64-v4")):
        program = Program(normalised(64, 1000), outputs=frozenset(stored))
        kernel, _, s = scheduled(program, "x86-64-v4", optimizer)
        assert kernel.fusion.pattern is FusionPattern.ROWWISE
        assert len(kernel.outputs) == 1 + len(stored)
        assert parallel_loops([x for x, _ in walk(s.func.body)]) == 1
        assert isinstance(s.func.body, For)


def test_long_sums_of_several_outputs_are_blocked() -> None:
    x, rows, inner = buffer("x", (16, 1 << 20)), axes("a", (16,)), axes("i", (1 << 20,))
    sums = [Computation(buffer(f"s{k}", (16,)), rows, inner, x[a, i] * (k + 1.0), Reducer.SUM) for k in range(2)]
    _, _, s = scheduled(Program(sums, outputs=frozenset({"s0"})), "x86-64-v4")
    assert sum(step.primitive == "rfactor" for step in s.trace) == 2
