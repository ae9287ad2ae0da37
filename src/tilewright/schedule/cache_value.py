"""The primitive cache_value, which computes the value that reductions of a loop combine once for all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var
from tilewright.expr.traversal import free_vars, loads, post_order
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.ir import THREADED, Block, BlockIter, For, Func, IterKind, LoopKind, Seq, Stmt, Store, blocks, seq
from tilewright.schedule.legality import check_no_races
from tilewright.schedule.online_reduction import check_contiguous_chunks
from tilewright.schedule.region import Span, check_domain, over_region, span_of
from tilewright.schedule.rewrite_tree import (
    bounds_of,
    check_new_names,
    claim_name,
    copy_with_fresh_names,
    find_block,
    find_loop,
    map_blocks,
    nest_loops,
    used_names,
    with_stmt_replaced,
)


def cache_value(func: Func, block: str, loop: str, readers: tuple[str, ...] = (), name: str | None = None) -> Func:
    """Computes the value that a reduction combines in a nest of its own in `loop`, and keeps it in a buffer, which the
    reduction and the readers read: others that need the same values compute them no more.

    The new block, called as the buffer, is computed over what one iteration of the loop needs, in front of the
    reduction's nest. Its buffer has an element per point of the reduction; `store_at` shrinks it.

    Args:
        readers: blocks that follow in the loop, in whose values the reduction's value occurs, too.
        name: of the buffer; `<block>_value` without it.

    Legality: the reduction is in the loop, in a nest of its own, and so are the readers, after it; one iteration of
    the loop computes a contiguous part of it; its value is no element that is loaded already; predicates guard tails
    only; nothing that the value reads is written between its new place and the last reader; each reader reads it over
    the same part of its domain; the loop and those around it are serial or parallel, and iterations of parallel ones
    need different elements.

        for k:                                        for k:
            for i: block L: L[] = L[] + exp(x[k*8+i])     for i: block P: P[k*8 + i] = exp(x[k*8 + i])
            for i: block O: O[] = O[] +            ->     for i: block L: L[] = L[] + P[k*8 + i]
                       exp(x[k*8+i]) * v[k*8+i]           for i: block O: O[] = O[] + P[k*8 + i] * v[k*8 + i]

    Known as bind_expr in Exo; the opposite of inline.
    """
    place = f"cache_value of {block!r} in loop {loop!r}"
    node, enclosing = find_block(func, block)
    target, outer = find_loop(func, loop)
    loops = (*outer, target)
    check_loops(loops, place)
    value = check_cacheable(node, enclosing, place)
    start = _position(target, node, place)
    spans = {i.var: _needed_span(func, i.binding, enclosing, loops, place) for i in node.iters}
    check_contiguous_chunks(node, enclosing, len(loops), spans, place)
    domain = tuple(i for i in node.iters if i.var in free_vars(value))
    used = used_names(func)
    if name is not None:
        check_new_names((name,), used, place)
    cached = Buffer(claim_name(name or f"{block}_value", used), tuple(i.extent for i in domain), value.dtype)
    variables = tuple(i.var for i in domain)
    rewritten = {block: _with_value(node, value, Load(cached, variables))}
    last = start
    for reader in readers:
        where = f"{place}, reader {reader!r}"
        other, around = find_block(func, reader)
        check_domain(other, around, where)
        last = max(last, check_follows(target, other, start, where))
        mapping = match_value(value, other, variables, where)
        check_same_part(func, other, around, loops, {v: spans[v] for v in variables}, mapping, place)
        load = Load(cached, tuple(mapping[v] for v in variables))
        rewritten[reader] = _with_value(other, substitute(value, mapping), load)
    check_inputs_unchanged(target, value, start, last, place)
    nest = _nest_of_value(cached, domain, value, spans, loops, used)
    body = map_blocks(target.body, lambda b: rewritten.get(b.name, b))
    statements = list(body.stmts if isinstance(body, Seq) else (body,))
    statements.insert(start, nest)
    result = with_stmt_replaced(func, target, replace(target, body=seq(*statements)))
    result = replace(result, allocs=(*result.allocs, cached))
    check_no_races(result, None, place)
    return result


def _nest_of_value(
    cached: Buffer,
    domain: Sequence[BlockIter],
    value: Expr,
    spans: Mapping[Var, Span],
    loops: Sequence[For],
    used: set[str],
) -> Stmt:
    """The nest that computes a value over what one iteration of the last of `loops` needs."""
    iters = tuple(replace(i, kind=IterKind.SPATIAL) for i in domain)
    store = Store(cached, tuple(i.var for i in domain), value)
    copy = copy_with_fresh_names(Block(cached.name, iters, store), used)
    if not isinstance(copy, Block):
        raise TypeError("a copy of a block is a block")
    part = {new.var: spans[old.var] for new, old in zip(copy.iters, domain, strict=True)}
    placed, new_loops, _ = over_region(replace(copy, name=cached.name), part, bounds_of(loops), used)
    return nest_loops(new_loops, placed)


def check_follows(target: For, reader: Block, start: int, place: str) -> int:
    """Returns the position of a reader's nest, which comes after that of the reduction."""
    position = _position(target, reader, place)
    if position <= start:
        raise ScheduleError("it does not come after the reduction", where=place)
    return position


