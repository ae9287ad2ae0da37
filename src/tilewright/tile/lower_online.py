"""Lowering of online reductions: sums in the loop over chunks of a reduction that their terms depend on.

Online softmax is the example: the maximum of a row, the sum of its exponentials and the weighted sum of values in one
pass over chunks of keys (Milakov and Gimelshein, Section 3; Dao et al., FlashAttention, Algorithm 1).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from tilewright.errors import ScheduleError
from tilewright.schedule.rewrite_tree import find_block
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tails import Tail
from tilewright.tile.schedule_helpers import buffer_of
from tilewright.tile.statements import Statement
from tilewright.tile.tree import Compute, Loop, Node, computes, walk_tree

Statements = Mapping[str, Statement]
"""Statements by name."""


class NestLowering(Protocol):
    """What `lower_tree.py` does with nests of any kind."""

    s: Schedule

    def lower(self, node: Node, statements: Statements, enclosing: str | None) -> None:
        """Lowers a node in a loop."""
        ...

    def lower_nest(self, statement: Statement, loops: Sequence[Loop], statements: Statements) -> list[str]:
        """Places, initialises and marks the loops of a statement that has its place; returns their names."""
        ...

    def lower_producers(self, loops: Sequence[Loop], names: Sequence[str], statements: Statements) -> None:
        """Lowers what the loops of a nest hold besides its last statement, from the last to the first."""
        ...

    def peel_online_tail(self, chunks: Loop, name: str) -> None:
        """Peels the partial last iteration of the loop over chunks."""
        ...

    def store(self, statement: Statement, compute: Compute) -> None:
        """Gives the buffer that a statement writes its scope and its layout."""
        ...

    def vectorize_lanes(self, statement: Statement, lane_axis: str | None) -> None:
        """Vectorises the loop over the lane axis, innermost; the other loops stay serial."""
        ...


@dataclass(frozen=True, slots=True)
class _OnlineNest:
    """A nest with online sums.

    Attributes:
        loops: the loops around the reduction that the sums depend on, outermost first.
        chunks: the one of them that the sums are fused into.
        reduction: the reduction.
        values: the nests of element-wise statements whose results the sums add up, directly inside of `chunks`.
        sums: the nests of the sums, directly inside of `chunks`.
        consumers: the nests that follow `chunks`, each with the loop directly around it, in the order of execution.
    """

    loops: tuple[Loop, ...]
    chunks: Loop
    reduction: Compute
    values: tuple[Node, ...]
    sums: tuple[Node, ...]
    consumers: tuple[tuple[Node, Loop], ...]

    @staticmethod
    def of(node: Node, statements: Statements) -> "_OnlineNest":
        """The parts of a nest.

        Raises:
            ScheduleError: there is no reduction that the sums could depend on, or they are not in its loop.
        """
        chunks, reduction = _chunk_loop(node, statements)
        loops = _loops_around(node, reduction)
        depth = next(k for k, x in enumerate(loops) if x is chunks)
        online = tuple(x for x in chunks.body if computes(x)[-1].online)
        sums = tuple(x for x in online if statements[computes(x)[-1].statement].reduces(chunks.axis, chunks.step))
        values = tuple(x for x in online if x not in sums)
        fused = [computes(x)[-1] for x in online]
        for c in computes(node):
            if c.online and c not in fused:
                what = f"statement {c.statement!r} is online, but not directly in the loop over {chunks.axis!r}"
                raise ScheduleError(what, where="tile tree")
        if len(values) > 1 or (values and not sums):
            shown = ", ".join(repr(computes(x)[-1].statement) for x in values)
            raise ScheduleError(f"expected one online statement that sums read, got {shown}", where="tile tree")
        consumers: list[tuple[Node, Loop]] = []
        for loop, inner in reversed(list(pairwise(loops[: depth + 1]))):
            position = next(k for k, x in enumerate(loop.body) if x is inner)
            consumers += [(x, loop) for x in loop.body[position + 1 :]]
        return _OnlineNest(loops, chunks, reduction, values, sums, tuple(consumers))


def lower_online(lowering: NestLowering, node: Node, statements: Statements) -> None:
    """Lowers a nest of a reduction and of sums that depend on it, in one loop over chunks of the reduction.

    The reduction keeps its loops; the sums are fused into the loop over chunks (`rolling_update`), what follows it goes
    into the loop around it (`reverse_compute_at`), and everything else is placed as in other nests. An element-wise
    value that the sums read, such as the exponential of softmax, is inlined, as it depends on the running result, and
    then computed once for all sums (`cache_value`).

    Raises:
        ScheduleError: a step is not legal for these loops.
    """
    nest, s = _OnlineNest.of(node, statements), lowering.s
    cached = [computes(x)[-1] for x in nest.values]
    for c in cached:
        s.do("inline", statements[c.statement].block)
    names = lowering.lower_nest(statements[nest.reduction.statement], nest.loops, statements)
    depth = next(k for k, x in enumerate(nest.loops) if x is nest.chunks)
    added: dict[str, Compute] = {}
    for child in nest.sums:
        compute = computes(child)[-1]
        added |= dict.fromkeys(s.rolling_update(statements[compute.statement].block, names[depth]), compute)
    sums = [statements[computes(x)[-1].statement] for x in nest.sums]
    for c in cached:
        block = s.cache_value(sums[0].block, names[depth], [x.block for x in sums[1:]], c.statement)
        s.do("store_at", block, names[depth])
        axes = tuple(replace(a, is_reduction=False) for a in sums[0].axes)
        statements = {**statements, c.statement: Statement(block, axes)}
        lowering.store(statements[c.statement], c)
    for child, loop in nest.consumers:
        place = next(n for x, n in zip(nest.loops, names, strict=True) if x is loop)
        s.do("reverse_compute_at", statements[computes(child)[-1].statement].block, place)
    running = [nest.reduction, *(computes(x)[-1] for x in nest.sums)]
    _store_running_results(lowering, statements, running, added, names[depth - 1] if depth else None)
    for child, loop in nest.consumers:
        block = statements[computes(child)[-1].statement].block
        if find_block(s.func, block)[0].body.buffer in s.func.allocs:
            place = next(n for x, n in zip(nest.loops, names, strict=True) if x is loop)
            s.do("store_at", buffer_of(s, block), place)
        lowering.store(statements[computes(child)[-1].statement], computes(child)[-1])
    placed = [*nest.values, *nest.sums, *(x for x, _ in nest.consumers)]
    for child in placed:
        compute = computes(child)[-1]
        inner = _loops_around(child, compute)
        inner_names = lowering.lower_nest(statements[compute.statement], inner, statements)
        lowering.lower_producers(inner, inner_names, statements)
    for block, compute in added.items():
        spatial = tuple(a for a in statements[compute.statement].axes if not a.is_reduction)
        lowering.vectorize_lanes(Statement(block, spatial), compute.lane_axis)
    for loop, name in reversed(list(zip(nest.loops, names, strict=True))):
        for producer in reversed(loop.body):
            is_placed = nest.reduction in computes(producer) or any(producer is x for x in placed)
            if not is_placed:
                lowering.lower(producer, statements, name)
    for name in names[:depth]:
        # lanes of vectors then need no masks; refused where there is nothing to drop
        with suppress(ScheduleError):
            s.do("round_up", name)
    if nest.chunks.tail is Tail.REMAINDER:
        lowering.peel_online_tail(nest.chunks, names[depth])


def _store_running_results(
    lowering: NestLowering,
    statements: Statements,
    running: Sequence[Compute],
    added: Mapping[str, Compute],
    around: str | None,
) -> None:
    """Shrinks the buffers of running results to one iteration of the loop around the chunks, and gives them their
    scopes; those that save earlier results have that of the reduction."""
    s = lowering.s
    buffers = {buffer_of(s, statements[c.statement].block): c for c in running}
    saved = {b for b in (buffer_of(s, block) for block in added) if b not in buffers}
    for buffer in (*sorted(saved), *buffers):
        if around is not None:
            s.do("store_at", buffer, around)
        if buffer in buffers:
            lowering.store(statements[buffers[buffer].statement], buffers[buffer])
        elif running[0].scope is not None:
            s.do("set_scope", buffer, running[0].scope)


def _chunk_loop(node: Node, statements: Statements) -> tuple[Loop, Compute]:
    """The loop over chunks that online sums are fused into, and the reduction that they depend on: the innermost loop
    around the first of them in which another statement reduces along the loop's axis."""
    first = next(c for c in computes(node) if c.online)
    for loop, _ in reversed(list(walk_tree((node,)))):
        if isinstance(loop, Loop) and first in computes(loop):
            for c in computes(loop):
                if not c.online and statements[c.statement].reduces(loop.axis, loop.step):
                    return loop, c
    what = f"statement {first.statement!r} is online, but no loop around it has a reduction that it could depend on"
    raise ScheduleError(what, where="tile tree")


def _loops_around(node: Node, leaf: Compute) -> tuple[Loop, ...]:
    """The loops around a statement, outermost first."""
    loops: list[Loop] = []
    while isinstance(node, Loop):
        loops.append(node)
        node = next(x for x in node.body if leaf in computes(x))
    return tuple(loops)
