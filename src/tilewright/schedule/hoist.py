"""The primitive hoist: loop-invariant code motion of parts of a block's value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.dtype import boolean, int64
from tilewright.expr.nodes import Binary, Buffer, Const, Expr, Load, MemoryScope, Select, Var
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts, free_vars, loads, post_order
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, For, Func, IterKind, LoopKind, Store, blocks, seq
from tilewright.schedule.legality import check_axes
from tilewright.schedule.rewrite_tree import (
    bounds_of,
    check_new_names,
    claim_name,
    find_block,
    find_loop,
    map_blocks,
    used_names,
    with_stmt_replaced,
)
from tilewright.verify.domains import find_domain_errors

LANE_KINDS = (LoopKind.VECTORIZED, LoopKind.VTHREAD)
"""Kinds of loops whose iterations run at once on one thread, so that each needs its own element."""


def hoist(func: Func, block: str, loop: str, name: str | None = None) -> Func:
    """Computes the loop-invariant parts of a block's value once before `loop`, in registers.

    The largest subexpressions are hoisted that read nothing that the loop writes and depend neither on its variable nor
    on those of loops inside it. Indices and conditions on indices stay, and a select is hoisted as a whole or not at
    all, because its arms are computed only under its condition.

    Args:
        name: of the new buffer; where there are several, the others are called after it.

    Legality: `loop` encloses the block; there is such a part; it can be computed where the loop does not run at all:
    its elements exist, and it divides integers only by what is known to be positive; it is not hoisted out of a loop
    on an axis of a GPU, whose threads have registers of their own.

        for i:                              for i:
            for j:                              block C_hoist(u = i): C_part[] = exp(A[u])
                block C(v = i, w = j):    ->    for j:
                    C[v, w] = exp(A[v])             block C(v = i, w = j):
                              * B[w]                    C[v, w] = C_part[] * B[w]

    Known as hoist_expression in TVM.
    """
    node, enclosing = find_block(func, block)
    target, outer = find_loop(func, loop)
    place = f"hoist of block {block!r} before loop {loop!r}"
    check_around(target, enclosing, place)
    parts = check_invariant_parts(node, target, enclosing, outer, place)
    used = used_names(func)
    if name is not None:
        check_new_names((name,), used, place)
    lanes = [x for x in outer if x.kind in LANE_KINDS]
    hoisted: dict[Expr, Load] = {}
    staged: list[Block] = []
    for part in parts:
        shape = tuple(x.extent for x in lanes)
        buffer = Buffer(claim_name(name or f"{block}_part", used), shape, part.value.dtype, MemoryScope.REGISTER)
        hoisted[part.value] = Load(buffer, tuple(x.var for x in lanes))
        staged.append(_storing_block(part, claim_name(f"{block}_hoist", used), hoisted[part.value], used))
    rewritten = map_blocks(target, lambda b: _replace_parts(b, hoisted) if b is node else b)
    result = with_stmt_replaced(func, target, seq(*staged, rewritten))
    result = replace(result, allocs=(*func.allocs, *(x.buffer for x in hoisted.values())))
    check_axes(result, place)
    return result


@dataclass(frozen=True, slots=True)
class InvariantPart:
    """A loop-invariant part of a block's value as a block of its own, not yet stored anywhere."""

    value: Expr
    block: Block


def check_around(target: For, enclosing: Sequence[For], place: str) -> None:
    """Checks that the loop encloses the block."""
    if not any(x is target for x in enclosing):
        names = ", ".join(x.var.name for x in enclosing) or "none"
        raise ScheduleError("the loop does not enclose the block", where=place, hint=f"enclosing loops: {names}")


def check_invariant_parts(
    node: Block, target: For, enclosing: Sequence[For], outer: Sequence[For], place: str
) -> list[InvariantPart]:
    """Returns the loop-invariant parts that can be computed before the loop; at least one."""
    refused: list[str] = []
    parts: list[InvariantPart] = []
    inside = {x.var for x in enclosing[len(outer) :]}
    for value in loop_invariant_parts(node, target, enclosing):
        part = _as_block(node, value, inside)
        problem = hoisting_hazard(part, outer)
        if problem is None:
            parts.append(part)
        else:
            refused.append(f"{value}: {problem}")
    if not parts:
        reason = refused[0] if refused else "no part of its value stays the same while the loop runs"
        raise ScheduleError(reason, where=place)
    return parts


