"""Errors of a compiled model against double precision: per output, and of the tensors inside.

The error of a tensor is the largest absolute difference from the double-precision reference, divided by the largest
absolute value of the reference. It is infinite if shapes or non-finite elements differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.driver.compilation import Compilation
from tilewright.driver.diagnostics.float64_reference import evaluate_program
from tilewright.expr.nodes import Var
from tilewright.graph.program import RuntimeStep
from tilewright.runtime import Executable

Array = np.ndarray[Any, Any]

MAX_ERROR_RATIO = 4.0
"""Largest ratio of an output's error to that of ONNX Runtime."""

ERROR_FLOOR = 1e-6
"""An output with at most this error passes, whatever the error of ONNX Runtime."""

DEFAULT_TOLERANCE = 1e-4
"""Largest error of an output without ONNX Runtime to compare with."""

DIVERGENCE_THRESHOLD = 1e-3
"""A tensor inside the model with a larger error has diverged."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The error of one tensor.

    Attributes:
        name: the value's name in the model.
        error: the compiled model's error.
        peer_error: ONNX Runtime's error; None if it did not run.
        limit: the largest error that passes.
    """

    name: str
    error: float
    peer_error: float | None
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the limit."""
        return self.error <= self.limit


def relative_error(actual: Array, reference: Array) -> float:
    """Largest absolute difference over the largest absolute reference value."""
    if actual.shape != reference.shape:
        return float("inf")
    if reference.size == 0:
        return 0.0
    a, b = actual.astype(np.float64), reference.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(a - b))
    if not np.isfinite(difference).all():
        return float("inf")
    finite = np.abs(b[np.isfinite(b)])
    scale = float(finite.max()) if finite.size else 1.0
    return float(difference.max()) / (scale or 1.0)


def compare_outputs(
    compilation: Compilation,
    feeds: Mapping[str, Array],
    actual: Mapping[str, Array],
    peer_outputs: Mapping[str, Array] | None,
    tolerance: float | None = None,
) -> tuple[Comparison, ...]:
    """Every output's error against the double-precision evaluation of the model.

    Args:
        compilation: the compiled model.
        feeds: the inputs by name.
        actual: the compiled model's outputs by name.
        peer_outputs: ONNX Runtime's outputs by name; None if it did not run.
        tolerance: the limit instead of the default one.
    """
    exact = evaluate_program(compilation.lowered, feeds)
    comparisons: list[Comparison] = []
    for name, b in compilation.lowered.outputs:
        error = relative_error(np.asarray(actual[name]), exact[b.name])
        peer_error = None if peer_outputs is None else relative_error(np.asarray(peer_outputs[name]), exact[b.name])
        limit = DEFAULT_TOLERANCE if peer_error is None else max(MAX_ERROR_RATIO * peer_error, ERROR_FLOOR)
        comparisons.append(Comparison(name, error, peer_error, limit if tolerance is None else tolerance))
    return tuple(comparisons)


def compare_layers(compilation: Compilation, feeds: Mapping[str, Array], threads: int | None) -> tuple[Comparison, ...]:
    """The error of the result of every kernel, in order of execution.

    Args:
        compilation: a compilation with exposed intermediates.
        feeds: the inputs by name.
        threads: threads per call.
    """
    actual = Executable(compilation.artifact(), threads).run(dict(feeds))
    buffers = {name: b.name for name, b in compilation.program.outputs}
    exact = evaluate_program(compilation.lowered, feeds, set(buffers.values()))
    steps = [s for s in compilation.lowered.steps if not isinstance(s, RuntimeStep)]
    order = {s.output.name: k for k, s in enumerate(steps)}
    listed = sorted(buffers.items(), key=lambda item: order.get(item[1], -1))
    return tuple(
        Comparison(
            name,
            relative_error(np.asarray(actual[name]), _in_stored_layout(compilation, b, exact, feeds)),
            None,
            DIVERGENCE_THRESHOLD,
        )
        for name, b in listed
        if b in exact
    )


def _in_stored_layout(
    compilation: Compilation, name: str, arrays: Mapping[str, Array], feeds: Mapping[str, Array]
) -> Array:
    """A reference array in the layout that the compiled model stores the tensor in."""
    layout = compilation.laid_out.layouts.get(name) if compilation.laid_out else None
    if layout is None:
        return arrays[name]
    names = zip(compilation.lowered.input_names, compilation.lowered.inputs, strict=True)
    pairs = [(v, n) for given, b in names for v, n in zip(b.shape, np.shape(feeds[given]), strict=True)]
    return layout.transform(arrays[name], arrays, {v: n for v, n in pairs if isinstance(v, Var)})
