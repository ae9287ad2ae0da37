"""The regime of a tile program at a shape: what its cost formulas branch on, so that equal regimes are one batch."""

from collections.abc import Hashable

from tilewright.cost.caches import caches
from tilewright.cost.features import lane_strides
from tilewright.cost.reduction_kind import is_long_reduction
from tilewright.cost.traffic import has_line_per_lane
from tilewright.machine.model import Machine
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sketch


def program_regime(problem: Problem, sketch: Sketch, machine: Machine) -> Hashable:
    """The regime of the programs of a sketch: the length of the reduction, and the strides of operands along the
    lanes."""
    far = has_line_per_lane(problem, sketch, caches(machine)[0].line)
    return is_long_reduction(problem, machine.cost), lane_strides(problem, sketch), far


def group_by_regime(problem: Problem, sketch: Sketch, machine: Machine) -> list[list[int]]:
    """The positions of a problem's samples, grouped by their regimes."""
    groups: dict[Hashable, list[int]] = {}
    for k, p in enumerate(problem.samples):
        groups.setdefault(program_regime(p, sketch, machine), []).append(k)
    return list(groups.values())
