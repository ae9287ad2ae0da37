"""Conditions that a whole nest shares: which selects can be decided once before the nest, not in every iteration.

A padded convolution asks for every product whether its row lies inside the image, but the answer changes only with
outer loops. Such a condition becomes one branch around two copies of the nest, in each of which it is known.
"""

from collections.abc import Iterator

from tilewright.codegen.blocks import Resolved
from tilewright.codegen.scope import Scope
from tilewright.expr.nodes import Binary, Expr, Select, Var, conjuncts, walk
from tilewright.loops.ir import For, LoopKind, Stmt
from tilewright.loops.ir import walk as walk_stmt


def worthwhile(s: Stmt) -> bool:
    """Whether a nest does so much that a branch before it pays: it has a loop that is unrolled, or one around lanes."""
    loops = [x for x, _ in walk_stmt(s) if isinstance(x, For)]
    kinds = {x.kind for x in loops}
    return LoopKind.UNROLLED in kinds or (LoopKind.VECTORIZED in kinds and len(loops) > 1)


def shared_conditions(resolved: Iterator[Resolved], scope: Scope) -> tuple[Expr, ...]:
    """The conditions on positions of the first select of a nest that are known before the nest starts.

    Args:
        resolved: the blocks of the nest.
        scope: what is bound outside the nest.
    """
    for r in resolved:
        for node in walk(r.target.value):
            if isinstance(node, Select) and scope.facts(node.a).loads:
                found = tuple(c for c in conjuncts(node.cond) if _outside(c, scope))
                undecided = tuple(c for c in found if c not in scope.decided)
                if undecided and not scope.denied(node.cond):
                    return undecided
    return ()


def _outside(c: Expr, scope: Scope) -> bool:
    """Whether a condition compares positions whose variables have scalar values here."""
    if not isinstance(c, Binary) or c.a.dtype.name != "int64":
        return False
    facts = scope.facts(c)
    return not facts.loads and bool(facts.variables) and all(_bound(v, scope) for v in facts.variables)


def _bound(v: Var, scope: Scope) -> bool:
    return v in scope.values
