"""Values that differ from ONNX's and are nearer to those of double precision.

The expected values of ONNX's cases are those of its reference evaluator, which computes in the model's types. In
float16 its own roundings may exceed the tolerance of the cases: its Softmax rounds differences, exponentials, sums and
quotients, where kernels compute in float32 and round the result, as ONNX Runtime's do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from tests.fuzz_models.float64 import float64_values


def is_nearer(
    model: onnx.ModelProto, feeds: Mapping[str, Any], expected: Sequence[Any], actual: Sequence[Any],
    rtol: float, atol: float,
) -> bool:  # fmt: skip
    """Whether every element that is off by more than a tolerance is nearer to float64 than the expected one.

    Args:
        model: the model.
        feeds: its inputs.
        expected: ONNX's values of its outputs.
        actual: what was computed.
        rtol: the tolerance relative to an expected value.
        atol: what is added to it.
    """
    names = [o.name for o in model.graph.output]
    try:
        exact = float64_values(model, feeds, names)
    except Exception:  # nobody has a node in double precision
        return False
    pairs = zip(names, expected, actual, strict=True)
    return all(_all_off_are_nearer(exact[n], e, a, rtol, atol) for n, e, a in pairs)


def _all_off_are_nearer(exact: Any, expected: Any, actual: Any, rtol: float, atol: float) -> bool:
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray) or expected.dtype != actual.dtype:
        return False
    if not expected.shape == actual.shape == np.shape(exact) or expected.dtype.kind != "f":
        return np.array_equal(expected, actual)
    right, ours = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        off = ~np.isclose(ours, right, rtol, atol, equal_nan=True)
        nearer = np.abs(ours - exact) < np.abs(right - exact)
    return bool(nearer[off].all())
