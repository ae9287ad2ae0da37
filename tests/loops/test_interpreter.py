"""The interpreter against NumPy and the evaluation of tensor expressions, point by point and in batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops.programs import M, N, buffer, computation, computations, conv, matmul_relu, random_array

from tilewright.errors import InternalError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import float32
from tilewright.expr.evaluate import evaluate
from tilewright.expr.nodes import Var, const
from tilewright.loops.interpreter import interpret
from tilewright.loops.lowering import lower_to_loops
from tilewright.loops.parser import parse
from tilewright.verify.verifier import verify


@given(computations(), st.integers(1, 6), st.integers(0, 2**32 - 1), st.sampled_from((1 << 18, 7, 1)))
def test_interpreter_agrees_with_expression_evaluation(case, n: int, seed: int, chunk: int) -> None:
    c, inputs = case
    func = lower_to_loops("f", [c], [*inputs, c.output], [N])
    verify(func)
    rng = np.random.default_rng(seed)
    shapes = {b.name: tuple(n if s is N else int(str(s)) for s in b.shape) for b in (*inputs, c.output)}
    arrays = {b.name: random_array(shapes[b.name], b.dtype, rng) for b in (*inputs, c.output)}
    expected = evaluate(c, arrays, {N: n})
    interpret(func, arrays, {N: n}, batch_size=chunk)
    actual = arrays["OUT"]
    if c.output.dtype.is_float:
        # Sums and products are rounded after every step here and once there.
        eps = float(2.0 ** -{"float64": 48, "float32": 20, "float16": 7, "bfloat16": 4}[c.output.dtype.name])
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=eps, atol=eps * 64)
    else:
        np.testing.assert_array_equal(actual, expected)


@given(computations(), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_batches_do_not_change_a_bit(case, n: int, seed: int) -> None:
    c, inputs = case
    func = lower_to_loops("f", [c], [*inputs, c.output], [N])
    rng = np.random.default_rng(seed)
    results = []
    shapes = {b: tuple(n if s is N else int(str(s)) for s in b.shape) for b in func.params}
    first = {b.name: random_array(shape, b.dtype, rng) for b, shape in shapes.items()}
    for chunk in (1 << 18, 3, 1):
        arrays = {name: a.copy() for name, a in first.items()}
        interpret(func, arrays, {"N": n}, batch_size=chunk)
        results.append(arrays["OUT"].tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.parametrize("seed", [None, 1])
def test_matmul_in_loop_order(m: int, seed: int | None) -> None:
    rng = np.random.default_rng(m)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, 64), (64, 32)))
    out = np.empty((m, 32), np.float32)
    interpret(matmul_relu(), {"A": a, "B": b, "D": out}, {M: m}, seed=seed)
    total = np.zeros((m, 32), np.float32)
    for k in range(64):
        total = total + a[:, k : k + 1] * b[k]
    np.testing.assert_array_equal(out, np.maximum(total, 0))


def test_conv_against_numpy() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 8, 15, 15)), rng.standard_normal((4, 8, 3, 3))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    expected = np.einsum("nchwyx,ocyx->nohw", windows, w)
    out = np.empty((2, 4, 8, 8), np.float32)
    interpret(conv(), {"X": x.astype(np.float32), "W": w.astype(np.float32), "Y": out}, {"N": 2})
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


TILED = """
func sums(A: float32[N, 8], B: float32[N]; N: 1..6):
    alloc T: float32[8] in stack
    for i in parallel(N):
        for j in vectorized(8):
            block T(a: N = i, b: 8 = j):
                T[b] = A[a, b] * 2.0
        for k in serial(8):
            block B(c: N = i, reduce d: 8 = k) where k < 5:
                init B[c] = 1.0
                B[c] = B[c] + T[d]
"""


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("chunk", [1 << 18, 1])
def test_blocks_that_share_loops(seed: int | None, chunk: int) -> None:
    rng = np.random.default_rng(3)
    a, out = rng.standard_normal((4, 8)).astype(np.float32), np.empty(4, np.float32)
    interpret(parse(TILED), {"A": a, "B": out}, {"N": 4}, seed=seed, batch_size=chunk)
    np.testing.assert_allclose(out, 1 + 2 * a[:, :5].sum(axis=1), rtol=1e-5)


RACE = """
func shift(A: int32[16], B: int32[17]):
    for i in parallel(16):
        block B(v: 16 = i):
            B[v + 1] = B[v] + A[v]
"""


def test_a_seed_exposes_races() -> None:
    """Each iteration reads what another writes, so the order shows."""
    a = np.arange(1, 17, dtype=np.int32)
    results = set()
    for seed in (None, 0, 1, 2):
        b = np.zeros(17, np.int32)
        interpret(parse(RACE), {"A": a, "B": b}, {}, seed=seed)
        results.add(b.tobytes())
    assert len(results) > 1


def test_scans_run_point_by_point() -> None:
    a, b = np.arange(1, 17, dtype=np.int32), np.zeros(17, np.int32)
    interpret(parse(RACE.replace("parallel", "serial")), {"A": a, "B": b}, {})
    np.testing.assert_array_equal(b[1:], np.cumsum(a))


def test_unwritten_memory_is_nan() -> None:
    func = parse("""
