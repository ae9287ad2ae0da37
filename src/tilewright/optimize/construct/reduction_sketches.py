"""The forms that a kernel's programs may have: which axis lies along the lanes of vectors, what is packed for that, and
in which order tiles are walked. Lanes lie along results, or along the reduction where operands are contiguous there."""

from math import prod

from tilewright.cost.caches import USABLE_CACHE_FRACTION
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sketch

MIN_PACK_REUSE = 16
"""How often an element of an operand must be used for packing it at run time to be tried."""

MAX_PACKED_RESULTS = 16
"""Results along the axes of an operand that is packed along the reduction; all are in one register tile."""

MAX_GATHER_STRIDE = 4
"""The largest stride, in elements, at which lanes are collected one by one."""


def reduction_sketches(problem: Problem, target: Target, machine: Machine) -> list[Sketch]:
    """The forms worth scoring; none where no axis suits lanes."""
    lanes = target.lanes(problem.bits)
    found: list[Sketch] = []
    for lane in problem.spatial:
        for packed in _packing_choices(problem, lane):
            for order in _loop_orders(problem, lane):
                transposed = problem.results[-1].strides[lane] != 1
                ahead = tuple(k for k, _ in packed if _exceeds_private_caches(problem.operands[k], machine))
                found.append(Sketch(lane, lanes, order, k_block_axis(problem), packed, transposed, ahead))
    for lane in problem.reduce:
        packed = _reduction_lane_packing(problem, lane, lanes)
        if packed is not None:
            found += [Sketch(lane, lanes, order, None, packed) for order in _loop_orders(problem, None)]
    return found


def _reduction_lane_packing(problem: Problem, lane: int, lanes: int) -> tuple[tuple[int, int], ...] | None:
    """What to pack so that every operand that moves along a reduction axis is contiguous there; None where that is not
    possible, or the axis fills no vector."""
    if problem.axes[lane].extent < lanes:
        return None
    packed: list[tuple[int, int]] = []
    moving = [(k, o) for k, o in enumerate(problem.operands) if o.strides[lane] != 0]
    for k, o in moving:
        if o.constant and o.dimension(lane) is not None and o.strides[lane] != 1 and _fits_register_tile(problem, o):
            packed.append((k, lane))
        elif o.strides[lane] != 1:
            return None
    return tuple(packed) if len(moving) > len(packed) else None


def _fits_register_tile(problem: Problem, o: Operand) -> bool:
    """Whether one register tile may have all results that an operand has a part in: packed along the reduction it is
    contiguous only then."""
    across = [problem.axes[a] for a in problem.spatial if o.uses(a)]
    return all(a.is_static for a in across) and prod(a.extent for a in across) <= MAX_PACKED_RESULTS


def k_block_axis(problem: Problem) -> int | None:
    """The reduction axis that may be cut: the longest, where its size is known."""
    longest = max(problem.reduce, key=lambda k: problem.axes[k].extent, default=None)
    return longest if longest is not None and problem.axes[longest].is_static else None


def _packing_choices(problem: Problem, lane: int) -> list[tuple[tuple[int, int], ...]]:
    """Choices of operands to pack so that all are read along lanes or broadcast; none where that is not possible."""
    fixed: list[tuple[int, int]] = []
    maybe: list[tuple[int, int]] = []
    for k, o in enumerate(problem.operands):
        along = o.strides[lane]
        packable = o.dimension(lane) is not None
        if along == 0:
            continue
        if o.constant and packable:
            fixed.append((k, lane))
        elif along != 1:
            if packable and _is_reused(problem, o):
                fixed.append((k, lane))
            elif not problem.results or problem.results[-1].strides[lane] != 1 or abs(along) > MAX_GATHER_STRIDE:
                # elements are collected into vectors only from near, and where results are stored as vectors
                return []
        elif packable and _is_reused(problem, o):
            maybe.append((k, lane))
    if all(o.strides[lane] == 0 for o in problem.operands):
        return []
    choices = [tuple(fixed)]
    if maybe:
        choices.append((*fixed, *maybe))
    return [*choices, *((*choices[0], row) for row in _row_packings(problem, lane))]


def _row_packings(problem: Problem, lane: int) -> list[tuple[int, int]]:
    """Operands that may be packed in panels of rows: contiguous along rows, so that every step of the reduction reads a
    little of another line, and often another page."""
    found: list[tuple[int, int]] = []
    for k, o in enumerate(problem.operands):
        across = o.strides[lane] == 0 and not any(o.strides[r] == 1 for r in problem.reduce)
        if across and not o.constant and _is_reused(problem, o):
            found += [(k, a) for a in problem.spatial if o.strides[a] == 1 and o.dimension(a) is not None]
    return found


def _exceeds_private_caches(o: Operand, machine: Machine) -> bool:
    """Whether an operand is larger than the caches of one core, so that most of it comes from farther away."""
    near = [x.bytes for x in machine.levels[:-1] if x.ways and x.shared_by == 1]
    return prod(o.shape) * o.element_bytes > max(near, default=0) * USABLE_CACHE_FRACTION


def _is_reused(problem: Problem, o: Operand) -> bool:
    """Whether elements are used so often that a copy of the operand costs little beside."""
    return problem.points >= MIN_PACK_REUSE * prod(o.shape)


def _loop_orders(problem: Problem, lane: int | None) -> list[tuple[int, ...]]:
    """Axes that every operand moves with outside; tiles of lanes around tiles of rows, and inside; then as results lie,
    so that threads find what they wrote in the kernel before. Without lanes along results, rows in either order."""
    shared = [a for a in problem.spatial if a != lane and all(o.uses(a) for o in problem.operands)]
    rows = [a for a in problem.spatial if a != lane and a not in shared]
    if lane is None:
        return list(dict.fromkeys(((*shared, *rows), (*shared, *reversed(rows)))))
    if not rows:
        return [(*shared, lane)]
    natural = tuple(a for a in problem.spatial if a != lane)
    return list(dict.fromkeys(((*shared, lane, *rows), (*shared, *rows, lane), (*natural, lane))))
