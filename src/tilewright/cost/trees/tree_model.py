"""Predicted times of tile trees, for one computation or several: one walk over the tree, for many candidates at once.

A `TreeModel` is made once per sketch (`tile.tree_sizes`), and scores arrays of sizes. Every statement has the cycles of
its register tiles (`instructions.py`) and its traffic into every cache of the machine (`traffic.py`), by the boxes of
points inside of every loop around it (`boxes.py`, `nests.py`) and by what else is in these loops
(`surroundings.py`). Statements follow each other; the tasks of a parallel loop are shared by threads
(`parallel_time.py`). Copies to panels are statements as well (`panels.py`).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add

import numpy as np

from tilewright.cost.analytical import geomean_over_samples
from tilewright.cost.breakdown import CostBreakdown, CostPart, tree_part
from tilewright.cost.caches import caches
from tilewright.cost.footprint import Numbers
from tilewright.cost.loop_footprints import LoopFootprints
from tilewright.cost.parallel_time import ThreadPlan, thread_plan
from tilewright.cost.part_work import PartWork, Surroundings, part_work
from tilewright.cost.trees.boxes import StatementNest, TreeBoxes, is_tile_loop
from tilewright.cost.trees.masks import executed_share
from tilewright.cost.trees.nests import NestBatch, NestShape
from tilewright.cost.trees.panels import PanelCopy, panel_copies
from tilewright.cost.trees.regimes import nests_regime
from tilewright.cost.trees.rowwise import RowwiseNests
from tilewright.cost.trees.statements import TreeStatement, common_depth, tree_statements
from tilewright.cost.trees.surroundings import with_surroundings
from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Var
from tilewright.loops.ir import Func, LoopKind
from tilewright.machine.model import Machine
from tilewright.tile.index_masks import IndexMask, index_masks
from tilewright.tile.program import Mask, Sizes
from tilewright.tile.shape_samples import ShapeSamples
from tilewright.tile.tree import TileTree
from tilewright.tile.tree_sizes import LoopStep, PartRange, StatementPath, statement_paths, tree_sizes, with_sizes

MAX_NEST_BATCH = 4000
"""Candidates of a tree whose nests are scored at once, those of all shapes together."""


@dataclass(frozen=True, slots=True)
class StatementWork:
    """The work of a nest for a batch of candidates.

    Attributes:
        nest: the nest.
        footprints: of the loops around it, with what the others touch.
        work: on one core.
        plan: its times on one thread and on all cores.
        exists: the share of its executions that candidates have: 0 for those that have no such nest, less than 1
            where tiles are skipped.
    """

    nest: NestBatch
    footprints: LoopFootprints
    work: PartWork
    plan: ThreadPlan
    exists: Numbers


@dataclass(frozen=True, slots=True)
class Region:
    """Nests whose tasks threads share, or that one thread executes.

    Attributes:
        works: of the nests.
        is_parallel: whether all cores are faster.
        fork_join: nanoseconds of fork and join where they are.
        total: nanoseconds.
    """

    works: tuple[StatementWork, ...]
    is_parallel: Numbers
    fork_join: Numbers
    total: Numbers


@dataclass(frozen=True)
class TreeModel:
    """The cost model of a sketch at one shape.

    Attributes:
        tree: the sketch, with any sizes.
        machine: the machine.
        nests: its nests, in the order of execution.
        shapes: of these.
        copies: operands that are copied to panels while the kernel runs.
        rowwise: the stages where it is the tree of a row-wise kernel.
        total_bytes: of all that the kernel reads and writes.
        masks: those that exclude tiles.
        symbols: sizes of the kernel's symbols.
    """

    tree: TileTree
    machine: Machine
    nests: tuple[StatementNest, ...]
    shapes: tuple[NestShape, ...]
    copies: tuple[PanelCopy, ...]
    rowwise: RowwiseNests | None
    total_bytes: float
    masks: tuple[IndexMask, ...] = ()
    symbols: Mapping[Var, int] = field(default_factory=dict[Var, int])

    @staticmethod
    def of(
        tree: TileTree, func: Func, machine: Machine, constants: frozenset[str] = frozenset(),
        shape: Mapping[Var, int] | None = None,
    ) -> "TreeModel | None":  # fmt: skip
        """The model of a tree; None where a statement has an access that is not affine, or no place in the tree.

        Args:
            tree: a tree that fits the kernel (`tile.check_tree`).
            func: the kernel's untransformed loops.
            machine: the machine.
            constants: names of parameters whose data is known at compile time.
            shape: values of the kernel's symbols; by default representative ones.
        """
        paths = statement_paths(tree)
        sizes = ShapeSamples.of(func.symbols).representative if shape is None else shape
        statements = tree_statements(tree, func, constants, sizes, paths)
        if statements is None:
            return None
        nests = _nests(statements, paths, machine)
        shapes = tuple(NestShape.of(x, paths, machine, len(nests) == 1) for x in nests)
        external = {o.buffer: float(o.bytes) for x in nests for o in x.accesses if not o.private}
        # a single nest as the formulas of tile programs count it: every access for itself
        total = float(sum(o.bytes for o in nests[0].accesses)) if len(nests) == 1 else sum(external.values())
        copies = panel_copies(nests, paths)
        rowwise = RowwiseNests.of(shapes, machine) if not copies else None
        return TreeModel(tree, machine, nests, shapes, copies, rowwise, total, index_masks(func), sizes)

    @cached_property
    def extents(self) -> Mapping[str, int]:
        """The points of every axis."""
        statements = [n.statement for n in self.nests]
        return {a: x.extent for s in statements for a, x in zip(s.axes, s.problem.axes, strict=True)}

    @property
    def is_fused(self) -> bool:
        """Whether statements hand intermediates on to others."""
        return any(o.private for x in self.nests for o in x.accesses)

    def times(self, sizes: Sizes) -> Numbers:
        """Nanoseconds of candidates [candidate, size], in the order of `tile.tree_sizes`.

        Raises:
            ScheduleError: candidates have more or fewer sizes than the tree.
        """
        expected = len(tree_sizes(self.tree))
        if sizes.ndim != 2 or sizes.shape[1] != expected:
            raise ScheduleError(f"expected candidates of {expected} sizes, got {sizes.shape}", where="tile tree")
        batches = [sizes[k : k + MAX_NEST_BATCH] for k in range(0, len(sizes), MAX_NEST_BATCH)]
        return np.concatenate([np.zeros(0), *(self._batch_times(x) for x in batches)])

    def _batch_times(self, sizes: Sizes) -> Numbers:
        if self.rowwise is not None:
            return self.rowwise.times(TreeBoxes(self.nests, _size_major(sizes)), self.machine)
        return _joint_times([self], sizes)[0]

    def packing(self, sizes: Sizes, is_parallel: Mask) -> Numbers:
        """Nanoseconds of copies to panels, which threads share as they do the rest of parallel candidates."""
        boxes = TreeBoxes(self.nests, _size_major(sizes))
        return reduce(add, [x.time(boxes, self.machine, is_parallel) for x in self.copies], np.zeros(len(sizes)))

    def nest_batches(self, sizes: Sizes) -> list[NestBatch]:
        """The nests of candidates [candidate, size]."""
        boxes, line = TreeBoxes(self.nests, _size_major(sizes)), caches(self.machine)[0].line
        return [NestBatch.of(x, boxes, line) for x in self.shapes]

    def breakdown(self, sizes: Sizes) -> CostBreakdown:
        """The named terms of candidates [candidate, size], with a part per nest; of row-wise trees those of the first
        candidate only."""
        if self.rowwise is not None:
            return self.rowwise.breakdown(TreeBoxes(self.nests, _size_major(sizes[:1])), self.machine)
        regions = _regions([self], sizes)
        parts: list[CostPart] = []
        for region in regions:
            for k, x in enumerate(region.works):
                fork_join = region.fork_join / x.work.slowdown if k == 0 else np.zeros_like(region.total)
                plan = replace(x.plan, is_parallel=region.is_parallel > 0, fork_join=fork_join)
                part = tree_part(
                    _part_name(x.nest), x.nest.sketch, x.work, plan, x.nest.executions, self.machine,
                    x.footprints,
                )  # fmt: skip
                parts.append(part.map_arrays(lambda values, exists=x.exists: values * exists))
        packing = self.packing(sizes, _is_parallel(regions))
        return CostBreakdown(tuple(parts), packing, reduce(add, [x.total for x in regions]) + packing)


def times_at_shapes(models: Sequence[TreeModel], sizes: Sizes) -> Numbers:
    """Nanoseconds [model, candidate] of candidates [candidate, size] by the models of one sketch at several shapes: in
    one batch where formulas treat the shapes alike, as they cost as much for few candidates as for many."""
    groups: dict[Hashable, list[int]] = {}
    for k, x in enumerate(models):
        is_alone = x.rowwise is not None or len(models) * len(sizes) > MAX_NEST_BATCH
        groups.setdefault(k if is_alone else nests_regime(x.shapes, x.machine), []).append(k)
    times = np.empty((len(models), len(sizes)))
    for group in groups.values():
        alike = [models[k] for k in group]
        times[group] = _joint_times(alike, sizes) if len(group) > 1 else alike[0].times(sizes)
    return times


def _joint_times(models: Sequence[TreeModel], sizes: Sizes) -> Numbers:
    """Nanoseconds [model, candidate] by models of one regime."""
    regions = _regions(models, sizes)
    shape = len(models), len(sizes)
    total, is_parallel = reduce(add, [x.total for x in regions]).reshape(shape), _is_parallel(regions).reshape(shape)
    return total + np.array([m.packing(sizes, x) for m, x in zip(models, is_parallel, strict=True)])


def _is_parallel(regions: Sequence[Region]) -> Mask:
    """Whether threads share any of a candidate's regions."""
    return np.logical_or.reduce([x.is_parallel > 0 for x in regions])


