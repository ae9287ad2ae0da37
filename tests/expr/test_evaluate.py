"""Scalar semantics: literals fold to what evaluation gives, evaluation gives what NumPy gives, indices are checked."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops.programs import buffer, computation

from tilewright.errors import InternalError, OptionError
from tilewright.expr.computation import Reducer, View, iteration_space_size
from tilewright.expr.dtype import DTYPES, DType, boolean, dtype_of, float16, float32, float64, int8, int32, int64
from tilewright.expr.evaluate import Environment, evaluate, evaluate_expr
from tilewright.expr.nodes import Binary, BinaryOp, Cast, Const, Symbol, Unary, UnaryOp, Var, as_expr, const
from tilewright.expr.operations import binary, cast, select, unary

I, J, K = Var("i"), Var("j"), Var("k")  # noqa: E741 - the axes of matrices
N = Symbol("N", 1, 9)
NOTHING = Environment({}, {})

_LOGIC = ("and", "or", "xor")
_BOOLEAN = (*_LOGIC, "eq", "ne", "min", "max")
_INTEGER = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "eq", "ne", "lt", "le", "gt", "ge", *_LOGIC)
_FLOAT = ("add", "sub", "mul", "div", "floordiv", "mod", "fmod", "min", "max", "pow", "eq", "lt", "le", "gt", "ge")


def same(a, b) -> bool:
    """Equal bits, any NaN equal to any other."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and (a.tobytes() == b.tobytes() or bool(a != a and b != b))


@st.composite
def operations(draw: st.DrawFn) -> tuple[BinaryOp, Const, Const]:
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    ops = _FLOAT if dtype.is_float else _BOOLEAN if dtype == boolean else _INTEGER
    if dtype.is_float:
        values = st.one_of(st.floats(-100, 100), st.sampled_from((0.0, -0.0, np.inf, -np.inf, np.nan)))
    else:
        values = st.booleans() if dtype == boolean else st.integers(-300, 300)
    return draw(st.sampled_from(ops)), const(draw(values), dtype), const(draw(values), dtype)


@given(operations())
def test_folded_binary_operations_match_evaluation(case: tuple[BinaryOp, Const, Const]) -> None:
    op, a, b = case
    if a.dtype.is_int and op in ("floordiv", "mod") and b.value == 0:
        assert isinstance(binary(op, a, b), Binary), "a division by zero is left to whoever runs it"
        return
    folded = binary(op, a, b)
    assert isinstance(folded, Const)
    assert same(evaluate_expr(folded, NOTHING), evaluate_expr(Binary(op, a, b), NOTHING)), (op, a, b, folded)


@given(st.sampled_from(get_args(UnaryOp)), st.floats(width=32), st.sampled_from((float16, float32, float64)))
def test_folded_functions_match_evaluation(op: UnaryOp, x: float, dtype: DType) -> None:
    if op == "not":
        return
    a = const(x, dtype)
    folded = unary(op, a)
    assert isinstance(folded, Const)
    assert same(evaluate_expr(folded, NOTHING), evaluate_expr(Unary(op, a), NOTHING)), (op, a, folded)


@given(st.sampled_from(list(DTYPES.values())), st.sampled_from(list(DTYPES.values())), st.integers(-300, 300))
def test_folded_casts_match_evaluation(source: DType, target: DType, x: int) -> None:
    a = const(x, source)
    unsigned = target.kind == "u" and source.is_float and a.value < 0
    if unsigned or (source.is_float and target.is_int and abs(a.value) >= 1 << (target.bits - 1)):
        return  # out of range of the type: no value is promised
    assert same(evaluate_expr(cast(target, a), NOTHING), evaluate_expr(Cast(target, a), NOTHING)), (source, target, x)


@pytest.mark.parametrize(("a", "b", "quotient", "remainder", "fraction"), [
    (7, 3, 2, 1, 1), (-7, 3, -3, 2, -1), (7, -3, -3, -2, 1), (-7, -3, 2, -1, -1),
])  # fmt: skip
def test_division_rounding(a: int, b: int, quotient: int, remainder: int, fraction: int) -> None:
    for dtype in (int8, int32, int64, float32):
        x, y = const(a, dtype), const(b, dtype)
        assert binary("floordiv", x, y) is const(quotient, dtype)
        assert binary("mod", x, y) is const(remainder, dtype)
        if dtype.is_float:
            assert binary("fmod", x, y) is const(fraction, dtype)


def test_integer_division_by_zero_does_not_fold() -> None:
    assert str(binary("floordiv", const(3), const(0))) == "3 // 0"
    assert str(binary("mod", const(3, int32), const(0, int32))) == "int32(3) % int32(0)"


