"""Kinds of reductions to which different cost formulas apply: long or short ones, with reuse of elements or without."""

from tilewright.machine.cost_parameters import CostParameters
from tilewright.tile.problem import Problem


def is_long_reduction(problem: Problem, cost: CostParameters) -> bool:
    """Whether a program waits for the operands of one result before it begins the next."""
    least = cost.min_long_axis if len(problem.reduce) == 1 else cost.min_long_reduction
    return problem.reduction_length >= least


def is_streaming(problem: Problem, cost: CostParameters) -> bool:
    """Whether the problem is a long reduction that uses every element once: no load depends on earlier results, so as
    many are in flight as the hardware allows."""
    return is_long_reduction(problem, cost) and not problem.has_reuse
