"""Legality of tile trees: conditions on their form that are checked before anything is lowered.

What remains (regions, races, online sums) is checked by the primitives that lowering uses, and by the verifier.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from tilewright.errors import Defect, TreeError
from tilewright.expr.traversal import loads
from tilewright.loops.ir import GPU_AXES, Func, LoopKind, blocks
from tilewright.schedule.tails import Tail
from tilewright.tile.statements import new_statement
from tilewright.tile.tree import (
    CacheRead,
    CacheWrite,
    Compute,
    Inline,
    Loop,
    LoopPart,
    Node,
    Pack,
    Partition,
    RFactor,
    Staging,
    TileTree,
    children,
    computes,
    walk_tree,
)


def check_tree(tree: TileTree, func: Func) -> None:
    """Checks the form of a tree, and that its statements are those of a kernel.

    Args:
        tree: the tree.
        func: the kernel's untransformed loops.

    Raises:
        TreeError: lists every condition that does not hold, with its place.
    """
    problems = [Defect("tree", where, what) for where, what in tree_problems(tree, func)]
    if problems:
        raise TreeError(problems)


def tree_problems(tree: TileTree, func: Func) -> list[tuple[str, str]]:
    """(place, what is wrong) of every condition that does not hold; see `check_tree`."""
    names = {b.name for b in blocks(func.body)}
    problems = list(_staging_problems(tree.staging, names))
    for stage in tree.staging:
        names = _names_after(stage, names)
    problems += _sequence_problems(tree.body, names)
    problems += _prefetch_problems(tree, func)
    k_blocks = {(x.axis, x.size) for x in tree.staging if isinstance(x, RFactor) and not x.lanes}
    for node, enclosing in walk_tree(tree.body):
        problems += _node_problems(node, enclosing, k_blocks)
    return [*problems, *_order_problems(tree, func)]


def _names_after(stage: Staging, names: set[str]) -> set[str]:
    new = new_statement(stage)
    return names - {stage.statement} if new is None else names | {new}


def _staging_problems(staging: Sequence[Staging], names: set[str]) -> Iterator[tuple[str, str]]:
    """Staging must name statements that exist and new names, and have sizes of at least 1."""
    for stage in staging:
        where = f"{type(stage).__name__} of {stage.statement!r}"
        if stage.statement not in names:
            yield where, f"there is no such statement; there are {', '.join(sorted(names))}"
        new = new_statement(stage)
        if new is not None and new in names:
            yield where, f"the name {new!r} is taken"
        match stage:
            case RFactor() if stage.size < 1:
                yield where, f"expected partial sums of at least 1 point, got {stage.size}"
            case Pack() if stage.width < 1 or stage.dim < 0:
                yield where, f"expected a dimension and panels of at least 1 point, got {stage.dim} and {stage.width}"
            case CacheRead() if stage.order and sorted(stage.order) != list(range(len(stage.order))):
                yield where, f"expected a permutation of dimensions, got {stage.order}"
            case CacheRead() | CacheWrite() | Inline() | RFactor() | Pack():
                pass
        names = _names_after(stage, names)


def _sequence_problems(nodes: Sequence[Node], names: set[str]) -> Iterator[tuple[str, str]]:
    """Every statement must be one of the kernel's or of staging, and occur once; parts have the same ones."""
    placed: set[str] = set()
    for name, in_partition in _statements(nodes):
        if name not in names and not in_partition:
            yield f"statement {name!r}", f"there is no such statement; there are {', '.join(sorted(names))}"
        if name in placed:
            yield f"statement {name!r}", "it is computed twice"
        placed.add(name)
    for node, _ in walk_tree(tuple(nodes)):
        if isinstance(node, Partition):
            yield from _partition_problems(node, names)


def _prefetch_problems(tree: TileTree, func: Func) -> Iterator[tuple[str, str]]:
    """Prefetches are of copies or operands, at distances of at least 1."""
    sources = {x.copy for x in tree.staging if isinstance(x, Pack | CacheRead)}
    sources |= {x.buffer.name for b in blocks(func.body) for x in loads(b.body.value)}
    for node, _ in walk_tree(tree.body):
        for p in node.prefetches if isinstance(node, Loop) else ():
            if p.source not in sources:
                yield f"prefetch of {p.source!r}", "it is no operand or copy of one"
            if p.distance < 1:
                yield f"prefetch of {p.source!r}", f"expected a distance of at least 1, got {p.distance}"


def _statements(nodes: Sequence[Node]) -> Iterator[tuple[str, bool]]:
    """Statements in the order of execution, those of a partition once, and whether they are inside of one."""
    for node in nodes:
        if isinstance(node, Compute):
            yield node.statement, False
        elif isinstance(node, Partition):
            yield from ((name, True) for name, _ in _statements(node.parts[0].body if node.parts else ()))
        else:
            yield from _statements(node.body)


