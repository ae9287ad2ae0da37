"""Lowering of tile trees to schedules: the one path from tile programs to loops, through schedule primitives only.

Statements are placed from the last to the first, since a producer's loops follow from what its consumers need:

- The last statement of a nest keeps its own loops: they are split by the steps of the tree and reordered (`split`,
  `reorder`).
- Every other statement is moved into the innermost loop around it that is there already (`compute_at`, results of the
  kernel by `compute_with`); what is left of its loops is split and reordered in turn.
- Where an axis is partitioned, the last statement's loop is cut (`peel`), and every part gets copies of the statements
  inside of it (`clone_producer`).
- Reductions are initialised in front of the outermost of their loops (`decompose_reduction`); where all of these are
  unrolled, in front of the unrolled loops around them, too.
- Loops become parallel when everything has its place.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tilewright.errors import Defect, ScheduleError, TreeError
from tilewright.expr.nodes import Expr, const
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, Func, LoopKind, walk
from tilewright.schedule.rewrite_tree import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tails import Tail
from tilewright.tile.check_tree import check_tree
from tilewright.tile.lower_online import lower_online
from tilewright.tile.peel_tails import peel_tail
from tilewright.tile.schedule_helpers import (
    apply_and_get_blocks,
    buffer_of,
    loop_extent,
    make_lanes_contiguous,
)
from tilewright.tile.statements import Statement, apply_staging, extents_by_axis, new_statement, statements_of
from tilewright.tile.tree import Compute, Loop, Node, Partition, Prefetch, TileTree, computes, walk_tree
from tilewright.verify.memory_scopes import find_memory_scope_errors, find_stack_overflow

Statements = Mapping[str, Statement]
"""Statements by name; in a part of a partition they are copies of those outside."""

_PRIMITIVES = {LoopKind.UNROLLED: "unroll", LoopKind.VECTORIZED: "vectorize", LoopKind.VTHREAD: "virtual_thread"}
"""Primitives that mark loops of a kind; parallel loops are marked at the end."""


def lower_tree(tree: TileTree, func: Func) -> Schedule:
    """The schedule of a tree.

    Args:
        tree: the tree.
        func: the kernel's untransformed loops.

    Raises:
        TreeError: the tree does not fit the kernel, or buffers their scopes; lists every problem.
        ScheduleError: one of its steps is not legal for these loops.
    """
    check_tree(tree, func)
    s = Schedule(func)
    lowering = TreeLowering(s, _points(tree, extents_by_axis(func)))
    statements = apply_staging(s, tree.staging, statements_of(func))
    for node in reversed(tree.body):
        lowering.lower(node, statements, None)
    for loop in lowering.parallel:
        s.do("parallel", loop)
    _check_scopes(s.func)
    return s


def _check_scopes(func: Func) -> None:
    """Checks that buffers fit the scopes that the tree gives them.

    Raises:
        TreeError: lists the buffers that do not.
    """
    contexts = [BlockContext.of(x, enclosing) for x, enclosing in walk(func.body) if isinstance(x, Block)]
    errors = [*find_memory_scope_errors(func, contexts, registers=True), *find_stack_overflow(func, contexts)]
    if errors:
        raise TreeError([Defect("tree", d.where, d.what, d.hint) for d in errors])


def _points(tree: TileTree, extents: Mapping[str, Expr]) -> dict[int, Expr]:
    """The points that every loop over one of the kernel's axes covers, by its identity."""
    points: dict[int, Expr] = {}
    for node, enclosing in walk_tree(tree.body):
        if isinstance(node, Loop) and node.axis in extents:
            outer = next((x for x in reversed(enclosing) if isinstance(x, Loop) and x.axis == node.axis), None)
            points[id(node)] = extents[node.axis] if outer is None else const(outer.step)
    return points


@dataclass(frozen=True, slots=True)
class _Spine:
    """The loops around the last statement of a nest, outermost first, down to it or to a partition."""

    loops: tuple[Loop, ...]
    end: Compute | Partition


