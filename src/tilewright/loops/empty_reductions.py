"""Reductions over nothing: an element whose reduction has no iterations gets the value of `init`.

A block stores its `init` before its first reduction iteration, so nobody would where there is none. Whoever runs a
function (interpreter, code generation) does so on this form of it, in which a block before the reduction stores `init`
where the reduction is empty. Only reductions that may be empty get one.

    for i in serial(M):                         for i in serial(M):
        for k in serial(K):                         block C.empty(v = i) where K < 1:
            block C(v = i, reduce r: K = k):  ->        C[v] = 0.0
                init C[v] = 0.0                     for k in serial(K):
                C[v] = C[v] + ..                        block C(v = i, reduce r: K = k): ..
"""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import FALSE, Expr, Symbol, Var, const
from tilewright.expr.operations import binary, conjunction
from tilewright.expr.traversal import conjuncts, free_vars
from tilewright.loops.ir import Block, For, Func, IterKind, Seq, Stmt, Store, seq, walk


def initialize_empty_reductions(func: Func) -> Func:
    """The function with a block that stores `init` before every reduction that may be empty, for where it is."""
    inits: dict[int, list[Stmt]] = {}
    for s, around in walk(func.body):
        if isinstance(s, Block):
            before = init_where_empty(s, around)
            if before is not None:
                inits.setdefault(id(before[0]), []).append(before[1])
    return func.with_body(_insert_inits(func.body, inits)) if inits else func


def _insert_inits(s: Stmt, inits: dict[int, list[Stmt]]) -> Stmt:
    match s:
        case For():
            return seq(*inits.get(id(s), ()), replace(s, body=_insert_inits(s.body, inits)))
        case Seq(stmts):
            return seq(*(_insert_inits(c, inits) for c in stmts))
        case Block():
            return s


def init_where_empty(block: Block, around: Sequence[For]) -> tuple[For, Stmt] | None:
    """(the outermost loop of the reduction, what is to stand before it); None where the reduction is not empty."""
    reduce = [i for i in block.iters if i.kind is IterKind.REDUCE]
    empty: Expr = FALSE
    for i in reduce:
        if not can_prove(i.extent >= 1):
            empty = i.extent < 1 if empty is FALSE else binary("or", empty, i.extent < 1)
    reduced = {v for i in reduce for v in free_vars(i.binding) if not isinstance(v, Symbol)}
    first = next((k for k, x in enumerate(around) if x.var in reduced), None)
    if block.init is None or empty is FALSE or first is None:
        return None
    kept = [x for x in around[first:] if x.var not in reduced]
    own = {x.var: Var(f"{x.var.name}.{block.name}.empty") for x in kept}
    mapping: dict[Var, Expr] = {**{v: const(0) for v in reduced}, **own}
    iters = tuple(replace(i, binding=substitute(i.binding, mapping)) for i in block.iters if i.kind is IterKind.SPATIAL)
    # What limits the reduction does not limit the elements, but may keep their indices in bounds.
    guards = [
        substitute(_drop_reduction_conditions(block.predicate, reduced), mapping),
        *(i.binding < i.extent for i in iters),
    ]
    loops = ((own.get(x.var, x.var), substitute(x.extent, mapping)) for x in around if x.var not in reduced)
    known = Bounds.from_loops(loops).assuming(conjunction(*guards))
    guards += [c for i in iters if not can_prove(c := i.binding >= 0, known)]
    at = tuple(substitute(i, mapping) for i in block.init.indices)  # staging buffers are indexed by loops, too
    init = Store(block.init.buffer, at, substitute(block.init.value, mapping))
    nest: Stmt = Block(f"{block.name}.empty", iters, init, None, conjunction(empty, *guards))
    for x in reversed(kept):
        nest = For(own[x.var], substitute(x.extent, mapping), x.kind, nest)
    return around[first], nest


def _drop_reduction_conditions(predicate: Expr, reduced: set[Var]) -> Expr:
    """A predicate without the conditions on the loops of a reduction: they hold at its first point, if it has one."""
    return conjunction(*(c for c in conjuncts(predicate) if not free_vars(c) & reduced))
