"""Nests of a tile tree as the formulas see them: the tile sizes of a statement's axes, and what its loops touch.

The formulas for register tiles, streams and pages know a register tile, an L1 tile with its K-block, and an L2 tile
(see `tile.program`). Of a path of loops these are: what the unrolled and vectorized loops cover; the tile around the
innermost loop over K-blocks, or around the innermost loops in the order of all; and the tile of a parallel task.
Traffic knows all loops of the path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import mul

import numpy as np

from tilewright.cost.candidate_batch import CandidateBatch, is_packed
from tilewright.cost.footprint import Numbers, moved_bytes
from tilewright.cost.loop_footprints import LoopFootprints, TileLoop
from tilewright.cost.part_work import unroll_windows
from tilewright.cost.reduction_kind import is_long_reduction
from tilewright.cost.trees.boxes import StatementNest, TreeBoxes, is_tile_loop
from tilewright.cost.trees.statements import common_depth
from tilewright.cost.trees.vector_lanes import vector_lanes
from tilewright.loops.ir import LoopKind
from tilewright.machine.model import Machine
from tilewright.tile.prefetches import is_read_ahead
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Mask, Sketch
from tilewright.tile.tree_sizes import LoopStep, PathNode, StatementPath


@dataclass(frozen=True, eq=False)
class NestShape:
    """The part of a nest's formulas that does not depend on the candidates.

    Attributes:
        nest: the nest.
        is_shared: per node of the path whether other statements are inside as well.
        is_long: whether it waits for the terms of one result before it begins the next.
        vector_bits: width of a vector register.
        private_bytes: that stay in the caches of one core.
        has_root: whether there are other nests, so that the whole kernel counts as a loop around it.
    """

    nest: StatementNest
    is_shared: tuple[bool, ...]
    is_long: bool
    vector_bits: int
    private_bytes: float
    has_root: bool

    @staticmethod
    def of(nest: StatementNest, paths: Sequence[StatementPath], machine: Machine, is_sole: bool) -> "NestShape":
        """The shape of one nest.

        Args:
            nest: the nest.
            paths: of all statements of the tree.
            machine: the machine.
            is_sole: whether the tree has no other nest.
        """
        depths = [common_depth(nest.path, x) for x in paths if not _is_same_place(x, nest.path)]
        shared = tuple(any(d > k for d in depths) for k in range(len(nest.path.nodes)))
        is_long = is_long_reduction(nest.statement.problem, machine.cost)
        private = max((x.bytes for x in machine.private_caches), default=0)
        kept = private * machine.cost.usable_cache_fraction
        return NestShape(nest, shared, is_long, machine.vector_bits, kept, not is_sole)

    @property
    def nodes(self) -> tuple[PathNode, ...]:
        """The loops and parts around the statement."""
        return self.nest.path.nodes

    @cached_property
    def vector_axis(self) -> int | None:
        """The axis along which it is vectorized."""
        axes = self.nest.statement.axes
        kinds = {x.axis: x.loop.kind for x in self.nodes if isinstance(x, LoopStep)}
        return next((k for k, a in enumerate(axes) if kinds.get(a) is LoopKind.VECTORIZED), None)

    @cached_property
    def lane(self) -> int:
        """The lane axis: the vectorized one, or the last spatial one."""
        spatial = self.nest.statement.problem.spatial
        return self.vector_axis if self.vector_axis is not None else spatial[-1] if spatial else 0

    @cached_property
    def lanes(self) -> int:
        """Elements of a vector; 1 where there are none."""
        return 1 if self.vector_axis is None else vector_lanes(self.nest, self.lane, self.vector_bits)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Spatial axes, that of the outermost loop first; loops around a partition count where there are no others."""
        axes, spatial = self.nest.statement.axes, self.nest.statement.problem.spatial
        names = [x.axis for x in self.nodes if is_tile_loop(x)]
        position = {a: names.index(axes[a]) if axes[a] in names else -1 for a in spatial}
        return tuple(sorted(spatial, key=lambda a: position[a]))

    @cached_property
    def task_depth(self) -> int:
        """Number of nodes down to the last parallel loop."""
        parallel = [k for k, x in enumerate(self.nodes) if isinstance(x, LoopStep) and x.loop.kind is LoopKind.PARALLEL]
        return parallel[-1] + 1 if parallel else 0

    @property
    def k_block(self) -> int | None:
        """The depth of the innermost loop over K-blocks."""
        return self.k_blocks[-1] if self.k_blocks else None

    @property
    def outer_k_block(self) -> int | None:
        """The depth of the loop over K-blocks, each with partial sums of its own, that are cut into K-blocks again."""
        if self.nest.statement.partial_sums < 2 or len(self.k_blocks) < 2:
            return None
        outer, inner = self.k_blocks[-2], self.k_blocks[-1]
        return outer if self.nodes[outer].axis == self.nodes[inner].axis else None

    @cached_property
    def k_blocks(self) -> tuple[int, ...]:
        """The depths of loops over K-blocks: over a reduction axis, around other statements or loops over tiles of
        results."""
        spatial = {self.nest.statement.axes[k] for k in self.nest.statement.problem.spatial}
        own = [k for k, x in enumerate(self.nodes) if is_tile_loop(x) and x.axis in spatial]
        return tuple(
            k for k, x in enumerate(self.nodes)
            if is_tile_loop(x) and x.axis in self.reduce and (self.is_shared[k] or (own and own[-1] > k))
        )  # fmt: skip

    @cached_property
    def reduce(self) -> frozenset[str]:
        """Names of the reduction axes."""
        return frozenset(self.nest.statement.axes[k] for k in self.nest.statement.problem.reduce)

    @cached_property
    def l1_depth(self) -> int:
        """Number of nodes around the L1 tile: around K-blocks, else around the innermost loops over register tiles that
        keep the order."""
        if self.k_block is not None:
            return self.k_block
        axes, depth, last = self.nest.statement.axes, len(self.nodes), len(self.order)
        for k in range(len(self.nodes) - 1, self.task_depth - 1, -1):
            node = self.nodes[k]
            if not is_tile_loop(node) or node.axis not in axes or node.axis in self.reduce:
                continue
            position = self.order.index(axes.index(node.axis))
            if position >= last:
                break
            depth, last = k, position
        return depth

    @cached_property
    def row_loops(self) -> frozenset[int]:
        """Depths of loops inside of a register tile of element-wise work over its rows: those between the loops over
        its lanes and the vector. Loops over lanes are its own, or those of the sums that it adds up or rescales."""
        statement = self.nest.statement
        if statement.problem.reduce or self.vector_axis is None:
            return frozenset()
        lane = statement.axes[self.lane]
        tiled = [k for k, x in enumerate(self.nodes) if is_tile_loop(x)]
        lanes = [k for k in tiled if self.nodes[k].axis == lane and (statement.is_sum or not self.is_shared[k])]
        innermost = {self.nodes[k].axis: k for k in tiled}
        return frozenset(k for k in innermost.values() if lanes and k > lanes[-1])

    @cached_property
    def prefetched(self) -> tuple[int, ...]:
        """Operands from beyond the caches of a core that are prefetched: panels, and rows that a loop prefetches."""
        p, panels = self.nest.statement.problem, (self.nest.statement.panels or {}).values()
        hinted = {h.source for x in self.nodes if isinstance(x, LoopStep) for h in x.loop.prefetches}
        rows = (k for k, o in enumerate(p.operands) if o.buffer in hinted and is_read_ahead(p, k, self.lane))
        sizes = {k: p.operands[k].bytes for k in (*panels, *rows)}
        return tuple(k for k, size in sizes.items() if size > self.private_bytes)

    def tile_depth(self, axis: str) -> int | None:
        """The depth of the innermost loop over an axis that is not inside of the register tile."""
        depths = [k for k, x in enumerate(self.nodes) if is_tile_loop(x) and x.axis == axis and k not in self.row_loops]
        return depths[-1] if depths else None

    @cached_property
    def loops(self) -> tuple[tuple[int, TileLoop], ...]:
        """(depth, loop) of the loops around register tiles, and of those over terms of a long reduction."""
        axes = self.nest.statement.axes
        spatial = [k for k, x in enumerate(self.nodes) if is_tile_loop(x) and x.axis not in self.reduce]
        result: list[tuple[int, TileLoop]] = []
        for k, node in enumerate(self.nodes):
            if not is_tile_loop(node) or k in self.row_loops:
                continue
            axis = axes.index(node.axis) if node.axis in axes else -1
            is_term = node.axis in self.reduce and k > (-1 if self.k_block is None else self.k_block)
            is_term = is_term and not any(s > k for s in spatial)
            if not is_term or self.is_long or axis == self.lane:
                result.append((k, TileLoop(axis, L2 if k < self.task_depth else REGISTER if is_term else L1)))
        return tuple(result)