def loop_invariant_parts(node: Block, target: For, enclosing: Sequence[For]) -> list[Expr]:
    """The largest parts of a block's value that are invariant in an enclosing loop, without duplicates."""
    position = next(k for k, x in enumerate(enclosing) if x is target)
    varying = {x.var for x in enclosing[position:]}
    varying |= {i.var for i in node.iters if free_vars(i.binding) & varying}  # indices may use loop variables too
    written = {b.body.buffer for b in blocks(target)}

    def is_invariant(e: Expr) -> bool:
        return not free_vars(e) & varying and not any(x.buffer in written for x in loads(e))

    def parts(e: Expr, condition: bool) -> Iterator[Expr]:
        if is_invariant(e):
            if _is_worth_hoisting(e, condition):
                yield e
            return
        match e:
            case Load():
                return
            case Select(cond):
                yield from parts(cond, True)
            case _:
                for child in e.children():
                    yield from parts(child, condition)

    return list(dict.fromkeys(parts(node.body.value, False)))


def _is_worth_hoisting(e: Expr, condition: bool) -> bool:
    """Whether an expression is a value and no index: in a buffer, the bounds of an index would be lost."""
    if isinstance(e, Const | Var):
        return False
    return e.dtype not in (int64, boolean) or (bool(loads(e)) and not condition)


def _as_block(node: Block, value: Expr, inner_vars: set[Var]) -> InvariantPart:
    """A part as a block over the iteration variables that it uses, under the predicates that hold before the loop."""
    iters = tuple(replace(i, kind=IterKind.SPATIAL) for i in node.iters if i.var in free_vars(value))
    outer_predicate = conjunction(*(c for c in conjuncts(node.predicate) if not free_vars(c) & inner_vars))
    return InvariantPart(value, replace(node, iters=iters, init=None, predicate=outer_predicate))


def hoisting_hazard(part: InvariantPart, outer: Sequence[For]) -> str | None:
    """Why a part may not be computed before the loop; None where it may."""
    probe = Buffer("part", (), part.value.dtype, MemoryScope.REGISTER)
    block = replace(part.block, body=Store(probe, (), part.value))
    for diagnostic in find_domain_errors(BlockContext.of(block, tuple(outer))):
        return diagnostic.what
    bounds = bounds_of(outer)
    bindings = {i.var: i.binding for i in part.block.iters}
    for e in post_order(part.value):
        if isinstance(e, Binary) and e.op in ("floordiv", "mod") and e.dtype.is_int:
            divisor = substitute(e.b, bindings)
            is_nonzero = (
                bool(divisor.value)
                if isinstance(divisor, Const)
                else (e.dtype is int64 and can_prove_non_negative(divisor - 1, bounds))
            )
            if not is_nonzero:
                return f"it may divide by 0 where the loop does not run: {e}"
    return None


def _storing_block(part: InvariantPart, label: str, target: Load, used: set[str]) -> Block:
    """The part's block, storing it, under names of its own."""
    names = {i.var: Var(claim_name(f"{i.var.name}_h", used)) for i in part.block.iters}
    iters = tuple(replace(i, var=names[i.var]) for i in part.block.iters)
    store = Store(target.buffer, target.indices, substitute(part.value, dict(names)))
    return Block(label, iters, store, None, part.block.predicate)


def _replace_parts(node: Block, hoisted: Mapping[Expr, Load]) -> Block:
    """The block with parts of its value loaded from buffers."""

    def visit(e: Expr) -> Expr:
        if e in hoisted:
            return hoisted[e]
        if isinstance(e, Load):
            return e
        if isinstance(e, Select):
            return Select(visit(e.cond), e.a, e.b)
        old = e.children()
        new = tuple(visit(c) for c in old)
        return e if all(a is b for a, b in zip(old, new, strict=True)) else e.rebuild(new)

    return replace(node, body=Store(node.body.buffer, node.body.indices, visit(node.body.value)))
