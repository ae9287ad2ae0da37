"""The rule's choices as tile trees: their text, their JSON, and what lowering makes of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.optimize import programs
from tests.optimize.computations import (
    KERNELS,
    maxima_with_places,
    normalised,
    product,
    row_sums,
    some_windows,
    windows,
)
from tests.optimize.programs import Program, check
from tests.optimize.tasks import task_of

from tilewright.graph.fusion import FusionPattern
from tilewright.loops.ir import blocks
from tilewright.optimize.needed_points import needed_points
from tilewright.optimize.rule import Rule, rule_tree
from tilewright.schedule.tails import Tail
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.tree import Compute, Loop, RFactor, TileTree, walk_tree
from tilewright.tile.tree_json import dumps, loads
from tilewright.tile.tree_text import show_tree

CASES = KERNELS | {
    "long_matmul": Program([product(30, 64, 1021)], {}, frozenset({"w"})),
    "long_row_sums": Program([row_sums(64, 10000)]),
    "sum_of_all": Program([row_sums(1, 1 << 20)]),
    "sum_of_few": Program([row_sums(1, 8)]),
    "normalised_rows": Program(normalised(64, 1000)),
    "normalised_row": Program(normalised(1, 40)),
    "normalised_rows_with_statistics": Program(normalised(64, 1000), outputs=frozenset({"top", "low", "total"})),
    "maxima_with_places": Program(maxima_with_places(16, (28, 30), (3, 3), 2), outputs=frozenset({"best"})),
    "windows": Program(windows(64, (56, 56), (3, 3), 1, 1, weighted=True)),
    "windows_with_strides": Program(windows(64, (28, 28), (3, 3), 2, 1)),
}


def loops_of(tree: TileTree) -> list[Loop]:
    """All loops of a tree."""
    return [x for x, _ in walk_tree(tree.body) if isinstance(x, Loop)]


@pytest.mark.parametrize("name", CASES)
def test_trees_of_typical_kernels(name: str, golden: Callable[[str], None]) -> None:
    golden(show_tree(rule_tree(task_of(CASES[name], "x86-64-v3"))))


@pytest.mark.parametrize("target", programs.TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_trees_travel_as_json_and_give_the_rules_loops(name: str, target: str) -> None:
    task = task_of(CASES[name], target)
    tree = rule_tree(task)
    assert loads(dumps(tree)) == tree
    by_rule = Rule().optimize(task)
    assert by_rule is not None
    assert lower_tree(tree, task.func).trace == by_rule.trace


@settings(max_examples=30)
@given(some_windows(), st.sampled_from(programs.TARGETS))
def test_row_wise_windows_are_fused(program: Program, target: str) -> None:
    task = task_of(program, target)
    if task.fusion.pattern is FusionPattern.ROWWISE:
        lower_tree(rule_tree(task), task.func)
    check(program, target, any_kind=True)


def test_a_stage_of_which_a_single_point_is_needed_has_no_loop() -> None:
    program = Program(windows(2, (1, 1), (1, 1), 3, 1))
    task = task_of(program, "x86-64-v3")
    tree = rule_tree(task)
    (rows,) = tree.body
    assert isinstance(rows, Loop)
    padding, *others = rows.body
    assert isinstance(padding, Compute)
    looped = replace(tree, body=(replace(rows, body=(Loop("v_i1", 1, (padding,)), *others)),))
    assert lower_tree(looped, task.func).func == lower_tree(tree, task.func).func
    check(program, "x86-64-v3")


def test_windows_with_an_unread_border_compute_what_is_read() -> None:
    # of 16 padded columns the windows read 15
    task = task_of(Program(windows(8, (14, 14), (3, 3), 2, 1)), "x86-64-v4")
    padded = next(b for b in blocks(task.func.body) if b.body.buffer in task.func.allocs)
    assert [str(n) for n in needed_points(task.func)[padded.name]] == ["8", "15", "15"]
    assert [str(i.extent) for i in padded.iters] == ["8", "16", "16"]


def test_the_last_step_in_a_k_block_may_be_partial() -> None:
    tree = rule_tree(task_of(CASES["long_row_sums"], "x86-64-v3"))
    (stage,) = (x for x in tree.staging if isinstance(x, RFactor))
    assert [x.step for x in loops_of(tree) if x.axis == stage.axis and stage.size % x.step]
    check(CASES["long_row_sums"], "x86-64-v3")


def test_the_last_k_block_is_peeled_where_it_is_shorter() -> None:
    tree = rule_tree(task_of(CASES["long_matmul"], "x86-64-v3"))
    (stage,) = (x for x in tree.staging if isinstance(x, RFactor))
    assert 1021 % stage.size
    assert all(x.tail is Tail.REMAINDER for x in loops_of(tree) if (x.axis, x.step) == (stage.axis, stage.size))