def _is_same_place(path: StatementPath, other: StatementPath) -> bool:
    return path.compute is other.compute and common_depth(path, other) == len(other.nodes)


@dataclass(frozen=True, eq=False)
class NestBatch:
    """A nest for a batch of candidates.

    Attributes:
        shape: of the nest.
        sketch: lanes, order and copies.
        batch: its tile sizes.
        footprints: what its loops touch.
        depths: per depth of the footprints that of the path.
        executions: how often the statement runs for all of its points.
        exists: which candidates have it, as a part may be empty; None for all.
    """

    shape: NestShape
    sketch: Sketch
    batch: CandidateBatch
    footprints: LoopFootprints
    depths: tuple[int, ...]
    executions: Numbers
    exists: Mask | None

    @staticmethod
    def of(shape: NestShape, boxes: TreeBoxes, line: int) -> "NestBatch":
        """The nest of candidates; `line` in bytes of a cache line."""
        statement, lane = shape.nest.statement, shape.lane
        covered, exists = _covered_extents(shape, boxes)
        register = _register_sizes(shape, boxes, covered)
        lanes = shape.lanes
        register[lane] = np.ceil(register[lane] / lanes) * lanes
        covered[lane] = np.ceil(covered[lane] / register[lane]) * register[lane]
        levels = _level_sizes(shape, boxes, register, covered)
        sketch = Sketch(
            lane, lanes, shape.order, _k_block_axis(shape), statement.packed,
            _is_transposed(statement.problem, lane), shape.prefetched,
        )  # fmt: skip
        points = np.stack([boxes.whole_points(shape.nest, a, _first_loop(shape, a)) for a in statement.axes], axis=1)
        family = boxes.family(shape.nest)
        if (points != family.sizes).any():
            family = family.with_points(np.maximum(points, 1.0).astype(np.int64))
        batch = CandidateBatch(np.stack([*levels, np.stack(covered)]), family, _operations(shape, register, lanes))
        if not shape.is_long:
            batch = unroll_windows(statement.problem, sketch, batch)
        footprints, depths = _footprints(shape, boxes, batch, sketch, line)
        executions = _executions(shape, boxes, levels, covered)
        return NestBatch(shape, sketch, batch, footprints, depths, executions, exists)


