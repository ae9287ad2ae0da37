"""Random tile trees for a kernel: from the last statement to the first, loops of random steps at random places."""

from dataclasses import dataclass, field

import numpy as np

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Const, Expr, MemoryScope
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Func, LoopKind, blocks
from tilewright.schedule.schedule import Schedule
from tilewright.tile.statements import Statement, apply_staging, statements_of
from tilewright.tile.tree import CacheWrite, Compute, Loop, Node, RFactor, Staging, TileTree

STEPS = (2, 3, 4, 8, 16)

MAX_STEP = 1024
"""Longest step of an axis: a private buffer over two axes has at most 4 MiB, however small their extents are."""


@dataclass(eq=False)
class _Nest:
    """A loop, or a statement, of a tree that is being drawn."""

    axis: str
    step: int
    kind: LoopKind = LoopKind.SERIAL
    children: "list[_Nest | Compute]" = field(default_factory=list)
    parent: "_Nest | None" = None

    def around(self) -> "list[_Nest]":
        """The loop and those around it, innermost first."""
        return [self, *(self.parent.around() if self.parent is not None else ())]

    def freeze(self) -> Loop:
        """The loop as a node."""
        body = tuple(x.freeze() if isinstance(x, _Nest) else x for x in self.children)
        return Loop(self.axis, self.step, body, self.kind)


def random_tree(func: Func, rng: np.random.Generator) -> TileTree:
    """A tree for untransformed loops; it need not be legal."""
    staging = _random_staging(func, rng)
    try:
        statements = apply_staging(Schedule(func), staging, statements_of(func))
    except ScheduleError:
        staging, statements = (), statements_of(func)
    return _Draw(func, staging, statements, rng).tree()


def _random_staging(func: Func, rng: np.random.Generator) -> tuple[Staging, ...]:
    stages: list[Staging] = []
    all_blocks = blocks(func.body)
    axes = statements_of(func)
    for b in all_blocks:
        is_last = b is all_blocks[-1]
        if b.init is not None and rng.random() < (0.8 if is_last else 0.3):
            stages.append(CacheWrite(b.name, f"{b.name}.store"))
        sums = [a.axis for a in axes[b.name].axes if a.is_reduction]
        if sums and rng.random() < 0.3:
            axis = str(rng.choice(sums))
            stages.append(RFactor(b.name, f"{b.name}.partial", axis, int(rng.choice(STEPS)), bool(rng.random() < 0.2)))
    return tuple(stages)


