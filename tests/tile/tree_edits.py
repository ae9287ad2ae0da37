"""Edits that make tile trees illegal, by the condition that they break."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import LoopKind
from tilewright.schedule.tails import Tail
from tilewright.tile.tree import (
    CacheRead,
    CacheWrite,
    Compute,
    Loop,
    LoopPart,
    Node,
    Pack,
    Partition,
    Prefetch,
    RFactor,
    Staging,
    TileTree,
    computes,
    walk_tree,
)

Edit = Callable[[TileTree], TileTree]


def replaced(tree: TileTree, old: Node, *new: Node) -> TileTree:
    """The tree with a node, found by identity, replaced by others."""

    def visit(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        result: list[Node] = []
        for node in nodes:
            if node is old:
                result += new
            else:
                result.append(replace(node, body=visit(node.body)) if isinstance(node, Loop) else node)
        return tuple(result)

    return replace(tree, body=visit(tree.body))


def loops_of(tree: TileTree) -> list[Loop]:
    """All loops in pre-order."""
    return [x for x, _ in walk_tree(tree.body) if isinstance(x, Loop)]


def leaves_of(tree: TileTree) -> list[Compute]:
    """All statements in the order of execution."""
    return list(computes(*tree.body))


def edit_loop(position: int, **changes: Any) -> Edit:
    """Changes attributes of the loop at a position in pre-order."""
    return lambda tree: replaced(tree, loops_of(tree)[position], replace(loops_of(tree)[position], **changes))


def edit_leaf(position: int, **changes: Any) -> Edit:
    """Changes attributes of the statement at a position in the order of execution."""
    return lambda tree: replaced(tree, leaves_of(tree)[position], replace(leaves_of(tree)[position], **changes))


def without_loop(position: int) -> Edit:
    """Leaves a loop out; its body stays."""
    return lambda tree: replaced(tree, loops_of(tree)[position], *loops_of(tree)[position].body)


def with_staging(*stages: Staging) -> Edit:
    """Adds staging."""
    return lambda tree: replace(tree, staging=(*tree.staging, *stages))


def nested_axis(tree: TileTree) -> tuple[Loop, Loop]:
    """A loop, and one around it over the same axis."""
    for node, enclosing in walk_tree(tree.body):
        for outer in reversed(enclosing):
            if isinstance(node, Loop) and isinstance(outer, Loop) and node.axis == outer.axis:
                return node, outer
    raise ValueError("no axis has two loops")


def inner_step(step: Callable[[int], int]) -> Edit:
    """The step of an inner loop as a function of that of the loop around it over the same axis."""

    def edit(tree: TileTree) -> TileTree:
        inner, outer = nested_axis(tree)
        return replaced(tree, inner, replace(inner, step=step(outer.step)))

    return edit


def first_with_children(tree: TileTree) -> Loop:
    """The first loop with several nodes in it."""
    return next(x for x in loops_of(tree) if len(x.body) > 1)


def swapped(tree: TileTree) -> TileTree:
    """The last two nodes of a loop with several, swapped."""
    loop = first_with_children(tree)
    return replaced(tree, loop, replace(loop, body=(*loop.body[:-2], loop.body[-1], loop.body[-2])))


def vectorized_parent(tree: TileTree) -> TileTree:
    """A loop with several nodes in it, vectorized."""
    loop = first_with_children(tree)
    return replaced(tree, loop, replace(loop, kind=LoopKind.VECTORIZED))


def partitioned(*tiles: int) -> Edit:
    """The outermost loop as parts of a partition with tiles of these sizes."""

    def edit(tree: TileTree) -> TileTree:
        (loop,) = tree.body
        assert isinstance(loop, Loop)
        return replace(tree, body=(Partition(loop.axis, tuple(LoopPart(t, (replace(loop, step=t),)) for t in tiles)),))

    return edit


def parts_of_different_statements(tree: TileTree) -> TileTree:
    (loop,) = tree.body
    return replace(tree, body=(Partition("i", (LoopPart(8, (loop,)), LoopPart(4, (leaves_of(tree)[0],)))),))


def copied_leaf(tree: TileTree) -> TileTree:
    """The last statement computed twice."""
    (loop,) = tree.body
    assert isinstance(loop, Loop)
    return replace(tree, body=(replace(loop, body=(*loop.body, leaves_of(tree)[-1])),))


EDITS: dict[str, Edit] = {
    "unknown statement": edit_leaf(0, statement="nobody"),
    "statement computed twice": copied_leaf,
    "consumer before producer": swapped,
    "no loop over an axis of the last statement": without_loop(-1),
    "unknown axis": edit_loop(1, axis="nowhere"),
    "step of 0": edit_loop(1, step=0),
    "step of the loop around it": inner_step(lambda outer: outer),
    "step larger than that around it": inner_step(lambda outer: 2 * outer),
    "step that does not divide": inner_step(lambda outer: outer - 1),
    "innermost step that leaves points": edit_loop(-1, step=3),
    "outermost loop vectorized": edit_loop(0, kind=LoopKind.VECTORIZED),
    "outermost loop unrolled": edit_loop(0, kind=LoopKind.UNROLLED),
    "loop on the axis of a grid": edit_loop(0, kind=LoopKind.BLOCK_X),
    "loop with several nodes vectorized": vectorized_parent,
    "parallel loop in a vectorized one": lambda tree: replaced(
        tree, loops_of(tree)[-1],
        replace(loops_of(tree)[-1], kind=LoopKind.UNROLLED,
                body=(Loop("new", 1, loops_of(tree)[-1].body, LoopKind.PARALLEL),))),
    "masked tail": edit_loop(1, tail=Tail.MASK),
    "parallel loop with a peeled tail": edit_loop(0, tail=Tail.REMAINDER),
    "loop that computes nothing": lambda tree: replace(tree, body=(*tree.body, Loop("i", 4, ()))),
    "staging of an unknown statement": with_staging(CacheWrite("nobody", "copy")),
    "name of staging taken": lambda tree: with_staging(replace(tree.staging[0]))(tree),
    "staging left out": lambda tree: replace(tree, staging=()),
    "partial sums of 0 points": lambda tree: with_staging(RFactor(leaves_of(tree)[-1].statement, "p", "i", 0))(tree),
    "partial sums along a spatial axis": lambda tree: with_staging(
        RFactor(tree.staging[0].statement, "p", loops_of(tree)[0].axis, 4))(tree),
    "panels of 0 points": lambda tree: with_staging(Pack(leaves_of(tree)[0].statement, "p", "A", 0, 0))(tree),
    "copy in an order that is none": lambda tree: with_staging(
        CacheRead(leaves_of(tree)[0].statement, "p", "A", (0, 2)))(tree),
    "copy of a buffer that is not read": lambda tree: with_staging(
        CacheRead(leaves_of(tree)[0].statement, "p", "none"))(tree),
    "partition of one part": partitioned(8),
    "partition with rising tiles": partitioned(4, 8),
    "partition with an empty part": lambda tree: replace(
        tree, body=(Partition("i", (LoopPart(8, tree.body), LoopPart(4, ()))),)),
    "parts of different statements": parts_of_different_statements,
    "prefetch of no copy": edit_loop(1, prefetches=(Prefetch("nobody", 4),)),
    "prefetch of no distance": edit_loop(1, prefetches=(Prefetch("nobody", 0),)),
    "unknown lane axis": edit_leaf(0, lane_axis="nowhere"),
    "online sum without a reduction": edit_leaf(-1, online=True),
    "result of the kernel on the stack": edit_leaf(-1, scope=MemoryScope.STACK),
}  # fmt: skip
"""Edits by the condition that they break."""
