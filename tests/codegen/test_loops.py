"""Loops, predicates, lazy selects and access patterns: native code against the interpreter."""

import numpy as np
import pytest
from tests.codegen.native import TARGETS, Native, check, compare

from tilewright.codegen import emit_llvm
from tilewright.loops.interpreter import interpret
from tilewright.loops.parser import parse
from tilewright.machine import Target

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 15, 16, 17, 100])
def test_masked_tail(target: str, n: int) -> None:
    func = parse("""
func scale(X: float32[N], Y: float32[N]; N: 1..1000):
    for o in parallel((N + 15) // 16):
        for l in vectorized(16):
            block Y(v: N = o * 16 + l) where o * 16 + l < N:
                Y[v] = X[v] * 2.0 + 1.0
""")
    check(func, {"X": normal(n), "Y": normal(n)}, {"N": n}, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "bfloat16", "bool", "float64", "int64"])
def test_masked_tail_of_every_width(target: str, dtype: str) -> None:
    func = parse(f"""
func move(X: {dtype}[N], Y: {dtype}[N]; N: 1..1000):
    for o in serial((N + 12) // 13):
        for l in vectorized(13):
            block Y(v: N = o * 13 + l) where o * 13 + l < N:
                Y[v] = X[N - 1 - v]
""")
    numpy_dtype = func.params[0].dtype.numpy
    x = (RNG.standard_normal(40) * 50).astype(numpy_dtype)
    check(func, {"X": x, "Y": x.copy()}, {"N": 40}, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_parallel_loop_runs_every_iteration_once(target: str, threads: int) -> None:
    func = parse("""
func rows(X: float32[M, 33], Y: float32[M, 33]; M: 0..100):
    for k in serial(2):
        for i in parallel(M):
            for j in serial(33):
                block Y(a: M = i, b: 33 = j, c: 2 = k):
                    Y[a, b] = X[a, b] + cast(float32, a * 100 + b + c)
""")
    native = Native(func, target=target)
    for m in (0, 1, 2, 5, 64):
        compare(native, {"X": normal(m, 33), "Y": normal(m, 33)}, {"M": m}, threads=(threads,))


@pytest.mark.parametrize("target", TARGETS)
def test_nested_parallel_and_stack_buffers(target: str) -> None:
    func = parse("""
func stack(X: float32[20, 30], Y: float32[20, 30]):
    alloc T: float32[30] in stack
    alloc S: float32[4] in stack
    for s in serial(4):
        block S(v: 4 = s):
            S[v] = cast(float32, v) + 0.5
    for i in parallel(20):
        for j in vectorized(30):
            block T(a: 20 = i, b: 30 = j):
                T[b] = X[a, b] * 3.0
        for j2 in parallel(30):
            block Y(a2: 20 = i, b2: 30 = j2):
                Y[a2, b2] = T[29 - b2] + S[b2 % 4]
""")
    check(func, {"X": normal(20, 30), "Y": normal(20, 30)}, target=target)


@pytest.mark.parametrize("name", ["position", "share", "threads"])
@pytest.mark.parametrize("target", TARGETS)
def test_outer_loop_variable_is_captured_by_parallel_loops(target: str, name: str) -> None:
    """Whatever its name: counters of the generated code have names that no loop variable can have."""
    func = parse(f"""
func both(X: float32[4, 5, 6], Y: float32[4, 5, 6], Z: float32[4, 5]):
    for {name} in serial(4):
        for i in parallel(5):
            for j in parallel(6):
                block Y(a: 4 = {name}, b: 5 = i, c: 6 = j):
                    Y[a, b, c] = X[a, b, c] * 2.0
        for k in parallel(5):
            block Z(d: 4 = {name}, e: 5 = k):
                Z[d, e] = X[d, e, 0] + 1.0
""")
    check(func, {"X": normal(4, 5, 6), "Y": normal(4, 5, 6), "Z": normal(4, 5)}, target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("index", ["2 * v", "v * 3 + 1", "62 - 2 * v", "v // 4", "v % 5", "7", "v * v // 16",
                                   "min(v, 10)", "(v + 3) % 16", "(v + 13) // 7", "v * S", "(v + S) % 7"])  # fmt: skip
def test_access_patterns(target: str, index: str) -> None:
    func = parse(f"""
func pick(X: float32[64], Y: float32[3, 16], Z: float32[64]; S: 1..3):
    for i in serial(3):
        for l in vectorized(16):
            block Y(a: 3 = i, v: 16 = l):
                Y[a, v] = X[{index}] + cast(float32, a)
    for m in vectorized(16):
        block Z(v2: 16 = m):
            Z[v2 * 2 + 1] = X[63 - v2] * 2.0
""")
    check(func, {"X": normal(64), "Y": normal(3, 16), "Z": normal(64)}, {"S": 2}, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("loops", ["serial vectorized", "serial serial", "unrolled unrolled", "vectorized serial",
                                   "parallel vectorized", "vectorized unrolled"])  # fmt: skip
def test_padded_convolution_stays_in_bounds(target: str, loops: str) -> None:
    outer, inner = loops.split()
    inside = "a + r >= 1 and a + r < 10 and b + s >= 1 and b + s < 12"
    func = parse(f"""
func conv(X: float32[9, 11], W: float32[3, 3], Y: float32[9, 11]):
    for i in {outer}(9):
        for j in {inner}(11):
            for p in serial(3):
                for q in serial(3):
                    block Y(a: 9 = i, b: 11 = j, reduce r: 3 = p, reduce s: 3 = q):
                        init Y[a, b] = 0.0
                        Y[a, b] = Y[a, b] + select({inside}, X[a + r - 1, b + s - 1], 0.0) * W[r, s]
""")
    check(func, {"X": normal(9, 11), "W": normal(3, 3), "Y": normal(9, 11)}, target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_select_arms_stay_in_bounds(target: str) -> None:
    func = parse("""
func join(A: float32[5, 7], B: float32[3, 7], C: float32[2, 7], Y: float32[10, 7]):
    for i in parallel(10):
        for j in vectorized(7):
            block Y(a: 10 = i, b: 7 = j):
                Y[a, b] = select(a < 5, A[a, b], select(a < 8, B[a - 5, b], C[a - 8, b]))
""")
    check(func, {"A": normal(5, 7), "B": normal(3, 7), "C": normal(2, 7), "Y": normal(10, 7)}, target=target)
    func = parse("""
func lanes(A: float32[5], B: float32[3], C: float32[2], D: float32[1], Y: float32[10], Z: float32[10]):
    for j in vectorized(10):
        block Y(b: 10 = j):
            Y[b] = select(b < 5, A[b], select(b < 8, exp(B[b - 5]), C[b - 8]))
    for k in vectorized(10):
        block Z(c: 10 = k):
            Z[c] = select(c < 5, A[c], 0.0) + select(c == 7, D[c - 7] + D[0], A[4])
""")
    arrays = {"A": normal(5), "B": normal(3), "C": normal(2), "D": normal(1), "Y": normal(10), "Z": normal(10)}
    check(func, arrays, target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_gather_with_negative_indices(target: str, kind: str) -> None:
    func = parse(f"""
func gather(X: float32[7, 6], I: int64[12], Y: float32[12, 6], Z: float32[12]):
    for i in serial(12):
        for j in {kind}(6):
            block Y(a: 12 = i, b: 6 = j):
                Y[a, b] = X[select(I[a] < 0, I[a] + 7, I[a]), b]
    for k in {kind}(12):
        block Z(c: 12 = k):
            Z[c] = X[select(I[c] < 0, I[c] + 7, I[c]), c % 6] + select(I[c] > 2, X[I[c], 0], -1.0)
""")
    indices = RNG.integers(-7, 7, 12)
    check(func, {"X": normal(7, 6), "I": indices, "Y": normal(12, 6), "Z": normal(12)}, target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("op", "first"), [("{0} + {1}", "0.0"), ("max({0}, {1})", "float32('-inf')"),
                                           ("min({1}, {0})", "float32('inf')"), ("{0} * {1}", "1.0")])  # fmt: skip
def test_horizontal_reductions(target: str, op: str, first: str) -> None:
    update = op.format("Y[a]", "X[a, r]")
    func = parse(f"""
func rows(X: float32[5, K], Y: float32[5]; K: 1..200):
    for i in parallel(5):
        for o in serial((K + 15) // 16):
            for l in vectorized(16):
                block Y(a: 5 = i, reduce r: K = o * 16 + l) where o * 16 + l < K:
                    init Y[a] = {first}
                    Y[a] = {update}
""")
    native = Native(func, target=target)
    for k in (1, 16, 50):
        compare(native, {"X": normal(5, k), "Y": normal(5)}, {"K": k})


@pytest.mark.parametrize("target", TARGETS)
def test_other_vectorized_reductions(target: str) -> None:
    func = parse("""
func rows(X: int32[5, 24], Y: int32[5], Z: int32[24], A: float32[24], W: float32[1]):
    for i in serial(5):
        for o in unrolled(2):
            for l in vectorized(12):
                block Y(a: 5 = i, reduce r: 24 = o * 12 + l):
                    init Y[a] = int32(0)
                    Y[a] = Y[a] + X[a, r]
    for j in vectorized(24):
        for k in serial(5):
            block Z(b: 24 = j, reduce s: 5 = k):
                init Z[b] = int32(1)
                Z[b] = Z[b] * X[s, b]
    for m in serial(3):
        for n in vectorized(8):
            block W(reduce t: 24 = 23 - (m * 8 + n)):
                init W[0] = 0.0
                W[0] = W[0] * 0.5 + A[t]
""")
    x = RNG.integers(-9, 9, (5, 24)).astype(np.int32)
    arrays = {"X": x, "Y": x[:, 0].copy(), "Z": x[0].copy(), "A": normal(24), "W": normal(1)}
    # the last block is no accumulation; its lanes run in the order of the loop
    check(func, arrays, target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_serial_loops_in_a_vectorized_one(target: str) -> None:
    func = parse("""
func softmax(X: float32[8, 40], Y: float32[8, 40]):
    alloc M: float32[8] in stack
    alloc S: float32[8] in stack
    for i in vectorized(8):
        for j in serial(40):
            block M(a: 8 = i, reduce r: 40 = j):
                init M[a] = float32('-inf')
                M[a] = max(M[a], X[a, r])
        for k in serial(40):
            block S(b: 8 = i, reduce s: 40 = k):
                init S[b] = 0.0
                S[b] = S[b] + exp(X[b, s] - M[b])
        for l in serial(40):
            block Y(c: 8 = i, d: 40 = l):
                Y[c, d] = exp(X[c, d] - M[c]) / S[c]
""")
    check(func, {"X": normal(8, 40), "Y": normal(8, 40)}, target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_zero_extents(target: str, n: int) -> None:
    func = parse("""
func empty(X: float32[N, 4], Y: float32[N, 4]; N: 0..9):
    for i in parallel(N):
        for j in vectorized(4):
            block Y(a: N = i, b: 4 = j):
                Y[a, b] = neg(X[a, b])
    for k in serial(N // 2):
        for l in serial(4):
            block Z(c: N = k, d: 4 = l):
                Y[c, d] = Y[c, d] * 2.0
""")
    check(func, {"X": normal(n, 4), "Y": normal(n, 4)}, {"N": n}, target)


@pytest.mark.parametrize("target", TARGETS)
def test_several_functions_in_one_module(target: str) -> None:
    texts = [f"""
func f{k}(X: float32[10], Y: float32[10]):
    for i in parallel(10):
        block Y(a: 10 = i):
            Y[a] = X[a] * {k}.0
""" for k in (2, 3)]  # fmt: skip
    funcs = [parse(t) for t in texts]
    native = Native(*funcs, target=target)
    arrays = {"X": normal(10), "Y": normal(10)}
    for func in funcs:
        expected = {n: a.copy() for n, a in arrays.items()}
        interpret(func, expected, {})
        np.testing.assert_array_equal(native(arrays, threads=2, name=func.name)["Y"], expected["Y"])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("index", ["b * 2", "26 - b * 2"])
def test_masked_loads_at_stride_2(target: str, index: str) -> None:
    func = parse(f"""
func even(X: float32[5, 27], Y: float32[5, 14]):
    for i in serial(5):
        for j in vectorized(16):
            block Y(a: 5 = i, b: 14 = j) where j < 14:
                Y[a, b] = X[a, {index}]
""")
    check(func, {"X": normal(5, 27), "Y": normal(5, 14)}, target=target)
    assert "gather" not in emit_llvm([func], [], Target.parse(target))


def test_arithmetic_of_addresses_is_emitted_once_per_region_of_unrolled_iterations():
    func = parse("""
func rows(X: float32[M, N, 8], Y: float32[M, N, 8]; M: 8..100, N: 8..100):
    for i in serial(M // 4):
        for u in unrolled(4):
            for w in unrolled(4):
                for l in vectorized(8):
                    block Y(a: M = i * 4 + u, b: N = w, c: 8 = l):
                        Y[a, b, c] = X[a, b, c] * 2.0
""")
    native = Native(func)
    for m, n in ((8, 8), (13, 9)):
        compare(native, {"X": normal(m, n, 8), "Y": normal(m, n, 8)}, {"M": m, "N": n})
    lines = emit_llvm([func], [], Target.parse("x86-64-v4")).splitlines()
    arithmetic = [line.partition(" = ")[2] for line in lines if " = mul " in line or " = getelementptr " in line]
    assert len(arithmetic) > 16
    assert len(arithmetic) == len(set(arithmetic))


def test_undefined_lanes_have_no_text_each():
    func = parse("""
func scale(X: float32[N], Y: float32[N, 16]; N: 1..100):
    for i in serial(N):
        for l in vectorized(16):
            block Y(a: N = i, b: 16 = l):
                Y[a, b] = X[a]
""")
    text = emit_llvm([func], [], Target.parse("x86-64-v4"))
    assert "<16 x float> undef" in text
    assert "float undef," not in text
