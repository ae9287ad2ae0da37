"""The forms of element-wise work and of movement: lanes along an axis that some operand walks contiguously."""

from tilewright.cost.features import MAX_SHUFFLE_STRIDE
from tilewright.machine import Target
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sketch


def elementwise_sketches(problem: Problem, target: Target) -> list[Sketch]:
    """The forms worth scoring; none where no operand is contiguous along any axis."""
    found: list[Sketch] = []
    for lane in problem.spatial:
        if any(o.strides[lane] == 1 for o in problem.operands):
            lanes = _lanes(problem, lane, target)
            found += [Sketch(lane, lanes, order, None) for order in _loop_orders(problem, lane)]
    return found


def _lanes(problem: Problem, lane: int, target: Target) -> int:
    """Elements of one register: of the widest type, and no more than of 32 bits where elements of an operand lie apart,
    as vectors of many small ones are put together one by one."""
    apart = any(abs(o.strides[lane]) > MAX_SHUFFLE_STRIDE for o in problem.operands)
    return target.lanes(max(32, problem.bits) if apart else problem.bits)


def _loop_orders(problem: Problem, lane: int) -> list[tuple[int, ...]]:
    """Lanes innermost; where another axis is contiguous in some operand, also next to that one: tiles of both use up
    the lines that they touch."""
    rest = [a for a in problem.spatial if a != lane]
    across = [a for a in rest if any(o.strides[a] == 1 for o in problem.operands)]
    orders = [(*rest, lane)]
    for a in across:
        others = [x for x in rest if x != a]
        orders += [(*others, a, lane), (*others, lane, a)]
    return list(dict.fromkeys(orders))