def _partition_problems(partition: Partition, names: set[str]) -> Iterator[tuple[str, str]]:
    where = f"partition of {partition.axis!r}"
    if len(partition.parts) < 2:
        yield where, f"expected at least two parts, got {len(partition.parts)}"
        return
    tiles = [p.tile for p in partition.parts]
    if any(t < 1 for t in tiles) or any(a <= b for a, b in pairwise(tiles)):
        yield where, f"expected tiles of falling sizes, got {', '.join(map(str, tiles))}"
    originals = [_originals(p) for p in partition.parts]
    if any(x != originals[0] for x in originals):
        yield where, "its parts compute different statements"
    for part in partition.parts:
        yield from _staging_problems(part.staging, names)
        known = set(names)
        for stage in part.staging:
            known = _names_after(stage, known)
        for name in sorted({c.statement for c in computes(*part.body)} - known):
            yield f"statement {name!r}", f"there is no such statement; there are {', '.join(sorted(known))}"


def _originals(part: LoopPart) -> set[str]:
    added = {new_statement(x) for x in part.staging}
    return {c.statement for c in computes(*part.body)} - added


def _node_problems(
    node: Node, enclosing: Sequence[Node], k_blocks: Collection[tuple[str, int]]
) -> Iterator[tuple[str, str]]:
    """Loops must have bodies, steps that nest, and kinds that their place allows; the last step in a K-block, given as
    (axis, points), may be partial."""
    if not isinstance(node, Loop):
        if isinstance(node, Partition) and any(not p.body for p in node.parts):
            yield f"partition of {node.axis!r}", "a part is empty"
        return
    where = _loop_place(node)
    if not computes(node):
        yield where, "it computes nothing"
    if node.step < 1:
        yield where, "expected a step of at least 1 point"
    around = next((x for x in reversed(enclosing) if not isinstance(x, Compute) and x.axis == node.axis), None)
    # the tiles of a part cover what it has, whatever the loop around the partition leaves for all parts
    outer = around if isinstance(around, Loop) else None
    if outer is not None and outer.step <= node.step:
        yield where, f"the loop around it has steps of {outer.step} points, expected larger ones"
    elif outer is not None and (outer.axis, outer.step) not in k_blocks and node.step > 0 and outer.step % node.step:
        yield where, f"the loop around it has steps of {outer.step} points, which is no multiple"
    yield from _kind_problems(node, enclosing)
    if node.tail not in (Tail.GUARD, Tail.REMAINDER):
        yield where, f"expected the tail guard or remainder, got {node.tail}"
    if node.tail is Tail.REMAINDER and node.kind is not LoopKind.SERIAL:
        yield where, f"the last iteration of a loop that is {node.kind} can't be peeled"


def _kind_problems(loop: Loop, enclosing: Sequence[Node]) -> Iterator[tuple[str, str]]:
    where = _loop_place(loop)
    if loop.kind in GPU_AXES:
        yield where, f"expected a loop of a processor, got {loop.kind}"
    if loop.kind is LoopKind.VECTORIZED and (len(loop.body) != 1 or not isinstance(loop.body[0], Compute)):
        yield where, "expected a vectorized loop around a single statement"
    if loop.kind in (LoopKind.VECTORIZED, LoopKind.UNROLLED) and not any(isinstance(x, Loop) for x in enclosing):
        yield where, f"an outermost loop can't be {loop.kind}"
    outer_kinds = {x.kind for x in enclosing if isinstance(x, Loop)}
    if loop.kind is LoopKind.PARALLEL and outer_kinds - {LoopKind.PARALLEL, LoopKind.SERIAL}:
        yield where, f"a parallel loop in one that is {min(outer_kinds - {LoopKind.PARALLEL, LoopKind.SERIAL})}"
    if loop.kind is not LoopKind.PARALLEL or not enclosing:
        return
    if any(isinstance(x, Loop) and x.kind is LoopKind.PARALLEL and len(children(x)) > 1 for x in enclosing):
        yield where, "a parallel loop beside other nodes in a parallel loop"


def _loop_place(loop: Loop) -> str:
    return f"loop over {loop.axis!r} in steps of {loop.step}"


def _order_problems(tree: TileTree, func: Func) -> Iterator[tuple[str, str]]:
    """A statement must come before those that read what it writes."""
    position = {name: k for k, (name, _) in enumerate(_statements(tree.body))}
    for writer, reader in (*_dependences(func), *map(_staged_dependence, tree.staging)):
        if position.get(writer, -1) > position.get(reader, len(position)):
            yield f"statement {reader!r}", f"it comes before {writer!r}, whose results it reads"


def _dependences(func: Func) -> Iterator[tuple[str, str]]:
    """(writer, reader) of the kernel's blocks."""
    writers = {b.body.buffer.name: b.name for b in blocks(func.body)}
    for b in blocks(func.body):
        for buffer in sorted({x.buffer.name for x in loads(b.body.value)}):
            if writers.get(buffer, b.name) != b.name:
                yield writers[buffer], b.name


def _staged_dependence(stage: Staging) -> tuple[str, str]:
    """(writer, reader) of a statement and the one that staging adds."""
    match stage:
        case CacheWrite():
            return stage.statement, stage.copy
        case RFactor():
            return stage.partial, stage.statement
        case Pack() | CacheRead():
            return stage.copy, stage.statement
        case Inline():
            return stage.statement, stage.statement