func f(A: float32[4]):
    alloc T: float32[4]
    for i in serial(3):
        block T(v: 4 = i):
            T[v] = 1.0
    for j in serial(4):
        block A(w: 4 = j):
            A[w] = T[w]
""")
    out = np.zeros(4, np.float32)
    interpret(func, {"A": out}, {})
    assert np.isnan(out).tolist() == [False, False, False, True]


def test_loops_whose_extent_depends_on_an_outer_loop() -> None:
    func = parse("""
func triangle(A: float32[5, 5]):
    for i in serial(5):
        for j in serial(5):
            block A(v: 5 = i, w: 5 = j):
                A[v, w] = 0.0
    for k in serial(5):
        for l in serial(k + 1):
            block B(x: 5 = k, y: 5 = l):
                A[x, y] = 1.0
""")
    out = np.empty((5, 5), np.float32)
    interpret(func, {"A": out}, {})
    np.testing.assert_array_equal(out, np.tril(np.ones((5, 5), np.float32)))


ONE = "func f(A: float32[8], B: float32[8]):\n  for i in serial(8):\n    block B(v: 8 = i):\n      "


@pytest.mark.parametrize(("text", "message"), [
    ("B[v + 1] = A[v]", "block 'B': index 1..8 of buffer 'B' leaves axis 0 of size 8"),
    ("B[v] = A[v - 1]", "block 'B': index -1..6 of buffer 'A' leaves axis 0 of size 8"),
    ("B[v] = select(v < 8, A[v * 2], 0.0)", "block 'B': index 0..14 of buffer 'A' leaves axis 0 of size 8"),
])  # fmt: skip
def test_an_index_out_of_range_is_named(text: str, message: str) -> None:
    func = parse(ONE + text + "\n")
    with pytest.raises(InternalError) as error:
        interpret(func, {"A": np.ones(8, np.float32), "B": np.ones(8, np.float32)}, {})
    assert message in str(error.value)


def test_an_untaken_arm_is_not_evaluated() -> None:
    text = "B[v] = select(0 <= v - 1, A[v - 1], 9.0)"
    func = parse(ONE + text + "\n")
    a, b = np.arange(8, dtype=np.float32), np.empty(8, np.float32)
    interpret(func, {"A": a, "B": b}, {})
    np.testing.assert_array_equal(b, [9, *a[:-1]])


def test_a_binding_out_of_its_domain_is_named() -> None:
    func = parse("func f(B: float32[8]):\n  for i in serial(8):\n    block B(v: 7 = i):\n      B[v] = 1.0\n")
    with pytest.raises(InternalError, match=r"block 'B': binding 0\.\.7 of 'v' leaves its domain of 7"):
        interpret(func, {"B": np.ones(8, np.float32)}, {})


@pytest.mark.parametrize(("arrays", "symbols", "message"), [
    ({}, {"N": 2}, "func 'sums': parameter 'A' has no array"),
    ({"A": np.ones((2, 8))}, {"N": 2}, "parameter 'A': expected float32[2, 8], got float64[2, 8]"),
    ({"A": np.ones((3, 8), np.float32)}, {"N": 2}, "parameter 'A': expected float32[2, 8], got float32[3, 8]"),
    ({}, {}, "symbol 'N' has no value"),
])  # fmt: skip
def test_arguments_are_checked(arrays, symbols, message: str) -> None:
    with pytest.raises(InternalError) as error:
        interpret(parse(TILED), arrays, symbols)
    assert message in str(error.value)


@pytest.mark.parametrize("reducer", Reducer)
def test_reductions_of_nan(reducer: Reducer) -> None:
    i, k = Var("i"), Var("k")
    x = buffer("X", 2, 3)
    c = computation("R", {i: 2}, {k: 3}, x[i, k], reducer)
    out = np.empty(2, np.float32)
    data = np.array([[1, np.nan, 2], [3, -2, 4]], np.float32)
    interpret(lower_to_loops("f", [c], [x, c.output], []), {"X": data, "R": out}, {})
    assert np.isnan(out[0])
    assert out[1] == {"sum": 5, "prod": -24, "max": 4, "min": -2}[reducer.value]


def test_negative_zero_survives() -> None:
    i = Var("i")
    c = computation("R", {i: 3}, {}, const(-0.0, float32))
    out = np.ones(3, np.float32)
    interpret(lower_to_loops("f", [c], [c.output], []), {"R": out}, {})
    assert np.signbit(out).all()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_first_lane_of_a_horizontal_reduction_runs_the_init(seed: int | None) -> None:
    text = """
func f(A: float32[8], U: float32[1]):
    for l in vectorized(8):
        block C(v: 1 = 0, reduce k: 8 = l):
            init U[v] = 0.0
            U[v] = U[v] + A[k]
"""
    a, u = np.arange(8, dtype=np.float32), np.full(1, np.nan, np.float32)
    interpret(parse(text), {"A": a, "U": u}, {}, seed=seed)
    assert u[0] == a.sum()