def _regions(models: Sequence[TreeModel], sizes: Sizes) -> list[Region]:
    """The regions of candidates [candidate, size] at the shapes of models of one regime, all candidates of one shape
    before those of the next."""
    model, machine = models[0], models[0].machine
    nests, shapes = model.nests, model.shapes
    if len(models) > 1:
        problems = zip(*(tuple(n.statement.problem for n in x.nests) for x in models), strict=True)
        nests = tuple(replace(n, shapes=tuple(p)) for n, p in zip(nests, problems, strict=True))
        shapes = tuple(replace(x, nest=n) for x, n in zip(shapes, nests, strict=True))
    shape_indices = np.repeat(np.arange(len(models)), len(sizes))
    boxes = TreeBoxes(nests, np.tile(_size_major(sizes), len(models)), shape_indices)
    batches = [NestBatch.of(x, boxes, caches(machine)[0].line) for x in shapes]
    total_bytes = tuple(x.total_bytes for x in models)
    grouped: dict[int, list[StatementWork]] = {}
    for batch, footprints in zip(batches, with_surroundings(batches), strict=True):
        work = part_work(batch.sketch, batch.batch, machine, Surroundings(footprints, batch.executions, total_bytes))
        tasks, key = _tasks(batch, boxes)
        work = replace(work, features=replace(work.features, tasks=tasks))
        # the loops around fused statements are not in the order of their sketches
        sharing = None if model.is_fused else work.sharing
        plan = thread_plan(work.phases, tasks, machine, work.levels_in_turn, work.traffic_growth, sharing)
        exists = _executed_share(batch.shape.nest, models, sizes)
        exists = exists if batch.exists is None else exists * batch.exists
        grouped.setdefault(key, []).append(StatementWork(batch, footprints, work, plan, exists))
    return [_region(x) for x in grouped.values()]


