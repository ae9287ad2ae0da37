"""Checks one operator definition against ONNX's reference evaluator (or another reference).

`check` builds a model of one node, runs the definition twice - with literal sizes and with symbols in place of the
sizes - evaluates the emitted stages in NumPy and compares shapes, types and values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilewright.expr.computation import View
from tilewright.expr.dtype import dtype_of
from tilewright.expr.evaluate import Environment, evaluate, evaluate_expr
from tilewright.expr.nodes import Buffer, Expr, Symbol, Var, const
from tilewright.graph.constant_values import literal_elements
from tilewright.ops.definition import Definition, OpValue
from tilewright.ops.library import OPERATORS
from tilewright.routine.stages import BoundSize, DataSize, RoutineStage, SizesStage

Array = np.ndarray[Any, Any]
Reference = str | Callable[..., Any]

LATEST = 24
"""The operator set that tests use where the version does not matter."""


@dataclass(frozen=True)
class NodeCase:
    """One node with the values of its inputs, None where an optional one is absent."""

    op_type: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    opset: int = LATEST
    outputs: int = 1
    domain: str = ""

    def feeds(self) -> dict[str, Array]:
        """The inputs by the names that they have in the model."""
        return {f"x{k}": x for k, x in enumerate(self.inputs) if x is not None}


@dataclass(frozen=True)
class Tolerance:
    """Accepted relative and absolute errors; None is a few units in the last place of the output's type."""

    rtol: float | None = None
    atol: float | None = None


EXACT = Tolerance(0, 0)


def model_of(case: NodeCase) -> onnx.ModelProto:
    """The model of the node."""
    names = ["" if x is None else f"x{k}" for k, x in enumerate(case.inputs)]
    outs = [f"y{k}" for k in range(case.outputs)]
    node = helper.make_node(case.op_type, names, outs, name="node", domain=case.domain, **case.attributes)
    feeds = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in case.feeds().items()
    ]
    results = [helper.make_empty_tensor_value_info(o) for o in outs]
    graph = helper.make_graph([node], "g", feeds, results)
    opsets = [helper.make_opsetid("", case.opset)] + ([helper.make_opsetid(case.domain, 1)] if case.domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10 if case.opset <= 21 else 11)


def reference_outputs(reference: Reference, case: NodeCase) -> list[Array]:
    """What the reference says: "onnx", "ort", or a function of the inputs that returns one array or several."""
    if callable(reference):
        result = reference(*case.inputs)
        return list(result) if isinstance(result, tuple | list) else [np.asarray(result)]
    model, feeds = model_of(case), case.feeds()
    if reference == "ort":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(y) for y in session.run(None, feeds)]
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]


