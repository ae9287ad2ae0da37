"""Empty reductions: an element whose reduction has no iterations gets the value of `init`.

A block stores its `init` before its first reduction iteration, so an empty reduction would not store it. The
interpreter and code generation therefore run the form of a function in which a block before the reduction stores `init`
where the reduction is empty. Only reductions that may be empty get such a block.

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
from tilewright.loops.ir import Block, For, Func, If, IterKind, Seq, Stmt, Store, map_children, seq, walk


def initialize_empty_reductions(func: Func) -> Func:
    """The function with a block before every reduction that may be empty, which stores `init` where it is empty."""
    inits: dict[int, list[Stmt]] = {}
    for s, enclosing in walk(func.body):
        if isinstance(s, Block):
            before = init_where_empty(s, enclosing)
            if before is not None:
                inits.setdefault(id(before[0]), []).append(before[1])
    return func.with_body(_insert_inits(func.body, inits)) if inits else func


def _insert_inits(s: Stmt, inits: dict[int, list[Stmt]]) -> Stmt:
    match s:
        case For():
            return seq(*inits.get(id(s), ()), replace(s, body=_insert_inits(s.body, inits)))
        case Seq() | If():
            return map_children(s, lambda c: _insert_inits(c, inits))
        case Block():
            return s


def init_where_empty(block: Block, enclosing: Sequence[For]) -> tuple[For, Stmt] | None:
    """The outermost loop of a reduction, and the statement to insert before it that stores `init` where it is empty.

    None where the reduction is proved to be nonempty or has no init.
    """
    reduce = [i for i in block.iters if i.kind is IterKind.REDUCE]
    empty: Expr = FALSE
    for i in reduce:
        if not can_prove(i.extent >= 1):
            empty = i.extent < 1 if empty is FALSE else binary("or", empty, i.extent < 1)
    reduced = {v for i in reduce for v in free_vars(i.binding) if not isinstance(v, Symbol)}
    outermost = next((k for k, x in enumerate(enclosing) if x.var in reduced), None)
    if block.init is None or empty is FALSE or outermost is None:
        return None
    spatial_loops = [x for x in enclosing[outermost:] if x.var not in reduced]
    fresh = {x.var: Var(f"{x.var.name}.{block.name}.empty") for x in spatial_loops}
    mapping: dict[Var, Expr] = {**{v: const(0) for v in reduced}, **fresh}
    iters = tuple(replace(i, binding=substitute(i.binding, mapping)) for i in block.iters if i.kind is IterKind.SPATIAL)
    # Conditions on the reduction do not restrict the elements, but may be what keeps their indices in bounds.
    guards = [
        substitute(_drop_reduction_conditions(block.predicate, reduced), mapping),
        *(i.binding < i.extent for i in iters),
    ]
    loops = ((fresh.get(x.var, x.var), substitute(x.extent, mapping)) for x in enclosing if x.var not in reduced)
    bounds = Bounds.from_loops(loops).assuming(conjunction(*guards))
    guards += [c for i in iters if not can_prove(c := i.binding >= 0, bounds)]
    indices = tuple(substitute(i, mapping) for i in block.init.indices)  # of staging buffers also over loops
    init = Store(block.init.buffer, indices, substitute(block.init.value, mapping))
    nest: Stmt = Block(f"{block.name}.empty", iters, init, None, conjunction(empty, *guards))
    for x in reversed(spatial_loops):
        nest = For(fresh[x.var], substitute(x.extent, mapping), x.kind, nest)
    return enclosing[outermost], nest


def _drop_reduction_conditions(predicate: Expr, reduced: set[Var]) -> Expr:
    """A predicate without its conditions on reduction loops; at the first point of a nonempty reduction they hold."""
    return conjunction(*(c for c in conjuncts(predicate) if not free_vars(c) & reduced))
