"""Costs of scalar operations when vectorised: the one table behind every estimate of a body's time."""

from dataclasses import dataclass

from tilewright.expr.nodes import Binary, Const, Expr, Load, Select, Unary, Var


@dataclass(frozen=True, slots=True)
class OperationCost:
    """Cost of one vector operation.

    Attributes:
        latency: in instructions of which two issue per cycle, for an operation that nothing overlaps. It decides
            whether a kernel pays for threads.
        throughput: in instructions, among independent others. It decides between tiles: much of a long operation
            overlaps with the next tiles.
    """

    latency: int
    throughput: int


FREE = OperationCost(0, 0)
SIMPLE = OperationCost(1, 1)
DIVISION = OperationCost(16, 8)
FUNCTION = OperationCost(20, 8)
POWER = OperationCost(20, 1)
"""Round figures. Divisions and roots keep one unit busy for eight cycles or more; functions are polynomials. With their
full latency in tiles as well, GELU took 6 to 13 % longer. A throughput of 8 for powers made powers slower: their code
is so long that nothing overlaps with it."""

_SIMPLE = frozenset(("neg", "not", "abs", "sign", "floor", "ceil", "round", "trunc", "isnan", "isinf"))
_DIVISIONS = frozenset(("div", "sqrt", "rsqrt", "reciprocal", "floordiv", "mod", "fmod"))


def operation_cost(e: Expr) -> OperationCost:
    """Cost of a value's outermost operation; loads are simple, constants and variables free."""
    match e:
        case Const() | Var():
            return FREE
        case Unary(op=op) | Binary(op=op) if op in _DIVISIONS:
            return DIVISION
        case Unary(op=op) if op not in _SIMPLE:
            return FUNCTION
        case Binary(op="pow"):
            return POWER
        case _:
            return SIMPLE


def computed_nodes(e: Expr, *, conditions: bool) -> list[Expr]:
    """Every distinct node of a value, without the nodes of the indices that it loads from.

    Args:
        e: the value.
        conditions: whether to include the conditions of selects. They take time where they are computed for every
            element; loops peeled at the borders need none, so lower bounds of a kernel's time leave them out.
    """
    visited: dict[Expr, None] = {}
    stack = [e]
    while stack:
        node = stack.pop()
        if node in visited:
            continue
        visited[node] = None
        if isinstance(node, Select) and not conditions:
            stack += [node.a, node.b]
        elif not isinstance(node, Load):
            stack.extend(node.children())
    return list(visited)
