"""Tensor expressions as users write them: the computations that come out, and answers to what makes no sense."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.errors import DefinitionError, OptionError
from tilewright.expr import define as te
from tilewright.expr import math_functions as fn
from tilewright.expr.computation import Computation
from tilewright.expr.define import collect_stages, compute, placeholder, reduce_axis, symbol
from tilewright.expr.dtype import int8, int64
from tilewright.expr.evaluate import evaluate
from tilewright.expr.nodes import Buffer, Load, Symbol, Var
from tilewright.expr.tensor import Tensor
from tilewright.expr.traversal import post_order

N = symbol("n", 1, 512)
A = placeholder((N, 64), "float32", "A")
B = placeholder((64, 32), "float32", "B")
Q = placeholder((8, 6), "int8", "Q")
I = placeholder((8,), "int32", "I")  # noqa: E741
K = reduce_axis(64, "k")


def stage(t: Tensor) -> Computation:
    assert t.stage is not None
    return t.stage


def test_matmul() -> None:
    c = compute((N, 32), lambda i, j: te.sum(A[i, K] * B[K, j], K), "C")
    assert str(c.stage) == "C[i, j] = sum(A[i, k] * B[k, j] for k in 64)  for i in n; j in 32"
    assert c.sources == (A, B)
    assert collect_stages([c]) == ((A, B), (c.stage,))
    assert str(c) == "C: float32[n, 32]"
    assert repr(c) == "<Tensor C: float32[n, 32]>"


def test_computations_use_plain_buffers_and_variables() -> None:
    c = compute((N, 32), lambda i, j: te.sum(A[i, K] * B[K, j], K), "C")
    d = stage(compute((N, 32), lambda i, j: fn.maximum(c[i, j], 0.0), "D"))
    for s in (stage(c), d):
        assert type(s.output) is Buffer
        assert all(type(x.buffer) is Buffer for x in post_order(s.body) if isinstance(x, Load))
        assert all(type(x) in (Var, Symbol) for x in post_order(s.body) if isinstance(x, Var))
        assert all(type(a.var) is Var for a in (*s.axes, *s.reduce_axes))


def test_values_of_computations() -> None:
    rng = np.random.default_rng(1)
    q = rng.integers(-9, 9, (8, 6)).astype(np.int8)
    r = reduce_axis(6, "r")

    def value(body: Callable[..., Any], *shape: int, **named: Any) -> np.ndarray:
        return evaluate(stage(compute(shape, body, "T", **named)), {"Q": q, "I": np.arange(8, dtype=np.int32)}, {})

    wide = q.astype(np.int64)
    np.testing.assert_array_equal(value(lambda i: te.sum(fn.cast(Q[i, r], "int64"), r), 8), wide.sum(1))
    np.testing.assert_array_equal(value(lambda i: te.max(Q[i, r], r), 8), q.max(1))
    np.testing.assert_array_equal(value(lambda i: te.min(Q[i, r], r), 8), q.min(1))
    np.testing.assert_array_equal(value(lambda i: te.prod(fn.cast(Q[i, r], "int64"), [r]), 8), wide.prod(1))
    np.testing.assert_array_equal(value(lambda: 2.5, dtype="float32"), np.float32(2.5))
    np.testing.assert_array_equal(value(lambda *i: i[0] * 4 + i[1], 2, 4), np.arange(8).reshape(2, 4))
    np.testing.assert_array_equal(value(lambda i: fn.select((i >= 2) & (i < 5) | i.equals(7), 1, i), 8),
                                  [0, 1, 1, 1, 1, 5, 6, 1])  # fmt: skip
    np.testing.assert_array_equal(value(lambda i: fn.select(~(i < 3), fn.cast(Q[i - 3, 0], "float32"), 0.0), 8),
                                  np.concatenate([np.zeros(3), q[:5, 0]]))  # fmt: skip
    np.testing.assert_array_equal(value(lambda i: Q[fn.cast(I[i], "int64"), 5], 8), q[:, 5])
    np.testing.assert_array_equal(value(lambda i, j: abs(Q[i, j]), 8, 6), np.abs(q))
    np.testing.assert_array_equal(value(lambda i: fn.cast(i, "float32") ** 2, 4), np.arange(4.0) ** 2)


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "floor", "ceil", "abs"])
def test_values_of_math_functions(name: str) -> None:
    x = placeholder((5,), "float64", "X")
    c = stage(compute((5,), lambda i: getattr(fn, name)(x[i]), "Y"))
    data = np.array([0.5, 1.0, 1.5, 2.25, 3.0])
    references = {"sigmoid": lambda v: 1 / (1 + np.exp(-v)), "rsqrt": lambda v: 1 / np.sqrt(v), "erf": _erf}
    np.testing.assert_allclose(
        evaluate(c, {"X": data}, {}), references.get(name, getattr(np, name, None))(data), rtol=1e-15
    )


def _erf(v: np.ndarray) -> np.ndarray:
    from math import erf

    return np.array([erf(x) for x in v])


def test_axes_are_named_after_the_parameters() -> None:
    assert [a.var.name for a in stage(compute((2, 3), lambda row, col: row + col, "T")).axes] == ["row", "col"]
    assert [a.var.name for a in stage(compute((2, 3, 4), lambda b, *i: b + i[1], "T")).axes] == ["b", "i0", "i1"]
    assert [a.var.name for a in stage(compute(3, lambda i0, *i: i0, "T")).axes] == ["i0"]


def test_stages_are_collected_from_the_outputs() -> None:
    x = placeholder((4,), name="X")
    y = compute((4,), lambda i: x[i] + 1.0, "Y")
    z = compute((4,), lambda i: y[i] * x[i], "Z")
    w = compute((4,), lambda i: z[i] + y[i], "W")
    assert collect_stages([w]) == ((x,), (y.stage, z.stage, w.stage))
    assert collect_stages([z, w]) == ((x,), (y.stage, z.stage, w.stage))


def test_tensors_of_equal_name_and_different_producers_are_distinct() -> None:
    def chain(factor: float) -> Tensor:
        x = placeholder((4,), name="X")
        y = compute((4,), lambda i: x[i] * factor, "Y")
        return compute((4,), lambda i: y[i] + 1.0, "Z")

    first, second = chain(2.0), chain(3.0)
    assert str(collect_stages([first])[1][0].body) == "X[i] * 2.0"
    assert str(collect_stages([second])[1][0].body) == "X[i] * 3.0"


def test_result_types() -> None:
    assert symbol("m").hi == (1 << 24) - 1
    assert placeholder(3, int8, "P").dtype is int8
    assert stage(compute((2,), lambda i: i, "T")).output.dtype == int64
    assert stage(compute((N * 2 + 1,), lambda i: i // 2, "T")).output.shape == (N * 2 + 1,)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: A[0], "tensor A: float32[n, 64]: it has 2 dimensions, got 1 index"),
    (lambda: I[0, 1], "tensor I: int32[8]: it has 1 dimension, got 2 indices"),
    (lambda: A[0, 64], "tensor A: float32[n, 64], index 1: index 64 is outside of 0..63"),
    (lambda: A[-1, 0], "tensor A: float32[n, 64], index 0: index -1 is negative; count from 0, as in n - 1"),
    (lambda: A[0, 1:3], "tensor A: float32[n, 64], index 1: slices are not supported; give one index per dimension"),
    (lambda: A[0, 1.0], "tensor A: float32[n, 64], index 1: expected an int64 expression, got float"),
    (lambda: A[0, True], "tensor A: float32[n, 64], index 1: expected an int64 expression, got bool"),
    (lambda: A[0, B], "tensor A: float32[n, 64], index 1: expected an int64 expression, got tensor 'B'"),
    (lambda: A[0, A[0, 0]], "tensor A: float32[n, 64], index 1: expected an int64 expression, got float32"),
    (lambda: A[I[0], 0], 'index 0: expected an int64 expression, got int32; write cast(..., "int64")'),
    (lambda: list(A), "tensor A: float32[n, 64]: a tensor can't be iterated over; index it: A[i, j]"),
    (lambda: compute((8,), lambda i: Q[i, 0] * A[i, 0], "T"),
     "compute 'T': operands of 'mul' have types int8 and float32; cast one of them"),
    (lambda: compute((8,), lambda i: Q[i, 0] * 0.5, "T"),
     "compute 'T': 0.5 can't be combined with a value of type int8; cast the value first"),
    (lambda: compute((8,), lambda i: A[i, 0] + "x", "T"),
     "compute 'T': expected an expression or a number, got str `x`"),
    (lambda: compute((8,), lambda i: A[i, 0] if i < 4 else 0.0, "T"),
     "the truth value of expression `i < 4` is not known here;"),
    (lambda: compute((8,), lambda i: te.sum(A[i, K], K) + 1.0, "T"),
     "sum over k: a reduction must be the whole body of a tensor and can't be part of an expression"),
    (lambda: compute((8,), lambda i: A[te.max(Q[i, K], K), 0], "T"),
     "max over k: a reduction must be the whole body of a tensor"),
    (lambda: compute((8,), lambda i: te.sum(te.max(A[i, K], K), K), "T"),
     "max over k: a reduction must be the whole body"),
    (lambda: compute((8,), lambda i: A[i, K], "T"),
     "compute 'T': 'k' is a reduction axis without a reduction; write sum(..., k) around it"),
    (lambda: compute((8,), lambda i: te.sum(A[i, K], reduce_axis(3, "r")) , "T"),
     "compute 'T': 'k' is a reduction axis without a reduction; name it in the reduction as well: k"),
    (lambda: compute((8,), lambda k: te.sum(A[k, K], K), "T"),
     "compute 'T': two axes have the name 'k'; give one another name"),
    (lambda: compute((8,), lambda i: A[i, Var("x")], "T"),
     "compute 'T': the body uses 'x', which is neither one of its axes (i) nor a symbol"),
    (lambda: compute((8, 8), lambda i: A[i, i], "T"),
     "compute 'T': the shape has 2 dimensions, the function takes 1 index"),
    (lambda: compute((8,), lambda i, j: A[i, j], "T"),
     "compute 'T': the shape has 1 dimension, the function takes 2 ind"),
    (lambda: compute((8,), lambda i: None, "T"), "compute 'T': the body is nothing, expected an expression"),
    (lambda: compute((8,), lambda i: A, "T"), "compute 'T': the body is tensor 'A' as a whole; index it"),
    (lambda: compute((8,), lambda i: i == 3, "T"), "compute 'T': the body is the number False; give a dtype, as in"),
    (lambda: compute((8,), lambda i: i, "T", "int32"),
     "compute 'T': the body has type int64, not int32; write cast("),
    (lambda: compute((8,), A[0, 0], "T"), "compute 'T': expected a function of the indices, got Load"),
    (lambda: compute((8,), lambda i: i, ""), "compute '': expected a name, got ''"),
    (lambda: te.sum(A[0, K]), "sum: no reduction axis is given; write sum(value, k) with k = reduce_axis(..)"),
    (lambda: te.sum(A[0, K], K, K), "sum: axis 'k' is named twice"),
    (lambda: te.sum(A, K), "sum: expected an expression, got Tensor"),
    (lambda: te.sum(A[0, K] > 0, K), "sum: conditions can't be added or multiplied; write cast(condition"),
    (lambda: te.max(A[0, 0], A[0, 1]),
     "max: expected a reduce_axis, got `A[0, 1]`; for two values write maximum(a, b)"),
    (lambda: fn.select(Var("i") == 0, 1.0, 2.0),
     "select: the condition is the Python value False; == compares the expr"),
    (lambda: fn.select(A[0, 0], 1.0, 2.0), "select: expected a condition, got a value of type float32"),
    (lambda: fn.select(N < 3, 1.0, 2.0), 'select: both arms are plain numbers; write cast(condition, "float32")'),
    (lambda: fn.select(N < 3, A[0, 0], Q[0, 0]), "select needs bool and equal types, got bool, float32, int8"),
    (lambda: fn.exp(Q[0, 0]), 'exp: expected a float, got int8; write cast(..., "float32")'),
    (lambda: fn.exp(A), "exp: expected an expression, got Tensor; index the tensor"),
    (lambda: fn.maximum(1.5, 2.5), "maximum: both operands are plain numbers"),
    (lambda: fn.minimum(A, 2.5), "minimum: expected an expression, got Tensor; index the tensor"),
    (lambda: fn.exp(te.max(A[0, K], K)), "max over k: a reduction must be the whole body of a tensor"),
    (lambda: symbol("n", 5, 3), "symbol 'n': expected a range of integers 0 <= lo <= hi, got 5..3"),
    (lambda: symbol("n", 1.5, 3.5), "symbol 'n': expected a range of integers 0 <= lo <= hi, got 1.5..3.5"),
    (lambda: symbol("n", "1", 3), "symbol 'n': expected a range of integers 0 <= lo <= hi, got '1'..3"),
    (lambda: symbol("n") / 2, "`/` of int64 values: the quotient is not of type int64; write // to round down"),
    (lambda: placeholder((Var("x"),), name="P"), "dimension 0: size `x` uses 'x', which is not a symbol"),
    (lambda: placeholder((-1,), name="P"), "placeholder 'P', dimension 0: expected a size of at least 0, got -1"),
    (lambda: placeholder((2.5,), name="P"), "dimension 0: expected an integer or an expression over symbols, got 2.5"),
    (lambda: placeholder((N < 3,), name="P"), "placeholder 'P', dimension 0: expected a size, got `n < 3`"),
]  # fmt: skip


@pytest.mark.parametrize(("define", "message"), REFUSED)
def test_invalid_expressions_are_rejected(define: Callable[[], object], message: str) -> None:
    with pytest.raises(DefinitionError) as e:
        define()
    assert message in str(e.value)
    assert str(e.value).startswith("[definition] ")


def test_unknown_dtype_is_rejected() -> None:
    with pytest.raises(OptionError, match=r"^\[option\] element type 'float31' is not supported; use one of float16, "):
        placeholder((3,), "float31", "P")


def test_duplicate_tensor_names_are_rejected() -> None:
    x, y = placeholder((4,), name="X"), placeholder((4,), name="X")
    with pytest.raises(DefinitionError, match=r"two tensors of the kernel have the name 'X'; give one another name$"):
        collect_stages([compute((4,), lambda i: x[i] + y[i], "Y")])
