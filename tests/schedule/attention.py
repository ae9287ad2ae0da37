"""Attention and softmax as sequences of reductions, and the comparison of floating-point programs."""

from collections.abc import Mapping

import numpy as np

from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func, blocks
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.verify.verifier import verify

SOFTMAX = parse("""
func softmax(X: float32[N, T], F: float32[T, 3], Y: float32[N, 3]; N: 1..32, T: 1..64):
    alloc m: float32[N]
    alloc L: float32[N]
    for i in serial(N):
        for k in serial(T):
            block m(m_i: N = i, reduce m_k: T = k):
                init m[m_i] = float32('-inf')
                m[m_i] = max(m[m_i], X[m_i, m_k])
    for i_1 in serial(N):
        for k_1 in serial(T):
            block L(l_i: N = i_1, reduce l_k: T = k_1):
                init L[l_i] = 0.0
                L[l_i] = L[l_i] + exp(X[l_i, l_k] - m[l_i])
    for i_2 in serial(N):
        for e_2 in serial(3):
            for k_2 in serial(T):
                block Y(y_i: N = i_2, y_e: 3 = e_2, reduce y_k: T = k_2):
                    init Y[y_i, y_e] = 0.0
                    Y[y_i, y_e] = Y[y_i, y_e] + exp(X[y_i, y_k] - m[y_i]) / L[y_i] * F[y_k, y_e]
""")
"""Weighted sums by softmax over rows; the division is inside the last sum."""

ATTENTION = parse("""
func attention(Q: float32[N, 8], K: float32[T, 8], V: float32[T, 6], Y: float32[N, 6]; N: 1..32, T: 1..64):
    alloc S: float32[N, T]
    alloc m: float32[N]
    alloc L: float32[N]
    alloc O: float32[N, 6]
    for i in serial(N):
        for k in serial(T):
            for d in serial(8):
                block S(s_i: N = i, s_k: T = k, reduce s_d: 8 = d):
                    init S[s_i, s_k] = 0.0
                    S[s_i, s_k] = S[s_i, s_k] + Q[s_i, s_d] * K[s_k, s_d]
    for i_1 in serial(N):
        for k_1 in serial(T):
            block m(m_i: N = i_1, reduce m_k: T = k_1):
                init m[m_i] = float32('-inf')
                m[m_i] = max(m[m_i], S[m_i, m_k])
    for i_2 in serial(N):
        for k_2 in serial(T):
            block L(l_i: N = i_2, reduce l_k: T = k_2):
                init L[l_i] = 0.0
                L[l_i] = L[l_i] + exp(S[l_i, l_k] - m[l_i])
    for i_3 in serial(N):
        for e_3 in serial(6):
            for k_3 in serial(T):
                block O(o_i: N = i_3, o_e: 6 = e_3, reduce o_k: T = k_3):
                    init O[o_i, o_e] = 0.0
                    O[o_i, o_e] = O[o_i, o_e] + exp(S[o_i, o_k] - m[o_i]) * V[o_k, o_e]
    for i_4 in serial(N):
        for e_4 in serial(6):
            block Y(y_i: N = i_4, y_e: 6 = e_4):
                Y[y_i, y_e] = O[y_i, y_e] / L[y_i]
""")
"""Scores, their maximum, the normalizer, the weighted sum of values, and the division, each in a nest of its own."""


def feeds(func: Func, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Random operands of a function, with enough variance that running maxima change often."""
    rng = np.random.default_rng(seed)
    written = {b.body.buffer.name for b in blocks(func.body)}
    arrays: dict[str, np.ndarray] = {}
    for p in func.params:
        shape = tuple(sizes.get(str(n), 0) or int(str(n)) for n in p.shape)
        values = np.full(shape, 99.0) if p.name in written else rng.normal(0.0, 3.0, shape)
        arrays[p.name] = values.astype(p.dtype.numpy)
    return arrays


def results(func: Func, arrays: Mapping[str, np.ndarray], seed: int | None = None) -> dict[str, np.ndarray]:
    """All parameters of a function after a run; sizes are those of the arrays."""
    copies = {name: np.array(a) for name, a in arrays.items()}
    sizes = {str(n): length for p in func.params for n, length in zip(p.shape, arrays[p.name].shape, strict=True)}
    interpret(func, copies, {s: sizes[s.name] for s in func.symbols}, seed=seed)
    return copies


def check_close(before: Func, after: Func) -> None:
    """`after` is well-formed, its text parses back, and it computes the same as `before` up to rounding, in any legal
    order."""
    verify(after, registers=False)
    assert parse(show(after)) == after
    names = [s.name for s in before.symbols]
    for seed, lengths in enumerate(((1, 1), (2, 7), (5, 16), (7, 23), (3, 64))):
        arrays = feeds(before, dict(zip(names, lengths, strict=False)), seed)
        expected = results(before, arrays)
        for shuffle in (None, 11):
            actual = results(after, arrays, shuffle)
            for name, value in expected.items():
                np.testing.assert_allclose(actual[name], value, rtol=2e-5, atol=2e-5, err_msg=name)
