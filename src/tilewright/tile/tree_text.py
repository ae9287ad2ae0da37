"""Text of tile trees.

C.store copies C
C.partial sums C over 256 points of k
B.pack packs dimension 1 of B for C.partial in panels of 32
i 96 parallel:
    k 256 remainder:
        j 32:
            k 1:
                i 1 unrolled:
                    j 1 vectorized:
                        C.partial in register, j innermost
"""

from collections.abc import Iterator

from tilewright.loops.ir import LoopKind
from tilewright.schedule.tails import Tail
from tilewright.tile.tree import (
    CacheRead,
    CacheWrite,
    Compute,
    Inline,
    Loop,
    Node,
    Pack,
    Partition,
    RFactor,
    Staging,
    TileTree,
)

INDENT = "    "


def show_tree(tree: TileTree) -> str:
    """The text of a tree: staging, a line each, then the loops."""
    lines = [staging_text(x) for x in tree.staging]
    lines += [line for node in tree.body for line in _show_node(node, "")]
    return "\n".join(lines)


def staging_text(stage: Staging) -> str:
    """The text of an added statement."""
    match stage:
        case CacheWrite():
            return f"{stage.copy} copies {stage.statement}"
        case RFactor():
            what = f"{stage.size} lanes along" if stage.lanes else f"{stage.size} points of"
            return f"{stage.partial} sums {stage.statement} over {what} {stage.axis}"
        case Pack():
            return (
                f"{stage.copy} packs dimension {stage.dim} of {stage.operand} for {stage.statement} "
                f"in panels of {stage.width}"
            )
        case CacheRead():
            order = f" in the order {', '.join(map(str, stage.order))}" if stage.order else ""
            return f"{stage.copy} copies {stage.operand} for {stage.statement}{order}"
        case Inline():
            return f"{stage.statement} is inlined"


def _show_node(node: Node, indent: str) -> Iterator[str]:
    match node:
        case Compute():
            yield indent + compute_text(node)
        case Loop():
            yield f"{indent}{loop_text(node)}:"
            for child in node.body:
                yield from _show_node(child, indent + INDENT)
        case Partition():
            for part in node.parts:
                yield f"{indent}{node.axis} in whole tiles of {part.tile}:"
                for stage in part.staging:
                    yield indent + INDENT + staging_text(stage)
                for child in part.body:
                    yield from _show_node(child, indent + INDENT)


def loop_text(loop: Loop) -> str:
    """The text of a loop without its body: axis, step, kind, tail strategy, prefetches."""
    kind = "" if loop.kind is LoopKind.SERIAL else f" {loop.kind}"
    tail = "" if loop.tail is Tail.GUARD else f" {loop.tail}"
    hints = "".join(f" prefetching {p.source} {p.distance} ahead" for p in loop.prefetches)
    return f"{loop.axis} {loop.step}{kind}{tail}{hints}"


def compute_text(compute: Compute) -> str:
    """The text of a statement in its place: where its results are, and which axis is innermost there."""
    scope = "" if compute.scope is None else f" in {compute.scope}"
    lanes = "" if compute.lane_axis is None else f", {compute.lane_axis} innermost"
    return f"{compute.statement}{scope}{lanes}{', online' if compute.online else ''}"
