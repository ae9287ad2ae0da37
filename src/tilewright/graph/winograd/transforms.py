"""Toom-Cook transforms for minimal filtering: m outputs of a filter with r taps from m + r - 1 products.

Polynomials are multiplied by way of their values at interpolation points, infinity among them; the transposed algorithm
is a filter. Everything is exact over the rationals, generated from the points:

    y = A^T [(G g) * (B^T d)]     with d of m + r - 1 elements, g of r, y of m

(Winograd, "Arithmetic Complexity of Computations", 1980; Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks", Section 4; for errors Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for
Deep Neural Networks", Section 4.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod

Matrix = tuple[tuple[Fraction, ...], ...]
"""A matrix of exact numbers, by rows."""

POINTS = tuple(Fraction(x) for x in ("0", "1", "-1", "1/2", "-2", "2", "-1/2", "4", "-1/4"))
"""Interpolation points in the order in which they are used, in addition to infinity. Powers of two are exact in binary,
and a point with its negative or its negated inverse keeps the elements of the matrices small."""


@dataclass(frozen=True, slots=True)
class MinimalFilter:
    """The minimal filtering algorithm F(m, r).

    Attributes:
        tile_size: m.
        taps: r.
        input_transform: B^T, [m + r - 1, m + r - 1].
        filter_transform: G, [m + r - 1, r].
        output_transform: A^T, [m, m + r - 1].
    """

    tile_size: int
    taps: int
    input_transform: Matrix
    filter_transform: Matrix
    output_transform: Matrix

    @property
    def multiplications(self) -> int:
        """Multiplications per tile, which is also the number of elements that the tile reads."""
        return self.tile_size + self.taps - 1

    @property
    def error_growth(self) -> float:
        """Upper bound of rounding errors over those of the direct sum, in one dimension.

        The largest over the outputs of sum_i |A^T| (|G| 1)(|B^T| 1), which bounds the sum of absolute values that are
        added for inputs and weights of at most 1, over r, which bounds that of the direct sum. For several nested
        dimensions the factors multiply.
        """
        sums = [_l1_norm(g) * _l1_norm(b) for g, b in zip(self.filter_transform, self.input_transform, strict=True)]
        worst = max(
            sum((abs(a) * s for a, s in zip(row, sums, strict=True)), Fraction(0)) for row in self.output_transform
        )
        return float(worst / self.taps)


def _l1_norm(row: Sequence[Fraction]) -> Fraction:
    return sum((abs(x) for x in row), Fraction(0))


@lru_cache(maxsize=64)
def toom_cook(outputs: int, taps: int, points: tuple[Fraction, ...] | None = None) -> MinimalFilter:
    """F(outputs, taps) from interpolation points.

    The value of a product of polynomials at point a_i is the product of their values; M_i(x) = prod_{j != i} (x - a_j)
    over N_i = M_i(a_i) is 1 there and 0 at the other points. Transposed: row i of B^T has the coefficients of M_i,
    row i of G the powers of a_i over N_i, column i of A^T the powers of a_i. The last of each stands for infinity.

    Args:
        outputs: m, at least 1.
        taps: r, at least 1.
        points: m + r - 2 distinct ones; by default the first of `POINTS`.

    Raises:
        ValueError: sizes below 1, or points that are too few, too many or not distinct.
    """
    if outputs < 1 or taps < 1:
        raise ValueError(f"expected at least 1 output and 1 tap, got {outputs} and {taps}")
    count = outputs + taps - 2
    chosen = POINTS[:count] if points is None else points
    if len(chosen) != count or len(set(chosen)) != count:
        raise ValueError(f"F({outputs}, {taps}) needs {count} distinct points, got {len(set(chosen))}")
    data: list[tuple[Fraction, ...]] = []
    weights: list[tuple[Fraction, ...]] = []
    for k, a in enumerate(chosen):
        others = (*chosen[:k], *chosen[k + 1 :])
        scale = prod((a - b for b in others), start=Fraction(1))
        data.append((*_polynomial(others), Fraction(0)))
        weights.append(tuple(a**j / scale for j in range(taps)))
    data.append(_polynomial(chosen))
    weights.append((*(Fraction(0),) * (taps - 1), Fraction(1)))
    results = tuple((*(a**j for a in chosen), Fraction(j == outputs - 1)) for j in range(outputs))
    return MinimalFilter(outputs, taps, tuple(data), tuple(weights), results)


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of prod (x - root), lowest first."""
    result = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *result], [*(-root * c for c in result), Fraction(0)]
        result = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return tuple(result)
