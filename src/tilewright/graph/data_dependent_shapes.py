"""Types of results with data-dependent sizes that fallbacks compute from elements without a native type (strings).

ONNX's shape inference leaves these sizes open or loses them. Operators whose element types are all native (TopK,
NonMaxSuppression) need no rule, since their definitions reject no valid node. Outputs of one node that share such a
size have one key for it; nodes whose sizes depend on the same data share an origin.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.expr.dtype import DType, int64, opaque
from tilewright.expr.nodes import Expr, const
from tilewright.graph.ir import Node
from tilewright.ops.axes import num_elements
from tilewright.ops.definition import OpValue
from tilewright.ops.routine_call import MAX_DATA_DEPENDENT_SIZE, upper_bound


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


def _non_zero(_: Node, x: OpValue, __: Sequence[OpValue | None]) -> tuple[ResultType, ...] | None:
    if not x.rank:
        return None
    return (ResultType(int64, (const(x.rank), DataDependentSize("count", upper_bound(*x.shape)))),)


def _compress(node: Node, x: OpValue, operands: Sequence[OpValue | None]) -> tuple[ResultType, ...] | None:
    condition = operands[1] if len(operands) > 1 else None
    if condition is None:
        return None
    flat = "axis" not in node.attributes
    axis = _axis(node, x)
    if axis is None and not flat:
        return None
    length = num_elements(x.shape) if axis is None or flat else x.shape[axis]
    # The data along the axis and the condition may differ in length; the shorter one limits the count.
    count = DataDependentSize(
        "count", min(upper_bound(length), upper_bound(*condition.shape)), ("Compress", condition.buffer, length)
    )
    if axis is None or flat:
        return (ResultType(x.dtype, (count,)),)
    return (ResultType(x.dtype, (*x.shape[:axis], count, *x.shape[axis + 1 :])),)


def _unique(node: Node, x: OpValue, _: Sequence[OpValue | None]) -> tuple[ResultType, ...] | None:
    if "axis" not in node.attributes:
        length = num_elements(x.shape)
        count, outer_sizes = DataDependentSize("count", upper_bound(*x.shape)), ()
    else:
        axis = _axis(node, x)
        if axis is None:
            return None
        length = x.shape[axis]
        count, outer_sizes = DataDependentSize("count", upper_bound(length)), (x.shape[:axis], x.shape[axis + 1 :])
    shape = (count,) if not outer_sizes else (*outer_sizes[0], count, *outer_sizes[1])
    indices = ResultType(int64, (count,))
    return ResultType(x.dtype, shape), indices, ResultType(int64, (length,)), indices


_RULES: Mapping[str, Callable[[Node, OpValue, Sequence[OpValue | None]], tuple[ResultType, ...] | None]] = {
    "NonZero": _non_zero,
    "Compress": _compress,
    "Unique": _unique,
}


def _axis(node: Node, x: OpValue) -> int | None:
    """The node's axis counted from the front, None where the operand has no such axis."""
    axis = node.attributes.get("axis", 0)
    return axis % x.rank if isinstance(axis, int) and -x.rank <= axis < x.rank else None