def _first_loop(shape: NestShape, axis: str) -> int:
    """Number of nodes around the outermost loop over an axis; all where there is none."""
    own = [k for k, x in enumerate(shape.nodes) if isinstance(x, LoopStep) and x.axis == axis]
    return own[0] if own else len(shape.nodes)


def _is_whole_tiles(shape: NestShape, axis: str) -> bool:
    """Whether register tiles along an axis may be partial: of results and of vectors."""
    return axis not in shape.reduce or axis == shape.nest.statement.axes[shape.lane]


def _outermost(shape: NestShape, axis: str) -> int:
    """Number of nodes around the loops over an axis by which a nest covers all points of one execution."""
    outer = shape.outer_k_block
    return outer + 1 if outer is not None and shape.nodes[outer].axis == axis else _first_loop(shape, axis)


def _covered_extents(shape: NestShape, boxes: TreeBoxes) -> tuple[list[Numbers], Mask | None]:
    """Points of every axis that a nest computes per execution, in whole register tiles, and which candidates have
    any."""
    covered: list[Numbers] = []
    exists: Mask | None = None
    for a in shape.nest.statement.axes:
        depth, tile = _outermost(shape, a), shape.tile_depth(a)
        points = boxes.points(shape.nest, a, depth) * boxes.part_share(shape.nest, a, depth)
        if (points < 1).any():
            exists = points >= 1 if exists is None else exists & (points >= 1)
        if tile is not None and _is_whole_tiles(shape, a):
            step = boxes.sizes[shape.nodes[tile].place]
            points = np.maximum(1.0, np.ceil(points / step)) * step
        covered.append(np.maximum(points, 1.0))
    return covered, exists