class _Draw:
    """A tree that is being drawn."""

    def __init__(
        self, func: Func, staging: tuple[Staging, ...], statements: dict[str, Statement], rng: np.random.Generator
    ) -> None:
        self.func, self.staging, self.statements, self.rng = func, staging, statements, rng
        iters = {b.name: b.iters for b in blocks(func.body)}
        self.extents: dict[str, Expr] = {
            a.axis: i.extent
            for name, s in statements_of(func).items()
            for a, i in zip(s.axes, iters[name], strict=True)
        }
        self.roots: list[_Nest | Compute] = []
        self.places: dict[str, _Nest | None] = {}

    def tree(self) -> TileTree:
        """The whole tree."""
        order, readers = self._execution_order()
        for name in reversed(order):
            place = self._draw_place(readers[name]) if readers[name] else None
            if readers[name] and self.rng.random() < 0.15:
                place = None
            self._add(name, place)
        online = self._online_names()
        body: list[Node] = [x.freeze() if isinstance(x, _Nest) else x for x in self.roots]
        return TileTree(tuple(_with_online(x, online) for x in body), self.staging)

    def _online_names(self) -> frozenset[str]:
        names = [b.name for b in blocks(self.func.body)]
        return frozenset({"L", "O"}) if {"m", "L", "O"} <= set(names) and self.rng.random() < 0.3 else frozenset()

    def _execution_order(self) -> tuple[list[str], dict[str, list[str]]]:
        """The statements in the order of execution, and the readers of each."""
        all_blocks = blocks(self.func.body)
        order: list[str] = []
        readers: dict[str, list[str]] = {}
        source = {b.body.buffer.name: b.name for b in all_blocks}
        for b in all_blocks:
            readers[b.name] = []
            order.append(b.name)
        for b in all_blocks:
            for x in loads(b.body.value):
                writer = source.get(x.buffer.name)
                if writer is not None and writer != b.name:
                    readers[writer].append(b.name)
        for stage in self.staging:
            position = order.index(stage.statement)
            if isinstance(stage, CacheWrite):
                order.insert(position + 1, stage.copy)
                readers[stage.copy], readers[stage.statement] = readers[stage.statement], [stage.copy]
            elif isinstance(stage, RFactor):
                order.insert(position, stage.partial)
                # what the statement read, its partial sums read now
                for names in readers.values():
                    names[:] = [stage.partial if n == stage.statement else n for n in names]
                readers[stage.partial] = [stage.statement]
        for copy in [x.copy for x in self.staging if isinstance(x, CacheWrite)]:
            statement = next(x.statement for x in self.staging if isinstance(x, CacheWrite) and x.copy == copy)
            readers[statement] = [copy]
        return order, readers

    def _draw_place(self, readers: list[str]) -> _Nest | None:
        """A random loop around all readers that does not vectorize."""
        chains = [place.around() if (place := self.places.get(r)) is not None else [] for r in readers]
        common = [x for x in chains[0] if all(x in c for c in chains)] if chains else []
        common = [x for x in common if x.kind in (LoopKind.SERIAL, LoopKind.PARALLEL)]
        return common[int(self.rng.integers(len(common)))] if common else None

    def _add(self, name: str, place: _Nest | None) -> None:
        """Adds a statement with loops of its own in front of what a loop holds, or of everything."""
        loops = self._own_loops(self.statements[name], place)
        leaf = Compute(name, self._scope(name, place))
        parent = place
        first: _Nest | Compute | None = None
        for loop in loops:
            loop.parent = parent
            if parent is not place and parent is not None:
                parent.children.append(loop)
            first, parent = first or loop, loop
        if loops:
            loops[-1].children.append(leaf)
        (self.roots if place is None else place.children).insert(0, first or leaf)
        self.places[name] = loops[-1] if loops else place

    def _scope(self, name: str, place: _Nest | None) -> MemoryScope | None:
        if place is None or self.rng.random() < 0.3 or name == self._final_name():
            return None
        return MemoryScope.STACK if self.rng.random() < 0.8 else MemoryScope.REGISTER

    def _final_name(self) -> str:
        order, _ = self._execution_order()
        return order[-1]

    def _own_loops(self, statement: Statement, place: _Nest | None) -> list[_Nest]:
        """Loops over what is left of a statement's axes inside of a loop, in random order."""
        around = [] if place is None else place.around()
        chains: list[list[_Nest]] = []
        for axis in dict.fromkeys(a.axis for a in statement.axes):
            limit = next((x.step for x in around if x.axis == axis), None)
            units = sorted({a.unit for a in statement.axes if a.axis == axis})
            chains.append([_Nest(axis, step) for step in self._draw_steps(units, limit)])
        loops: list[_Nest] = []
        while any(chains):
            available = [c for c in chains if c]
            loops.append(available[int(self.rng.integers(len(available)))].pop(0))
        self._mark(loops, statement, place)
        return loops

    def _draw_steps(self, units: list[int], limit: int | None) -> list[int]:
        """Falling steps of an axis from below a limit down to the smallest unit, through the other units."""
        units = [u for u in units if limit is None or u < limit]
        if not units:
            return []
        steps = [units[0]]
        for unit in units[1:]:
            steps.insert(0, unit)
        while self.rng.random() < 0.45:
            step = steps[0] * int(self.rng.choice(STEPS))
            if step > MAX_STEP or (limit is not None and (step >= limit or limit % step)):
                break
            steps.insert(0, step)
        return steps

    def _mark(self, loops: list[_Nest], statement: Statement, place: _Nest | None) -> None:
        """Makes the innermost loop vectors, loops before it unrolled, and an outermost one parallel."""
        if not loops:
            return
        if self.rng.random() < 0.6 and self._is_static(loops, len(loops) - 1) and len(loops) + (place is not None) > 1:
            loops[-1].kind = LoopKind.VECTORIZED
            if self.rng.random() < 0.5 and len(loops) > 2 and self._is_static(loops, len(loops) - 2):
                loops[-2].kind = LoopKind.UNROLLED
        reduced = {a.axis for a in statement.axes if a.is_reduction}
        if (
            place is None
            and loops[0].axis not in reduced
            and loops[0].kind is LoopKind.SERIAL
            and self.rng.random() < 0.6
        ):
            loops[0].kind = LoopKind.PARALLEL

    def _is_static(self, loops: list[_Nest], position: int) -> bool:
        """Whether a loop has a literal number of iterations."""
        axis = loops[position].axis
        if any(x.axis == axis for x in loops[:position]):
            return True
        return isinstance(self.extents.get(axis), Const)


def _with_online(node: Node, names: frozenset[str]) -> Node:
    """The node with some statements online."""
    if isinstance(node, Compute):
        return Compute(node.statement, node.scope, node.lane_axis, node.statement in names)
    if isinstance(node, Loop):
        body = tuple(_with_online(x, names) for x in node.body)
        return Loop(node.axis, node.step, body, node.kind, node.tail, node.prefetches)
    return node
