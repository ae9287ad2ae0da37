"""Walks over expressions: post-order, free variables, loads, and replacement of loads and variables."""

from collections.abc import Callable, Iterator, Mapping

from tilewright.expr.nodes import TRUE, Binary, Const, Expr, Load, Select, Var

_MAX_RECURSIVE_SIZE = 256
"""Tree size up to which `has_loads` recurses."""


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The conditions that `condition` is the conjunction of; none for True."""
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
    if isinstance(e, Var):  # it would hold itself, and wait for a garbage collection
        return frozenset((e,))
    cached: frozenset[Var] | None = getattr(e, "variables", None)
    if cached is None:
        cached = e.variables = frozenset(n for n in post_order(e) if isinstance(n, Var))
    return cached


def is_one(e: Expr) -> bool:
    """Whether an expression is the literal 1."""
    return isinstance(e, Const) and e.value == 1


def has_loads(e: Expr) -> bool:
    """Whether `e` contains a load, so that its value depends on data."""
    cached: bool | None = getattr(e, "data_dependent", None)
    if cached is None and e.tree_size > _MAX_RECURSIVE_SIZE:
        # Bottom-up, because recursion does not reach this depth.
        for n in post_order(e):
            n.data_dependent = isinstance(n, Load) or any(c.data_dependent for c in n.children())
        return e.data_dependent
    if cached is None:
        cached = e.data_dependent = isinstance(e, Load) or any(has_loads(c) for c in e.children())
    return cached


def loads(e: Expr) -> tuple[Load, ...]:
    """The distinct loads in `e`, nested ones first."""
    cached: tuple[Load, ...] | None = getattr(e, "loads", None)
    if cached is None:
        cached = tuple(n for n in post_order(e) if isinstance(n, Load))
        if not isinstance(e, Load):  # it would hold itself, and wait for a garbage collection
            e.loads = cached
    return cached


def replace_loads(e: Expr, replace: Callable[[Load], Expr]) -> Expr:
    """`e` with every load replaced by `replace(load)`, nested loads first."""
    memo: dict[Expr, Expr] = {}

    def rebuild(node: Expr) -> Expr:
        if isinstance(node, Var | Const):
            return node
        if node in memo:
            return memo[node]
        children = node.children()
        replaced = tuple(rebuild(c) for c in children)
        result = node if all(a is b for a, b in zip(children, replaced, strict=True)) else node.rebuild(replaced)
        if isinstance(result, Load):
            result = replace(result)
        memo[node] = result
        return result

    return rebuild(e) if loads(e) else e


def replace_variables(e: Expr, mapping: Mapping[Var, Expr]) -> Expr:
    """`e` with variables replaced, and no arithmetic simplified: quick, for what is only printed or evaluated."""
    memo: dict[Expr, Expr] = {}
    for node in post_order(e):
        children = node.children()
        replaced = tuple(memo[c] for c in children)
        if isinstance(node, Var):
            memo[node] = mapping.get(node, node)
        elif all(a is b for a, b in zip(children, replaced, strict=True)):
            memo[node] = node
        elif isinstance(node, Binary):
            memo[node] = Binary(node.op, *replaced)
        else:
            memo[node] = Select(*replaced) if isinstance(node, Select) else node.rebuild(replaced)
    return memo[e]
