"""Rewriting of the loads of an expression."""

from collections.abc import Callable

from tilewright.expr.nodes import Const, Expr, Load, Var, loads


def replace_loads(e: Expr, replace: Callable[[Load], Expr]) -> Expr:
    """`e` with every load replaced by what `change` makes of it (inner loads first)."""
    done: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if isinstance(node, Var | Const):
            return node
        if node in done:
            return done[node]
        old = node.children()
        new = tuple(visit(c) for c in old)
        result = node if all(a is b for a, b in zip(old, new, strict=True)) else node.rebuild(new)
        if isinstance(result, Load):
            result = replace(result)
        done[node] = result
        return result

    return visit(e) if loads(e) else e