def _register_sizes(shape: NestShape, boxes: TreeBoxes, covered: Sequence[Numbers]) -> list[Numbers]:
    """Points of a register tile: the step of the innermost loop around it, or all points."""
    depths = [shape.tile_depth(a) for a in shape.nest.statement.axes]
    return [x if d is None else boxes.sizes[shape.nodes[d].place] for d, x in zip(depths, covered, strict=True)]


def _level_sizes(
    shape: NestShape, boxes: TreeBoxes, register: Sequence[Numbers], covered: Sequence[Numbers]
) -> list[Numbers]:
    """The tiles [level][axis, candidate]."""
    l1, l2 = list(covered), list(covered)
    for k, a in enumerate(shape.nest.statement.axes):
        is_reduced = a in shape.reduce
        if not is_reduced:
            l2[k] = _tile_inside(shape, boxes, k, shape.task_depth, covered[k])
            l1[k] = _tile_inside(shape, boxes, k, shape.l1_depth, covered[k])
        elif shape.k_block is not None:
            l1[k] = _tile_inside(shape, boxes, k, shape.k_block + 1, covered[k])
    stacked = [np.stack(x) for x in (register, l1, l2)]
    stacked[L1] = np.maximum(stacked[L1], stacked[REGISTER])
    stacked[L2] = np.maximum(stacked[L2], stacked[L1])
    return stacked


def _tile_inside(shape: NestShape, boxes: TreeBoxes, axis: int, depth: int, covered: Numbers) -> Numbers:
    """Points of an axis in the loops down to a depth."""
    inside = _points_inside(shape, boxes, shape.nest.statement.axes[axis], depth)
    return covered if inside is None else np.minimum(inside, covered)


def _points_inside(shape: NestShape, boxes: TreeBoxes, axis: str, depth: int) -> Numbers | None:
    """Points of an axis in one iteration of the last loop over it among the outermost nodes; None without one."""
    own = [(k, x) for k, x in enumerate(shape.nodes[:depth]) if isinstance(x, LoopStep) and x.axis == axis]
    return boxes.sizes[own[-1][1].place] * boxes.part_share(shape.nest, axis, own[-1][0]) if own else None


def _k_block_axis(shape: NestShape) -> int | None:
    if shape.k_block is not None:
        return shape.nest.statement.axes.index(shape.nodes[shape.k_block].axis)
    reduce_axes = shape.nest.statement.problem.reduce
    return reduce_axes[0] if reduce_axes else None


def _is_transposed(problem: Problem, lane: int) -> bool:
    """Whether results are stored along another axis than the lanes."""
    return lane not in problem.reduce and bool(problem.results) and problem.results[-1].strides[lane] != 1


