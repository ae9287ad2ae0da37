"""Figures that tables are made of."""

from collections.abc import Sequence
from math import exp, log
from statistics import fmean, median, quantiles

import numpy as np


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers; raises ValueError where there are none or one is not positive."""
    if not values or min(values) <= 0:
        raise ValueError(f"expected positive numbers, got {list(values)}")
    return exp(fmean(map(log, values)))


def ranks(values: Sequence[float]) -> list[float]:
    """Positions in rising order, from 0; equal values share the mean of their positions."""
    array = np.asarray(values, np.float64)
    order = np.sort(array)
    first, last = np.searchsorted(order, array, "left"), np.searchsorted(order, array, "right") - 1
    return [float(x) for x in (first + last) / 2]


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks; 0 where all of one side are equal or there are fewer than two."""
    if len(a) != len(b):
        raise ValueError(f"expected as many of both, got {len(a)} and {len(b)}")
    x, y = np.array(ranks(a)), np.array(ranks(b))
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def quartile_spread(values: Sequence[float]) -> float:
    """The distance between the quartiles over the median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)
