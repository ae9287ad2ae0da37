"""Sketches of reductions: the lane axis, the operands packed for it, and the order of tile loops.

Lanes lie along results, or along the reduction where operands are contiguous there.
"""

from collections.abc import Iterable
from math import prod

from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.tile.operand import Operand
from tilewright.tile.prefetches import has_distant_rows, is_stream
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sketch

MIN_PACK_REUSE = 16
"""Uses per element of an operand from which packing it at run time is tried."""

MAX_PACKED_RESULTS = 16
"""Results along the axes of an operand that is packed along the reduction; one register tile holds all of them."""

MAX_GATHER_STRIDE = 4
"""The largest stride, in elements, at which lanes are gathered one by one."""


def reduction_sketches(problem: Problem, target: Target, machine: Machine) -> list[Sketch]:
    """The sketches worth scoring; none where no axis suits lanes."""
    lanes = target.lanes(problem.bits)
    sketches: list[Sketch] = []
    operands = range(len(problem.operands))
    for lane in problem.spatial:
        for packed in _packing_choices(problem, lane):
            for order in _loop_orders(problem, lane):
                transposed = problem.results[-1].strides[lane] != 1
                copied = [k for k, _ in packed]
                rows = [k for k in operands if has_distant_rows(problem, k, lane)]
                prefetched = _far_operands(problem, sorted({*copied, *rows}), machine)
                sketches.append(Sketch(lane, lanes, order, k_block_axis(problem), packed, transposed, prefetched))
    for lane in problem.reduce:
        packed = _reduction_lane_packing(problem, lane, lanes)
        if packed is not None:
            streams = _far_operands(problem, [k for k in operands if is_stream(problem, k, lane)], machine)
            orders = _loop_orders(problem, None)
            sketches += [Sketch(lane, lanes, order, None, packed, prefetched_operands=streams) for order in orders]
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
        packable = o.dimension(lane) is not None and _fits_register_tile(problem, o)
        if not packable or not (o.constant or _is_reused(problem, o)):
            return None
        packed.append((k, lane))
    return tuple(packed) if len(moved) > len(packed) else None


def _fits_register_tile(problem: Problem, o: Operand) -> bool:
    """Whether one register tile can hold all results that use an operand: only then is it contiguous once packed along
    the reduction."""
    across = [problem.axes[a] for a in problem.spatial if o.uses(a)]
    return all(a.is_static for a in across) and prod(a.extent for a in across) <= MAX_PACKED_RESULTS


def k_block_axis(problem: Problem) -> int | None:
    """The reduction axis that may be K-blocked: the longest, where its size is literal."""
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


def _far_operands(problem: Problem, operands: Iterable[int], machine: Machine) -> tuple[int, ...]:
    """Those operands, by position, that exceed the private caches of a core, so that most of each comes from farther
    away."""
    private_bytes = max((x.bytes for x in machine.private_caches), default=0) * machine.cost.usable_cache_fraction
    return tuple(k for k in operands if problem.operands[k].bytes > private_bytes)


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