def _executions(shape: NestShape, boxes: TreeBoxes, levels: Sequence[Numbers], covered: Sequence[Numbers]) -> Numbers:
    """How often a nest runs for all of its points: the iterations of the loops around it that are over none of its
    axes, and its K-blocks along other axes than the innermost ones."""
    count: Numbers = np.ones(boxes.sizes.shape[1])
    for k, node in enumerate(shape.nodes):
        if is_tile_loop(node) and node.axis not in shape.nest.statement.axes:
            count = count * np.ceil(boxes.iterations(shape.nest, k))
    if shape.outer_k_block is not None:
        count = count * np.ceil(boxes.iterations(shape.nest, shape.outer_k_block))
    for a in shape.nest.statement.problem.reduce:
        if a != _k_block_axis(shape) and a != shape.lane:
            count = count * np.ceil(covered[a] / levels[L1][a])
    return count


def _footprints(
    shape: NestShape, boxes: TreeBoxes, batch: CandidateBatch, sketch: Sketch, line: int
) -> tuple[LoopFootprints, tuple[int, ...]]:
    """What the loops of a nest touch, and the depth of the path at each of the footprints' depths."""
    axes = range(len(shape.nest.statement.axes))
    loops = [x for _, x in shape.loops]
    depths = [0, *(k + 1 for k, _ in shape.loops)]
    if shape.has_root:
        loops, depths = [TileLoop(-1, L2), *loops], [0, *depths]
    sides = tuple(np.stack([_box_side(shape, boxes, batch, a, depth) for depth in depths]) for a in axes)
    counts = [
        boxes.iterations(shape.nest, depths[d + 1] - 1) if x.axis < 0 < depths[d + 1]
        else sides[x.axis][d] / sides[x.axis][d + 1] if x.axis >= 0 else np.ones(boxes.sizes.shape[1])
        for d, x in enumerate(loops)
    ]  # fmt: skip
    present = np.array(counts).reshape(len(counts), boxes.sizes.shape[1]) > 1
    if shape.has_root:
        present[0] = True
    operand_bytes = np.array(
        [moved_bytes(o, sides, line, is_packed(sketch, k)) for k, o in enumerate(batch.family.accesses)]
    )
    for k, depth in shape.nest.allocated.items():
        # a buffer on the stack is the same one in all iterations of the loops around it
        first = next((d for d, x in enumerate(depths) if x >= depth), len(depths) - 1)
        operand_bytes[k, :first] = operand_bytes[k, first]
    return LoopFootprints(tuple(loops), tuple(counts), present, sides, operand_bytes), tuple(depths)


def _box_side(shape: NestShape, boxes: TreeBoxes, batch: CandidateBatch, axis: int, depth: int) -> Numbers:
    """Points along an axis inside of the outermost nodes of a path."""
    name, covered = shape.nest.statement.axes[axis], batch.covered[axis]
    inside = _points_inside(shape, boxes, name, depth)
    if inside is not None:
        return np.minimum(np.maximum(inside, batch.tiles[REGISTER][axis]), covered)
    # the loops around the nest may need more of it in all of their iterations
    return np.maximum(boxes.points(shape.nest, name, depth) * boxes.part_share(shape.nest, name, depth), covered)


def _operations(shape: NestShape, register: Sequence[Numbers], lanes: int) -> Numbers | None:
    """Instructions per point where long operations are computed once for several points of a register tile; None where
    all are computed for every point."""
    statement, axes = shape.nest.statement, range(len(register))
    repeated = [(cost, used) for cost, used in statement.shared_operations if len(used) < len(register)]
    if not repeated:
        return None
    total: Numbers = np.full_like(register[0], float(statement.problem.operations))
    for cost, used in repeated:
        others = [register[a] for a in axes if a not in used]
        share = (lanes if shape.lane not in used else 1) / reduce(mul, others)
        total = total - cost * (1.0 - np.minimum(1.0, share))
    return total
