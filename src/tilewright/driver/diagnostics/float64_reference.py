"""Double-precision evaluation of a program with NumPy, the reference of `verify`.

Floating-point buffers, literals and conversions become float64; integers stay as they are. Contractions are evaluated
by `numpy.einsum`, so that whole networks take seconds.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import FeedError, InternalError, pluralize
from tilewright.expr.computation import Axis, Computation, Reducer, Stage, View
from tilewright.expr.dtype import DType, float64, opaque
from tilewright.expr.evaluate import Environment, evaluate, evaluate_expr
from tilewright.expr.nodes import Binary, Buffer, Cast, Const, Expr, Load, Var
from tilewright.expr.traversal import free_vars, loads
from tilewright.graph.program import Body, Conditional, ControlFlow, Fallback, Loop, Program, RoutineStep, SizesStep

Array = np.ndarray[Any, Any]

_MAX_FACTOR_ELEMENTS = 1 << 24
"""Elements of a contraction's factor that are gathered at a time."""


def evaluate_program(program: Program, feeds: Mapping[str, Array], keep: Collection[str] = ()) -> dict[str, Array]:
    """The outputs of a program in double precision.

    Args:
        program: the lowered graph.
        feeds: arrays by the model's input names.
        keep: names of intermediates to return, too.

    Returns:
        Arrays by buffer name: every output's, and those in `keep`.

    Raises:
        FeedError: an input is missing, or its rank differs.
    """
    values: dict[str, Array] = {name: _widen_array(a) for name, a in program.constants.items()}
    symbols: dict[Var, int] = {}
    names = program.input_names or tuple(b.name for b in program.inputs)
    for name, b in zip(names, program.inputs, strict=True):
        if name in feeds and b.dtype is opaque:
            values[b.name] = feeds[name]
            continue
        if name not in feeds or np.ndim(feeds[name]) != b.rank:
            raise FeedError(f"expected an array of {pluralize(b.rank, 'dimension')}", where=f"input '{name}'")
        array = np.asarray(feeds[name])
        values[b.name] = _widen_array(array) if b.dtype.is_native else array.astype(b.dtype.numpy)
        symbols |= {n: size for n, size in zip(b.shape, values[b.name].shape, strict=True) if isinstance(n, Var)}
    returned = {b.name for _, b in program.outputs} | set(keep)
    _run_steps(program, values, symbols, returned)
    return {name: values[name] for name in returned if name in values}


def _run_steps(program: Program, values: dict[str, Array], symbols: dict[Var, int], returned: Collection[str]) -> None:
    """Adds the results of a program's steps to `values`, and drops values after their last use unless `returned`."""
    last_use = {b.name: k for k, step in enumerate(program.steps) for b in step.inputs}
    for k, step in enumerate(program.steps):
        match step:
            case Fallback():
                values.update(_run_fallback(step, values, symbols))
            case RoutineStep():
                values.update(_run_routine(step, values, symbols))
            case SizesStep():
                elements = values[step.inputs[0].name].reshape(-1)
                symbols |= {v: int(elements[k]) for v, k in zip(step.data_symbols, step.positions, strict=True)}
            case ControlFlow():
                values.update(_run_control_flow(step, values, symbols))
            case Computation() | View():
                values[step.output.name] = _evaluate_stage(_widen_stage(step), values, symbols)
            case _:
                raise InternalError(f"step {step.label} is of an unknown kind", where="reference")
        for b in step.inputs:
            if last_use[b.name] == k and b.name not in returned:
                values.pop(b.name, None)


def _run_routine(step: RoutineStep, values: Mapping[str, Array], symbols: Mapping[Var, int]) -> dict[str, Array]:
    """The outputs of a routine, run by Python.

    Raises:
        InternalError: the data do not suit it.
    """
    env = Environment({v: np.int64(n) for v, n in symbols.items()}, {})

    def array(b: Buffer) -> Array:
        return np.zeros([int(evaluate_expr(n, env)) for n in b.shape], _widen_dtype(b.dtype).numpy)

    written = [array(b) for b in (*step.outputs, *step.scratch)]
    given = [np.ascontiguousarray(values[b.name]) for b in step.arguments]
    status = step.routine.run([*given, *written], [int(evaluate_expr(s, env)) for s in step.scalars])
    if status:
        raise InternalError(step.routine.failures[status - 1], where=f"reference of {step.label}")
    return {b.name: a for b, a in zip(step.outputs, written, strict=False)}


