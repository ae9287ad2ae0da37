"""Models of one data-dependent operator, compiled and compared with ONNX's reference evaluator or ONNX Runtime."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tilewright.errors import FallbackWarning
from tilewright.runtime import Executable
from tilewright.runtime.manifest import FallbackStep, all_steps

Array = np.ndarray[Any, Any]


def one_node(
    op: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    outputs: int = 1,
    constants: Sequence[int] = (),
    opset: int = 20,
    static: Sequence[int] | None = None,
) -> onnx.ModelProto:
    """A model of one node.

    Args:
        op: the operator.
        inputs: its inputs, x0, x1, ...; None for an omitted one.
        attributes: its attributes.
        outputs: number of its outputs, y0, y1, ...
        constants: positions of the inputs that are initializers.
        opset: version of the operator set.
        static: positions of inputs of literal sizes, where all other sizes are symbols; None: all sizes are literal.
    """
    names = [f"x{k}" if x is not None else "" for k, x in enumerate(inputs)]
    given = {k: x for k, x in enumerate(inputs) if x is not None}
    node = helper.make_node(op, names, [f"y{k}" for k in range(outputs)], name="node", **(attributes or {}))
    feeds = [
        helper.make_tensor_value_info(
            names[k], helper.np_dtype_to_tensor_dtype(x.dtype),
            x.shape if static is None or k in static else [f"n{k}_{a}" for a in range(x.ndim)],
        )
        for k, x in given.items() if k not in constants
    ]  # fmt: skip
    results = [helper.make_empty_tensor_value_info(f"y{k}") for k in range(outputs)]
    data = [numpy_helper.from_array(given[k], names[k]) for k in constants]
    graph = helper.make_graph([node], "g", feeds, results, data)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def feeds_of(inputs: Sequence[Array | None], constants: Sequence[int] = ()) -> dict[str, Array]:
    """The inputs of a model of `one_node`."""
    return {f"x{k}": x for k, x in enumerate(inputs) if x is not None and k not in constants}


def compile_natively(model: onnx.ModelProto) -> Executable:
    """The compiled model, of which no part may be left to the reference evaluator."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        dims = [d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param]
        executable = tilewright.compile(model, dict.fromkeys(dims, "0..1000000"), optimizer="rule", threads=1)
    assert not any(isinstance(s, FallbackStep) for s in all_steps(executable.manifest.steps))
    return executable


def reference(model: onnx.ModelProto, feeds: Mapping[str, Array], by: str = "onnx") -> list[Array]:
    """What ONNX's reference evaluator ("onnx") or ONNX Runtime ("ort") gives."""
    if by == "ort":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(y) for y in session.run(None, dict(feeds))]
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, dict(feeds))]


def assert_close(actual: Array, expected: Array, what: str = "") -> None:
    """Equal shapes, types and values, floats up to rounding."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), what
    if expected.dtype.kind in "fV":
        tolerance = {2: 2e-2, 4: 2e-5, 8: 1e-10}[expected.dtype.itemsize]
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=what)
    else:
        np.testing.assert_array_equal(actual, expected, err_msg=what)


def assert_native(
    op: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    by: str = "onnx",
    static: Sequence[int] = (),
    **options: Any,
) -> Executable:
    """Compares a node with the reference, with literal and with dynamic sizes except those of the inputs `static`;
    returns the latter model."""
    feeds = feeds_of(inputs, options.get("constants", ()))
    expected = reference(one_node(op, inputs, attributes, **options), feeds, by)
    executables: list[Executable] = []
    for literal in (None, static):
        executables.append(compile_natively(one_node(op, inputs, attributes, static=literal, **options)))
        results = executables[-1].run(feeds)
        for k, y in enumerate(expected):
            assert_close(results[f"y{k}"], y, f"output {k}, literal sizes: {literal}")
    return executables[-1]