def node_attributes(op_type: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as the front end hands them over: numbers, strings, tuples, arrays."""
    result: dict[str, Any] = {}
    for a in helper.make_node(op_type, [], ["y"], **attributes).attribute:
        value = helper.get_attribute_value(a)
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value)
        elif isinstance(value, bytes):
            value = value.decode()
        elif not isinstance(value, int | float | str):
            value = tuple(v.decode() if isinstance(v, bytes) else v for v in value)
        result[a.name] = value
    return result


def define(
    case: NodeCase,
    *,
    constants: Sequence[int] | None = None,
    symbolic: bool = False,
    sizes: Mapping[tuple[int, int], Expr] | None = None,
) -> tuple[Definition, tuple[OpValue, ...]]:
    """Runs a definition.

    Args:
        constants: positions of the inputs whose elements are compile-time constants; by default the integer and bool
            ones of at most one dimension, and all scalars.
        symbolic: whether sizes above 1 of the other inputs become symbols, one per distinct size ("n3" for 3).
        sizes: (input, dimension) -> size expression; has precedence.
    """
    operands: list[OpValue | None] = []
    for k, x in enumerate(case.inputs):
        if x is None:
            operands.append(None)
            continue
        fixed = k in constants if constants is not None else _is_constant_by_default(k, x)
        shape = tuple(
            sizes[k, a] if sizes is not None and (k, a) in sizes
            else Symbol(f"n{n}", 1, 1000) if symbolic and not fixed and n > 1 else const(n)
            for a, n in enumerate(x.shape)
        )  # fmt: skip
        operands.append(
            OpValue(Buffer(f"x{k}", shape, dtype_of(x.dtype)), literal_elements(x, 1024) if fixed else None)
        )
    attributes = node_attributes(case.op_type, case.attributes)
    d = Definition(
        case.op_type, f"node ({case.op_type})", case.opset, operands, attributes, "y", case.outputs,
        make_size=_make_size,
    )  # fmt: skip
    result = OPERATORS[case.domain, case.op_type](d)
    return d, result if isinstance(result, tuple) else (result,)


def _make_size(size: DataSize) -> BoundSize:
    symbol = Symbol(f"decided{size.axis}", 0, size.upper_bound)
    return BoundSize(symbol, symbol, is_new=True)


def _is_constant_by_default(position: int, x: Array) -> bool:
    return x.ndim == 0 or (x.ndim == 1 and x.dtype.kind in "iub" and position > 0)


def run_stages(d: Definition, results: Sequence[OpValue], inputs: Sequence[Array | None]) -> list[Array]:
    """Evaluates what a definition emitted; checks constraints, names, and the known elements against the values."""
    buffers: dict[str, Array] = {f"x{k}": x for k, x in enumerate(inputs) if x is not None}
    symbols = _symbol_values(d, inputs)
    env = Environment(symbols, {})
    for stage in d.stages:
        if isinstance(stage, RoutineStage):
            _run_routine(stage, buffers, env)
            continue
        if isinstance(stage, SizesStage):
            elements = buffers[stage.source.name].reshape(-1)
            symbols |= {v: np.int64(elements[k]) for v, k in zip(stage.symbols, stage.positions, strict=True)}
            env = Environment(symbols, {})
            continue
        assert stage.output.name not in buffers, f"{stage.output.name} is written twice"
        if isinstance(stage, View):
            sizes = [int(evaluate_expr(s, env)) for s in stage.output.shape]
            assert int(np.prod(sizes)) == buffers[stage.source.name].size, f"view changes the size: {stage}"
        buffers[stage.output.name] = evaluate(stage, buffers, symbols)
    for condition, message in d.constraints:
        assert bool(evaluate_expr(condition, env)), f"constraint does not hold: {message}"
    values = [buffers[r.buffer.name] for r in results]
    for r, y in zip(results, values, strict=True):
        assert tuple(int(evaluate_expr(s, env)) for s in r.shape) == y.shape
        if r.known_elements is not None:
            elements = [np.asarray(evaluate_expr(e, env)) for e in r.known_elements]
            np.testing.assert_array_equal(np.array(elements).reshape(y.shape).astype(y.dtype), y, "known elements")
    return values


def _run_routine(stage: RoutineStage, buffers: dict[str, Array], env: Environment) -> None:
    """Runs a routine in Python; adds what it writes."""

    def array(b: Buffer) -> Array:
        return np.zeros([int(evaluate_expr(n, env)) for n in b.shape], b.dtype.numpy)

    given = [np.ascontiguousarray(buffers[b.name]) for b in stage.arguments]
    written = [array(b) for b in (*stage.outputs, *stage.scratch)]
    status = stage.routine.run([*given, *written], [int(evaluate_expr(s, env)) for s in stage.scalars])
    assert status == 0, stage.routine.failures[status - 1]
    buffers |= {b.name: a for b, a in zip(stage.outputs, written, strict=False)}


def _symbol_values(d: Definition, inputs: Sequence[Array | None]) -> dict[Var, np.int64]:
    symbols: dict[Var, np.int64] = {}
    for operand, x in zip(d.operands, inputs, strict=True):
        if operand is None or x is None:
            continue
        for size, n in zip(operand.shape, x.shape, strict=True):
            if isinstance(size, Var):
                assert symbols.setdefault(size, np.int64(n)) == n, f"symbol {size} is bound to two sizes"
    return symbols


def check(
    case: NodeCase,
    *,
    constants: Sequence[int] | None = None,
    symbolic: bool = True,
    sizes: Mapping[tuple[int, int], Expr] | None = None,
    reference: Reference = "onnx",
    tolerance: Tolerance = Tolerance(),
) -> list[Array]:
    """Compares a definition with the reference, with literal and (unless `symbolic` is False) with symbolic sizes.

    Integers must agree exactly; `constants` and `sizes` are those of `define`.

    Returns:
        The values that the definition gives.
    """
    expected = reference_outputs(reference, case)
    values: list[Array] = []
    for mode in (False, True) if symbolic or sizes else (False,):
        d, results = define(case, constants=constants, symbolic=mode and symbolic, sizes=sizes if mode else None)
        values = run_stages(d, results, case.inputs)
        assert len(values) >= len(expected)
        for value, right in zip(values, expected, strict=False):
            _check_close(value, right, tolerance, f"symbolic: {mode}")
    return values


def _check_close(actual: Array, expected: Array, tolerance: Tolerance, what: str) -> None:
    assert actual.shape == expected.shape, f"expected shape {expected.shape}, got {actual.shape} ({what})"
    assert actual.dtype == expected.dtype, f"expected type {expected.dtype}, got {actual.dtype} ({what})"
    if tolerance == EXACT or expected.dtype.kind not in "fV":
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    default = {2: 1e-3, 4: 1.2e-7, 8: 2.2e-16}[expected.dtype.itemsize] * 16
    np.testing.assert_allclose(
        actual.astype(np.float64), expected.astype(np.float64),
        rtol=default if tolerance.rtol is None else tolerance.rtol,
        atol=default if tolerance.atol is None else tolerance.atol, err_msg=what,
    )  # fmt: skip
