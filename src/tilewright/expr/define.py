"""Tensor expressions for kernel engineers: symbols, placeholders, reduction axes, `compute` and reductions.

    n = symbol("n", 1, 512)
    A, B = placeholder((n, 64), "float32", "A"), placeholder((64, 32), "float32", "B")
    k = reduce_axis(64, "k")
    C = compute((n, 32), lambda i, j: sum(A[i, k] * B[k, j], k), "C")

A `Tensor` (`tensor.py`) is a buffer with its defining computation and the tensors read there, so a kernel is given by
its outputs alone. The computation is the `Computation` of `computation.py`.
"""

import inspect
from builtins import max as larger
from collections.abc import Callable, Sequence
from itertools import count

from tilewright.errors import DefinitionError, pluralize
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import DType, boolean, dtype_of
from tilewright.expr.nodes import Buffer, Expr, Load, Symbol, Var, as_expr, const
from tilewright.expr.tensor import ReduceAxis, Reduction, Tensor
from tilewright.expr.traversal import free_vars, loads, replace_loads

MAX_SIZE = (1 << 24) - 1
"""Largest size of a symbol without a declared range."""

Size = int | Expr
"""The extent of a dimension: an integer, or an expression over symbols."""


def symbol(name: str, lo: int = 1, hi: int = MAX_SIZE) -> Var:
    """A size that is known only at a call of the kernel.

    Args:
        name: in loops and errors.
        lo: the smallest size, at least 0.
        hi: the largest size. A smaller range makes more facts provable.
    """
    where = f"symbol {name!r}"
    _check_name(name, where)
    are_ints = isinstance(lo, int) and isinstance(hi, int)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not are_ints or not 0 <= lo <= hi:
        raise DefinitionError(f"expected a range of integers 0 <= lo <= hi, got {lo!r}..{hi!r}", where=where)
    return Symbol(name, lo, hi)


def placeholder(shape: Size | Sequence[Size], dtype: str | DType = "float32", name: str = "A") -> Tensor:
    """An input of a kernel.

    Args:
        shape: integers or expressions over symbols.
        dtype: type of the elements.
        name: unique among the tensors of a kernel.
    """
    _check_name(name, f"placeholder {name!r}")
    return Tensor(name, _shape(shape, f"placeholder {name!r}"), dtype_of(dtype))


def reduce_axis(extent: Size, name: str) -> ReduceAxis:
    """The variable 0 <= name < extent of a reduction."""
    where = f"reduction axis {name!r}"
    _check_name(name, where)
    return ReduceAxis(name, _size(extent, where))


def compute(
    shape: Size | Sequence[Size],
    body: Callable[..., "Expr | Reduction | int | float"],
    name: str,
    dtype: str | DType | None = None,
) -> Tensor:
    """A tensor whose element at (i, j, ..) is `body(i, j, ..)`.

    Args:
        shape: extents of its axes; () for a single number.
        body: takes one int64 variable per dimension, whose parameter names become those of the loops, and returns an
            expression or a reduction (`sum`, `max`, `min`, `prod`).
        name: unique among the tensors of a kernel; the block that computes it gets this name.
        dtype: needed only where the body is a plain number.

    Raises:
        DefinitionError: shape, body or dtype is not valid.
    """
    where = f"compute {name!r}"
    _check_name(name, where)
    extents = _shape(shape, where)
    axes = tuple(Axis(Var(n), e) for n, e in zip(_axis_names(body, len(extents), where), extents, strict=True))
    try:
        value = body(*(a.var for a in axes))
    except DefinitionError as e:
        if e.where:
            raise
        raise DefinitionError(e.what, where=where, hint=e.hint) from e
    reduction = value if isinstance(value, Reduction) else None
    result = _value(reduction.body if reduction else value, dtype, where)
    reduction_axes = reduction.axes if reduction else ()
    _check_variables(result, axes, reduction_axes, where)
    sources = tuple(dict.fromkeys(x.buffer for x in loads(result) if isinstance(x.buffer, Tensor)))
    body_expr = substitute(replace_loads(result, _load_plain_buffer), {a: Var(a.name) for a in reduction_axes})
    reduce_axes = tuple(Axis(Var(a.name), a.extent) for a in reduction_axes)
    output = Buffer(name, extents, body_expr.dtype)
    stage = Computation(output, axes, reduce_axes, body_expr, reduction.reducer if reduction else None)
    return Tensor(name, extents, body_expr.dtype, stage=stage, sources=sources)


