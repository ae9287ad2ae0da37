"""ONNX's reference evaluator, with the operators put right in which it differs from ONNX's definition.

An optional value is its element, or None where it has none; the evaluator's own Optional makes a list of it, which no
other operator takes for one, and its results may not be None. Scan outputs of a Loop are stacked along a new dimension;
the evaluator joins matrices and makes columns of scalars.
"""

from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as _Loop


def reference_evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """An evaluator of a model.

    Raises:
        Exception: of several types, where the evaluator does not know an operator.
    """
    return ReferenceEvaluator(model, new_ops=[Optional, Identity, Loop])


class _Absent:
    """Results may be None: an optional value without an element."""

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(np.array(x) if np.isscalar(x) else x for x in res)


class Optional(_Absent, OpRun):
    """The element itself, or None."""

    op_domain = ""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:
        return (x,)


class Identity(_Absent, OpRun):
    """The value itself, which nobody writes into."""

    op_domain = ""

    def _run(self, x: Any) -> tuple[Any]:
        return (x,)


class Loop(_Absent, _Loop):
    """A graph again and again, whose scan outputs are stacked along a new first dimension."""

    op_domain = ""

    def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
        super().__init__(onnx_node, run_params)
        attributes = vars(self)
        self._inner = attributes["_run_body"]
        attributes["_run_body"] = self._stackable
        self._scalars: list[bool] = [False] * self.K

    def _stackable(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The body's results; scan outputs get a first dimension of 1, along which the evaluator joins them."""
        outputs = list(self._inner(*args, **kwargs))
        first = len(outputs) - self.K
        self._scalars = [np.ndim(x) == 0 for x in outputs[first:]]
        return [x if k < first or np.ndim(x) < 2 else x[np.newaxis] for k, x in enumerate(outputs)]

    def _run(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Scalars come joined as a column, which is a vector."""
        results = super()._run(*args, **kwargs)
        first = len(results) - self.K
        return tuple(x.reshape(-1) if k >= first and self._scalars[k - first] else x for k, x in enumerate(results))
