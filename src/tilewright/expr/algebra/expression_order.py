"""Total order on expressions by structure; normal forms sort terms and operands by it.

Larger expressions come first, as in `i // 8 * 64 + j`. Those of one size are ordered by their operations and literals
in pre-order, and by the names of variables and buffers only where all of these are equal, so that renaming swaps only
terms of one structure.
"""

from tilewright.expr.nodes import Binary, Const, Expr, Load, Unary, Var

Operation = tuple[str, int]
OrderKey = tuple[int, tuple[Operation, ...], tuple[str, ...]]


def order_key(e: Expr) -> OrderKey:
    """(-number of nodes, operations in pre-order, names in pre-order), the same in every process.

    Two expressions of one function or program, in which names are unique, have different keys.
    """
    try:
        return e.order_key
    except AttributeError:
        key = e.order_key = _order_key(e)
        return key


def _order_key(e: Expr) -> OrderKey:
    operations: list[Operation] = []
    names: list[str] = []
    pending = [e]
    while pending:
        node = pending.pop()
        operations.append(_operation(node))
        if isinstance(node, Var):
            names.append(node.name)
        elif isinstance(node, Load):
            names.append(node.buffer.name)
        pending.extend(reversed(node.children()))
    return -e.tree_size, tuple(operations), tuple(names)


def _operation(node: Expr) -> Operation:
    """What a node does apart from its operands and names; integers are ordered by value."""
    match node:
        case Const(value, dtype):
            return (f"const {dtype}", value) if type(value) is int else (f"const {dtype} {value!r}", 0)
        case Var():
            return "variable", 0
        case Unary(op, _) | Binary(op, _, _):
            return op, 0
        case Load():
            return f"load {node.dtype}", len(node.indices)
        case _:
            return f"{type(node).__name__.lower()} {node.dtype}", 0
