"""Sketches of reductions: the lane axis, the operands packed for it, and the order of tile loops.

Lanes lie along results, or along the reduction where operands are contiguous there.
"""

from math import prod

from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.tile.operand import Operand
from tilewright.tile.packing import fits_register_tile
from tilewright.tile.prefetches import is_read_ahead
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sketch

MIN_PACK_REUSE = 16
"""Uses per element of an operand from which packing it at run time is tried."""

MAX_GATHER_STRIDE = 4
"""The largest stride, in elements, at which lanes are gathered one by one."""


def reduction_sketches(problem: Problem, target: Target, machine: Machine) -> list[Sketch]:
    """The sketches worth scoring; none where no axis suits lanes."""
    sketches: list[Sketch] = []
    for lane in problem.spatial:
        lanes = target.lanes(problem.bits, problem.axes[lane].literal_extent)
        transposed = problem.results[-1].strides[lane] != 1
        for packed in _packing_choices(problem, lane):
            prefetched = _prefetched_operands(problem, lane, packed, machine)
            sketches += [
                Sketch(lane, lanes, order, k_block_axis(problem), packed, transposed, prefetched)
                for order in _loop_orders(problem, lane)
            ]
    lanes = target.lanes(problem.bits)
    for lane in problem.reduce if problem.is_reorderable else ():
        packed = _reduction_lane_packing(problem, lane, lanes)
        if packed is not None:
            prefetched = _prefetched_operands(problem, lane, (), machine)
            sketches += [
                Sketch(lane, lanes, order, None, packed, prefetched_operands=prefetched)
                for order in _loop_orders(problem, None)
            ]
    return sketches


def _reduction_lane_packing(problem: Problem, lane: int, lanes: int) -> tuple[tuple[int, int], ...] | None:
    """The packing that makes every operand that moves along a reduction axis contiguous there; None where that is not
    possible or does not pay, or the axis fills no vector. Constants are packed while compiling, others at run time
    where they are reused."""
    if problem.axes[lane].extent < lanes:
        return None
    packed: list[tuple[int, int]] = []
    moved = [(k, o) for k, o in enumerate(problem.operands) if o.strides[lane] != 0]
    for k, o in moved:
        if o.strides[lane] == 1:
            continue
        packable = o.dimension(lane) is not None and fits_register_tile(problem, o)
        if not packable or not (o.constant or _is_reused(problem, o)):
            return None
        packed.append((k, lane))
    return tuple(packed) if len(moved) > len(packed) else None


def k_block_axis(problem: Problem) -> int | None:
    """The reduction axis that may be K-blocked: the longest, where its size is literal and any order will do."""
    if not problem.is_reorderable:
        return None
    longest = max(problem.reduce, key=lambda k: problem.axes[k].extent, default=None)
    return longest if longest is not None and problem.axes[longest].is_static else None


def _packing_choices(problem: Problem, lane: int) -> list[tuple[tuple[int, int], ...]]:
    """Choices of operands to pack so that all are read along lanes or broadcast; none where that is not possible."""
    required: list[tuple[int, int]] = []
    optional: list[tuple[int, int]] = []
    for k, o in enumerate(problem.operands):
        stride = o.strides[lane]
        packable = o.dimension(lane) is not None
        if stride == 0:
            continue
        if o.constant and packable:
            required.append((k, lane))
        elif stride != 1:
            if packable and _is_reused(problem, o):
                required.append((k, lane))
            elif not problem.results or problem.results[-1].strides[lane] != 1 or abs(stride) > MAX_GATHER_STRIDE:
                # lanes are gathered only at small strides, and where results are stored as vectors
                return []
        elif packable and _is_reused(problem, o):
            optional.append((k, lane))
    if all(o.strides[lane] == 0 for o in problem.operands):
        return []
    choices = [tuple(required)]
    if optional:
        choices.append((*required, *optional))
    return [*choices, *((*choices[0], row) for row in _row_packings(problem, lane))]


def _row_packings(problem: Problem, lane: int) -> list[tuple[int, int]]:
    """Operands that may be packed in panels of rows: they are contiguous along rows, so every step of the reduction
    reads a few elements of another line, and often of another page."""
    packings: list[tuple[int, int]] = []
    for k, o in enumerate(problem.operands):
        across = o.strides[lane] == 0 and not any(o.strides[r] == 1 for r in problem.reduce)
        if across and not o.constant and _is_reused(problem, o):
            packings += [(k, a) for a in problem.spatial if o.strides[a] == 1 and o.dimension(a) is not None]
    return packings


def _prefetched_operands(
    problem: Problem, lane: int, packed: tuple[tuple[int, int], ...], machine: Machine
) -> tuple[int, ...]:
    """Operands, by position, that software prefetches: packed ones and those that are read where they are, if they
    exceed the private caches of a core, so that most of each comes from farther away."""
    private_bytes = max((x.bytes for x in machine.private_caches), default=0) * machine.cost.usable_cache_fraction
    copied = dict(packed)
    return tuple(
        k
        for k, o in enumerate(problem.operands)
        if (k in copied or is_read_ahead(problem, k, lane)) and o.bytes > private_bytes
    )


def _is_reused(problem: Problem, o: Operand) -> bool:
    """Whether elements are used so often that the cost of a packed copy is amortized."""
    return problem.points >= MIN_PACK_REUSE * prod(o.shape)


def _loop_orders(problem: Problem, lane: int | None) -> list[tuple[int, ...]]:
    """Loop orders, with the axes that every operand uses outermost: tiles of lanes around tiles of rows, and inside
    them; and in the order of the results' layout, so that threads find what they wrote in the kernel before. Without
    lanes along results, rows in either order."""
    shared = [a for a in problem.spatial if a != lane and all(o.uses(a) for o in problem.operands)]
    rows = [a for a in problem.spatial if a != lane and a not in shared]
    if lane is None:
        return list(dict.fromkeys(((*shared, *rows), (*shared, *reversed(rows)))))
    if not rows:
        return [(*shared, lane)]
    natural = tuple(a for a in problem.spatial if a != lane)
    return list(dict.fromkeys(((*shared, lane, *rows), (*shared, *rows, lane), (*natural, lane))))
