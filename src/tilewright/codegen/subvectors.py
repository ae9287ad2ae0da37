"""Subvectors: groups of lanes whose elements are contiguous, such as a register tile as wide as two packed panels."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

from llvmlite import ir

from tilewright.codegen.llvm_types import Splat, constant, constant_lanes, lane_count, shuffle

MIN_SUBVECTOR_LANES = 4
"""Lanes of the shortest subvector that gets an access of its own: the narrowest vector register."""


def subvector_length(lane_offsets: Sequence[tuple[Hashable, int]]) -> int:
    """Lanes per subvector, where all are equally long and not too short; otherwise, and where all lanes are contiguous,
    the number of lanes.

    Args:
        lane_offsets: the location of each lane's element: a key of its base, and an offset. Their number is a power of
            two (`legalize_vectors.py`), so number and length of subvectors are, too.
    """
    lanes = len(lane_offsets)
    ends = [i + 1 for i, ((a, x), (b, y)) in enumerate(pairwise(lane_offsets)) if a != b or y != x + 1]
    length = ends[0] if ends else lanes
    equal = ends == list(range(length, lanes, length)) and lanes % length == 0
    return length if equal and length >= MIN_SUBVECTOR_LANES else lanes


def extract_subvector(builder: ir.IRBuilder, vector: ir.Value, start: int, length: int) -> ir.Value:
    """Consecutive lanes of a vector; of a constant a constant."""
    lanes = range(start, start + length)
    if length == lane_count(vector):
        return vector
    if isinstance(vector, Splat):
        return constant(ir.VectorType(vector.type.element, length), vector.number)
    if (numbers := constant_lanes(vector)) is not None:
        return constant(ir.VectorType(vector.type.element, length), [numbers[i] for i in lanes])
    return shuffle(builder, vector, vector, lanes)


def concat_vectors(builder: ir.IRBuilder, vectors: Sequence[ir.Value]) -> ir.Value:
    """One vector of the lanes of all vectors, which are equally long and whose number is a power of two."""
    joined = list(vectors)
    while len(joined) > 1:
        pairs = zip(joined[::2], joined[1::2], strict=True)
        joined = [shuffle(builder, a, b, range(2 * lane_count(a))) for a, b in pairs]
    return joined[0]
