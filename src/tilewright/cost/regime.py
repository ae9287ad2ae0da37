"""Regimes of problems, which the cost model treats differently: long or short reductions, with reuse or without."""

from tilewright.tile.problem import Problem

MIN_LONG_REDUCTION = 32
"""Terms of a reduction from which on a program waits for its operands: the next results are too far away for
out-of-order execution to start them meanwhile."""


def is_long_reduction(problem: Problem) -> bool:
    """Whether a program waits for the operands of one result before it begins the next."""
    return problem.reduction_length >= MIN_LONG_REDUCTION


def is_streaming(problem: Problem) -> bool:
    """Whether the problem is a long reduction that uses every element once: no load depends on earlier results, so as
    many are in flight as the hardware allows."""
    return is_long_reduction(problem) and not problem.has_reuse
