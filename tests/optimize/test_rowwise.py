"""Row-wise fusion: one parallel loop, intermediates on the stack, unchanged results."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import TARGETS
from tests.optimize import programs
from tests.optimize.computations import COLUMNS, ROWS, normalised, some_windows, windows
from tests.optimize.native import same
from tests.optimize.programs import Program, check, scheduled

from tilewright.expr.nodes import Expr, MemoryScope
from tilewright.graph.fusion import FusionPattern
from tilewright.loops.ir import For, LoopKind, walk
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.gensor import Annealing
from tilewright.optimize.construct.optimizer import Gensor
from tilewright.optimize.rule import Rule


@settings(max_examples=40)
@given(st.sampled_from([1, 3, 64, ROWS]), st.integers(1, 90), st.sampled_from(programs.TARGETS))
def test_rowwise_schedules_preserve_semantics(rows: Expr | int, columns: int, target: str) -> None:
    check(Program(normalised(rows, columns), {ROWS: 5} if rows is ROWS else {}), target)


@settings(max_examples=25)
@given(st.sampled_from([1, 3, 64, ROWS]), st.integers(1, 90), st.sampled_from(programs.TARGETS))
def test_rows_of_symbolic_length_preserve_semantics(rows: Expr | int, columns: int, target: str) -> None:
    sizes = {COLUMNS: columns, **({ROWS: 5} if rows is ROWS else {})}
    check(Program(normalised(rows, COLUMNS)[:2], sizes), target)


@settings(max_examples=40)
@given(some_windows(), st.sampled_from(programs.TARGETS))
def test_window_schedules_preserve_semantics(program: Program, target: str) -> None:
    check(program, target)


@settings(max_examples=10)
@given(some_windows(), st.sampled_from(TARGETS))
def test_native_windows(program: Program, target: str) -> None:
    same(program, target, Rule())


@pytest.mark.parametrize(("rows", "columns"), [(64, 1000), (9, 17), (1, 5000), (3, 6625), (300, 16), (3, 1)])
def test_native_rows(rows: int, columns: int) -> None:
    same(Program(normalised(rows, columns)), "x86-64-v3", Rule())


@pytest.mark.parametrize(("rows", "split_loops"), [(63, []), (64, ["2"]), (30, [])])
def test_intermediates_shrink_to_a_row_on_the_stack(rows: int, split_loops: list[str]) -> None:
    kernel, _, s = scheduled(Program(normalised(rows, 1000)), "x86-64-v4")
    assert kernel.fusion.pattern is FusionPattern.ROWWISE
    assert kernel.fusion.outer_rank == 1
    assert [(str(n.scope), [str(e) for e in n.shape]) for n in s.func.allocs] == [
        ("stack", split_loops), ("stack", [*split_loops, "1000"]), ("stack", split_loops),
    ]  # fmt: skip
    loops = [x for x, _ in walk(s.func.body) if isinstance(x, For)]
    assert [x.kind is LoopKind.PARALLEL for x in loops] == [True] + [False] * (len(loops) - 1)


@pytest.mark.parametrize("columns", [6625, 8192, 12345])
def test_intermediates_of_k_blocked_rows_are_on_the_stack(columns: int) -> None:
    for optimizer in (Rule(), Gensor(machine_named("zen5"), Annealing(walks=3))):
        _, _, s = scheduled(Program(normalised(40, columns)), "x86-64-v4", optimizer)
        assert len(s.func.allocs) == 4
        assert all(n.scope is MemoryScope.STACK for n in s.func.allocs)


def test_several_short_planes_are_padded_per_block() -> None:
    _, _, s = scheduled(Program(windows(960, (7, 7), (3, 3), 1, 1, weighted=True)), "x86-64-v4")
    (padded,) = (n for n in s.func.allocs if n.scope is MemoryScope.STACK)
    assert [str(e) for e in padded.shape] == ["24", "9", "9"]


def test_long_rows_stay_in_memory() -> None:
    kernel, _, s = scheduled(Program(normalised(4, 1_000_000)), "x86-64-v4")
    assert kernel.fusion.pattern is FusionPattern.SEQUENCE
    assert all(n.scope is MemoryScope.MEMORY for n in s.func.allocs)
    assert not s.trace


def test_reduction_with_epilogue_is_not_rowwise() -> None:
    stages = windows(3, (9, 9), (3, 3), 1, 0, weighted=True, epilogue=True)[1:]
    kernel, _, _ = scheduled(Program(stages), "x86-64-v4")
    assert len(kernel.stages) == 2
    assert kernel.fusion.pattern is FusionPattern.REDUCTION
