"""Data at the ends of int64, in native code and in the interpreter, against NumPy; programs that would read elsewhere.

NumPy computes from the arrays, not from the simplified expressions, so it also sees what simplification gets wrong.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expr.wrapping import STEPS, Step, followed, leaves, values
from tests.frontend.onnx_models import add_initializer, model

import tilewright as tw
from tilewright.errors import ShapeError, VerifyError
from tilewright.expr.nodes import Expr
from tilewright.loops.interpreter import interpret

VALUES = values()
COUNT = len(VALUES["i"])
I, J, K = (tw.placeholder((COUNT,), t, name) for name, t in (("I", "int64"), ("J", "int64"), ("K", "int8")))  # noqa: E741


@settings(max_examples=6, deadline=None)
@given(st.lists(STEPS, min_size=3, max_size=8))
def test_native_code_and_interpreter_wrap_as_numpy_does(programs: list[list[Step]]) -> None:
    expected: list[np.ndarray] = []

    def one(steps: list[Step], name: str) -> tw.Tensor:
        def body(p: Expr) -> Expr:
            pair = followed(steps, leaves(I[p], J[p], K[p], p % 3))[-1]
            with np.errstate(all="ignore"):
                expected.append(pair.value(VALUES))
            return pair.e

        return tw.compute((COUNT,), body, name)

    outputs = [one(steps, f"out{n}") for n, steps in enumerate(programs)]
    s = tw.create_schedule(*outputs, inputs=[I, J, K])
    inputs = {name: VALUES[name] for name in ("I", "J", "K")}
    computed = {t.name: np.zeros(COUNT, np.int64) for t in outputs}
    interpret(s.func, {**inputs, **computed}, {})
    native = s.build()(**inputs)
    native = native if isinstance(native, tuple) else (native,)
    for t, mine, w in zip(outputs, native, expected, strict=True):
        np.testing.assert_array_equal(mine, w, err_msg=str(s))
        np.testing.assert_array_equal(computed[t.name], w, err_msg=str(s))


@settings(max_examples=6, deadline=None)
@given(STEPS, st.sampled_from(((tw.sum, np.sum), (tw.prod, np.prod))))
def test_sums_and_products_of_any_formula(
    steps: list[Step], over: tuple[Callable[..., Expr], Callable[..., int]]
) -> None:
    """A sum of `A[k] + 1` is one: what is stored stays an addition to the element, in whatever order its terms are."""
    mine, numpy = over
    expected: list[np.ndarray] = []

    def body(p: Expr) -> Expr:
        k = tw.reduce_axis(COUNT, "k")
        pair = followed(steps, leaves(I[k], J[k], K[k], k % 3))[-1]
        with np.errstate(all="ignore"):
            expected.append(numpy(pair.value(VALUES)))
        return mine(pair.e, k)

    s = tw.create_schedule(tw.compute((1,), body, "out"), inputs=[I, J, K])
    native = s.build()(**{name: VALUES[name] for name in ("I", "J", "K")})
    np.testing.assert_array_equal(native, expected)


@pytest.mark.parametrize("optimizer", ["rule", "gensor"])
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceProd"])
@pytest.mark.parametrize("body", ["Add(x, one)", "Mul(x, two)", "Sub(one, x)", "Add(x, x)", "Where(b, big, one)"])
def test_reductions_of_what_is_computed_inside(operator: str, body: str, optimizer: str) -> None:
    proto = model(f"b = Greater(x, one)  c = {body}  d = Add(c, one)  y = {operator} <axes = [1], keepdims = 0> (d)",
                  inputs="int64[3, 40] x", outputs="int64[3] y", opset=11)  # fmt: skip
    for name, value in (("one", 1), ("two", 2), ("big", 2**63 - 1)):
        add_initializer(proto, name, np.array([value]))
    x = np.random.default_rng(3).integers(-9, 9, (3, 40))
    with np.errstate(all="ignore"):
        c = {"Add(x, one)": x + 1, "Mul(x, two)": x * 2, "Sub(one, x)": 1 - x, "Add(x, x)": x + x,
             "Where(b, big, one)": np.where(x > 1, 2**63 - 1, 1)}[body]  # fmt: skip
        expected = (np.sum if operator == "ReduceSum" else np.prod)(c + 1, axis=1)
    np.testing.assert_array_equal(tw.compile(proto, optimizer=optimizer, threads=1)(x), expected)


A = tw.placeholder((10,), "uint8", "A")
N = tw.symbol("n")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (lambda x, i: tw.minimum(tw.maximum(x, 0) + 3, 9), "is not proved >= 0"),
        (lambda x, i: tw.minimum(tw.maximum(x, 0) * 2, 9), "is not proved >= 0"),
        (lambda x, i: tw.maximum(tw.minimum(x, 9) - 7, 0), "is not proved < 10"),
        (lambda x, i: tw.minimum(tw.maximum(x, 0) + i, 9), "is not proved >= 0"),
        (lambda x, i: tw.minimum(x * x, 9), "is not proved >= 0"),
        (lambda x, i: tw.minimum(tw.abs(x), 9), "is not proved >= 0"),
        (lambda x, i: tw.minimum(tw.maximum(x, 0) + N, 9), "is not proved >= 0"),
    ],
)
def test_index_that_may_overflow_is_rejected(index: Callable[[Expr, Expr], Expr], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        tw.create_schedule(tw.compute((4,), lambda i: A[index(I[i], i)], "C"))


def test_guard_on_an_overflowing_value_does_not_prove_bounds() -> None:
    with pytest.raises(VerifyError, match="is not proved >= 0"):
        tw.create_schedule(tw.compute((4,), lambda i: tw.select((I[i] - 1 >= 0) & (I[i] < 10), A[I[i] - 1], A[0]), "C"))


@pytest.mark.parametrize("power", [3, 4])
def test_sizes_whose_products_leave_int64_are_refused_by_the_call(power: int) -> None:
    def index(i: Expr) -> Expr:
        product: Expr = N
        for _ in range(power - 1):
            product = product * N
        return A[tw.minimum(product + i, 9)]

    k = tw.create_schedule(tw.compute((4,), index, "C")).build()
    np.testing.assert_array_equal(k(np.arange(10, dtype=np.uint8), n=2), np.minimum(2**power + np.arange(4), 9))
    with pytest.raises(ShapeError, match="more than 2\\^46 bytes or 2\\^62 operations: n=16777215"):
        k(np.arange(10, dtype=np.uint8), n=16777215)


def test_positions_that_leave_int64_are_refused_by_the_verifier() -> None:
    with pytest.raises(VerifyError, match=r"may reach [0-9]+, but numbers computed from sizes and loop variables"):
        tw.create_schedule(tw.compute((1 << 20, 8), lambda i, j: A[tw.minimum(i * (1 << 50) + j, 9)], "C"))


def _taken(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    return np.where((x >= 0) & (x < 10), table[np.clip(x, 0, 9)], 0)


@pytest.mark.parametrize(
    ("dtype", "body", "numpy"),
    [
        ("int32", lambda x, t: tw.select((x >= 0) & (x < 10), t[tw.cast(x, "int64")], tw.cast(x * 0, "uint8")), _taken),
        ("int8", lambda x, t: t[tw.cast(x % 10, "int64")], lambda x, t: t[x % 10]),
        ("int8", lambda x, t: t[tw.cast(tw.cast(x, "uint8"), "int64")], lambda x, t: t[x.astype(np.uint8)]),
        ("int8", lambda x, t: t[tw.cast(x, "int64") + 128], lambda x, t: t[x.astype(np.int64) + 128]),
        ("int64", lambda x, t: t[tw.minimum(tw.maximum(x * 3 + 5, 0), 9)], lambda x, t: t[np.clip(x * 3 + 5, 0, 9)]),
        ("int64", lambda x, t: t[x % 10], lambda x, t: t[x % 10]),
    ],
)  # fmt: skip
def test_indices_of_any_type_that_stay_inside(
    dtype: str, body: Callable[..., Expr], numpy: Callable[..., np.ndarray]
) -> None:
    ends = np.iinfo(dtype)
    x = np.array([ends.min, ends.min + 1, -11, -1, 0, 1, 9, 10, 99, ends.max - 1, ends.max], dtype)
    table = np.arange(256, dtype=np.uint8)[::-1].copy()
    source, t = tw.placeholder((len(x),), dtype, "x"), tw.placeholder((256,), "uint8", "t")
    k = tw.create_schedule(tw.compute((len(x),), lambda i: body(source[i], t), "C"), inputs=[source, t]).build()
    np.testing.assert_array_equal(k(x, table), numpy(x, table))
