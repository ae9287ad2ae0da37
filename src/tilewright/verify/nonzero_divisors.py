"""Nonzero divisors: no index is computed with a division by a size of 0.

The index algebra assumes that divisors are positive (`expr/algebra/division.py`); generated code computes x // 0 and
x % 0 as 0. So where a divisor is 0, an index that is proved to be in bounds may be out of bounds, and loops over
quotients may miss points. Therefore every divisor in an extent is proved to be >= 1 where the loop starts, and every
divisor in a block's indices, conditions and bindings where the block runs. All enclosing loops run there: a loop over n
or 4*n proves n >= 1, and so do conditions.

Such a proof must not rely on a division whose divisor is not proved itself. An extent or predicate with such a division
proves one thing only: if it fails where a size is 0, with 0 for every quotient by the size, then the size is not 0.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds, facts_of
from tilewright.expr.algebra.intervals import MAX_INDEX, value_interval
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.nodes import Binary, Const, Expr, Symbol, Var, const
from tilewright.expr.traversal import conjuncts, free_vars, has_loads, post_order
from tilewright.kernel_caches import kernel_cache
from tilewright.loops.access import Access, accesses
from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, For
from tilewright.verify.diagnostics import Diagnostic


def find_zero_divisors(context: BlockContext) -> Iterator[Diagnostic]:
    """The divisors of a block, its loops and its accesses that are not proved to be >= 1 where they divide."""
    block = context.block
    outer = tuple((k, d) for k, loop in enumerate(context.loops) for d in _possible_zero_divisors(loop.extent))
    block_divisors, access_divisors = _block_divisors(block), _access_divisors(block)
    if not outer and not block_divisors and not access_divisors:
        return
    where, proved = f"block {block.name!r}", set[Expr]()

    def unproved(divisors: Iterable[Expr], what: str, point: _ProgramPoint, proved: set[Expr]) -> Iterator[Diagnostic]:
        for d in divisors:
            if d in proved or _is_positive(context.over_loops(d), point, proved):
                proved.add(d)
            else:
                hint = "declare its symbols from 1" + (
                    f", or guard it with select({d} > 0, ..)" if point.can_be_guarded else ""
                )
                yield Diagnostic(where, f"{what} divides by {d}, which is not proved >= 1 there", context.text, hint)

    for k, d in outer:
        yield from unproved(
            (d,), f"the extent of loop {context.loops[k].var.name!r}", _ProgramPoint(context.loops[:k]), proved
        )
    here = conjuncts(block.predicate)
    yield from unproved(
        block_divisors, "a binding, its domain or the predicate", _ProgramPoint(context.loops, here), proved
    )
    for a, divisors in access_divisors:
        what, bounds = f"the {'write' if a.is_write else 'read'} of buffer {a.buffer.name!r}", set(proved)
        for d in divisors:
            path = (
                context.over_loops(c) for c in conjuncts(a.condition) if bounds.issuperset(_possible_zero_divisors(c))
            )
            yield from unproved((d,), what, _ProgramPoint(context.loops, here, tuple(path), True), bounds)


@dataclass(frozen=True, slots=True)
class _ProgramPoint:
    """Where a division happens.

    Attributes:
        loops: the enclosing loops.
        predicate: the conjuncts of the block's predicate.
        path_conditions: the conjuncts of the conditions of enclosing selects.
        can_be_guarded: whether it happens in an access, which a select can guard.
    """

    loops: tuple[For, ...]
    predicate: tuple[Expr, ...] = ()
    path_conditions: tuple[Expr, ...] = ()
    can_be_guarded: bool = False


@kernel_cache(maxsize=1 << 13)
def _possible_zero_divisors(e: Expr) -> tuple[Expr, ...]:
    """The divisors in an expression, inner divisions first, that the declared ranges of sizes do not keep >= 1.

    Divisors that depend on data are left out: the algebra concludes nothing from a division by them unless they are
    positive.
    """
    divisions = (n for n in post_order(e) if isinstance(n, Binary) and n.op in ("floordiv", "mod"))
    sizes = (n.b for n in divisions if n.dtype.name == "int64" and not has_loads(n.b) and not isinstance(n.b, Const))
    return tuple(dict.fromkeys(d for d in sizes if (value_interval(d, NO_BOUNDS)[0] or 0) < 1))


def _block_divisors(block: Block) -> tuple[Expr, ...]:
    return _possible_zero_divisors_in(
        (block.predicate, *(i.extent for i in block.iters), *(i.binding for i in block.iters))
    )


def _access_divisors(block: Block) -> tuple[tuple[Access, tuple[Expr, ...]], ...]:
    """The accesses that divide, with their divisors: in conditions, indices and sizes of the buffer."""
    divisors_of = (
        (a, (*_possible_zero_divisors(a.condition), *_possible_zero_divisors_in((*a.indices, *a.buffer.shape))))
        for a in accesses(block)
    )
    return tuple((a, tuple(dict.fromkeys(divisors))) for a, divisors in divisors_of if divisors)


@kernel_cache(maxsize=1 << 13)
def _possible_zero_divisors_in(parts: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(d for e in parts for d in _possible_zero_divisors(e))


def _is_positive(d: Expr, point: _ProgramPoint, proved: set[Expr]) -> bool:
    """Whether a divisor, over loop variables, is proved to be >= 1 at a point."""
    if not proved.issuperset(_possible_zero_divisors(d)):
        return False
    bounds = _bounds_at(point, proved)
    if can_prove_non_negative(d - 1, bounds):
        return True
    loop_vars = {loop.var for loop in point.loops}
    sizes = sorted(
        (v for v in free_vars(d) - loop_vars if isinstance(v, Symbol) and v.lo is not None and v.lo >= 0),
        key=lambda v: v.name,
    )
    positive = tuple(
        v for v in sizes if can_prove_non_negative(v - 1, bounds) or _is_never_zero(v, point, bounds, proved)
    )
    return bool(positive) and can_prove_non_negative(d - 1, _bounds_at(point, proved, positive))


def _bounds_at(point: _ProgramPoint, proved: set[Expr], positive: Iterable[Var] = ()) -> Bounds:
    """What holds at a point without relying on unproved divisions; the `positive` sizes are >= 1."""
    bounds = Bounds()
    for v in positive:
        bounds = bounds.with_range(v, const(1), const(MAX_INDEX if v.hi is None else v.hi))
    conditions: list[Expr] = []
    for loop in point.loops:
        reliable = proved.issuperset(_possible_zero_divisors(loop.extent))
        bounds = bounds.with_loop(loop.var, loop.extent if reliable else const(MAX_INDEX))
        conditions += [loop.extent >= 1] if reliable else []
    stated = (*point.predicate, *point.path_conditions)
    conditions += [c for c in stated if proved.issuperset(_possible_zero_divisors(c))]
    for c in conditions:
        bounds = bounds.assuming(c)
    return bounds


def _is_never_zero(size: Var, point: _ProgramPoint, bounds: Bounds, proved: set[Expr]) -> bool:
    """Whether a loop or the predicate excludes a point where a size >= 0 is 0."""
    facts = [*(loop.extent - 1 for loop in point.loops), *(f for c in point.predicate for f in facts_of(c))]
    for f in facts:
        if size in free_vars(f) and all(
            d in proved or _with_size_zero(d, size) is const(0) for d in _possible_zero_divisors(f)
        ):
            at_zero = _with_size_zero(f, size)
            if not _possible_zero_divisors(at_zero) and can_prove_non_negative(-at_zero - 1, bounds):
                return True
    return False


@kernel_cache(maxsize=1 << 12)
def _with_size_zero(e: Expr, size: Var) -> Expr:
    """The value of an expression where a size is 0; quotients and remainders by 0 are 0."""
    if not e.children():
        return const(0) if e is size else e
    children = tuple(_with_size_zero(c, size) for c in e.children())
    if isinstance(e, Binary) and e.op in ("floordiv", "mod") and children[1] is const(0):
        return const(0)
    return e.rebuild(children)
