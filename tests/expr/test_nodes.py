"""Expressions as objects: equality is identity, literals keep their bits, operators check their types."""

import gc
import math
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from tilewright.errors import DefinitionError
from tilewright.expr.dtype import DTYPES, bfloat16, boolean, float16, float32, float64, int8, int32, int64, uint8
from tilewright.expr.nodes import (
    FALSE,
    TRUE,
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Symbol,
    Unary,
    Var,
    const,
)
from tilewright.expr.operations import cast, conjunction, maximum, select, unary
from tilewright.expr.traversal import conjuncts, free_vars, loads, post_order

X, Y = Var("x"), Var("y")
A = Buffer("A", (const(4), Symbol("n", 1, 8)), float32)


def test_equal_expressions_are_identical() -> None:
    assert Var("x") is X
    assert Var("x") is X
    assert Symbol("x", 0, 3) is not X
    assert A[X, Y + 1] is Load(Buffer("A", (const(4), Symbol("n", 1, 8)), float32), (X, 1 + Y))
    assert Binary("add", X, Y) is Binary("add", X, Y)
    assert const(3) is const(3)
    assert const(3) is not const(3, int32)
    assert const(1, float32) is const(1.0, float32)
    assert const(True, boolean) is TRUE
    assert TRUE is not FALSE


def test_literals_preserve_signed_zero_and_nan() -> None:
    negative, positive = const(-0.0, float32), const(0.0, float32)
    assert negative is not positive
    assert math.copysign(1, negative.value) == -1
    assert const(float("nan"), float32) is const(float("nan"), float32)
    assert const(float("nan"), float64) is not const(float("nan"), float32)
    assert math.isnan(const(float("nan"), float16).value)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_literals_round_to_their_type_like_numpy(dtype) -> None:
    value = 1.1 if dtype.is_float else 1
    assert const(value, dtype).value == np.asarray(value).astype(dtype.numpy).item()


def test_integer_literals_wrap() -> None:
    assert const(300, uint8).value == 44
    assert const(200, int8).value == -56
    assert const(-1, uint8).value == 255
    assert const(1e30, bfloat16).value == pytest.approx(1e30, rel=1e-2)
    assert const(1e300, float32).value == math.inf


def test_float_folding_keeps_ieee_rules() -> None:
    x = A[X, Y]
    zero = const(0.0, float32)
    assert (x * 1.0) is x
    assert (x - 0.0) is x
    assert (x - const(-0.0, float32)) is not x, "-0.0 - -0.0 is 0.0"
    assert (x + 0.0) is not x, "-0.0 + 0.0 is 0.0"
    assert (x * 0.0) is not zero, "inf * 0 is nan"
    assert (x - x) is not zero, "inf - inf is nan"
    assert (x / x) is not const(1.0, float32)
    nan = const(float("nan"), float32)
    assert maximum(nan, const(1.0, float32)) is nan
    assert (nan < 1.0) is FALSE
    assert nan.equals(nan) is FALSE
    assert unary("neg", zero) is const(-0.0, float32)


def test_unused_nodes_are_freed() -> None:
    reference = weakref.ref(Binary("min", Var("short_lived"), const(123456789)))
    gc.collect()
    assert reference() is None
    assert str(Binary("min", Var("short_lived"), const(123456789))) == "min(short_lived, 123456789)"


def test_definition_errors_are_type_errors() -> None:
    assert issubclass(DefinitionError, TypeError)


def test_truth_value_of_an_expression_is_rejected() -> None:
    with pytest.raises(DefinitionError, match=r"the truth value of expression `x < y` is not known here; use select"):
        bool(X < Y)


def test_operands_of_different_types_are_rejected() -> None:
    with pytest.raises(DefinitionError, match=r"operands of 'add' have types float32 and int64; cast one of them$"):
        A[X, Y] + X


def test_select_of_different_types_is_rejected() -> None:
    with pytest.raises(DefinitionError, match=r"select needs bool and equal types, got bool, float32, int64$"):
        select(X < Y, A[X, Y], X)
    with pytest.raises(DefinitionError, match=r"select needs bool and equal types, got int64, float32, float32$"):
        select(X, A[X, Y], A[X, Y])


def test_number_of_indices_is_checked() -> None:
    with pytest.raises(TypeError, match=r"^buffer 'A' has 2 dimensions, got 1 indices$"):
        A[X]


def test_select_and_cast_fold() -> None:
    a, b = A[X, Y], A[Y, X]
    assert select(TRUE, a, b) is a
    assert select(FALSE, a, b) is b
    assert select(X < Y, a, a) is a
    assert cast(float32, a) is a
    assert cast(int32, const(-1.9, float32)) is const(-1, int32)
    assert cast(boolean, const(0.5, float32)) is TRUE


def test_traversal() -> None:
    e = Select(conjunction(X < 3, Y < 4), A[X, Y], Cast(float32, X))
    order = list(post_order(e))
    assert order[-1] is e
    assert all(order.index(c) < order.index(n) for n in order for c in n.children())
    assert free_vars(e) == {X, Y}
    assert loads(e) == (A[X, Y],)
    assert conjuncts(conjunction(X < 3, Y < 4, X < Y)) == (X < 3, Y < 4, X < Y)
    assert conjuncts(TRUE) == ()
    assert conjuncts(X < 3) == (X < 3,)


def test_unary_of_predicates_is_bool() -> None:
    assert Unary("isnan", A[X, Y]).dtype == boolean
    assert isinstance(unary("not", X < Y), Expr)
    assert unary("not", unary("not", X < Y)) is (X < Y)
    assert Const(3, int64).dtype == int64


def test_threads_that_build_a_node_at_once_get_the_same_one():
    """Most of the 400 nodes are built by several of the threads, which switch as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            start = Barrier(8)

            def build(_: int) -> list[Expr]:
                start.wait()
                return [Symbol("of_threads", 1, 9) * 1_000_003 + (k + 7_777_777) for k in range(400)]

            built = list(pool.map(build, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert all(len({id(n) for n in nodes}) == 1 for nodes in zip(*built, strict=True))