@pytest.mark.parametrize("reducer", Reducer)
@pytest.mark.parametrize("dtype", [float16, float32, float64, int8, int64], ids=str)
def test_reductions(reducer: Reducer, dtype: DType) -> None:
    x = np.random.default_rng(1).integers(1, 4, (3, 5)).astype(dtype.numpy)
    source = buffer("X", 3, 5, dtype=dtype)
    c = computation("R", {I: 3}, {K: 5}, source[I, K], reducer)
    actual = evaluate(c, {"X": x}, {})
    function = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}[reducer.value]
    np.testing.assert_array_equal(actual, function(x.astype(np.float64), axis=1).astype(dtype.numpy))
    assert actual.dtype == dtype.numpy


@pytest.mark.parametrize("reducer", [Reducer.SUM, Reducer.PROD])
def test_reductions_overflow_to_infinity_without_a_warning(reducer: Reducer) -> None:
    source = buffer("X", 2, 3, dtype=float16)
    c = computation("R", {I: 2}, {K: 3}, source[I, K], reducer)
    actual = evaluate(c, {"X": np.array([[6e4, 6e4, 1], [1, 2, 3]], np.float16)}, {})
    np.testing.assert_array_equal(actual, np.array([np.inf, 6], np.float16))


@pytest.mark.parametrize("n", [1, 4, 9])
def test_matmul_of_symbolic_size(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, 7)).astype(np.float32), rng.standard_normal((7, n)).astype(np.float32)
    x, y = buffer("A", N, 7), buffer("B", 7, N)
    c = computation("C", {I: N, J: N}, {K: 7}, x[I, K] * y[K, J], Reducer.SUM)
    np.testing.assert_allclose(evaluate(c, {"A": a, "B": b}, {N: n}), a @ b, rtol=1e-6, atol=1e-6)


def test_reducer_identities_are_neutral() -> None:
    for reducer in Reducer:
        for dtype in DTYPES.values():
            if dtype == boolean and reducer in (Reducer.SUM, Reducer.PROD):
                continue
            for x in (const(1, dtype), const(0, dtype)):
                assert binary(reducer.op, reducer.identity(dtype), x) is x


def test_loads_of_untaken_select_arms_may_be_out_of_bounds() -> None:
    x = buffer("X", 4)
    c = computation("Y", {I: 6}, {}, select(I < 4, x[I], const(9.0, float32)))
    data = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(evaluate(c, {"X": data}, {}), [0, 1, 2, 3, 9, 9])


def test_out_of_bounds_index_is_reported() -> None:
    x = buffer("X", 4)
    c = computation("Y", {I: 6}, {}, x[I])
    with pytest.raises(InternalError, match=r"index 0\.\.5 of 'X' leaves axis 0 of size 4"):
        evaluate(c, {"X": np.zeros(4, np.float32)}, {})


def test_missing_values_are_reported() -> None:
    x = buffer("X", N)
    c = computation("Y", {I: N}, {}, x[I])
    with pytest.raises(InternalError, match="variable 'N' has no value"):
        evaluate(c, {"X": np.zeros(4, np.float32)}, {})
    with pytest.raises(InternalError, match="buffer 'X' has no value"):
        evaluate(c, {}, {N: 4})


def test_views() -> None:
    data = np.arange(12, dtype=np.float32)
    view = View(buffer("V", 3, 4), buffer("X", 12))
    np.testing.assert_array_equal(evaluate(view, {"X": data}, {}), data.reshape(3, 4))
    assert str(view) == "V = view(X)"


def test_iteration_space_size_of_a_computation() -> None:
    x, y = buffer("A", N, 7), buffer("B", 7, 3)
    c = computation("C", {I: N, J: 3}, {K: 7}, x[I, K] * y[K, J], Reducer.SUM)
    assert iteration_space_size(c.axes) is N * 3
    assert [b.name for b in c.inputs] == ["A", "B"]
    assert str(c) == "C[i, j] = sum(A[i, k] * B[k, j] for k in 7)  for i in N; j in 3"


def test_dtypes_by_name() -> None:
    assert dtype_of("float32") is float32
    assert dtype_of(np.dtype(np.int8)) is int8
    assert dtype_of(float16) is float16
    assert [t.bytes for t in DTYPES.values()] == [t.numpy.itemsize for t in DTYPES.values()]
    with pytest.raises(OptionError, match="element type 'complex64' is not supported; use one of float16, bfloat16"):
        dtype_of("complex64")
    assert as_expr(3) is const(3)