def check_loops(loops: Sequence[For], place: str) -> None:
    """Checks that the loops are serial or parallel."""
    for x in loops:
        if x.kind is not LoopKind.SERIAL and x.kind not in THREADED:
            hint = "use it before loops are annotated"
            raise ScheduleError(f"loop {x.var.name!r} is {x.kind}", where=place, hint=hint)


def check_cacheable(node: Block, enclosing: Sequence[For], place: str) -> Expr:
    """Returns the value that a reduction combines; it is more than an element, and its predicate guards tails only."""
    check_domain(node, enclosing, place)
    combined = match_accumulation(node.body)
    if combined is None or all(i.kind is IterKind.SPATIAL for i in node.iters):
        raise ScheduleError("it is no reduction", where=place)
    value = combined[1]
    if isinstance(value, Load | Const | Var):
        raise ScheduleError(f"its value {value} is computed already", where=place)
    return value


def _position(target: For, node: Block, place: str) -> int:
    """The position of the nest of a block among the statements of a loop, which holds no other block."""
    statements: Sequence[Stmt] = target.body.stmts if isinstance(target.body, Seq) else (target.body,)
    for k, s in enumerate(statements):
        inside = blocks(s)
        if any(b is node for b in inside):
            if len(inside) > 1:
                other = next(b.name for b in inside if b is not node)
                what = f"block {node.name!r} shares its nest in the loop with block {other!r}"
                raise ScheduleError(what, where=place)
            return k
    raise ScheduleError(f"block {node.name!r} is not in the loop", where=place)


def _needed_span(func: Func, binding: Expr, enclosing: Sequence[For], loops: Sequence[For], place: str) -> Span:
    return span_of(binding, enclosing[len(loops) :], loops, func, place)


def match_value(value: Expr, reader: Block, variables: Sequence[Var], place: str) -> Mapping[Var, Expr]:
    """The variables of a value in terms of those of a reader in whose value it occurs."""
    for x in loads(value):
        if not set(variables) <= {i for i in x.indices if isinstance(i, Var)}:
            continue
        for y in loads(reader.body.value):
            if y.buffer != x.buffer:
                continue
            pairs = zip(x.indices, y.indices, strict=True)
            mapping = {i: e for i, e in pairs if isinstance(i, Var) and i in variables}
            found = substitute(value, mapping)
            if all(isinstance(e, Var) for e in mapping.values()) and any(
                e is found for e in post_order(reader.body.value)
            ):
                return mapping
    raise ScheduleError(f"{value} does not occur in what it computes", where=place)


def check_same_part(
    func: Func,
    reader: Block,
    enclosing: Sequence[For],
    loops: Sequence[For],
    spans: Mapping[Var, Span],
    mapping: Mapping[Var, Expr],
    place: str,
) -> None:
    """Checks that a reader needs the part of the domain that is computed."""
    bindings: dict[Expr, Expr] = {i.var: i.binding for i in reader.iters}
    for var, span in spans.items():
        needed = _needed_span(func, bindings[mapping[var]], enclosing, loops, place)
        if needed.start is not span.start or needed.size is not span.size:
            what = f"block {reader.name!r} needs other values of {var.name!r} in an iteration than are computed"
            raise ScheduleError(what, where=place)


def check_inputs_unchanged(target: For, value: Expr, start: int, last: int, place: str) -> None:
    """Checks that nothing writes what a value reads between its new place and its last reader."""
    statements: Sequence[Stmt] = target.body.stmts if isinstance(target.body, Seq) else (target.body,)
    inputs = {x.buffer for x in loads(value)}
    for s in statements[start : last + 1]:
        for b in blocks(s):
            if b.body.buffer in inputs:
                what = f"block {b.name!r} writes {b.body.buffer.name!r}, which the value reads"
                raise ScheduleError(what, where=place)


def _with_value(node: Block, old: Expr, new: Load) -> Block:
    """The block with a part of its value loaded."""
    memo: dict[Expr, Expr] = {old: new}

    def visit(e: Expr) -> Expr:
        if e not in memo:
            before = e.children()
            after = tuple(visit(c) for c in before)
            memo[e] = e if all(a is b for a, b in zip(before, after, strict=True)) else e.rebuild(after)
        return memo[e]

    return replace(node, body=Store(node.body.buffer, node.body.indices, visit(node.body.value)))