def _executed_share(nest: StatementNest, models: Sequence[TreeModel], sizes: Sizes) -> Numbers:
    """The share of a nest's executions that masks leave, at the shape of every model [model and candidate]."""
    boxes = TreeBoxes(models[0].nests, _size_major(sizes))
    return np.concatenate([executed_share(nest, boxes, x.masks, x.extents, x.symbols) for x in models])


def _size_major(sizes: Sizes) -> Numbers:
    """Sizes [candidate, size] as floats [size, candidate]."""
    return np.ascontiguousarray(sizes.T).astype(np.float64)


def tree_time(
    tree: TileTree, func: Func, machine: Machine, constants: frozenset[str] = frozenset(),
    samples: ShapeSamples | None = None,
) -> float | None:  # fmt: skip
    """Nanoseconds of a tree: of its kernel's sizes, or, where they are symbols, the geometric mean over samples of
    shapes.

    Args:
        tree, func, machine, constants: as for `TreeModel.of`.
        samples: shapes of the kernel's symbols; by default drawn from their ranges.
    """
    return tree_times([tree], func, machine, constants, samples)[0]


def tree_times(
    trees: Sequence[TileTree], func: Func, machine: Machine, constants: frozenset[str] = frozenset(),
    samples: ShapeSamples | None = None,
) -> list[float | None]:  # fmt: skip
    """The times of several trees of a kernel, as `tree_time` gives them: those that differ in their sizes only are
    scored at once."""
    shapes = (samples or ShapeSamples.of(func.symbols)).shapes or ({},)
    sizes = [tree_sizes(tree) for tree in trees]
    by_sketch: dict[TileTree, list[int]] = {}
    for k, tree in enumerate(trees):
        by_sketch.setdefault(with_sizes(tree, (1,) * len(sizes[k])), []).append(k)
    times: list[float | None] = [None] * len(trees)
    for same in by_sketch.values():
        models = [TreeModel.of(trees[same[0]], func, machine, constants, x) for x in shapes]
        candidates = np.array([sizes[k] for k in same], np.int64)
        complete = [x for x in models if x is not None]
        if len(complete) == len(models):
            each = times_at_shapes(complete, candidates)
            mean = geomean_over_samples(each, machine.cost) if func.symbols else each[0]
            for k, time in zip(same, mean, strict=True):
                times[k] = float(time)
    return times


