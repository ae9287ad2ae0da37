"""Whether an answer that differs from ONNX Runtime's is as good: errors against float64, side by side.

Where a result is a small difference of large terms, such as a sum of what was normalised, all evaluations in float32
are far off relative to the result. How far is what ONNX Runtime itself is off.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from tests.fuzz_models.float64 import float64_values
from tests.fuzz_models.oracle import Array, oracle

MAX_RATIO = 2.0
"""The largest error over ONNX Runtime's."""

MOST_ROUNDINGS = 64
"""ONNX Runtime's error is one of rounding if it is at most as many roundings of the largest value that the result
depends on; otherwise the values in float64 are those of something else."""


def is_rounding(model: onnx.ModelProto, draws: Sequence[Mapping[str, Array]], name: str, actual: Array) -> bool:
    """Whether an output is no farther from its value in double precision than `MAX_RATIO` times ONNX Runtime's.

    Args:
        model: the model.
        draws: inputs; those of `actual` first. The error of a single number may be small by chance, so that ONNX
            Runtime's is the largest over all draws.
        name: the output.
        actual: what it is.
    """
    outputs = [o.name for o in model.graph.output]
    try:
        exact = [float64_values(model, feeds, [name]) for feeds in draws]
        peers = [oracle(model, feeds)[outputs.index(name)] for feeds in draws]
    except Exception:  # nobody has a node in double precision
        return False
    peer_error = max(largest_error(a, values[name]) for a, values in zip(peers, exact, strict=True))
    largest = max(_largest_magnitude(a) for values in exact for a in values.values())
    if peer_error > MOST_ROUNDINGS * 2.0**-24 * largest:
        return False
    return largest_error(actual, exact[0][name]) <= MAX_RATIO * peer_error


def largest_error(actual: Array, exact: Array) -> float:
    """The largest absolute difference; infinite where shapes, or values that are not finite, differ."""
    wide = actual.astype(np.float64)
    if wide.shape != exact.shape or not np.array_equal(_not_finite(wide), _not_finite(exact), equal_nan=True):
        return float("inf")
    finite = np.isfinite(exact)
    return float(np.abs(wide[finite] - exact[finite]).max(initial=0))


def _not_finite(a: Array) -> Array:
    return np.where(np.isfinite(a), 0, a)


def _largest_magnitude(value: Any) -> float:
    if isinstance(value, list):
        return max((_largest_magnitude(v) for v in value), default=0.0)
    is_number = value.dtype.kind == "f"
    return float(np.abs(value[np.isfinite(value)]).max(initial=0)) if is_number else 0.0