def _run_control_flow(step: ControlFlow, values: Mapping[str, Array], symbols: dict[Var, int]) -> dict[str, Array]:
    """The outputs of a conditional or a loop."""
    if isinstance(step, Conditional):
        holds = bool(values[step.condition.name].item())
        results = _run_body(step.then_branch if holds else step.else_branch, [], values, symbols)
    elif isinstance(step, Loop):
        results = _run_loop(step, values, symbols)
    else:
        raise InternalError(f"control flow {step.label} is of an unknown kind", where="reference")
    for sizes, result in zip(step.runtime_shapes, results, strict=True):
        symbols |= {n: size for n, size in zip(sizes, result.shape, strict=True) if isinstance(n, Var)}
    return {b.name: result for b, result in zip(step.outputs, results, strict=True)}


def _run_loop(step: Loop, values: Mapping[str, Array], symbols: dict[Var, int]) -> list[Array]:
    """The carried values of a loop after its last iteration, and its stacked results."""
    carried = [values[b.name] for b in step.initial]
    trips = None if step.trip_count is None else int(values[step.trip_count.name].item())
    go = np.asarray(True) if step.condition is None else values[step.condition.name]
    stacks: list[list[Array]] = [[] for _ in step.outputs[len(carried) :]]
    shapes = [[1] * b.rank for b in step.body.program.inputs[:2]]
    iteration = 0
    while go.item() and (trips is None or iteration < trips):
        number = np.full(shapes[0], iteration, np.int64)
        results = _run_body(step.body, [number, go.reshape(shapes[1]), *carried], values, symbols)
        if not step.is_counted:
            go, *results = results
        carried = results[: len(carried)]
        for stack, result in zip(stacks, results[len(carried) :], strict=True):
            stack.append(result)
        iteration += 1
    empty = [tuple(symbols.get(n, 0) if isinstance(n, Var) else int(getattr(n, "value", 0)) for n in sizes[1:])
             for sizes in step.runtime_shapes[len(carried) :]]  # fmt: skip
    dtypes = [_widen_dtype(b.dtype).numpy for b in step.outputs[len(carried) :]]
    rows = zip(stacks, empty, dtypes, strict=True)
    return [*carried, *(np.stack(s) if s else np.empty((0, *sizes), dtype) for s, sizes, dtype in rows)]


def _run_body(
    body: Body, arguments: Sequence[Array], outside: Mapping[str, Array], symbols: Mapping[Var, int]
) -> list[Array]:
    """The outputs of a branch or of one iteration."""
    program, inner = body.program, dict(symbols)
    values = {name: _widen_array(a) for name, a in program.constants.items()}
    given = [*arguments, *(outside[b.name] for b in body.captures)]
    for b, array in zip(program.inputs, given, strict=True):
        values[b.name] = array
        inner |= {n: size for n, size in zip(b.shape, np.shape(array), strict=False) if isinstance(n, Var)}
    _run_steps(program, values, inner, {b.name for _, b in program.outputs})
    return [values[b.name] for _, b in program.outputs]


def _widen_dtype(dtype: DType) -> DType:
    return float64 if dtype.is_float else dtype


def _widen_array(array: Array) -> Array:
    # NumPy's floating type does not include extension types such as bfloat16
    is_float = np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16"
    return array.astype(np.float64) if is_float else array


def _widen_buffer(b: Buffer) -> Buffer:
    return replace(b, dtype=_widen_dtype(b.dtype))


def _widen_stage(stage: Stage) -> Stage:
    if isinstance(stage, View):
        return replace(stage, output=_widen_buffer(stage.output), source=_widen_buffer(stage.source))
    return replace(stage, output=_widen_buffer(stage.output), body=_widen_expr(stage.body, {}))


def _widen_expr(e: Expr, memo: dict[Expr, Expr]) -> Expr:
    if e not in memo:
        children = tuple(_widen_expr(c, memo) for c in e.children())
        match e:
            case Const(value, dtype) if dtype.is_float:
                memo[e] = Const(value, float64)
            case Load(buffer):
                memo[e] = Load(_widen_buffer(buffer), children)
            case Cast(dtype):
                same = children[0].dtype == _widen_dtype(dtype)
                memo[e] = children[0] if same else Cast(_widen_dtype(dtype), children[0])
            case _:
                memo[e] = e.rebuild(children) if children else e
    return memo[e]


def _evaluate_stage(stage: Stage, values: Mapping[str, Array], symbols: Mapping[Var, int]) -> Array:
    if isinstance(stage, Computation):
        result = _evaluate_contraction(stage, values, symbols)
        if result is not None:
            return result
    return evaluate(stage, values, symbols)


