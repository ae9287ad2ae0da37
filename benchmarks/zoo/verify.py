"""Accuracy of the zoo: every output's error against float64, Tilewright's next to ONNX Runtime's.

The error of an output is the largest absolute difference from the float64 reference, divided by the largest absolute
value of the reference. Tilewright passes where its error is at most 4 times ONNX Runtime's, or below 1e-6. A model with
operators that the reference lacks (control flow, recurrence, quantisation) is compared with ONNX Runtime itself, and
passes within its tolerance; its row has no error of ONNX Runtime.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.isolation import Emit, Event, error_text
from benchmarks.zoo.engines import tilewright_engine
from benchmarks.zoo.model import Model, label
from benchmarks.zoo.models import MODELS
from benchmarks.zoo.reference import Reference
from benchmarks.zoo.reference_ops import ReferenceGapError
from tilewright.measure.engines import onnxruntime_engine

MAX_ERROR_RATIO = 4.0
ERROR_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class OutputError:
    """Both engines' relative errors on one output at one shape.

    `tolerance` is the limit where ours is the difference from ONNX Runtime, as nothing else is known.
    """

    output: str
    ours: float
    theirs: float
    tolerance: float | None = None

    @property
    def limit(self) -> float:
        """The largest error that passes."""
        return max(MAX_ERROR_RATIO * self.theirs, ERROR_FLOOR) if self.tolerance is None else self.tolerance

    @property
    def passed(self) -> bool:
        """Whether Tilewright's error is within the limit."""
        return self.ours <= self.limit


def relative_error(actual: NDArray[np.generic], reference: NDArray[np.generic]) -> float:
    """Return the largest absolute error over the largest absolute reference value; infinity where shapes differ."""
    if actual.shape != reference.shape:
        return float("inf")
    if reference.size == 0:
        return 0.0
    exact = reference.astype(np.float64)
    error = np.abs(actual.astype(np.float64) - exact)
    if not np.isfinite(error).all():
        return float("inf")
    return float(error.max() / (np.abs(exact).max() or 1.0))


def verify_model(name: str, threads: int, seeds: int, optimizer: str | None, emit: Emit) -> None:
    """Check one model at all of its shapes, emitting one event per shape (and one for the compilation)."""
    model = MODELS[name]
    compiled = tilewright_engine(model, threads, optimizer)
    emit({"compile_s": compiled.seconds, "warnings": list(compiled.warnings)})
    theirs = onnxruntime_engine(model.path, threads)
    reference = _float64_reference(model)
    tolerance = model.tolerance if reference is None else None
    for sizes in model.shapes:
        emit({"starting": label(sizes)})
        event: Event = {"shape": label(sizes)}
        worst: dict[str, OutputError] = {}
        try:
            for seed in range(seeds):
                feeds = model.inputs(sizes, seed)
                expected, actual = theirs(feeds), compiled.run(feeds)
                exact = expected if reference is None else reference.run(feeds)
                for output, value in exact.items():
                    ours = relative_error(np.asarray(actual[output]), value)
                    known = worst.get(output, OutputError(output, 0.0, 0.0, tolerance))
                    other = relative_error(expected[output], value)
                    worst[output] = OutputError(
                        output, max(known.ours, ours), max(known.theirs, other), tolerance
                    )
            event["outputs"] = [
                {"output": entry.output, "ours": entry.ours, "theirs": entry.theirs, "tolerance": entry.tolerance,
                 "passed": entry.passed}
                for entry in worst.values()
            ]
        except Exception as error:
            event["error"] = error_text(error)
        emit(event)


def _float64_reference(model: Model) -> Reference | None:
    """The model in float64; None where an operator has no reference, which some tell only when they run."""
    try:
        reference = Reference(model.path)
        reference.run(model.inputs(model.shapes[0]))
        return reference
    except ReferenceGapError:
        return None


def rows(model: str, events: Sequence[Event]) -> tuple[list[list[str]], bool]:
    """Return one table row per shape (its worst output) and whether everything passed."""
    table: list[list[str]] = []
    passed = True
    checked = 0
    current = ""
    for event in events:
        current = event.get("starting", current)
        if "error" in event:
            table.append([model, event.get("shape", current), "", "", "", "", f"error: {event['error']}"])
            passed = False
        elif "outputs" in event:
            checked += 1
            errors = [
                OutputError(row["output"], row["ours"], row["theirs"], row.get("tolerance")) for row in event["outputs"]
            ]
            worst = max(errors, key=lambda error: error.ours / error.limit)
            good = all(error.passed for error in errors)
            passed &= good
            table.append(
                [model, event["shape"], worst.output, f"{worst.ours:.1e}", f"{worst.theirs:.1e}",
                 f"{worst.limit:.1e}", "pass" if good else "**FAIL**"]
            )  # fmt: skip
    return table, passed and checked == len(MODELS[model].shapes)


HEADER = ["model", "shape", "worst output", "tilewright", "onnxruntime", "limit", "result"]
