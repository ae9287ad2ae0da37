"""Tile trees: the loop structure of a kernel as data, for one computation or several.

A tree is a sequence of loops over tiles, one after the other or nested, around the statements of the kernel:

    i 96 parallel:                # one iteration covers 96 points of axis i
        j 512 parallel:
            k 256:                # K-blocks
                i 8:
                    j 32:
                        k 1: i 1 unroll: j 1 vector: C.partial in registers
                        i 1 unroll: j 1 vector: C on the stack
            i 8: j 32: i 1 unroll: j 1 vector: relu

It holds decisions only: loops with their steps and kinds, the place and the memory scope of every statement, packed
copies, partial sums, tails. What follows from these and the kernel (extents, regions, guards, initialisations) is left
to lowering (`lower_tree.py`).

Axes are those of the kernel's blocks, named after their iteration variables; an axis along which one block reads
element by element what another one writes is one axis (`statements.py`). A statement inside of a loop that belongs to a
later statement computes what one iteration of the loop needs of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import LoopKind
from tilewright.schedule.tails import Tail


@dataclass(frozen=True, slots=True)
class Compute:
    """A statement: one iteration of a block at the point that the enclosing loops determine.

    Attributes:
        statement: name of a block of the kernel, or of one that staging adds.
        scope: where the internal buffer that it writes is stored; None leaves it where it is.
        lane_axis: the axis that is made innermost in that buffer, so that vectors along it are contiguous; None leaves
            the layout as it is.
        online: whether it is a sum that is fused into the loop over another reduction which its terms depend on, and is
            rescaled whenever the result of that one changes (`rolling_update`; online softmax); or an element-wise
            value that such sums add up, computed once for all of them (`cache_value`).
    """

    statement: str
    scope: MemoryScope | None = None
    lane_axis: str | None = None
    online: bool = False


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A software prefetch in a loop.

    Attributes:
        source: the statement that fills the packed copy which is prefetched, or the buffer of an operand that is read
            where it is.
        distance: iterations in advance; those behind the loop's end are the next execution's.
    """

    source: str
    distance: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over the tiles of an axis.

    Attributes:
        axis: name of the axis.
        step: points of the axis that one iteration covers.
        body: what an iteration executes, in this order.
        kind: serial, parallel, vectorized or unrolled.
        tail: GUARD, or REMAINDER where a last, partial iteration is peeled so that the others need no conditions.
        prefetches: software prefetches.
    """

    axis: str
    step: int
    body: "tuple[Node, ...]"
    kind: LoopKind = LoopKind.SERIAL
    tail: Tail = Tail.GUARD
    prefetches: tuple[Prefetch, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopPart:
    """A part of a partition.

    Attributes:
        tile: the part covers as many whole tiles of this many points as the parts before it leave over; the last part
            covers all that is left.
        body: the loops over the part, of copies of the statements.
        staging: staging of these copies.
    """

    tile: int
    body: "tuple[Node, ...]"
    staging: "tuple[Staging, ...]" = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """Loop partitioning: an axis is cut into ranges, each with loops of its own: whole tiles, then smaller ones.

    Attributes:
        axis: name of the axis, one of the last statement inside.
        parts: of falling tile sizes.
    """

    axis: str
    parts: tuple[LoopPart, ...]


Node = Loop | Partition | Compute


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """A statement writes a buffer of its own, which a new statement copies to the original one (`cache_write`).

    Attributes:
        statement: the statement.
        copy: name of the new one.
    """

    statement: str
    copy: str


@dataclass(frozen=True, slots=True)
class RFactor:
    """A reduction in two levels (`rfactor`): a new statement computes partial results, which the statement combines.

    Attributes:
        statement: the statement.
        partial: name of the new one.
        axis: the reduction axis that is split.
        size: points of the axis per partial result, in sequence; with `lanes` the number of partial results, each over
            every `size`-th point.
        lanes: whether partial results are the lanes of vectors.
    """

    statement: str
    partial: str
    axis: str
    size: int
    lanes: bool = False


@dataclass(frozen=True, slots=True)
class Pack:
    """A statement reads an operand from a copy in panels (`pack`), which a new statement fills.

    Attributes:
        statement: the statement.
        copy: name of the new one, whose axes are `<copy>.panel`, `<copy>.<dimension>` for the other dimensions of the
            operand, and `<copy>.point`.
        operand: name of the buffer.
        dim: the dimension that is cut into panels.
        width: points of a panel.
    """

    statement: str
    copy: str
    operand: str
    dim: int
    width: int


@dataclass(frozen=True, slots=True)
class CacheRead:
    """A statement reads an operand from a copy (`cache_read`), which a new statement fills.

    Attributes:
        statement: the statement.
        copy: name of the new one, whose axes are `<copy>.<dimension>`.
        operand: name of the buffer.
        order: dimensions of the operand in the order in which the copy stores them; () keeps it.
    """

    statement: str
    copy: str
    operand: str
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Inline:
    """An element-wise statement is substituted into all its readers (`inline`), and is none any more.

    Attributes:
        statement: the statement.
    """

    statement: str


Staging = CacheWrite | RFactor | Pack | CacheRead | Inline


@dataclass(frozen=True, slots=True)
class TileTree:
    """The tree of a kernel.

    Attributes:
        body: loops and statements in the order of execution. Statements that are in no loop nest of it keep their
            untransformed loops.
        staging: new statements, in the order in which they are added.
    """

    body: tuple[Node, ...]
    staging: tuple[Staging, ...] = ()


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly inside a node."""
    if isinstance(node, Partition):
        return tuple(child for part in node.parts for child in part.body)
    return node.body if isinstance(node, Loop) else ()


def walk_tree(nodes: tuple[Node, ...], enclosing: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Every node in pre-order, with the nodes around it, outermost first."""
    for node in nodes:
        yield node, enclosing
        yield from walk_tree(children(node), (*enclosing, node))


def computes(*nodes: Node) -> tuple[Compute, ...]:
    """The statements inside nodes, in the order of execution."""
    return tuple(node for node, _ in walk_tree(nodes) if isinstance(node, Compute))


def on_one_thread(tree: TileTree) -> TileTree:
    """The tree with its parallel loops made serial."""
    return replace(tree, body=tuple(map(_with_serial_loops, tree.body)))


def _with_serial_loops(node: Node) -> Node:
    match node:
        case Compute():
            return node
        case Loop():
            kind = LoopKind.SERIAL if node.kind is LoopKind.PARALLEL else node.kind
            return replace(node, kind=kind, body=tuple(map(_with_serial_loops, node.body)))
        case Partition():
            bodies = [tuple(map(_with_serial_loops, p.body)) for p in node.parts]
            return replace(node, parts=tuple(replace(p, body=x) for p, x in zip(node.parts, bodies, strict=True)))


def nest(loops: "tuple[Loop, ...] | list[Loop]", *body: Node) -> tuple[Node, ...]:
    """Loops nested into each other, outermost first, around a body; their own bodies are replaced."""
    result = body
    for loop in reversed(loops):
        result = (Loop(loop.axis, loop.step, result, loop.kind, loop.tail, loop.prefetches),)
    return result
