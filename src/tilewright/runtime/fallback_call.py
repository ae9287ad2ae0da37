"""Fallback steps: nodes that the compiler cannot express, run by ONNX's reference evaluator.

It is slow and needs the `onnx` package, which is imported only for artifacts with such a step.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from tilewright.custom_operators import PYTHON_OPERATORS, load_operator_packages
from tilewright.errors import ArtifactError, EvaluatorError, FeedError, ShapeError, TilewrightError, UnsupportedError
from tilewright.runtime.block_calls import BlockCalls, Resources, Sizes
from tilewright.runtime.manifest import FallbackStep, SymbolSpec, TensorSpec, format_dims
from tilewright.runtime.symbol_range import violated_limit
from tilewright.runtime.weights import numpy_dtype


class FallbackCall:
    """A fallback step with its evaluator."""

    def __init__(self, step: FallbackStep, model: np.ndarray, where: str) -> None:
        """Args: the step, the bytes of its ModelProto (uint8), and the place in errors.

        Raises:
            ArtifactError: the bytes are not a model.
            UnsupportedError: the reference evaluator has no implementation of an operator.
        """
        import onnx  # only artifacts with such a step need it

        from tilewright.runtime.reference_evaluator import reference_evaluator

        self.step = step
        self.blocks: tuple[BlockCalls, ...] = ()
        self._nodes = ", ".join(step.nodes) or f"step '{step.model}'"
        self._where = f"reference evaluator, {', '.join(step.nodes) or step.model}"
        try:
            proto = onnx.load_model_from_string(model.tobytes())
        except Exception as error:
            raise ArtifactError(f"'{step.model}' is not an ONNX model", where=where) from error
        _check_registered(proto, self._where)
        try:
            self._evaluator: Any = reference_evaluator(proto)
        except Exception as error:
            reason = _first_line(error)
            raise UnsupportedError(f"can't run the model's operator ({reason})", where=self._where) from error

    def run(self, inputs: Sequence[Any], sizes: Sizes, resources: Resources) -> list[Any]:
        """Computes the outputs from the inputs, both in the step's order; needs neither sizes nor resources.

        Raises:
            EvaluatorError: the evaluator fails on these values.
        """
        feeds = dict(zip((spec.name for spec in self.step.inputs), inputs, strict=True))
        try:
            # inf and NaN of the model's arithmetic are ordinary results
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
        """The error for a result whose shape contradicts the model.

        A new size out of its range is the data's fault, everything else the model's.

        Args:
            spec: the declared result.
            shape: its actual shape.
            sizes: of the symbols that were bound before.
            symbols: all symbols, with their ranges.
        """
        for axis, (dim, size) in enumerate(zip(spec.dims, shape, strict=False)):
            symbol = symbols.get(dim) if isinstance(dim, str) and dim not in sizes else None
            limit = violated_limit(symbol, size) if symbol is not None else None
            if limit:
                what = f"has size {size} along axis {axis}, later nodes need {limit}"
                where = f"result '{spec.name}' of {self._nodes}"
                return ShapeError(what, where=where, hint="these data do not suit the model")
        bound = ", ".join(f"{dim}={sizes[dim]}" for dim in spec.dims if isinstance(dim, str) and dim in sizes)
        declared = f"{format_dims(spec.dims)}{' with ' if bound else ''}{bound}"
        what = (
            f"the reference evaluator's result '{spec.name}' for {self._nodes} has shape {format_dims(shape)}, "
            f"the model says {declared}"
        )
        return FeedError(what, where="model", hint="correct the shapes that the model declares")


def _check_registered(model: Any, where: str) -> None:
    """Requires that the Python functions of users' operators are registered.

    Raises:
        UnsupportedError: one is not.
    """
    import onnx.defs

    known = {s.domain for s in onnx.defs.get_all_schemas()}
    for node in model.graph.node:
        if node.domain in known or (node.domain, node.op_type) in PYTHON_OPERATORS:
            continue
        load_operator_packages()
        if (node.domain, node.op_type) not in PYTHON_OPERATORS:
            what = f"the Python function of the operator '{node.domain}::{node.op_type}' is not registered"
            hint = f"call tilewright.register_operator('{node.domain}', '{node.op_type}', fallback=...) before"
            raise UnsupportedError(what, where=where, hint=hint)


def _as_declared(spec: TensorSpec, value: Any) -> Any:
    """The value as an array of the declared dtype, which the evaluator does not always keep."""
    if spec.dtype == "any":
        return value
    dtype = numpy_dtype(spec.dtype)
    # not ascontiguousarray, which turns a scalar into rank 1
    return np.asarray(value).astype(dtype, order="C", copy=False)


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {format_dims(value.shape)}"
    return type(value).__name__


def _first_cause(error: BaseException) -> BaseException:
    """The root cause of an evaluator's error: it reports many as "Issues with types"."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