def _evaluate_contraction(c: Computation, values: Mapping[str, Array], symbols: Mapping[Var, int]) -> Array | None:
    """A sum of products of two factors by `einsum`, each gathered over the axes that it depends on; else None."""
    if (
        c.reducer is not Reducer.SUM
        or not isinstance(c.body, Binary)
        or c.body.op != "mul"
        or c.output.dtype != float64
    ):
        return None
    factors = (c.body.a, c.body.b)
    if any(not loads(f) for f in factors):
        return None
    env = Environment({v: np.int64(n) for v, n in symbols.items()}, values)
    axes = (*c.axes, *c.reduce_axes)
    sizes = [int(evaluate_expr(a.extent, env)) for a in axes]
    if 0 in sizes:
        return None
    factor_axes = [[k for k, a in enumerate(axes) if a.var in free_vars(f)] for f in factors]
    if {k for ids in factor_axes for k in ids} != set(range(len(axes))):
        return None
    out = list(range(len(c.axes)))
    largest = max(factor_axes, key=lambda ids: int(np.prod([sizes[k] for k in ids], dtype=np.int64)))
    count = int(np.prod([sizes[k] for k in largest], dtype=np.int64))
    split_axis = max((k for k in largest if k in out), key=lambda k: sizes[k], default=None)
    if split_axis is None or count <= _MAX_FACTOR_ELEMENTS:
        operands = [_evaluate_factor(f, axes, sizes, ids, env) for f, ids in zip(factors, factor_axes, strict=True)]
        return np.einsum(operands[0], factor_axes[0], operands[1], factor_axes[1], out, optimize=True)
    step = max(1, sizes[split_axis] * _MAX_FACTOR_ELEMENTS // count)
    result = np.empty([sizes[k] for k in out])
    for start in range(0, sizes[split_axis], step):
        stop = min(sizes[split_axis], start + step)
        ranges = {split_axis: (start, stop)}
        operands = [
            _evaluate_factor(f, axes, sizes, ids, env, ranges) for f, ids in zip(factors, factor_axes, strict=True)
        ]
        region = tuple(slice(start, stop) if k == split_axis else slice(None) for k in out)
        result[region] = np.einsum(operands[0], factor_axes[0], operands[1], factor_axes[1], out, optimize=True)
    return result


def _evaluate_factor(
    e: Expr,
    axes: tuple[Axis, ...],
    sizes: list[int],
    factor_axes: list[int],
    env: Environment,
    ranges: Mapping[int, tuple[int, int]] | None = None,
) -> Array:
    """The values of one factor over the axes that it depends on; `ranges` restricts an axis."""
    variables = dict(env.variables)
    shape: list[int] = []
    for position, k in enumerate(factor_axes):
        low, high = (ranges or {}).get(k, (0, sizes[k]))
        dims = [1] * len(factor_axes)
        dims[position] = high - low
        shape.append(high - low)
        variables[axes[k].var] = np.arange(low, high, dtype=np.int64).reshape(dims)
    return np.broadcast_to(evaluate_expr(e, Environment(variables, env.buffers)), shape)


def _run_fallback(step: Fallback, values: Mapping[str, Array], symbols: dict[Var, int]) -> dict[str, Array]:
    """A fallback's outputs, which the evaluator computes in the model's own types."""
    import onnx  # here because few models need it

    from tilewright.runtime.reference_evaluator import reference_evaluator

    evaluator = reference_evaluator(onnx.load_model_from_string(step.model))
    feeds = {b.name: values[b.name] if b.dtype is opaque else values[b.name].astype(b.dtype.numpy) for b in step.inputs}
    with np.errstate(all="ignore"):
        results: Any = evaluator.run([b.name for b in step.outputs], feeds)
    outputs: dict[str, Array] = {}
    for b, result in zip(step.outputs, results, strict=True):
        if b.dtype is opaque:
            outputs[b.name] = result
            continue
        array = np.asarray(result).astype(b.dtype.numpy)
        if array.ndim != b.rank:
            what = f"expected {pluralize(b.rank, 'dimension')}, got {array.ndim}"
            raise InternalError(what, where=f"reference of {step.label}")
        symbols |= {n: size for n, size in zip(b.shape, array.shape, strict=True) if isinstance(n, Var)}
        outputs[b.name] = _widen_array(array) if b.dtype.is_native else array
    return outputs