@dataclass(slots=True)
class TreeLowering:
    """Lowering in progress.

    Attributes:
        s: the schedule.
        points: points that a loop covers, by the loop's identity: those of its axis that are needed at its place, or of
            a tile of the loop over the axis around it.
        placed: names of the loops that have their place.
        nests: the tree's loops down to a loop, by the loop's name.
        parallel: names of the loops that will be parallel.
    """

    s: Schedule
    points: dict[int, Expr]
    placed: set[str] = field(default_factory=set[str])
    nests: dict[str, tuple[Loop, ...]] = field(default_factory=dict[str, tuple[Loop, ...]])
    parallel: list[str] = field(default_factory=list[str])

    def lower(self, node: Node, statements: Statements, enclosing: str | None, is_placed: bool = False) -> None:
        """Lowers a node, after everything that is executed later.

        Args:
            node: the node.
            statements: those that are visible.
            enclosing: the loop around it.
            is_placed: whether its last statement is inside of that loop already.
        """
        if any(c.online for c in computes(node)):
            lower_online(self, node, statements)
            return
        spine = _spine(node)
        last = statements[computes(node)[-1].statement]
        if enclosing is not None and not is_placed:
            self._move(last, enclosing)
        loops = self._needed_loops(last, spine.loops)
        if isinstance(spine.end, Compute):
            self.store(last, spine.end)
            names = self.lower_nest(last, loops, statements)
        else:
            names = self._place_loops(last, loops, spine.end)
            self._lower_parts(spine.end, statements, names[-1] if names else enclosing)
        outer = () if enclosing is None else self.nests.get(enclosing, ())
        self.nests |= {name: (*outer, *loops[: k + 1]) for k, name in enumerate(names)}
        self.lower_producers(loops, names, statements)
        self._peel_tails(last, loops, names, statements)

    def _move(self, statement: Statement, loop: str) -> None:
        """Moves a statement into a loop: an intermediate is computed there as far as the loop needs it, a result of the
        kernel shares the loop and those around it."""
        if find_block(self.s.func, statement.block)[0].body.buffer not in self.s.func.outputs:
            self.s.do("compute_at", statement.block, loop)
            return
        own_loops = self._own_loops(statement)
        names = self._split_loops(statement, self.nests.get(loop, ()), own_loops, is_open=True)
        self._reorder(statement, [*names, *own_loops.values()])
        self.s.do("compute_with", statement.block, loop)

    def _needed_loops(self, statement: Statement, loops: Sequence[Loop]) -> list[Loop]:
        """The loops of a nest without those around a single node over axes of which one point is needed at its place:
        the statement has no loop over these."""
        own_loops = self._own_loops(statement)
        positions = [statement.position(x.axis, x.step) for x in loops]
        return [x for x, k in zip(loops, positions, strict=True) if k is None or k in own_loops or len(x.body) > 1]

    def lower_nest(self, statement: Statement, loops: Sequence[Loop], statements: Statements) -> list[str]:
        """Places, initialises and marks the loops of a statement that has its place; returns their names."""
        names = self._place_loops(statement, loops)
        self._initialise(statement, list(zip(loops, names, strict=True)), statements)
        return names

    def lower_producers(self, loops: Sequence[Loop], names: Sequence[str], statements: Statements) -> None:
        """Lowers what the loops of a nest hold besides its last statement, from the last to the first."""
        for loop, name in reversed(list(zip(loops, names, strict=True))):
            for child in reversed(loop.body[:-1]):
                self.lower(child, statements, name)

    def store(self, statement: Statement, compute: Compute) -> None:
        """Gives the buffer that a statement writes its scope and its layout."""
        if compute.scope is not None:
            self.s.do("set_scope", buffer_of(self.s, statement.block), compute.scope)
        if compute.lane_axis is not None:
            position = statement.position(compute.lane_axis, 1)
            if position is None:
                what = f"statement {compute.statement!r} has no axis {compute.lane_axis!r}"
                raise ScheduleError(what, where="tile tree")
            make_lanes_contiguous(self.s, statement.block, position)

    def _place_loops(
        self, statement: Statement, loops: Sequence[Loop], partition: Partition | None = None
    ) -> list[str]:
        """Splits a statement's own loops by the steps of the tree and brings them into its order; returns their names.

        Loops inside of a partition are left for its parts.
        """
        own_loops = self._own_loops(statement)
        placed = self._split_loops(statement, loops, own_loops, is_open=partition is not None)
        self._reorder(statement, [*placed, *_left_to_parts(statement, own_loops, partition)])
        self.placed |= set(placed)
        self.parallel += [n for x, n in zip(loops, placed, strict=True) if x.kind is LoopKind.PARALLEL]
        return placed

    def _split_loops(
        self, statement: Statement, loops: Sequence[Loop], own_loops: dict[int, str], is_open: bool
    ) -> list[str]:
        """Splits a statement's own loops by the steps of the tree; returns the names of the tree's loops. What is left
        remains in `own_loops`: loops that the tree does not name, and the points of a tile where it is open."""
        steps: dict[int, list[Loop]] = {}
        for loop in loops:
            position = statement.position(loop.axis, loop.step)
            if position is None or position not in own_loops:
                raise ScheduleError(_no_loop_message(statement, loop), where="tile tree")
            steps.setdefault(position, []).append(loop)
        names: dict[int, str] = {}
        for position, tiles in steps.items():
            unit = statement.axes[position].unit
            if unit == 1:
                # fewer than those of the axis where its readers need fewer
                self.points[id(tiles[0])] = loop_extent(self.s, own_loops[position])
            has_points = is_open and tiles[-1].step > unit
            split_names = self._split(own_loops.pop(position), tiles, unit, has_points)
            if has_points:
                own_loops[position] = split_names.pop()
            names |= {id(loop): n for loop, n in zip(tiles, split_names, strict=True)}
        return [names[id(loop)] for loop in loops]

    def _own_loops(self, statement: Statement) -> dict[int, str]:
        """The loop of every iteration variable of a statement that has one that is not placed yet."""
        node, enclosing = find_block(self.s.func, statement.block)
        own = [x.var for x in enclosing if x.var.name not in self.placed]
        loops: dict[int, str] = {}
        for k, i in enumerate(node.iters):
            used = free_vars(i.binding)
            loop = next((v.name for v in own if v in used), None)
            if loop is not None:
                loops[k] = loop
        return loops

    def _split(self, loop: str, tiles: Sequence[Loop], unit: int, is_open: bool) -> list[str]:
        """Splits a loop by steps, outermost first; the names of the loops, with that of the rest where it is open."""
        steps = [t.step // unit for t in tiles]
        if not is_open and steps[-1] != 1:
            what = f"the innermost loop over {tiles[-1].axis!r} has steps of {tiles[-1].step} points, expected {unit}"
            raise ScheduleError(what, where="tile tree")
        inner: list[str] = []
        factors = [*steps, 1] if is_open else steps
        for outer_step, step in zip(factors[-2::-1], factors[:0:-1], strict=True):
            if outer_step % step:
                what = f"steps of {outer_step} points along {tiles[-1].axis!r} are no multiple of {step}"
                raise ScheduleError(what, where="tile tree")
            loop, last = self.s.split(loop, outer_step // step)
            inner.insert(0, last)
        return [loop, *inner]

    def _reorder(self, statement: Statement, order: Sequence[str]) -> None:
        """Brings loops around a statement into an order."""
        current = [x for x in self.s.loops(statement.block) if x in order]
        if list(order) != current:
            self.s.do("reorder", tuple(order))

    def _initialise(self, statement: Statement, loops: Sequence[tuple[Loop, str]], statements: Statements) -> None:
        """Separates the initialisation of a reduction, and marks the loops of both.

        Args:
            statement: the statement.
            loops: its own loops with their names.
            statements: those that are visible.
        """
        reduce = [k for k, (x, _) in enumerate(loops) if statement.reduces(x.axis, x.step)]
        init_loops: list[tuple[Loop, str]] = []
        if reduce and find_block(self.s.func, statement.block)[0].init is not None:
            first = reduce[0]
            if all(loops[k][0].kind is LoopKind.UNROLLED for k in reduce):
                while first and loops[first - 1][0].kind is LoopKind.UNROLLED:
                    first -= 1
            init = self.s.decompose_reduction(statement.block, loops[first][1])
            spatial = [x for k, (x, _) in enumerate(loops) if k >= first and k not in reduce]
            names = [x for x in self.s.loops(init) if x not in self.placed]
            init_loops = list(zip(spatial, names, strict=True))
            self.placed |= set(names)
        for loop, name in loops:
            for p in loop.prefetches:
                self._prefetch(name, p, statements)
        for loop, name in (*loops, *init_loops):
            if loop.kind in _PRIMITIVES:
                self.s.do(_PRIMITIVES[loop.kind], name)

    def _prefetch(self, loop: str, hint: Prefetch, statements: Statements) -> None:
        """Prefetches a copy, or an operand where it is, if its addresses are proved to be safe to compute."""
        if hint.source in statements:
            self.s.do("prefetch", loop, buffer_of(self.s, statements[hint.source].block), hint.distance)
        else:
            with suppress(ScheduleError):
                self.s.do("prefetch", loop, hint.source, hint.distance)

    def vectorize_lanes(self, statement: Statement, lane_axis: str | None) -> None:
        """Vectorises the loop over the lane axis, innermost; the other loops of a statement stay serial."""
        own_loops = self._own_loops(statement)
        position = None if lane_axis is None else statement.position(lane_axis, 1)
        self.placed |= set(own_loops.values())
        if position in own_loops:
            lanes = own_loops.pop(position)
            self._reorder(statement, [*own_loops.values(), lanes])
            self.s.do("vectorize", lanes)

    def _peel_tails(
        self, statement: Statement, loops: Sequence[Loop], names: Sequence[str], statements: Statements
    ) -> None:
        """Peels the partial last iterations of the loops that ask for it."""
        for loop, name in zip(loops, names, strict=True):
            if loop.tail is not Tail.REMAINDER:
                continue
            inner = [statements[c.statement] for c in computes(*loop.body) if statements[c.statement] is not statement]
            partial_sums = [
                (x.block, k)
                for x in inner
                for k, a in enumerate(x.axes)
                if a.is_reduction and a.axis == loop.axis and a.unit < loop.step
            ]
            peel_tail(self.s, name, self.points[id(loop)], loop.step, partial_sums)

    def peel_online_tail(self, chunks: Loop, name: str) -> None:
        """Peels the partial last iteration of a loop over chunks of a reduction that online sums are in."""
        peel_tail(self.s, name, self.points[id(chunks)], chunks.step, ())

    def _lower_parts(self, partition: Partition, statements: Statements, enclosing: str | None) -> None:
        """Cuts the loop of the last statement into the ranges of the parts, and lowers each with its own copies."""
        # those of a partition inside once
        inside = list(dict.fromkeys(c.statement for c in computes(*partition.parts[0].body)))
        added = {new_statement(x) for x in partition.parts[0].staging}
        inside = [x for x in inside if x not in added]
        last, producers = inside[-1], inside[:-1]
        current, parts = statements, [statements]
        for part in partition.parts[:-1]:
            position = current[last].position(partition.axis, 1) or 0
            loop = self._own_loops(current[last])[position]
            extent = loop_extent(self.s, loop)
            (consumer,) = apply_and_get_blocks(self.s, "peel", loop, extent // part.tile * part.tile)
            copies = {last: replace(current[last], block=consumer)}
            for name in reversed(producers):
                reader = self._reader(current[name], copies.values())
                copies[name] = replace(current[name], block=self.s.clone_producer(current[name].block, reader))
            current = {**current, **copies}
            parts.append(current)
        for part, mapping in zip(partition.parts, parts, strict=True):
            staged = apply_staging(self.s, part.staging, mapping)
            for node in reversed(part.body):
                self.lower(node, staged, enclosing, is_placed=node is part.body[-1])

    def _reader(self, producer: Statement, copies: Iterable[Statement]) -> str:
        """The one block among the copies that reads what a statement writes.

        Raises:
            ScheduleError: there is none, or there are several.
        """
        buffer = find_block(self.s.func, producer.block)[0].body.buffer
        readers = [
            c.block for c in copies
            if any(x.buffer == buffer for x in loads(find_block(self.s.func, c.block)[0].body.value))
        ]  # fmt: skip
        if len(readers) != 1:
            what = f"{len(readers)} statements inside of a partition read {buffer.name!r}, expected one"
            raise ScheduleError(what, where="tile tree")
        return readers[0]


def _spine(node: Node) -> _Spine:
    loops: list[Loop] = []
    while isinstance(node, Loop):
        loops.append(node)
        node = node.body[-1]
    return _Spine(tuple(loops), node)


def _left_to_parts(statement: Statement, own_loops: Mapping[int, str], partition: Partition | None) -> list[str]:
    """The loops that are left for the parts of a partition, that over the partitioned axis first.

    Raises:
        ScheduleError: loops are left where there is no partition, or none over its axis.
    """
    if partition is None:
        if own_loops:
            left = ", ".join(statement.axes[k].axis for k in own_loops)
            raise ScheduleError(f"the tree has no loop over {left} around {statement.block!r}", where="tile tree")
        return []
    first = statement.position(partition.axis, 1)
    if first is None or first not in own_loops:
        raise ScheduleError(f"no loop over {partition.axis!r} is left to partition", where="tile tree")
    return [own_loops[first], *(x for k, x in own_loops.items() if k != first)]


def _no_loop_message(statement: Statement, loop: Loop) -> str:
    axes = ", ".join(dict.fromkeys(a.axis for a in statement.axes))
    return (
        f"no loop of {statement.block!r} is left for the tree's loop over {loop.axis!r} in steps of {loop.step}: "
        f"its axes are {axes}, and an axis of which a single point is needed has no loop"
    )