def sum(value: Expr, *axes: ReduceAxis | Sequence[ReduceAxis]) -> Reduction:
    """The sum of values along reduction axes, accumulated in the type of `value`; cast that to accumulate wider."""
    return _reduction(Reducer.SUM, value, axes)


def prod(value: Expr, *axes: ReduceAxis | Sequence[ReduceAxis]) -> Reduction:
    """The product of values along reduction axes."""
    return _reduction(Reducer.PROD, value, axes)


def max(value: Expr, *axes: ReduceAxis | Sequence[ReduceAxis]) -> Reduction:
    """The largest value along reduction axes; NaN if one is NaN. For the larger of two values see `maximum`."""
    return _reduction(Reducer.MAX, value, axes)


def min(value: Expr, *axes: ReduceAxis | Sequence[ReduceAxis]) -> Reduction:
    """The smallest value along reduction axes; NaN if one is NaN. For the smaller of two values see `minimum`."""
    return _reduction(Reducer.MIN, value, axes)


def collect_stages(outputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Computation, ...]]:
    """The inputs and computations that tensors depend on.

    Returns:
        Inputs in order of first use, and computations in an order of execution.

    Raises:
        DefinitionError: two different tensors have one name.
    """
    inputs: list[Tensor] = []
    stages: list[Computation] = []
    names: dict[str, Tensor] = {}

    def visit(t: Tensor) -> None:
        first = names.setdefault(t.name, t)
        if first is not t:
            raise DefinitionError(f"two tensors of the kernel have the name {t.name!r}", hint="give one another name")
        if t in done:
            return
        done.add(t)
        for source in t.sources:
            visit(source)
        if t.stage is None:
            inputs.append(t)
        else:
            stages.append(t.stage)

    done: set[Tensor] = set()
    for t in outputs:
        visit(t)
    return tuple(inputs), tuple(stages)


def _load_plain_buffer(x: Load) -> Expr:
    return Load(x.buffer.plain_buffer, x.indices) if isinstance(x.buffer, Tensor) else x


def _reduction(reducer: Reducer, value: object, axes: Sequence[object]) -> Reduction:
    where = str(reducer)
    axis_list = [a for argument in axes for a in (argument if isinstance(argument, (tuple, list)) else (argument,))]
    if isinstance(value, Reduction):
        raise value.misplaced_error()
    if not isinstance(value, Expr):
        raise DefinitionError(f"expected an expression, got {type(value).__name__}", where=where)
    if value.dtype == boolean and reducer in (Reducer.SUM, Reducer.PROD):
        hint = 'write cast(condition, "int64") to count, max for any, min for all'
        raise DefinitionError("conditions can't be added or multiplied", where=where, hint=hint)
    if not axis_list:
        hint = f"write {reducer}(value, k) with k = reduce_axis(..)"
        raise DefinitionError("no reduction axis is given", where=where, hint=hint)
    reduction_axes: list[ReduceAxis] = []
    for axis in axis_list:
        if not isinstance(axis, ReduceAxis):
            binary_form = {Reducer.MAX: "maximum(a, b)", Reducer.MIN: "minimum(a, b)"}.get(reducer)
            hint = f"for two values write {binary_form}" if binary_form and isinstance(axis, Expr | int | float) else ""
            raise DefinitionError(f"expected a reduce_axis, got `{axis}`", where=where, hint=hint)
        if axis in reduction_axes:
            raise DefinitionError(f"axis {axis.name!r} is named twice", where=where)
        reduction_axes.append(axis)
    return Reduction(reducer, value, tuple(reduction_axes))


