"""Sketches of tile trees: a tree without its sizes, which an array states for many candidates at once.

The sizes of a tree are, in this order: those of its staging (the points of partial sums, the widths of panels), then in
pre-order the steps of loops and, per part of a partition, the size of its tiles and of its staging. A sketch is any
tree with these sizes; a candidate is a row of an array [candidate, size], so that no tree is built per candidate. What
cost models read of it are the paths: the loops and parts around every statement.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.tile.tree import Compute, Loop, LoopPart, Node, Pack, Partition, RFactor, Staging, TileTree


@dataclass(frozen=True, slots=True)
class LoopStep:
    """A loop on a path.

    Attributes:
        place: the position of its step among the sizes of the tree; it identifies the loop.
        loop: the loop.
    """

    place: int
    loop: Loop

    @property
    def axis(self) -> str:
        """The axis of the loop."""
        return self.loop.axis


@dataclass(frozen=True, slots=True)
class PartRange:
    """A part of a partition on a path.

    Attributes:
        place: the position of its tile size among the sizes of the tree; it identifies the part.
        axis: the axis that is partitioned.
        tiles: the positions of the tile sizes of the parts before it.
        is_last: whether it covers all that is left.
        partition: the position of the first part's tile size; it identifies the partition.
    """

    place: int
    axis: str
    tiles: tuple[int, ...]
    is_last: bool
    partition: int


PathNode = LoopStep | PartRange


@dataclass(frozen=True, slots=True)
class StatementPath:
    """A statement with the loops and parts around it, outermost first, and the staging that is visible there."""

    compute: Compute
    nodes: tuple[PathNode, ...]
    staging: tuple[Staging, ...]


def tree_sizes(tree: TileTree) -> tuple[int, ...]:
    """The sizes of a tree, in the order of the module's description."""
    return (*_staging_sizes(tree.staging), *_node_sizes(tree.body))


def statement_paths(tree: TileTree) -> tuple[StatementPath, ...]:
    """The paths of all statements, in the order of execution."""
    return tuple(_paths(tree.body, len(_staging_sizes(tree.staging)), (), tree.staging))


def with_sizes(tree: TileTree, sizes: Sequence[int]) -> TileTree:
    """The tree with other sizes.

    Raises:
        ScheduleError: there are more or fewer sizes than the tree has.
    """
    expected = len(tree_sizes(tree))
    if len(sizes) != expected:
        raise ScheduleError(f"expected {expected} sizes, got {len(sizes)}", where="tile tree")
    rest = iter([int(x) for x in sizes])
    staging = _staging_with(tree.staging, rest)
    return TileTree(_nodes_with(tree.body, rest), staging)


def _staging_sizes(staging: Iterable[Staging]) -> list[int]:
    return [x.size if isinstance(x, RFactor) else x.width for x in staging if isinstance(x, RFactor | Pack)]


def _node_sizes(nodes: Iterable[Node]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, Loop):
            yield node.step
            yield from _node_sizes(node.body)
        elif isinstance(node, Partition):
            for part in node.parts:
                yield part.tile
                yield from _staging_sizes(part.staging)
                yield from _node_sizes(part.body)


def _paths(
    nodes: Iterable[Node], place: int, path: tuple[PathNode, ...], staging: tuple[Staging, ...]
) -> Iterator[StatementPath]:
    """The paths of the statements in nodes, of which the first size has this place."""
    for node in nodes:
        match node:
            case Compute():
                yield StatementPath(node, path, staging)
            case Loop():
                yield from _paths(node.body, place + 1, (*path, LoopStep(place, node)), staging)
            case Partition():
                yield from _part_paths(node, place, path, staging)
        place += sum(1 for _ in _node_sizes((node,)))


def _part_paths(
    partition: Partition, place: int, path: tuple[PathNode, ...], staging: tuple[Staging, ...]
) -> Iterator[StatementPath]:
    tiles: list[int] = []
    for k, part in enumerate(partition.parts):
        is_last = k == len(partition.parts) - 1
        inside = PartRange(place, partition.axis, tuple(tiles), is_last, (*tiles, place)[0])
        tiles.append(place)
        place += 1 + len(_staging_sizes(part.staging))
        yield from _paths(part.body, place, (*path, inside), (*staging, *part.staging))
        place += sum(1 for _ in _node_sizes(part.body))


def _staging_with(staging: Iterable[Staging], sizes: Iterator[int]) -> tuple[Staging, ...]:
    result: list[Staging] = []
    for x in staging:
        if isinstance(x, RFactor):
            result.append(replace(x, size=next(sizes)))
        elif isinstance(x, Pack):
            result.append(replace(x, width=next(sizes)))
        else:
            result.append(x)
    return tuple(result)


def _nodes_with(nodes: Iterable[Node], sizes: Iterator[int]) -> tuple[Node, ...]:
    result: list[Node] = []
    for node in nodes:
        match node:
            case Compute():
                result.append(node)
            case Loop():
                step = next(sizes)
                result.append(replace(node, step=step, body=_nodes_with(node.body, sizes)))
            case Partition():
                result.append(replace(node, parts=tuple(_part_with(x, sizes) for x in node.parts)))
    return tuple(result)


def _part_with(part: LoopPart, sizes: Iterator[int]) -> LoopPart:
    tile = next(sizes)
    staging = _staging_with(part.staging, sizes)
    return LoopPart(tile, _nodes_with(part.body, sizes), staging)
