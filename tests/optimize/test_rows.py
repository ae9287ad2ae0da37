"""Chains row by row: one parallel loop, what is handed on stays on the stack, and results are those of the stages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import TARGETS
from tests.optimize import programs
from tests.optimize.native import same
from tests.optimize.programs import Program, axes, buffer, check, scheduled

from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Expr, MemoryScope, Symbol, Var, const
from tilewright.expr.operations import conjunction, maximum, select
from tilewright.loops.ir import For, LoopKind, blocks, walk
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.gensor import Annealing
from tilewright.optimize.construct.optimizer import Gensor
from tilewright.optimize.rowwise import is_rowwise, outer_rank
from tilewright.optimize.rule import Rule

a, b, c, i, j, p, q = (Var(n) for n in "abcijpq")
ROWS, COLUMNS = Symbol("R", 1, 64), Symbol("C", 1, 4096)


def normalised(rows: Expr | int, columns: Expr | int) -> list[Computation]:
    """y = x - max(x) + sum(max(x - max(x), -2)), per row: whole numbers stay whole."""
    x, top = buffer("x", (rows, columns)), buffer("top", (rows,))
    low, total, y = buffer("low", (rows, columns)), buffer("total", (rows,)), buffer("y", (rows, columns))
    grid, line, along = axes("ab", (rows, columns)), axes("a", (rows,)), axes("i", (columns,))
    return [
        Computation(top, line, along, x[a, i], Reducer.MAX),
        Computation(low, grid, (), maximum(x[a, b] - top[a], const(-2, x.dtype))),
        Computation(total, line, along, low[a, i], Reducer.SUM),
        Computation(y, grid, (), low[a, b] + total[a]),
    ]


def windows(
    channels: Expr | int, size: tuple[int, int], taps: tuple[int, int], stride: int, pad: int,
    weighted: bool = False, epilogue: bool = False,
) -> list[Computation]:  # fmt: skip
    """A window over planes that are padded first, in the way of a depthwise convolution or of pooling."""
    h, w = size
    wide = (channels, h + 2 * pad, w + 2 * pad)
    x, padded = buffer("x", (channels, h, w)), buffer("padded", wide)
    inside = conjunction(b >= pad, b < h + pad, c >= pad, c < w + pad)
    outs = (channels, (wide[1] - taps[0]) // stride + 1, (wide[2] - taps[1]) // stride + 1)
    sums = buffer("sums", outs)
    value: Expr = padded[a, b * stride + p, c * stride + q]
    if weighted:
        value = value * buffer("weights", (channels, *taps))[a, p, q]
    stages = [
        Computation(padded, axes("abc", wide), (), select(inside, x[a, b - pad, c - pad], const(0, x.dtype))),
        Computation(sums, axes("abc", outs), axes("pq", taps), value, Reducer.SUM if weighted else Reducer.MAX),
    ]
    if epilogue:
        stages.append(Computation(buffer("y", outs), axes("abc", outs), (), maximum(sums[a, b, c], const(0, x.dtype))))
    return stages


@st.composite
def some_windows(draw) -> Program:  # pyright: ignore[reportMissingParameterType]
    """Windows of any kind."""
    small = st.integers(1, 4)
    taps = draw(small), draw(small)
    size = draw(st.integers(taps[0], 20)), draw(st.integers(taps[1], 40))
    channels = draw(st.sampled_from([1, 2, 7, 48, ROWS]))
    stages = windows(channels, size, taps, draw(st.integers(1, 3)), draw(st.integers(0, 2)), draw(st.booleans()),
                     draw(st.booleans()))  # fmt: skip
    return Program(stages, {ROWS: draw(st.integers(1, 9))} if channels is ROWS else {})


@settings(max_examples=40)
@given(st.sampled_from([1, 3, 64, ROWS]), st.integers(1, 90), st.sampled_from(programs.TARGETS))
def test_meaning_of_rows_is_kept(rows: Expr | int, columns: int, target: str) -> None:
    check(Program(normalised(rows, columns), {ROWS: 5} if rows is ROWS else {}), target)


@settings(max_examples=25)
@given(st.sampled_from([1, 3, 64, ROWS]), st.integers(1, 90), st.sampled_from(programs.TARGETS))
def test_meaning_of_rows_of_unknown_length_is_kept(rows: Expr | int, columns: int, target: str) -> None:
    sizes = {COLUMNS: columns, **({ROWS: 5} if rows is ROWS else {})}
    check(Program(normalised(rows, COLUMNS)[:2], sizes), target)


@settings(max_examples=40)
@given(some_windows(), st.sampled_from(programs.TARGETS))
def test_meaning_of_windows_is_kept(program: Program, target: str) -> None:
    check(program, target)


@settings(max_examples=10)
@given(some_windows(), st.sampled_from(TARGETS))
def test_native_windows(program: Program, target: str) -> None:
    same(program, target, Rule())


@pytest.mark.parametrize(("rows", "columns"), [(64, 1000), (9, 17), (1, 5000), (3, 6625), (300, 16), (3, 1)])
def test_native_rows(rows: int, columns: int) -> None:
    same(Program(normalised(rows, columns)), "x86-64-v3", Rule())


@pytest.mark.parametrize(("rows", "beside"), [(63, []), (64, ["2"]), (30, [])])
def test_what_rows_hand_on_is_a_row_on_the_stack(rows: int, beside: list[str]) -> None:
    _, func, s = scheduled(Program(normalised(rows, 1000)), "x86-64-v4")
    assert is_rowwise(func)
    assert outer_rank(func) == 1
    assert [(str(n.scope), [str(e) for e in n.shape]) for n in s.func.allocs] == [
        ("stack", beside), ("stack", [*beside, "1000"]), ("stack", beside),
    ]  # fmt: skip
    loops = [x for x, _ in walk(s.func.body) if isinstance(x, For)]
    assert [x.kind is LoopKind.PARALLEL for x in loops] == [True] + [False] * (len(loops) - 1)


@pytest.mark.parametrize("columns", [6625, 8192, 12345])
def test_long_rows_whose_sums_are_cut_are_rows_on_the_stack(columns: int) -> None:
    for optimizer in (Rule(), Gensor(machine_named("zen5"), Annealing(walks=3))):
        _, _, s = scheduled(Program(normalised(40, columns)), "x86-64-v4", optimizer)
        assert len(s.func.allocs) == 4
        assert all(n.scope is MemoryScope.STACK for n in s.func.allocs)


def test_short_planes_are_padded_several_at_once() -> None:
    _, _, s = scheduled(Program(windows(960, (7, 7), (3, 3), 1, 1, weighted=True)), "x86-64-v4")
    (padded,) = (n for n in s.func.allocs if n.scope is MemoryScope.STACK)
    assert [str(e) for e in padded.shape] == ["24", "9", "9"]


def test_rows_that_stacks_do_not_hold_stay_in_memory() -> None:
    _, _, s = scheduled(Program(normalised(4, 100_000)), "x86-64-v4")
    assert all(n.scope is MemoryScope.MEMORY for n in s.func.allocs)
    assert not s.trace


def test_an_epilogue_makes_no_chain() -> None:
    stages = windows(3, (9, 9), (3, 3), 1, 0, weighted=True, epilogue=True)[1:]
    _, func, _ = scheduled(Program(stages), "x86-64-v4")
    assert len(blocks(func.body)) == 2
    assert not is_rowwise(func)
