"""Comparison of a compiled model with references: errors per output, and the first tensor that diverges.

The error of a tensor is the largest absolute difference from the double-precision reference, divided by the largest
absolute value of the reference; infinite where shapes or non-finite elements differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.driver.compilation import Compilation
from tilewright.driver.float64_reference import evaluate_program
from tilewright.expr.nodes import Var
from tilewright.graph.program import Fallback
from tilewright.runtime import Executable

Array = np.ndarray[Any, Any]

MAX_ERROR_RATIO = 4.0
"""An output passes with at most this many times the error of ONNX Runtime."""

ERROR_FLOOR = 1e-6
"""An output passes with at most this error, whatever that of ONNX Runtime."""

DEFAULT_TOLERANCE = 1e-4
"""The largest error that passes where ONNX Runtime is not there to compare."""

DIVERGENCE_THRESHOLD = 1e-3
"""Error from which on a tensor inside the model counts as diverged."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor next to its reference.

    Attributes:
        name: the value's name in the model.
        error: of the compiled model.
        other: of ONNX Runtime, None where it did not run.
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
        made: the compilation.
        feeds: the inputs.
        actual: the compiled model's outputs by name.
        other: ONNX Runtime's, where it ran.
        tolerance: the limit, instead of the default one.
    """
    exact = evaluate_program(compilation.lowered, feeds)
    found: list[Comparison] = []
    for name, b in compilation.lowered.outputs:
        error = relative_error(np.asarray(actual[name]), exact[b.name])
        theirs = None if peer_outputs is None else relative_error(np.asarray(peer_outputs[name]), exact[b.name])
        default = DEFAULT_TOLERANCE if theirs is None else max(MAX_ERROR_RATIO * theirs, ERROR_FLOOR)
        found.append(Comparison(name, error, theirs, default if tolerance is None else tolerance))
    return tuple(found)


def compare_layers(compilation: Compilation, feeds: Mapping[str, Array], threads: int | None) -> tuple[Comparison, ...]:
    """The error of the result of every kernel, in order of execution.

    Args:
        made: a compilation with probes, whose outputs are the results of all kernels.
        feeds: the inputs.
        threads: threads per call.
    """
    actual = Executable(compilation.artifact(), threads).run(dict(feeds))
    buffers = {name: b.name for name, b in compilation.program.outputs}
    exact = evaluate_program(compilation.lowered, feeds, set(buffers.values()))
    steps = [s for s in compilation.lowered.steps if not isinstance(s, Fallback)]
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
    """A reference in the layout of the compiled model's tensor."""
    layout = compilation.laid_out.layouts.get(name) if compilation.laid_out else None
    if layout is None:
        return arrays[name]
    names = zip(compilation.lowered.input_names, compilation.lowered.inputs, strict=True)
    pairs = [(v, n) for given, b in names for v, n in zip(b.shape, np.shape(feeds[given]), strict=True)]
    return layout.transform(arrays[name], arrays, {v: n for v, n in pairs if isinstance(v, Var)})
