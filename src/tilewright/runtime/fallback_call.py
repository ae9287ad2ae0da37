"""Steps that the compiler can't express: ONNX's reference evaluator runs them.

It is slow and needs the `onnx` package, which is imported only when an artifact has such a step.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from tilewright.errors import ArtifactError, EvaluatorError, FeedError, ShapeError, TilewrightError, UnsupportedError
from tilewright.runtime.manifest import FallbackStep, SymbolSpec, TensorSpec, format_dims
from tilewright.runtime.weights import numpy_dtype


class FallbackCall:
    """A fallback step with its evaluator."""

    def __init__(self, step: FallbackStep, model: np.ndarray, where: str) -> None:
        """Args: the step, the bytes of its ModelProto (uint8), and the place for errors.

        Raises:
            ArtifactError: the bytes are no model.
            UnsupportedError: the reference evaluator does not know an operator.
        """
        import onnx  # here because only artifacts with such a step need it

        from tilewright.runtime.reference_evaluator import reference_evaluator

        self.step = step
        self._nodes = ", ".join(step.nodes) or f"step '{step.model}'"
        self._where = f"reference evaluator, {', '.join(step.nodes) or step.model}"
        try:
            proto = onnx.load_model_from_string(model.tobytes())
        except Exception as error:
            raise ArtifactError(f"'{step.model}' is not an ONNX model", where=where) from error
        try:
            self._evaluator: Any = reference_evaluator(proto)
        except Exception as error:
            reason = _first_line(error)
            raise UnsupportedError(f"can't run the model's operator ({reason})", where=self._where) from error

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Compute the outputs from the inputs, both in the step's order.

        Raises:
            EvaluatorError: the evaluator fails on these values.
        """
        feeds = dict(zip((spec.name for spec in self.step.inputs), inputs, strict=True))
        try:
            # What is infinite or no number by the model's arithmetic is a result like others.
            with np.errstate(all="ignore"):
                results = cast(list[Any], self._evaluator.run([spec.name for spec in self.step.outputs], feeds))
        except Exception as error:
            what = f"failed on ONNX's reference evaluator, which runs it: {_first_line(_first_cause(error))}"
            given = ", ".join(_describe(value) for value in inputs)
            hint = f"given {given or 'no arrays'}: either these do not suit the node, or the evaluator can't run it"
            raise EvaluatorError(what, where=self._nodes, hint=hint) from error
        with np.errstate(all="ignore"):
            return [_as_declared(spec, value) for spec, value in zip(self.step.outputs, results, strict=True)]

    def shape_error(
        self, spec: TensorSpec, shape: Sequence[int], sizes: Mapping[str, int], symbols: Mapping[str, SymbolSpec]
    ) -> TilewrightError:
        """The error for a result of another shape than the model says, given the sizes known before and the ranges of
        all symbols: for a new size out of range the data are to blame, for everything else the model."""
        for axis, (dim, size) in enumerate(zip(spec.dims, shape, strict=False)):
            known = symbols.get(dim) if isinstance(dim, str) and dim not in sizes else None
            if known is not None and (size < known.lo or (known.hi is not None and size > known.hi)):
                least = f"at least {known.lo}" if size < known.lo else f"at most {known.hi}"
                what = f"has size {size} along axis {axis}, later nodes need {least}"
                where = f"result '{spec.name}' of {self._nodes}"
                return ShapeError(what, where=where, hint="these data do not suit the model")
        given = ", ".join(f"{dim}={sizes[dim]}" for dim in spec.dims if isinstance(dim, str) and dim in sizes)
        said = f"{format_dims(spec.dims)}{' with ' if given else ''}{given}"
        what = (
            f"the reference evaluator's result '{spec.name}' for {self._nodes} has shape {format_dims(shape)}, "
            f"the model says {said}"
        )
        return FeedError(what, where="model", hint="correct the shapes that the model declares")


def _as_declared(spec: TensorSpec, value: Any) -> Any:
    """The value as an array of the type that ONNX promises, which the evaluator does not always keep."""
    if spec.dtype == "any":
        return value
    dtype = numpy_dtype(spec.dtype)
    # not ascontiguousarray, which gives rank 1 to a scalar
    return np.asarray(value).astype(dtype, order="C", copy=False)


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {format_dims(value.shape)}"
    return type(value).__name__


def _first_cause(error: BaseException) -> BaseException:
    """What the evaluator failed on: it says "Issues with types" of many of its errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
