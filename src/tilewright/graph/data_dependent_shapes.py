"""Types of results with data-dependent sizes, which ONNX's shape inference leaves open or loses.

Outputs of one node that share such a size have one key for it; nodes whose sizes depend on the same data share an
origin.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

from tilewright.expr.algebra.bounds import interval
from tilewright.expr.dtype import DType, int64, opaque
from tilewright.expr.nodes import Const, Expr, const
from tilewright.graph.ir import Node
from tilewright.ops.definition import OpValue
from tilewright.ops.routine_call import MAX_DATA_DEPENDENT_SIZE


@dataclass(frozen=True, slots=True)
class DataDependentSize:
    """A size that is known once the node has run; within a node equal keys mean equal sizes.

    Attributes:
        key: distinguishes the data-dependent sizes of one node.
        upper_bound: the largest possible value.
        origin: the data that determine the size, where several nodes may read them: sizes of equal origin are equal.
    """

    key: str
    upper_bound: int = MAX_DATA_DEPENDENT_SIZE
    origin: Hashable = None


Size = Expr | DataDependentSize


@dataclass(frozen=True, slots=True)
class ResultType:
    """Element type and shape of a result."""

    dtype: DType
    shape: tuple[Size, ...]


def data_dependent_types(node: Node, operands: Sequence[OpValue | None]) -> tuple[ResultType, ...] | None:
    """Types of a node's outputs, in the order of its operator's definition; None without a rule for the operator.

    Args:
        node: of any operator.
        operands: its arguments; None for an omitted one and for one that is not a tensor.
    """
    rule = _RULES.get(node.op_type) if not node.domain else None
    if rule is None or not operands or operands[0] is None or operands[0].dtype is opaque:
        return None
    return rule(node, operands[0], operands)


def _top_k(node: Node, x: OpValue, operands: Sequence[OpValue | None]) -> tuple[ResultType, ...] | None:
    axis = _axis(node, x, -1)
    if axis is None:
        return None
    count = _top_k_count(node, operands)
    if count is None:
        count = DataDependentSize("k", _max_product(x.shape[axis]))
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return ResultType(x.dtype, shape), ResultType(int64, shape)


def _top_k_count(node: Node, operands: Sequence[OpValue | None]) -> Expr | None:
    """TopK's k: an attribute before version 10, an input since."""
    attribute = node.attributes.get("k")
    k = operands[1] if len(operands) > 1 else None
    if isinstance(attribute, int):
        size: Expr = const(attribute)
    elif k is not None and k.known_elements is not None and len(k.known_elements) == 1:
        size = k.known_elements[0]
    else:
        return None
    return size if (interval(size)[0] or 0) >= 0 else None


def _non_zero(_: Node, x: OpValue, __: Sequence[OpValue | None]) -> tuple[ResultType, ...] | None:
    if not x.rank:
        return None
    return (ResultType(int64, (const(x.rank), DataDependentSize("count", _max_product(*x.shape)))),)


def _compress(node: Node, x: OpValue, operands: Sequence[OpValue | None]) -> tuple[ResultType, ...] | None:
    condition = operands[1] if len(operands) > 1 else None
    if condition is None:
        return None
    flat = "axis" not in node.attributes
    axis = _axis(node, x, 0)
    if axis is None and not flat:
        return None
    length = reduce(mul, x.shape, const(1)) if axis is None or flat else x.shape[axis]
    # The data along the axis and the condition may differ in length; the shorter one limits the count.
    count = DataDependentSize(
        "count", min(_max_product(length), _max_product(*condition.shape)), ("Compress", condition.buffer, length)
    )
    if axis is None or flat:
        return (ResultType(x.dtype, (count,)),)
    return (ResultType(x.dtype, (*x.shape[:axis], count, *x.shape[axis + 1 :])),)


def _unique(node: Node, x: OpValue, _: Sequence[OpValue | None]) -> tuple[ResultType, ...] | None:
    if "axis" not in node.attributes:
        length = reduce(mul, x.shape, const(1))
        count, outer_sizes = DataDependentSize("count", _max_product(*x.shape)), ()
    else:
        axis = _axis(node, x, 0)
        if axis is None:
            return None
        length = x.shape[axis]
        count, outer_sizes = DataDependentSize("count", _max_product(length)), (x.shape[:axis], x.shape[axis + 1 :])
    shape = (count,) if not outer_sizes else (*outer_sizes[0], count, *outer_sizes[1])
    indices = ResultType(int64, (count,))
    return ResultType(x.dtype, shape), indices, ResultType(int64, (length,)), indices


def _non_max_suppression(_: Node, x: OpValue, operands: Sequence[OpValue | None]) -> tuple[ResultType, ...] | None:
    scores = operands[1] if len(operands) > 1 else None
    most = MAX_DATA_DEPENDENT_SIZE if scores is None else _max_product(*scores.shape)
    return (ResultType(int64, (DataDependentSize("count", most), const(3))),)


_RULES: Mapping[str, Callable[[Node, OpValue, Sequence[OpValue | None]], tuple[ResultType, ...] | None]] = {
    "TopK": _top_k,
    "NonZero": _non_zero,
    "Compress": _compress,
    "Unique": _unique,
    "NonMaxSuppression": _non_max_suppression,
}


def _axis(node: Node, x: OpValue, default: int) -> int | None:
    """The node's axis counted from the front, None where the operand has no such axis."""
    axis = node.attributes.get("axis", default)
    return axis % x.rank if isinstance(axis, int) and -x.rank <= axis < x.rank else None


def _max_product(*sizes: Expr) -> int:
    """The largest possible product of sizes, at most `MAX_DATA_DEPENDENT_SIZE`."""
    upper_bounds = [int(n.value) if isinstance(n, Const) else interval(n)[1] for n in sizes]
    product = reduce(mul, (MAX_DATA_DEPENDENT_SIZE if n is None else max(n, 0) for n in upper_bounds), 1)
    return min(product, MAX_DATA_DEPENDENT_SIZE)
