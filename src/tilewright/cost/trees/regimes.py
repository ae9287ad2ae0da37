"""The regime of a tile tree at a shape: every property that cost formulas branch on, so equal regimes are one batch."""

from collections.abc import Hashable, Sequence

from tilewright.cost.features import lane_strides
from tilewright.cost.reduction_kind import is_long_reduction, is_streaming
from tilewright.cost.trees.nests import NestShape
from tilewright.machine.model import Machine
from tilewright.tile.operand import Operand
from tilewright.tile.program import Sketch


def nests_regime(shapes: Sequence[NestShape], machine: Machine) -> Hashable:
    """The regime of a tree's nests at one shape: everything that is the same for all of their candidates, except sizes.

    Args:
        shapes: of the nests.
        machine: the machine.
    """
    return tuple(_nest_regime(x, machine) for x in shapes)


def _nest_regime(shape: NestShape, machine: Machine) -> Hashable:
    statement, line = shape.nest.statement, machine.levels[0].line
    problem = statement.problem
    lanes = Sketch(shape.lane, shape.lanes, shape.order, None, statement.packed)
    return (
        statement.name, statement.axes, statement.stored, statement.packed, statement.shared_operations,
        tuple((a.name, a.is_static, a.is_reduction) for a in problem.axes),
        tuple(_access_regime(o, shape.lane, line) for o in shape.nest.accesses),
        () if shape.is_long else tuple(tuple(s == 1 for s in o.strides) for o in problem.results),
        problem.operations, problem.bits, problem.is_plain_sum, is_long_reduction(problem, machine.cost),
        is_streaming(problem, machine.cost), lane_strides(problem, lanes), lanes, shape.is_shared, shape.is_long,
        shape.private_bytes, shape.prefetched, shape.has_root, tuple(sorted(shape.nest.allocated.items())),
    )  # fmt: skip


def _access_regime(o: Operand, lane: int, line: int) -> Hashable:
    """What formulas ask of an access: its index, where it is, and how far neighbours along the lanes are apart."""
    stride = o.strides[lane]
    distance = stride in (0, 1), stride == 1, abs(stride) * o.element_bytes >= line
    return o.buffer, o.element_bytes, o.index, o.written, o.private, o.constant, distance
