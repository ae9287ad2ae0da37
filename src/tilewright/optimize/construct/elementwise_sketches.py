"""Sketches of element-wise work and data movement: lanes along an axis along which some operand is contiguous."""

from tilewright.cost.features import MAX_SHUFFLE_STRIDE
from tilewright.machine import Target
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sketch


def elementwise_sketches(problem: Problem, target: Target) -> list[Sketch]:
    """The sketches worth scoring; none where no operand is contiguous along any axis."""
    sketches: list[Sketch] = []
    for lane in problem.spatial:
        if any(o.strides[lane] == 1 for o in problem.operands):
            lanes = _lanes(problem, lane, target)
            sketches += [Sketch(lane, lanes, order, None) for order in _loop_orders(problem, lane)]
    return sketches


def _lanes(problem: Problem, lane: int, target: Target) -> int:
    """Elements of the narrowest register that holds the axis: of the widest type, at least 32 bits where an operand is
    gathered, as vectors of many small elements are assembled one by one."""
    is_gathered = any(abs(o.strides[lane]) > MAX_SHUFFLE_STRIDE for o in problem.operands)
    return target.lanes(max(32, problem.bits) if is_gathered else problem.bits, problem.axes[lane].literal_extent)


def _loop_orders(problem: Problem, lane: int) -> list[tuple[int, ...]]:
    """Loop orders with lanes innermost, and with an axis along which another operand is contiguous next to the lanes:
    tiles of both use all bytes of the lines that they touch."""
    other_axes = [a for a in problem.spatial if a != lane]
    contiguous = [a for a in other_axes if any(o.strides[a] == 1 for o in problem.operands)]
    orders = [(*other_axes, lane)]
    for a in contiguous:
        remaining = [x for x in other_axes if x != a]
        orders += [(*remaining, a, lane), (*remaining, lane, a)]
    return list(dict.fromkeys(orders))
