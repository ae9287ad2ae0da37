"""Runs programs with the NumPy evaluation of their stages, and models with ONNX's reference evaluator."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime

from tilewright.errors import FallbackWarning
from tilewright.expr.dtype import opaque
from tilewright.expr.evaluate import Environment, evaluate, evaluate_expr
from tilewright.expr.nodes import Const, Var
from tilewright.expr.traversal import free_vars
from tilewright.frontend.onnx import load_onnx
from tilewright.graph.ir import Array
from tilewright.graph.lower import lower_graph
from tilewright.graph.passes import simplify_graph
from tilewright.graph.program import (
    Body,
    Conditional,
    Constraint,
    Fallback,
    Loop,
    Program,
    RoutineStep,
    RuntimeStep,
    SizesStep,
)
from tilewright.runtime.reference_evaluator import reference_evaluator


def bind(symbols: dict[Var, int], shape: tuple, actual: Sequence[int]) -> None:
    """Checks an array's shape against sizes, binding symbols that are met first."""
    assert len(shape) == len(actual)
    for size, n in zip(shape, actual, strict=True):
        if isinstance(size, Var):
            assert symbols.setdefault(size, n) == n, f"{size} is {symbols[size]} and {n}"
            assert (size.lo or 0) <= n <= (size.hi or n)
        elif isinstance(size, Const):
            assert size.value == n
        else:
            assert int(evaluate_expr(size, Environment({v: np.int64(k) for v, k in symbols.items()}, {}))) == n


def check(constraints: Sequence[Constraint], symbols: Mapping[Var, int]) -> list[Constraint]:
    """Checks the constraints whose symbols are known; returns the others."""
    variables = {v: np.int64(n) for v, n in symbols.items()}
    later = [c for c in constraints if not free_vars(c.condition) <= symbols.keys()]
    for constraint in constraints:
        if constraint not in later:
            assert evaluate_expr(constraint.condition, Environment(variables, {})), constraint.message
    return later


def run_program(program: Program, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of a program; constraints are checked, and every buffer's shape."""
    arrays = [feeds[name] for name in program.input_names]
    return _run(program, arrays, {})


def _run(program: Program, arrays: Sequence[Array], symbols: dict[Var, int]) -> list[Array]:
    """The outputs of a program for its inputs, in a scope of its own for symbols."""
    symbols = dict(symbols)
    buffers = dict(program.constants)
    for buffer, array in zip(program.inputs, arrays, strict=True):
        buffers[buffer.name] = array
        bind(symbols, buffer.shape, () if buffer.dtype is opaque else array.shape)
        assert buffer.dtype is opaque or array.dtype == buffer.dtype.numpy
    pending = check(program.constraints, symbols)
    for step in program.steps:
        if not isinstance(step, RuntimeStep):
            assert step.output.name not in buffers
            buffers[step.output.name] = evaluate(step, buffers, symbols)
            continue
        results = _run_runtime_step(step, buffers, symbols)
        for buffer, sizes, result in zip(step.outputs, step.runtime_shapes, results, strict=True):
            assert buffer.name not in buffers
            if buffer.dtype is opaque:
                buffers[buffer.name] = result
                continue
            buffers[buffer.name] = np.asarray(result).astype(buffer.dtype.numpy, copy=False)
            bind(symbols, sizes, buffers[buffer.name].shape)
        pending = check(pending, symbols)
        for buffer in step.outputs:
            if buffer.dtype is not opaque:
                bind(symbols, buffer.shape, buffers[buffer.name].shape)
    for _, buffer in program.outputs:
        if buffer.dtype is opaque:
            continue
        bind(symbols, buffer.shape, buffers[buffer.name].shape)
    return [buffers[b.name] for _, b in program.outputs]


def _run_runtime_step(step: RuntimeStep, buffers: Mapping[str, Array], symbols: dict[Var, int]) -> Sequence:
    match step:
        case Fallback():
            return _run_fallback(step, buffers)
        case RoutineStep():
            return _run_routine(step, buffers, symbols)
        case SizesStep():
            elements = buffers[step.inputs[0].name].reshape(-1)
            bind(symbols, step.data_symbols, [int(elements[k]) for k in step.positions])
            return []
        case _:
            return _run_control(step, buffers, symbols)


def _run_routine(step: RoutineStep, buffers: Mapping[str, Array], symbols: Mapping[Var, int]) -> Sequence[Array]:
    env = Environment({v: np.int64(n) for v, n in symbols.items()}, {})
    written = [np.zeros([int(evaluate_expr(n, env)) for n in b.shape], b.dtype.numpy)
               for b in (*step.outputs, *step.scratch)]  # fmt: skip
    given = [np.ascontiguousarray(buffers[b.name]) for b in step.arguments]
    assert step.routine.run([*given, *written], [int(evaluate_expr(s, env)) for s in step.scalars]) == 0
    return written[: len(step.outputs)]


def _run_fallback(step: Fallback, buffers: Mapping[str, Array]) -> Sequence:
    session = reference_evaluator(onnx.ModelProto.FromString(step.model))
    return session.run([b.name for b in step.outputs], {b.name: buffers[b.name] for b in step.inputs})


def _run_control(step: RuntimeStep, buffers: Mapping[str, Array], symbols: dict[Var, int]) -> Sequence[Array]:
    def run(body: Body, arguments: Sequence[Array]) -> list[Array]:
        return _run(body.program, [*arguments, *(buffers[b.name] for b in body.captures)], symbols)

    if isinstance(step, Conditional):
        return run(step.then_branch if buffers[step.condition.name].item() else step.else_branch, [])
    assert isinstance(step, Loop)
    trips = 1 << 30 if step.trip_count is None else int(buffers[step.trip_count.name].item())
    go = True if step.condition is None else bool(buffers[step.condition.name].item())
    carried = [buffers[b.name] for b in step.initial]
    stacks: list[list[Array]] = [[] for _ in step.outputs[len(carried) :]]
    shapes = [[1] * b.rank for b in step.body.program.inputs[:2]]
    for k in range(trips):
        if not go:
            break
        results = run(step.body, [np.full(shapes[0], k), np.full(shapes[1], True), *carried])
        if not step.is_counted:
            condition, *results = results
            go = bool(condition.item())
        carried = results[: len(carried)]
        for stack, result in zip(stacks, results[len(carried) :], strict=True):
            stack.append(result)
    assert all(stacks)
    return [*carried, *map(np.stack, stacks)]


def program_of(model: onnx.ModelProto | str, shapes: Mapping | None = None, *, simplify: bool = True) -> Program:
    """The program of a model; nodes on the reference evaluator are no error."""
    graph = load_onnx(model, shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return lower_graph(simplify_graph(graph) if simplify else graph)


def assert_same(
    model: onnx.ModelProto, feeds: Mapping[str, Array], *, rtol: float = 1e-5, simplify: bool = True
) -> Program:
    """A model's program gives what the reference evaluator gives; returns the program."""
    program = program_of(model, simplify=simplify)
    # The reference evaluator has no grouped ConvTranspose.
    if any(n.op_type == "ConvTranspose" for n in model.graph.node):
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, dict(feeds))
    else:
        expected = reference_evaluator(model).run(None, dict(feeds))
    for (name, buffer), actual, reference in zip(program.outputs, run_program(program, feeds), expected, strict=True):
        assert actual.dtype == reference.dtype == buffer.dtype.numpy, name
        np.testing.assert_allclose(actual, reference, rtol=rtol, atol=rtol, err_msg=name)
    return program
