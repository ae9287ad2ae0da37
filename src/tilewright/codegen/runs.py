"""Lanes whose elements lie side by side in several runs, as those of a register tile as wide as two packed panels."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

from llvmlite import ir

from tilewright.codegen.types import constant, count, picked

SHORTEST = 4
"""Lanes of the shortest run that gets an access of its own: what the narrowest vector register holds."""


def run_length(places: Sequence[tuple[Hashable, int]]) -> int:
    """How many lanes each run has, where all runs are equally long, a power of two; else as many as there are lanes.

    Args:
        places: where each lane's element lies: in which run, by anything that can be compared, and at which offset.
    """
    lanes = len(places)
    ends = [i + 1 for i, ((a, x), (b, y)) in enumerate(pairwise(places)) if a != b or y != x + 1]
    length = ends[0] if ends else lanes
    equal = ends == list(range(length, lanes, length)) and lanes % length == 0
    return length if equal and length >= SHORTEST and length & (length - 1) == 0 else lanes


def share(builder: ir.IRBuilder, vector: ir.Value, start: int, length: int) -> ir.Value:
    """The lanes of one run; of a literal a literal."""
    lanes = range(start, start + length)
    if isinstance(vector, ir.Constant) and isinstance(vector.constant, list):
        return constant(ir.VectorType(vector.type.element, length), [vector.constant[i] for i in lanes])
    return picked(builder, vector, vector, lanes)


def joined(builder: ir.IRBuilder, runs: Sequence[ir.Value]) -> ir.Value:
    """One vector of the lanes of all runs, which are equally long."""
    length = count(runs[0])
    whole = list(runs)
    while len(whole) > 1:
        pairs = [(whole[i], whole[min(i + 1, len(whole) - 1)]) for i in range(0, len(whole), 2)]
        whole = [picked(builder, a, b, range(2 * count(a))) for a, b in pairs]
    lanes = length * len(runs)
    return whole[0] if count(whole[0]) == lanes else picked(builder, whole[0], whole[0], range(lanes))
