"""The forms that a kernel's programs may have: which axis lies along the lanes of vectors, what is packed for that, and
in which order tiles are walked. Lanes lie along results, or along the reduction where operands are contiguous there."""

from math import prod

from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.tile.problem import Operand, Problem
from tilewright.tile.program import Form
from tilewright.tile.traffic import USABLE

LEAST_REUSE = 16
"""How often an element of an operand must be used for packing it at run time to be tried."""

NARROW = 16
"""Results along the axes of an operand that is packed along the reduction; all are in one register tile."""

NEAR = 4
"""The largest stride, in elements, at which lanes are collected one by one."""


def forms(problem: Problem, target: Target, machine: Machine) -> list[Form]:
    """The forms worth scoring; none where no axis suits lanes."""
    lanes = target.lanes(problem.bits)
    found: list[Form] = []
    for lane in problem.spatial:
        for packed in _packings(problem, lane):
            for order in _orders(problem, lane):
                transposed = problem.results[-1].strides[lane] != 1
                ahead = tuple(k for k, _ in packed if _far(problem.operands[k], machine))
                found.append(Form(lane, lanes, order, chunked_axis(problem), packed, transposed, ahead))
    for lane in problem.reduce:
        packed = _along_reduction(problem, lane, lanes)
        if packed is not None:
            found += [Form(lane, lanes, order, None, packed) for order in _orders(problem, None)]
    return found


def _along_reduction(problem: Problem, lane: int, lanes: int) -> tuple[tuple[int, int], ...] | None:
    """What to pack so that every operand that moves along a reduction axis is contiguous there; None where that is not
    possible, or the axis fills no vector."""
    if problem.axes[lane].extent < lanes:
        return None
    packed: list[tuple[int, int]] = []
    moving = [(k, o) for k, o in enumerate(problem.operands) if o.strides[lane] != 0]
    for k, o in moving:
        if o.constant and o.dimension(lane) is not None and o.strides[lane] != 1 and _narrow(problem, o):
            packed.append((k, lane))
        elif o.strides[lane] != 1:
            return None
    return tuple(packed) if len(moving) > len(packed) else None


def _narrow(problem: Problem, o: Operand) -> bool:
    """Whether one register tile may have all results that an operand has a part in: packed along the reduction it is
    contiguous only then."""
    across = [problem.axes[a] for a in problem.spatial if o.uses(a)]
    return all(a.literal for a in across) and prod(a.extent for a in across) <= NARROW


def chunked_axis(problem: Problem) -> int | None:
    """The reduction axis that may be cut: the longest, where its size is known."""
    longest = max(problem.reduce, key=lambda k: problem.axes[k].extent, default=None)
    return longest if longest is not None and problem.axes[longest].literal else None


def _packings(problem: Problem, lane: int) -> list[tuple[tuple[int, int], ...]]:
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
            if packable and _reused(problem, o):
                fixed.append((k, lane))
            elif not problem.results or problem.results[-1].strides[lane] != 1 or abs(along) > NEAR:
                # elements are collected into vectors only from near, and where results are stored as vectors
                return []
        elif packable and _reused(problem, o):
            maybe.append((k, lane))
    if all(o.strides[lane] == 0 for o in problem.operands):
        return []
    choices = [tuple(fixed)]
    if maybe:
        choices.append((*fixed, *maybe))
    return [*choices, *((*choices[0], row) for row in _rows(problem, lane))]


def _rows(problem: Problem, lane: int) -> list[tuple[int, int]]:
    """Operands that may be packed in panels of rows: contiguous along rows, so that every step of the reduction reads a
    little of another line, and often another page."""
    found: list[tuple[int, int]] = []
    for k, o in enumerate(problem.operands):
        across = o.strides[lane] == 0 and not any(o.strides[r] == 1 for r in problem.reduce)
        if across and not o.constant and _reused(problem, o):
            found += [(k, a) for a in problem.spatial if o.strides[a] == 1 and o.dimension(a) is not None]
    return found


def _far(o: Operand, machine: Machine) -> bool:
    """Whether an operand is larger than the caches of one core, so that most of it comes from farther away."""
    near = [x.bytes for x in machine.levels[:-1] if x.ways and x.shared_by == 1]
    return prod(o.shape) * o.bytes > max(near, default=0) * USABLE


def _reused(problem: Problem, o: Operand) -> bool:
    """Whether elements are used so often that a copy of the operand costs little beside."""
    return problem.points >= LEAST_REUSE * prod(o.shape)


def _orders(problem: Problem, lane: int | None) -> list[tuple[int, ...]]:
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
