"""The forms that a kernel's programs may have: which axis lies along the lanes of vectors, what is packed for that, and
in which order tiles are walked."""

from tilewright.machine import Target
from tilewright.tile.problem import Operand, Problem
from tilewright.tile.program import Form

LEAST_REUSE = 16
"""How often an element of an operand must be used for packing it at run time to be tried."""

NEAR = 4
"""The largest stride, in elements, at which lanes are collected one by one."""


def forms(problem: Problem, target: Target) -> list[Form]:
    """The forms worth scoring; none where no axis suits lanes."""
    lanes = target.lanes(problem.bits)
    found: list[Form] = []
    for lane in problem.spatial:
        for packed in _packings(problem, lane):
            for order in _orders(problem, lane):
                transposed = problem.results[-1].strides[lane] != 1
                found.append(Form(lane, lanes, order, chunked_axis(problem), packed, transposed))
    return found


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
        dim = _plain_dimension(o, lane)
        if along == 0:
            continue
        if o.constant and dim is not None:
            fixed.append((k, dim))
        elif along != 1:
            if dim is not None and _reused(problem, o):
                fixed.append((k, dim))
            elif not problem.results or problem.results[-1].strides[lane] != 1 or abs(along) > NEAR:
                # elements are collected into vectors only from near, and where results are stored as vectors
                return []
        elif dim is not None and _reused(problem, o):
            maybe.append((k, dim))
    if all(o.strides[lane] == 0 for o in problem.operands):
        return []
    choices = [tuple(fixed)]
    if maybe:
        choices.append((*fixed, *maybe))
    return choices


def _reused(problem: Problem, o: Operand) -> bool:
    """Whether elements are used so often that a copy of the operand costs little beside."""
    size = 1
    for n in o.shape:
        size *= n
    return problem.points >= LEAST_REUSE * size


def _plain_dimension(o: Operand, axis: int) -> int | None:
    """The one dimension that an axis alone indexes, plainly."""
    moved = [d for d, row in enumerate(o.index) if row[axis]]
    if len(moved) != 1:
        return None
    row = o.index[moved[0]]
    return moved[0] if row[axis] == 1 and sum(map(abs, row)) == 1 else None


def _orders(problem: Problem, lane: int) -> list[tuple[int, ...]]:
    """Axes that every operand moves with outside; tiles of lanes around tiles of rows, and inside."""
    shared = [a for a in problem.spatial if a != lane and all(o.uses(a) for o in problem.operands)]
    rows = [a for a in problem.spatial if a != lane and a not in shared]
    orders = [(*shared, lane, *rows), (*shared, *rows, lane)]
    return orders if rows else orders[:1]
