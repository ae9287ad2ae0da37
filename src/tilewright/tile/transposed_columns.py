"""Columns of tiles that are transposed in registers: operands that elementwise work and packing read across lanes.

Code generation finds such tiles by their accesses (`codegen/transposed_tiles.py`): an unrolled loop whose iterations
read neighbouring elements, around lanes that read elements far apart.
"""

from tilewright.tile.problem import Problem
from tilewright.tile.program import Sketch

MIN_COLUMNS = 4
"""Columns of a register tile from which on it is transposed in registers."""

MIN_STRIDE = 5
"""Distance, in elements, of elements that are far apart: nearer ones are shuffled out of contiguous vectors."""

MIN_BYTES = 4
"""Bytes of the smallest element that is transposed in registers."""


def can_transpose(columns: int, element_bytes: int) -> bool:
    """Whether rows of so many contiguous elements, one after the other, are read as columns of tiles that are
    transposed in registers."""
    return columns >= MIN_STRIDE and element_bytes >= MIN_BYTES


def column_axis(problem: Problem, sketch: Sketch, position: int) -> int | None:
    """The axis along which the columns of an operand lie, at the operand's position; None where it is not transposed.

    A distance that depends on symbols is known at run time only; then elements are loaded one by one, and so are those
    that a select may leave out, as in a border of zeros.
    """
    operand = problem.operands[position]
    if problem.reduce or operand.written or operand.conditional or operand.element_bytes < MIN_BYTES:
        return None
    distances = {p.operands[position].strides[sketch.lane] for p in (problem, *problem.samples)}
    if len(distances) > 1 or abs(operand.strides[sketch.lane]) < MIN_STRIDE:
        return None
    contiguous = operand.index[-1]
    return next((a for a in problem.spatial if a != sketch.lane and contiguous[a] == 1), None)
