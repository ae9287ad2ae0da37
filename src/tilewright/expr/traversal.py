"""Walks over expressions: post-order, free variables, loads, and replacement of loads."""

import weakref
from collections.abc import Callable, Iterator

from tilewright.expr.nodes import TRUE, Binary, Const, Expr, Load, Var

_free_vars: "weakref.WeakKeyDictionary[Expr, frozenset[Var]]" = weakref.WeakKeyDictionary()
_loads: "weakref.WeakKeyDictionary[Expr, tuple[Load, ...]]" = weakref.WeakKeyDictionary()

_MAX_RECURSIVE_SIZE = 256
"""Tree size up to which `has_loads` recurses."""


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The conditions whose conjunction `condition` is; none when it is True."""
    if condition is TRUE:
        return ()
    if isinstance(condition, Binary) and condition.op == "and":
        return conjuncts(condition.a) + conjuncts(condition.b)
    return (condition,)


def post_order(e: Expr) -> Iterator[Expr]:
    """Every distinct node of `e`, operands before users."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((c, False) for c in reversed(node.children()))


def free_vars(e: Expr) -> frozenset[Var]:
    """The variables that occur in `e` (not those in the shapes of its buffers)."""
    if isinstance(e, Var):  # a value that holds its own key would live forever
        return frozenset((e,))
    known = _free_vars.get(e)
    if known is None:
        known = _free_vars[e] = frozenset(n for n in post_order(e) if isinstance(n, Var))
    return known


def has_loads(e: Expr) -> bool:
    """Whether there is a load in `e`, so that its value depends on data."""
    known: bool | None = getattr(e, "data_dependent", None)
    if known is None and e.tree_size > _MAX_RECURSIVE_SIZE:
        # Bottom-up, because recursion does not reach this depth.
        for n in post_order(e):
            n.data_dependent = isinstance(n, Load) or any(c.data_dependent for c in n.children())
        return e.data_dependent
    if known is None:
        known = e.data_dependent = isinstance(e, Load) or any(has_loads(c) for c in e.children())
    return known


def loads(e: Expr) -> tuple[Load, ...]:
    """The distinct loads in `e`, inner ones first."""
    known = _loads.get(e)
    if known is None:
        known = tuple(n for n in post_order(e) if isinstance(n, Load))
        if not isinstance(e, Load):  # a value that holds its own key would live forever
            _loads[e] = known
    return known


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
