"""Functions that the tests of primitives transform, and the comparison of a function before and after."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import const
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func, blocks
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.loop_transforms import reorder, split
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import replay
from tilewright.verify.verifier import verify

SCALE = parse("""
func scale(A: float32[N, 6], Y: float32[N, 6]; N: 1..64):
    for i in serial(N):
        for j in serial(6):
            block Y(v_i: N = i, v_j: 6 = j):
                Y[v_i, v_j] = A[v_i, v_j] * 2.0
""")

MATMUL = parse("""
func matmul(A: float32[M, 5], B: float32[5, 9], C: float32[M, 9]; M: 1..64):
    for i in serial(M):
        for j in serial(9):
            for k in serial(5):
                block C(v_i: M = i, v_j: 9 = j, reduce v_k: 5 = k):
                    init C[v_i, v_j] = 0.0
                    C[v_i, v_j] = C[v_i, v_j] + A[v_i, v_k] * B[v_k, v_j]
""")

WIDE = parse(show(MATMUL).replace("M: 1..64", "M: 6..64").replace("matmul", "wide"))
"""The same with rows that fill tiles of up to 6."""

CHAIN = parse("""
func chain(A: float32[M, 5], B: float32[5, 9], bias: float32[9], Y: float32[M, 9]; M: 1..64):
    alloc T: float32[M, 9]
    for i in serial(M):
        for j in serial(9):
            for k in serial(5):
                block T(v_i: M = i, v_j: 9 = j, reduce v_k: 5 = k):
                    init T[v_i, v_j] = 0.0
                    T[v_i, v_j] = T[v_i, v_j] + A[v_i, v_k] * B[v_k, v_j]
    for i_1 in serial(M):
        for j_1 in serial(9):
            block Y(w_i: M = i_1, w_j: 9 = j_1):
                Y[w_i, w_j] = T[w_i, w_j] + bias[w_j]
""")

STENCIL = parse("""
func stencil(A: float32[N], Y: float32[N]; N: 1..64):
    alloc T: float32[N]
    for i in serial(N):
        block T(v: N = i):
            T[v] = A[v] + 1.0
    for j in serial(N):
        block Y(w: N = j):
            Y[w] = select(1 <= w, T[w - 1], 0.0)
""")

SUMS = parse("""
func sums(A: float32[6], Y: float32[6]):
    for i in serial(6):
        block S(v: 6 = i):
            Y[v] = A[v] + select(1 <= v, Y[v - 1], 0.0)
""")
"""A running sum: its order matters."""

ROWS = parse("""
func rows(A: float32[8, 6], Y: float32[8]):
    alloc T: float32[8]
    for i in serial(8):
        for k in serial(6):
            block T(v_i: 8 = i, reduce v_k: 6 = k):
                init T[v_i] = 0.0
                T[v_i] = T[v_i] + A[v_i, v_k]
    for i_1 in serial(8):
        block Y(w_i: 8 = i_1):
            Y[w_i] = T[w_i] * T[w_i]
""")

TWO_STEPS = parse("""
func two_steps(A: float32[M, 6], B: float32[6], Y: float32[M, 6]; M: 1..64):
    alloc R: float32[M]
    alloc S: float32[M, 6]
    for i in serial(M):
        for k in serial(6):
            block R(v_i: M = i, reduce v_k: 6 = k):
                init R[v_i] = 0.0
                R[v_i] = R[v_i] + A[v_i, v_k]
    for i_1 in serial(M):
        for j_1 in serial(6):
            block S(w_i: M = i_1, w_j: 6 = j_1):
                S[w_i, w_j] = A[w_i, w_j] * R[w_i]
    for i_2 in serial(M):
        for j_2 in serial(6):
            block Y(x_i: M = i_2, x_j: 6 = j_2):
                Y[x_i, x_j] = S[x_i, x_j] + B[x_j] * R[x_i]
""")

SOFTMAX = parse("""
func softmax(A: float32[M, N], Y: float32[M, N]; M: 0..64, N: 1..64):
    alloc E: float32[M, N]
    alloc S: float32[M]
    for i in serial(M):
        for j in serial(N):
            block E(v_i: M = i, v_j: N = j):
                E[v_i, v_j] = exp(A[v_i, v_j])
    for i_1 in serial(M):
        for l in serial(N):
            block S(u: M = i_1, reduce v_l: N = l):
                init S[u] = 0.0
                S[u] = S[u] + E[u, v_l]
    for i_2 in serial(M):
        for j_2 in serial(N):
            block Y(w_i: M = i_2, w_j: N = j_2):
                Y[w_i, w_j] = E[w_i, w_j] / S[w_i]
