"""Lanes whose elements lie side by side in several runs, as those of a register tile as wide as two packed panels."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

from llvmlite import ir

from tilewright.codegen.llvm_types import Splat, constant, lane_count, shuffle

MIN_SUBVECTOR_LANES = 4
"""Lanes of the shortest run that gets an access of its own: what the narrowest vector register holds."""


def subvector_length(lane_offsets: Sequence[tuple[Hashable, int]]) -> int:
    """How many lanes each run has where all are equally long and not too short; as many as there are lanes both where
    they are one run and where they are none.

    Args:
        places: where each lane's element lies: in which run, by anything that can be compared, and at which offset. As
            many as a power of two (`widths.py`), so that runs are, too, in their number and length.
    """
    lanes = len(lane_offsets)
    ends = [i + 1 for i, ((a, x), (b, y)) in enumerate(pairwise(lane_offsets)) if a != b or y != x + 1]
    length = ends[0] if ends else lanes
    equal = ends == list(range(length, lanes, length)) and lanes % length == 0
    return length if equal and length >= MIN_SUBVECTOR_LANES else lanes


def extract_subvector(builder: ir.IRBuilder, vector: ir.Value, start: int, length: int) -> ir.Value:
    """The lanes of one run; of a literal a literal."""
    lanes = range(start, start + length)
    if length == lane_count(vector):
        return vector
    if isinstance(vector, Splat):
        return constant(ir.VectorType(vector.type.element, length), vector.number)
    if isinstance(vector, ir.Constant) and isinstance(vector.constant, list):
        return constant(ir.VectorType(vector.type.element, length), [vector.constant[i].constant for i in lanes])
    return shuffle(builder, vector, vector, lanes)


def concat_vectors(builder: ir.IRBuilder, vectors: Sequence[ir.Value]) -> ir.Value:
    """One vector of the lanes of all runs, which are equally long and as many as a power of two."""
    whole = list(vectors)
    while len(whole) > 1:
        pairs = zip(whole[::2], whole[1::2], strict=True)
        whole = [shuffle(builder, a, b, range(2 * lane_count(a))) for a, b in pairs]
    return whole[0]
