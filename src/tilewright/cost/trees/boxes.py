"""Boxes of points in a tile tree: what the statements compute inside of every loop around them, for many candidates.

The points of an axis inside of a loop over it are those of its step. Where no loop around a statement is over one of
its axes, it computes what its readers in the same loop need: the span of their accesses, halos included. Points that
several iterations compute, because their halos overlap or because a loop has nothing to do with the statement, count
every time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.cost.shape_family import Integers, ShapeFamily
from tilewright.cost.trees.statements import TreeStatement, common_depth
from tilewright.loops.ir import LoopKind
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.tree_sizes import LoopStep, PartRange, StatementPath

TILE_KINDS = (LoopKind.UNROLLED, LoopKind.VECTORIZED)
"""Kinds of the loops inside of a register tile."""


@dataclass(frozen=True, eq=False)
class StatementNest:
    """A statement in its place: in a partition every part has nests of its own.

    Attributes:
        statement: what it computes.
        path: the loops and parts around it.
        allocated: per access to a buffer on the stack, by its position, the number of nodes around the buffer.
        shapes: the statement's problem at every shape of a batch; empty for that of the statement alone.
        shared_nodes: the number of nodes around it that may be around other nests, too: its inner loops follow those of
            the statement that has this path; None for all.
    """

    statement: TreeStatement
    path: StatementPath
    allocated: Mapping[int, int] = field(default_factory=dict[int, int])
    shapes: tuple[Problem, ...] = ()
    shared_nodes: int | None = None

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The statement's problem at every shape."""
        return self.shapes or (self.statement.problem,)

    @property
    def accesses(self) -> tuple[Operand, ...]:
        """All accesses: operands, then results."""
        return (*self.statement.problem.operands, *self.statement.problem.results)


def is_tile_loop(node: LoopStep | PartRange) -> bool:
    """Whether a node of a path is a loop around register tiles."""
    return isinstance(node, LoopStep) and node.loop.kind not in TILE_KINDS


