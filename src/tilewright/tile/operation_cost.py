"""What the operations of bodies count as: one table for every estimate of how long a body takes."""

from dataclasses import dataclass

from tilewright.expr.nodes import Binary, Const, Expr, Load, Select, Unary, Var


@dataclass(frozen=True, slots=True)
class OperationCost:
    """What an operation on a vector counts as.

    Attributes:
        alone: instructions, of which two start per cycle, that take as long: for whether a kernel pays for threads.
        among: operations beside which others run, for choosing tiles: of a long one much overlaps with the next tiles.
    """

    latency: int
    throughput: int


FREE, SIMPLE, DIVISION, FUNCTION, POWER = (
    OperationCost(0, 0),
    OperationCost(1, 1),
    OperationCost(16, 8),
    OperationCost(20, 8),
    OperationCost(20, 1),
)
"""Round figures. Divisions and roots keep one unit busy for eight cycles or more; functions are polynomials. With all
of that counted in tiles, too, GELU took 6 to 13 % longer; with 8 for a power, whose code is so long that nothing runs
beside it, powers did."""

_SIMPLE = frozenset(("neg", "not", "abs", "sign", "floor", "ceil", "round", "trunc", "isnan", "isinf"))
_DIVISIONS = frozenset(("div", "sqrt", "rsqrt", "reciprocal", "floordiv", "mod", "fmod"))


def operation_cost(e: Expr) -> OperationCost:
    """What the outermost operation of a value counts as; loads are simple, constants and variables free."""
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
    """Every distinct node of a value, without those of the indices of what it loads.

    Args:
        e: the value.
        conditions: whether those of conditions count. They take time where they are computed for every element; no
            machine needs them where loops are cut at the borders, so that the least time of a kernel is without them.
    """
    found: dict[Expr, None] = {}
    stack = [e]
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found[node] = None
        if isinstance(node, Select) and not conditions:
            stack += [node.a, node.b]
        elif not isinstance(node, Load):
            stack.extend(node.children())
    return list(found)
