"""ONNX's reference evaluator, corrected where it deviates from the ONNX specification.

An optional value is its element, or None without one; the evaluator's own Optional makes a list of it, which no other
operator accepts, and its results may not be None. Scan outputs of a Loop are stacked along a new dimension; the
evaluator concatenates matrices, makes columns of scalars, and nothing of zero iterations. A Loop without a condition
always continues; in the evaluator it never does. OneHot's depth may be a vector of one element. A size of Reshape is
-1 or more; NumPy infers any negative one.
"""

from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as _Loop
from onnx.reference.ops.op_one_hot import OneHot as _OneHot
from onnx.reference.ops.op_reshape import Reshape_14 as _Reshape

from tilewright.custom_operators import evaluator_classes


def reference_evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """An evaluator of a model.

    Raises:
        Exception: of several types, where the evaluator has no implementation of an operator.
    """
    return ReferenceEvaluator(model, new_ops=[Optional, Identity, Loop, OneHot, Reshape, *evaluator_classes()])


class _OptionalResults:
    """Results may be None: an optional value without an element."""

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(np.array(x) if np.isscalar(x) else x for x in res)


class Optional(_OptionalResults, OpRun):
    """The element itself, or None."""

    op_domain = ""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:
        return (x,)


class Identity(_OptionalResults, OpRun):
    """The value itself, which nothing writes to."""

    op_domain = ""

    def _run(self, x: Any) -> tuple[Any]:
        return (x,)


class OneHot(_OneHot):
    """A row of `off` values with one `on` per index, whose length is a scalar or a vector of one element."""

    op_domain = ""

    def _run(self, indices: Any, depth: Any, values: Any, axis: int | None = None) -> tuple[Any, ...]:
        return super()._run(indices, np.asarray(depth).reshape(()), values, axis=axis)


class Reshape(_Reshape):
    """The elements in another shape, whose sizes are -1 (one of them, inferred) or more."""

    op_domain = ""

    def _run(self, data: Any, shape: Any, allowzero: int | None = None) -> tuple[Any, ...]:
        if np.any(np.asarray(shape) < -1):
            raise ValueError(f"shape: expected sizes of -1 or more, got {shape}")
        return super()._run(data, shape, allowzero=allowzero)


class Loop(_OptionalResults, _Loop):
    """Repetition of a graph, whose scan outputs are stacked along a new first dimension."""

    op_domain = ""

    def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
        super().__init__(onnx_node, run_params)
        attributes = vars(self)
        self._inner = attributes["_run_body"]
        attributes["_run_body"] = self._run_stackable_body
        self._is_scalar: list[bool] = [False] * self.K

    def _run_stackable_body(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The body's results; scan outputs get a first dimension of 1, along which the evaluator concatenates them."""
        outputs = list(self._inner(*args, **kwargs))
        first = len(outputs) - self.K
        self._is_scalar = [np.ndim(x) == 0 for x in outputs[first:]]
        return [x if k < first or np.ndim(x) < 2 else x[np.newaxis] for k, x in enumerate(outputs)]

    def _run(self, M: Any, cond: Any = None, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Scalars arrive concatenated as a column, which is reshaped to a vector."""
        cond = np.array(True) if cond is None else cond
        if not cond or (M is not None and M <= 0):
            return self._zero_iteration_results(args)
        results = super()._run(M, cond, *args, **kwargs)
        first = len(results) - self.K
        return tuple(x.reshape(-1) if k >= first and self._is_scalar[k - first] else x for k, x in enumerate(results))

    def _zero_iteration_results(self, initial: tuple[Any, ...]) -> tuple[Any, ...]:
        """The initial values, and empty scan outputs of the types that the body's graph declares."""
        outputs = self.onnx_node.attribute[0].g.output[1 + self.N :]
        scans = [
            np.empty((0, *_declared_sizes(x.type.tensor_type)), _declared_dtype(x.type.tensor_type)) for x in outputs
        ]
        return self._check_and_fix_outputs((*initial, *scans))


def _declared_sizes(kind: onnx.TypeProto.Tensor) -> tuple[int, ...]:
    """Declared sizes; 0 for unknown ones, which only an iteration would determine."""
    return tuple(d.dim_value for d in kind.shape.dim)


def _declared_dtype(kind: onnx.TypeProto.Tensor) -> np.dtype[Any]:
    return helper.tensor_dtype_to_np_dtype(kind.elem_type or onnx.TensorProto.FLOAT)