@dataclass(eq=False)
class TreeBoxes:
    """The boxes of a batch of candidates; computed once each.

    Attributes:
        nests: all nests of the tree, in the order of execution.
        sizes: of the candidates, [size, candidate].
        shape_indices: the position of each candidate's shape [candidate]; unused for a single shape.
    """

    nests: Sequence[StatementNest]
    sizes: Numbers
    shape_indices: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    _points: dict[tuple[int, str, int], Numbers] = field(default_factory=dict[tuple[int, str, int], Numbers])

    def family(self, nest: StatementNest) -> ShapeFamily:
        """The problems of all candidates of a nest."""
        return ShapeFamily(nest.problems, self.shape_indices)

    def points(self, nest: StatementNest, axis: str, depth: int) -> Numbers:
        """Points along an axis that a nest computes inside of the outermost `depth` nodes of its path."""
        key = id(nest), axis, depth
        if key not in self._points:
            self._points[key] = self._compute_points(nest, axis, depth)
        return self._points[key]

    def _compute_points(self, nest: StatementNest, axis: str, depth: int) -> Numbers:
        nodes = nest.path.nodes
        for k in range(depth - 1, -1, -1):
            node = nodes[k]
            if node.axis == axis:
                return self.sizes[node.place] if isinstance(node, LoopStep) else self._part_points(nest, node, k)
        first = next((k for k, x in enumerate(nodes) if x.axis == axis), None)
        if first is not None:
            node = nodes[first]
            if isinstance(node, PartRange):
                return self._part_points(nest, node, first)
        return self._needed_points(nest, axis, depth)

    def whole_points(self, nest: StatementNest, axis: str, depth: int) -> Numbers:
        """Points along an axis that all parts of a partition compute together; else as `points`."""
        is_cut = any(x.axis == axis and isinstance(x, PartRange) for x in nest.path.nodes)
        return self._needed_points(nest, axis, depth) if is_cut else self.points(nest, axis, depth)

    def part_share(self, nest: StatementNest, axis: str, depth: int) -> Numbers:
        """The share of the points inside of the outermost `depth` nodes that a nest computes, where a loop over the
        axis has a partition of its tiles inside: a part of 60 points in a loop with steps of 64 computes 60 of 64."""
        share, step = np.ones(self.sizes.shape[1]), None
        for k, node in enumerate(nest.path.nodes):
            if node.axis != axis:
                continue
            if isinstance(node, LoopStep):
                step = self.sizes[node.place]
            elif step is not None and k >= depth:
                share = share * self._part_points(nest, node, k) / step
        return share

    def iterations(self, nest: StatementNest, depth: int) -> Numbers:
        """Iterations of the loop at a depth of a nest's path; 1 for a part."""
        node = nest.path.nodes[depth]
        if isinstance(node, PartRange):
            return np.ones(self.sizes.shape[1])
        owner, step = self._nest_of_axis(nest, depth), self.sizes[node.place]
        points = self.points(owner, node.axis, depth)
        problem = owner.statement.problem
        if not problem.axes[owner.statement.axes.index(node.axis)].is_reduction:
            points = self._whole_tiles(owner, node.axis, depth, points)
        return np.maximum(1.0, points / step)

    def _whole_tiles(self, nest: StatementNest, axis: str, depth: int, points: Numbers) -> Numbers:
        """Points in whole register tiles, where the outermost loop over an axis is at this depth."""
        if any(isinstance(x, LoopStep) and x.axis == axis for x in nest.path.nodes[:depth]):
            return points
        tile = [x for x in nest.path.nodes if is_tile_loop(x) and x.axis == axis]
        step = self.sizes[tile[-1].place] if tile else 1.0
        return np.ceil(points / step) * step

    def _nest_of_axis(self, nest: StatementNest, depth: int) -> StatementNest:
        """The last nest in a loop that has its axis."""
        axis = nest.path.nodes[depth].axis
        inside = [x for x in self.nests if axis in x.statement.axes and common_depth(x.path, nest.path) > depth]
        return nest if axis in nest.statement.axes or not inside else inside[-1]

    def _part_points(self, nest: StatementNest, part: PartRange, depth: int) -> Numbers:
        """Points along the axis of a partition that a part covers."""
        outer = next((k for k in range(depth - 1, -1, -1) if nest.path.nodes[k].axis == part.axis), None)
        is_whole = outer is None
        left = self._needed_points(nest, part.axis, depth) if is_whole else self.points(nest, part.axis, outer + 1)
        for place in part.tiles:
            left = left - np.floor(left / self.sizes[place]) * self.sizes[place]
        return left if part.is_last else np.floor(left / self.sizes[part.place]) * self.sizes[part.place]

    def _needed_points(self, nest: StatementNest, axis: str, depth: int) -> Numbers:
        """Points along an axis that the readers in the loops at these depths need; all without such readers."""
        statement = nest.statement
        extent = self.family(nest).extents[statement.axes.index(axis)]
        everything = np.full(self.sizes.shape[1], extent, np.float64)
        if axis not in statement.stored:
            return everything
        dim, needed = statement.stored.index(axis), np.zeros_like(everything)
        for reader in self.nests:
            shared = min(common_depth(reader.path, nest.path), depth)
            for o in reader.accesses:
                if (
                    reader is not nest
                    and o.buffer == statement.buffer
                    and not o.written
                    and _in_same_parts(reader, nest)
                ):
                    needed = np.maximum(
                        needed, self._accessed_points(reader, o, statement, dim, shared) if shared else everything
                    )
        return np.where(needed > 0, np.minimum(everything, needed), everything)

    def _accessed_points(
        self, reader: StatementNest, o: Operand, statement: TreeStatement, dim: int, depth: int
    ) -> Numbers:
        """Distance from the first to the last element + 1 that a reader accesses along a dimension of a buffer."""
        row = o.index[_stored_dim(statement, dim)]
        span: Numbers = np.ones(self.sizes.shape[1])
        for k, c in enumerate(row):
            if c:
                span = span + abs(c) * (self.points(reader, reader.statement.axes[k], depth) - 1.0)
        return span


def _stored_dim(statement: TreeStatement, dim: int) -> int:
    """The position of a dimension of a buffer in the layout in which a reader's access has it."""
    stores = [x for x in (*statement.problem.operands, *statement.problem.results) if x.written]
    position = next(k for k, name in enumerate(statement.axes) if name == statement.stored[dim])
    rows = stores[-1].index
    return next((d for d, row in enumerate(rows) if row[position]), dim)


def _in_same_parts(reader: StatementNest, nest: StatementNest) -> bool:
    """Whether no partition has the two in different parts."""
    parts = {x.partition: x.place for x in reader.path.nodes if isinstance(x, PartRange)}
    return all(parts.get(x.partition, x.place) == x.place for x in nest.path.nodes if isinstance(x, PartRange))
