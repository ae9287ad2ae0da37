"""Ranges of program features: where good programs of an operator lie, given a good one of another operator.

The features are B, the number of parallel tasks, T, the number of micro-tiles in all of them, and M, the bytes of fast
memory that all of them hold at a time. With r1 the ratio of the source's to the target's reduction and r2 the ratio of
the target's to the source's iteration space (ETO, Equations 1 to 3),

    B in [r1, r2] * source's B,    T in [1, r2] * source's T,    M in [1, r2] * source's M,

with the ends in either order.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.optimize.reuse.loop_vector import LoopVector

ROUNDING = 1e-9
"""By which part of an end a value may lie outside of a range, as ratios are rounded."""


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """A closed range of a positive feature."""

    lowest: float
    highest: float

    @staticmethod
    def between(a: float, b: float) -> "FeatureRange":
        """The range with these ends, in either order."""
        return FeatureRange(min(a, b), max(a, b))

    def scaled(self, factor: float) -> "FeatureRange":
        """The range with both ends multiplied by a positive factor."""
        return FeatureRange(self.lowest * factor, self.highest * factor)

    def __contains__(self, value: float) -> bool:
        return self.lowest * (1 - ROUNDING) <= value <= self.highest * (1 + ROUNDING)

    def __str__(self) -> str:
        return f"{self.lowest:.4g}..{self.highest:.4g}"


@dataclass(frozen=True, slots=True)
class ReuseRanges:
    """By which factors the features of good programs of a target differ from those of a source.

    Attributes:
        blocks: of B.
        threads: of T.
        memory: of M.
    """

    blocks: FeatureRange
    threads: FeatureRange
    memory: FeatureRange

    @staticmethod
    def of(target: LoopVector, source: LoopVector) -> "ReuseRanges":
        """The ranges for a target that reuses a source's program."""
        r1 = source.reduction_points / target.reduction_points
        r2 = target.points / source.points
        grown = FeatureRange.between(1, r2)
        return ReuseRanges(FeatureRange.between(r1, r2), grown, grown)


def choices_in(options: Sequence[int], values: FeatureRange) -> tuple[int, ...]:
    """The options, ascending, that are tried for a range.

    These are the ones in the range, whose ends count as one wider; one more past the upper end where it is relatively
    no farther from it than the last one in the range; and where none is in the range the next one past its end, or the
    last one of all.
    """
    low, high = (values.lowest - 1) * (1 - ROUNDING), (values.highest + 1) * (1 + ROUNDING)
    first, end = bisect_left(options, low), bisect_right(options, high)
    if first == end:
        return (options[min(end, len(options) - 1)],)
    if end < len(options) and options[end] * options[end - 1] <= high * high:
        end += 1
    return tuple(options[first:end])