""")

MATRICES = parse("""
func matrices(A: float32[M, 5], B: float32[5, 9], D: float32[9, 4], C: float32[M, 4]; M: 1..64):
    alloc T: float32[M, 9]
    for i in serial(M):
        for j in serial(9):
            for k in serial(5):
                block T(v_i: M = i, v_j: 9 = j, reduce v_k: 5 = k):
                    init T[v_i, v_j] = 0.0
                    T[v_i, v_j] = T[v_i, v_j] + A[v_i, v_k] * B[v_k, v_j]
    for i_1 in serial(M):
        for j_1 in serial(4):
            for k_1 in serial(9):
                block C(w_i: M = i_1, w_j: 4 = j_1, reduce w_k: 9 = k_1):
                    init C[w_i, w_j] = 0.0
                    C[w_i, w_j] = C[w_i, w_j] + T[w_i, w_k] * D[w_k, w_j]
""")

GATHER = parse("""
func gather(A: float32[8], I: int64[4], Y: float32[4]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
    for j in serial(4):
        block Y(w: 4 = j):
            Y[w] = T[I[w]]
""")

PARTIAL = parse("""
func partial(A: float32[8], Y: float32[8]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i) where i < 5:
            T[v] = A[v]
    for j in serial(8):
        block Y(w: 8 = j):
            Y[w] = select(w < 5, T[w], 0.0)
""")

BLUR = parse("""
func blur(A: float32[N], Y: float32[N]; N: 1..64):
    alloc T: float32[N]
    for i in serial(N):
        block T(v: N = i):
            T[v] = A[v] * 2.0
    for j in serial(N):
        block Y(w: N = j):
            Y[w] = select(1 <= w, T[w - 1], 0.0) + T[w] * 2.0 + select(w + 1 < N, T[w + 1], 0.0)
""")

TRANSPOSED = parse("""
func transposed(A: float32[M, 5], Y: float32[5, M]; M: 1..64):
    alloc T: float32[M, 5]
    for i in serial(M):
        for j in serial(5):
            block T(t_i: M = i, t_j: 5 = j):
                T[t_i, t_j] = A[t_i, t_j] * 2.0
    for a in serial(5):
        for b in serial(M):
            block Y(y_a: 5 = a, y_b: M = b):
                Y[y_a, y_b] = T[y_b, y_a] + 1.0
""")

OVERWRITTEN = parse("""
func overwritten(A: float32[6], Y: float32[6], Z: float32[6]):
    alloc S: float32[6]
    alloc T: float32[6]
    for i in serial(6):
        block S(v: 6 = i):
            S[v] = A[v]
    for j in serial(6):
        block T(w: 6 = j):
            T[w] = S[w] * 2.0
    for k in serial(6):
        block S_again(u: 6 = k):
            S[u] = 0.0
    for l in serial(6):
        block Y(x: 6 = l):
            Y[x] = T[x]
    for m in serial(6):
        block Z(z: 6 = m):
            Z[z] = S[z]
""")


def tiled_consumer(rows: int, lanes: int) -> Func:
    """CHAIN with its consumer tiled."""
    func = split(split(CHAIN, "i_1", rows), "j_1", lanes)
    return reorder(func, ("i_1_o", "j_1_o", "i_1_i", "j_1_i"))


def tiled_producer(rows: int, lanes: int) -> Func:
    """CHAIN with its producer tiled."""
    func = split(split(CHAIN, "i", rows), "j", lanes)
    return reorder(func, ("i_o", "j_o", "i_i", "j_i", "k"))


def run(func: Func, sizes: Mapping[str, int], seed: int | None = None) -> dict[str, np.ndarray]:
    """All parameters after a run on small whole numbers, whose sums are exact."""
    rng = np.random.default_rng(5)
    sizes_by_symbol = {s: const(sizes[s.name]) for s in func.symbols}
    written = {b.body.buffer.name for b in blocks(func.body)}
    arrays: dict[str, np.ndarray] = {}
    for p in func.params:
        shape = tuple(int(str(substitute(n, sizes_by_symbol))) for n in p.shape)
        values = rng.integers(1, 5, shape) * rng.choice([-1, 1], shape)
        arrays[p.name] = (np.full(shape, 99) if p.name in written else values).astype(p.dtype.numpy)
    interpret(func, arrays, sizes, seed=seed)
    return arrays


def check_same(before: Func, after: Func, *, verified: bool = True) -> None:
    """`after` is well-formed, its text parses back, and it computes the same as `before`, in any legal order."""
    if verified:
        verify(after, registers=False)
    assert parse(show(after)) == after
    names = [s.name for s in before.symbols]
    least = max((s.lo or 0 for s in before.symbols), default=0)
    for size in (n for n in (1, 2, 7, 16, 21) if n >= least) if names else (0,):
        sizes = dict.fromkeys(names, size)
        expected = run(before, sizes)
        for seed in (None, 11):
            result = run(after, sizes, seed)
            for p in before.params:
                np.testing.assert_array_equal(result[p.name], expected[p.name])


def applied(func: Func, primitive: str, *args: Any) -> Func:
    """The function after one recorded primitive; it computes the same, and its trace replays."""
    s = Schedule(func)
    s.do(primitive, *args)
    assert replay(func, s.trace) == s.func
    check_same(func, s.func)
    return s.func


def refuses(make: Callable[[], object], message: str) -> None:
    """A primitive refuses with exactly this message."""
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"
