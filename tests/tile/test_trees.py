"""Tile trees: kernels of several computations are computed right, trees travel as JSON, and print."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.tile.trees import cases

import tilewright as tw
from tilewright.errors import ScheduleError, TreeError
from tilewright.tile import tree_json
from tilewright.tile.tree_text import show_tree

CASES = cases()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3"])
def test_trees_compute_the_same(name: str, target: str) -> None:
    case = CASES[name]
    s = tw.create_schedule(case.result)
    s.apply_tree(case.tree)
    s.check(case.sizes or None, target=target, threads=3)
    s.check(case.sizes or None, native=False, seed=1)


@pytest.mark.parametrize("name", CASES)
def test_text_of_trees(name: str, golden: Callable[[str], None]) -> None:
    golden(show_tree(CASES[name].tree))


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name: str) -> None:
    tree = CASES[name].tree
    text = tree_json.dumps(tree)
    assert tree_json.loads(text) == tree
    assert tree_json.dumps(tree_json.loads(text)) == text
    assert json.loads(text) == tree_json.encode(tree)


def test_a_scheduled_kernel_takes_no_tree() -> None:
    case = CASES["two products"]
    s = tw.create_schedule(case.result)
    s.parallel(s.loops()[0])
    with pytest.raises(ScheduleError) as error:
        s.apply_tree(case.tree)
    assert str(error.value) == (
        "[schedule] apply_tree: expected untransformed loops, got 1 step of a schedule; begin with `create_schedule`"
    )


def stored() -> dict[str, Any]:
    return tree_json.encode(CASES["two products"].tree)


LEAF = {"kind": "compute", "statement": "C"}


def nested(depth: int) -> list[dict[str, Any]]:
    body = [LEAF]
    for _ in range(depth):
        body = [{"kind": "loop", "axis": "i", "step": 1, "body": body}]
    return body


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"format": "x"}, "format: expected 'tilewright-tree', got 'x'"),
        ({"version": True}, "version: expected 1, got True"),
        ({"extra": 1}, "'extra': there is no such field; there are format, version, staging, body"),
        ({"body": {}}, "body: expected a list, got {}"),
        ({"staging": None}, "staging: expected a list, got None"),
        ({"body": [3]}, "body, 0: expected an object whose `kind` is one of loop, partition, compute, got 3"),
        ({"staging": [LEAF]}, "staging, 0: expected an object whose `kind` is one of cache_write, rfactor, pack, "
         "cache_read, inline, got {'kind': 'compute', 'statement': 'C'}"),
        ({"body": [{"kind": "loop", "axis": "i", "body": [LEAF]}]}, "body, 0: the field `step` is missing"),
        ({"body": [{"kind": "loop", "axis": 3, "step": 1, "body": []}]}, "body, 0, axis: expected text, got 3"),
        ({"body": [{"kind": "loop", "axis": "i", "step": True, "body": []}]},
         "body, 0, step: expected a whole number, got True"),
        ({"body": [{"kind": "loop", "axis": "i", "step": -1, "body": []}]},
         "body, 0, step: expected a number within 0..281474976710656, got -1"),
        ({"body": [{**LEAF, "scope": "heap"}]},
         "body, 0, scope: expected one of memory, stack, register, got 'heap'"),
        ({"body": [{**LEAF, "online": 1}]}, "body, 0, online: expected true or false, got 1"),
        ({"body": [{**LEAF, "lanes": 1}]},
         "body, 0: there is no field 'lanes'; there are statement, scope, lane_axis, online"),
        ({"body": [{"kind": "partition", "axis": "i", "parts": [3]}]},
         "body, 0, parts, 0: expected an object, got 3"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(TreeError) as error:
        tree_json.decode({**stored(), **changes})
    assert [f"{p.where}: {p.what}" for p in error.value.problems] == [expected]


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(TreeError) as error:
        tree_json.decode({**stored(), "format": "x", "body": [3, 4]})
    assert len(error.value.problems) == 3


@pytest.mark.parametrize("text", ["", "{", "[1, NaN]", "[" * 100_000, '{"a": 1, "a": 2}'])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(TreeError, match="it is not JSON"):
        tree_json.loads(text)


def test_limits_of_the_reader() -> None:
    with pytest.raises(TreeError, match="more than 64 loops are nested"):
        tree_json.decode({**stored(), "body": nested(200)})
    with pytest.raises(TreeError, match="it exceeds 1048576 bytes"):
        tree_json.loads(" " * (1 << 21))
