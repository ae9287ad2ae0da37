"""Small programs for several tests, and random ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import DType, bfloat16, boolean, float16, float32, float64, int8, int32, int64, uint8
from tilewright.expr.nodes import Buffer, Expr, Symbol, Var, as_expr, const
from tilewright.expr.operations import binary, cast, conjunction, maximum, minimum, select, unary
from tilewright.loops.ir import Func
from tilewright.loops.lowering import lower_to_loops

M, N = Symbol("M", 1, 512), Symbol("N", 1, 6)
Array = np.ndarray[Any, Any]


def computation(name: str, axes: Mapping[Var, Any], reduce: Mapping[Var, Any], body: Expr, by: Reducer | None = None):
    """A computation whose output has the shape and type that follow."""
    outer = tuple(Axis(v, as_expr(n)) for v, n in axes.items())
    inner = tuple(Axis(v, as_expr(n)) for v, n in reduce.items())
    return Computation(Buffer(name, tuple(a.extent for a in outer), body.dtype), outer, inner, body, by)


def buffer(name: str, *shape: Expr | int, dtype: DType = float32) -> Buffer:
    return Buffer(name, tuple(as_expr(n) for n in shape), dtype)


def matmul_relu() -> Func:
    """D = max(A @ B, 0) with a symbolic number of rows."""
    i, j, k = Var("i"), Var("j"), Var("k")
    a, b = buffer("A", M, 64), buffer("B", 64, 32)
    product = computation("C", {i: M, j: 32}, {k: 64}, a[i, k] * b[k, j], Reducer.SUM)
    relu = computation("D", {i: M, j: 32}, {}, maximum(product.output[i, j], const(0, float32)))
    return lower_to_loops("matmul_relu", [product, relu], [a, b, relu.output], [M])


def conv() -> Func:
    """A 3x3 convolution with stride 2 and padding 1."""
    n, oc, oh, ow, ic, kh, kw = (Var(x) for x in ("n", "oc", "oh", "ow", "ic", "kh", "kw"))
    x, w = buffer("X", N, 8, 15, 15), buffer("W", 4, 8, 3, 3)
    y, z = oh * 2 + kh - 1, ow * 2 + kw - 1
    inside = conjunction(y >= 0, y < 15, z >= 0, z < 15)
    value = select(inside, x[n, ic, y, z], 0.0) * w[oc, ic, kh, kw]
    c = computation("Y", {n: N, oc: 4, oh: 8, ow: 8}, {ic: 8, kh: 3, kw: 3}, value, Reducer.SUM)
    return lower_to_loops("conv", [c], [x, w, c.output], [N])


def random_array(shape: tuple[int, ...], dtype: DType, rng: np.random.Generator) -> Array:
    """Values of every sign; small, so that sums of narrow types stay exact where integers are summed."""
    if dtype == boolean:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)
    return rng.integers(0 if dtype.kind == "u" else -5, 6, shape).astype(dtype.numpy)


_TYPES = (float32, float32, float32, float64, float16, bfloat16, int8, int32, int64, uint8, boolean)
_I, _J, _K = Var("i"), Var("j"), Var("k")


@st.composite
def computations(draw: st.DrawFn) -> tuple[Computation, tuple[Buffer, ...]]:
    """A computation over one or two inputs: plain, shifted and guarded, clamped and gathered accesses; any reducer."""
    dtype = draw(st.sampled_from(_TYPES))
    rows: Expr = draw(st.sampled_from((N, const(3), const(5))))
    cols: Expr = draw(st.sampled_from((N, const(1), const(4))))
    depth: Expr = draw(st.sampled_from((N, const(2))))
    a = Buffer("A", (rows, cols), dtype)
    b = Buffer("B", (depth, cols), dtype)
    t = Buffer("T", (rows,), int64)
    by = draw(st.sampled_from((None, None, *Reducer)))
    if dtype == boolean and by in (Reducer.SUM, Reducer.PROD):
        by = Reducer.MAX
    k = _K if by is not None else const(0)

    def clamped(e: Expr, size: Expr) -> Expr:
        return minimum(maximum(e, const(0)), size - 1)

    def load(kind: int) -> Expr:
        if kind == 0:
            return a[_I, _J]
        if kind == 1:
            return b[k, _J]
        if kind == 2:
            at = _I + k - 1
            return select(conjunction(at >= 0, at < rows), a[at, _J], const(1, dtype))
        if kind == 3:
            return a[clamped(_I * 2 - k, rows), clamped(_J // 2 + _I % 2, cols)]
        if kind == 4:
            return b[clamped(t[_I], depth), cols - 1 - _J]
        return cast(dtype, cast(int32, _I * 3 + _J - k)) if dtype != boolean else (_J + k > _I)

    leaves = st.integers(0, 5).map(load)

    def grow(e: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        arithmetic = ("and", "or", "xor") if dtype == boolean else ("add", "sub", "mul", "min", "max")
        pairs = st.builds(lambda op, x, y: binary(op, x, y), st.sampled_from(arithmetic), e, e)
        chosen = st.builds(lambda x, y: select(_I < _J, x, y), e, e)
        if dtype == boolean:
            return st.one_of(pairs, chosen)
        folded = st.sampled_from(("abs", "neg") if dtype.kind != "u" else ("abs",))
        return st.one_of(pairs, chosen, st.builds(lambda op, x: unary(op, x), folded, e))

    body = draw(st.recursive(leaves, grow, max_leaves=4))
    reduce = {} if by is None else {_K: depth}
    return computation("OUT", {_I: rows, _J: cols}, reduce, body, by), (a, b, t)