def _value(value: object, dtype: str | DType | None, where: str) -> Expr:
    """The body as an expression."""
    if isinstance(value, Expr):
        if dtype is not None and value.dtype != dtype_of(dtype):
            hint = f'write cast(..., "{dtype_of(dtype)}")'
            raise DefinitionError(f"the body has type {value.dtype}, not {dtype_of(dtype)}", where=where, hint=hint)
        return value
    if isinstance(value, Tensor):
        raise DefinitionError(f"the body is tensor {value.name!r} as a whole", where=where, hint="index it")
    if isinstance(value, bool | int | float):
        if dtype is None:
            hint = 'give a dtype, as in dtype="float32"; == compares expressions themselves, a.equals(b) their values'
            raise DefinitionError(f"the body is the number {value}", where=where, hint=hint)
        return const(value, dtype_of(dtype))
    what = f"the body is {'nothing' if value is None else f'of type {type(value).__name__}'}, expected an expression"
    raise DefinitionError(what, where=where)


def _check_variables(body: Expr, axes: Sequence[Axis], inner: Sequence[ReduceAxis], where: str) -> None:
    """Every variable of a body is an axis of the output, an axis of its reduction, or a symbol; names differ."""
    axis_vars = {a.var for a in axes}
    names = [a.var.name for a in axes] + [a.name for a in inner]
    duplicate = next((n for n in names if names.count(n) > 1), None)
    if duplicate is not None:
        raise DefinitionError(f"two axes have the name {duplicate!r}", where=where, hint="give one another name")
    for v in sorted(free_vars(body) - axis_vars - set(inner), key=lambda v: v.name):
        if isinstance(v, ReduceAxis):
            hint = f"write sum(..., {v.name}) around it" if not inner else f"name it in the reduction as well: {v.name}"
            raise DefinitionError(f"{v.name!r} is a reduction axis without a reduction", where=where, hint=hint)
        if not isinstance(v, Symbol):
            what = f"the body uses {v.name!r}, which is neither one of its axes ({', '.join(names)}) nor a symbol"
            raise DefinitionError(what, where=where)


def _axis_names(body: Callable[..., object], rank: int, where: str) -> list[str]:
    """Names of the axes: those of the function's parameters, then i0, i1, ..."""
    if not callable(body):
        raise DefinitionError(f"expected a function of the indices, got {type(body).__name__}", where=where)
    parameters = list(inspect.signature(body).parameters.values())
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    is_variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = [p for p in parameters if p.default is p.empty and p.name in positional]
    if len(needed) > rank or (len(positional) < rank and not is_variadic):
        taken = len(positional)
        accepted = f"{taken} or more indices" if is_variadic else pluralize(taken, "index", "indices")
        what = f"the shape has {pluralize(rank, 'dimension')}, the function takes {accepted}"
        raise DefinitionError(what, where=where)
    numbered = (f"i{k}" for k in count() if f"i{k}" not in positional)
    return positional[:rank] + [next(numbered) for _ in range(larger(0, rank - len(positional)))]


def _check_name(name: object, where: str) -> None:
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"expected a name, got {name!r}", where=where)


def _shape(shape: object, where: str) -> tuple[Expr, ...]:
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(_size(n, f"{where}, dimension {k}") for k, n in enumerate(sizes))


def _size(size: object, where: str) -> Expr:
    """An extent as an expression over symbols."""
    if isinstance(size, Expr):
        if size.dtype == boolean or not size.dtype.is_int or loads(size):
            raise DefinitionError(f"expected a size, got `{size}`", where=where)
        for v in free_vars(size):
            if not isinstance(v, Symbol):
                raise DefinitionError(f"size `{size}` uses {v.name!r}, which is not a symbol", where=where)
        return size
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise DefinitionError(f"expected an integer or an expression over symbols, got {size!r}", where=where)
    value = int(size)  # pyright: ignore[reportArgumentType]
    if value < 0:
        raise DefinitionError(f"expected a size of at least 0, got {value}", where=where)
    return as_expr(value)