def _nests(
    statements: Sequence[TreeStatement], paths: Sequence[StatementPath], machine: Machine
) -> tuple[StatementNest, ...]:
    """The nests of all statements, in the order of execution."""
    found: list[tuple[int, StatementNest]] = []
    for statement in statements:
        for k, path in enumerate(paths):
            if path.compute.statement != statement.main:
                continue
            nest = StatementNest(statement, path)
            if statement.is_rescaling:
                nest = _rescaling(nest, paths, machine)
            found.append((k, nest))
    nests = [x for _, x in sorted(found, key=lambda x: x[0])]
    return tuple(replace(x, allocated=_allocated(x, nests)) for x in nests)


def _rescaling(nest: StatementNest, paths: Sequence[StatementPath], machine: Machine) -> StatementNest:
    """The nest that rescales an online sum, in the loop over chunks that the sum is fused into."""
    shape = NestShape.of(nest, paths, machine, False)
    chunks = [
        k for k, x in enumerate(nest.path.nodes)
        if is_tile_loop(x) and x.axis not in nest.statement.axes and shape.is_shared[k]
    ]  # fmt: skip
    inner = chunks[-1] if chunks else -1
    nodes = tuple(x for k, x in enumerate(nest.path.nodes) if k <= inner or x.axis in nest.statement.axes)
    return replace(nest, path=replace(nest.path, nodes=nodes), shared_nodes=inner + 1)


def _allocated(nest: StatementNest, nests: Sequence[StatementNest]) -> dict[int, int]:
    """Per access of a nest to a buffer on the stack the number of nodes around the buffer: those that all statements
    share which access it, or those over axes of the statement."""
    result: dict[int, int] = {}
    for k, o in enumerate(nest.accesses):
        if not o.private:
            continue
        users = [x for x in nests if x is not nest and any(p.buffer == o.buffer for p in x.accesses)]
        users = [x for x in users if _shares_parts(x, nest)]
        foreign = (d for d, x in enumerate(nest.path.nodes) if x.axis not in nest.statement.axes)
        own = next(foreign, len(nest.path.nodes))
        result[k] = min((common_depth(x.path, nest.path) for x in users), default=own)
    return result


def _shares_parts(one: StatementNest, other: StatementNest) -> bool:
    """Whether no partition has two nests in different parts."""
    parts = {x.partition: x.place for x in one.path.nodes if isinstance(x, PartRange)}
    return all(parts.get(x.partition, x.place) == x.place for x in other.path.nodes if isinstance(x, PartRange))


def _tasks(batch: NestBatch, boxes: TreeBoxes) -> tuple[Numbers, int]:
    """Parallel tasks of a nest, and the place of its outermost parallel loop; -1 where it has none."""
    nest = batch.shape.nest
    parallel = [
        k for k, x in enumerate(nest.path.nodes) if isinstance(x, LoopStep) and x.loop.kind is LoopKind.PARALLEL
    ]
    tasks = reduce(np.multiply, [np.ceil(boxes.iterations(nest, k)) for k in parallel], np.ones(boxes.sizes.shape[1]))
    return tasks, nest.path.nodes[parallel[0]].place if parallel else -1


def _region(works: Sequence[StatementWork]) -> Region:
    """The times of nests on one thread or on all cores, whichever are less."""
    weights = [x.work.slowdown * x.exists for x in works]
    one, all_ = (
        reduce(add, [reduce(add, [t.total for t in times]) * w for times, w in zip(each, weights, strict=True)])
        for each in ([x.plan.one_thread for x in works], [x.plan.all_threads for x in works])
    )
    fork_join = reduce(np.maximum, [x.plan.fork_join * w for x, w in zip(works, weights, strict=True)])
    is_parallel = (all_ + fork_join < one) & (fork_join > 0)
    total = np.where(is_parallel, all_ + fork_join, one)
    return Region(tuple(works), is_parallel.astype(np.float64), np.where(is_parallel, fork_join, 0.0), total)


def _part_name(nest: NestBatch) -> str:
    """A statement's name, with the part of a partition that it is in."""
    places = [len(x.tiles) for x in nest.shape.nodes if isinstance(x, PartRange)]
    return nest.shape.nest.statement.name + "".join(f" (part {k + 1})" for k in places)
