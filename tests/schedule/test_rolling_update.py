"""rolling_update: semantics, infinities included, printed result, attention in one nest, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import Native, check, compare
from tests.schedule.attention import ATTENTION, SOFTMAX, check_close, feeds, results
from tests.schedule.functions import refuses

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import parallel, vectorize
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import reorder, split
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.reverse_compute_at import reverse_compute_at
from tilewright.schedule.rolling_update import rolling_update
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.staging import set_scope
from tilewright.schedule.step import replay
from tilewright.schedule.store_at import store_at
from tilewright.verify.verifier import verify


def local(func: Func, names: tuple[str, ...], loop: str) -> Func:
    """The function with buffers on the stack, one per iteration of a loop, which is then parallel."""
    for name in names:
        func = set_scope(store_at(func, name, loop), name, MemoryScope.STACK)
    return parallel(func, loop)


def rolled(func: Func, chunk: int | None = None) -> Func:
    """SOFTMAX with all its reductions in the loop over chunks of k."""
    loop = "k" if chunk is None else "k_o"
    if chunk is not None:
        func = split(func, "k", chunk)
    return rolling_update(rolling_update(func, "L", loop), "Y", loop)


def flash(chunk: int, rows: int | None = None) -> Func:
    """ATTENTION as one nest: rows (or tiles of rows) in parallel, chunks of keys inside."""
    func, top = split(ATTENTION, "k_1", chunk), "i_1"
    if rows is not None:
        func, top = reorder(split(func, "i_1", rows), ("i_1_o", "k_1_o", "i_1_i", "k_1_i")), "i_1_o"
    for block in ("L", "O"):
        func = rolling_update(func, block, "k_1_o")
    func = compute_at(func, "S", "k_1_o")
    func = set_scope(reverse_compute_at(func, "Y", top), "S", MemoryScope.STACK)
    return local(func, ("m", "m_old", "L", "O"), top)


def test_rolling_update(golden) -> None:
    golden(show(rolling_update(split(SOFTMAX, "k", 4), "L", "k_o")))


def test_invariant_factor_is_applied_after_the_sum(golden) -> None:
    func = rolled(SOFTMAX, 4)
    assert show(func).count("block m_save") == 1
    golden(show(func))


@pytest.mark.parametrize("chunk", [None, 1, 3, 4, 16, 64])
def test_chunks(chunk: int | None) -> None:
    check_close(SOFTMAX, rolled(SOFTMAX, chunk))


def test_a_trace_replays() -> None:
    s = Schedule(SOFTMAX)
    s.do("split", "k", 5)
    s.do("rolling_update", "L", "k_o", "before")
    s.do("rolling_update", "Y", "k_o")
    assert "block m_save(m_i_3: N = i):\n                before[m_i_3] = m[m_i_3]" in show(s.func)
    assert replay(SOFTMAX, s.trace) == s.func
    check_close(SOFTMAX, s.func)


def test_rows_run_in_parallel() -> None:
    func = parallel(rolled(SOFTMAX, 4), "i")
    check_close(SOFTMAX, func)


# attention


def test_attention_in_one_nest(golden) -> None:
    func = flash(16)
    verify(func)
    golden(show(func))


@pytest.mark.parametrize(("chunk", "rows"), [(1, None), (5, None), (16, None), (4, 3), (16, 8)])
def test_attention(chunk: int, rows: int | None) -> None:
    check_close(ATTENTION, flash(chunk, rows))


@pytest.mark.parametrize("rows", [None, 3])
def test_attention_runs_natively(rows: int | None) -> None:
    func = vectorize(vectorize(flash(8, rows), "o_e_3_t"), "y_e_t")
    func = vectorize(reorder(func, ("o_k_t", "o_e_t")), "o_e_t")
    check_close(ATTENTION, func)
    native = Native(func)
    for n, t in ((1, 1), (5, 7), (7, 33)):
        arrays = feeds(ATTENTION, {"N": n, "T": t}, n)
        compare(native, arrays, {"N": n, "T": t})
        actual = native(arrays, {"N": n, "T": t}, threads=3)["Y"]
        np.testing.assert_allclose(actual, results(ATTENTION, arrays)["Y"], rtol=2e-5, atol=2e-5)


# infinities


SPECIAL = st.sampled_from([-np.inf, -np.inf, -np.inf, np.inf, np.nan, 0.0, 80.0, -1e30])


@settings(max_examples=60)
@given(st.integers(1, 12), st.data())
def test_infinities_and_nan_as_in_the_unfused_program(length: int, data: st.DataObject) -> None:
    chunk = data.draw(st.sampled_from([None, 2, 4, 16]))
    arrays = feeds(SOFTMAX, {"N": 3, "T": length}, length)
    for row in range(3):
        for _ in range(data.draw(st.integers(0, 3))):
            start = data.draw(st.integers(0, length - 1))
            arrays["X"][row, start : data.draw(st.integers(start, length))] = data.draw(SPECIAL)
    expected = results(SOFTMAX, arrays)["Y"]
    actual = results(rolled(SOFTMAX, chunk), arrays)["Y"]
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("masked", ["first chunk", "all but the last", "all", "none"])
def test_masked_keys_natively(masked: str) -> None:
    func = local(rolled(SOFTMAX, 4), ("m", "m_old", "L"), "i")
    arrays = feeds(SOFTMAX, {"N": 3, "T": 11}, 1)
    arrays["X"][
        1, {"first chunk": slice(4), "all but the last": slice(10), "all": slice(11)}.get(masked, slice(0))
    ] = -np.inf
    expected = results(SOFTMAX, arrays)["Y"]
    assert np.isnan(expected[1]).all() == (masked == "all")
    actual = check(func, arrays, {"N": 3, "T": 11})(arrays, {"N": 3, "T": 11})["Y"]
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


# forms of the value


def variant(value: str, extreme: str = "max", term: str = "X[m_i, m_k]", start: str = "-inf") -> Func:
    """The maximum of a term over rows, and a sum over the same rows of a value that uses it as m[l_i]."""
    return parse(f"""
func variant(X: float32[N, T], F: float32[N, T], L: float32[N]; N: 1..32, T: 1..64):
    alloc m: float32[N]
    for i in serial(N):
        for k in serial(T):
            block m(m_i: N = i, reduce m_k: T = k):
                init m[m_i] = float32('{start}')
                m[m_i] = {extreme}(m[m_i], {term})
    for i_1 in serial(N):
        for k_1 in serial(T):
            block L(l_i: N = i_1, reduce l_k: T = k_1):
                init L[l_i] = 0.0
                L[l_i] = L[l_i] + {value}
""")


X, F, M = "X[l_i, l_k]", "F[l_i, l_k]", "m[l_i]"


@pytest.mark.parametrize(
    "func",
    [
        variant(f"exp({X} - {M}) * {F}"),
        variant(f"exp(({X} - {M}) * 0.5) * {F}"),
        variant(f"exp(0.25 * {X} - {M} / 4.0)"),
        variant(f"exp({X} * 0.125 - {M}) * {F}", term="X[m_i, m_k] * 0.125"),
        variant(f"exp({X} + {F} - {M})", term="X[m_i, m_k] + F[m_i, m_k]"),
        variant(f"neg({F} * exp({X} - {M})) / 3.0"),
        variant(f"exp({X} - {M}) * {F} * exp({X} - {M})"),
        variant(f"(exp({X} - {M}) * {F} - exp({X} - {M}))"),
        variant(f"select(l_i <= l_k, exp({X} - {M}) * {F}, 0.0)"),
        variant(f"exp({M} - {X}) * {F}", "min", start="inf"),
        variant(f"{F} / (abs({M}) + 1.0)"),
        variant(f"{F} * ({X} - 2.0) * reciprocal(abs({M}) + 1.0) * {M}"),
        variant(f"exp({X} - {M}) * {F} / (1.0 + exp({M} * 0.125))"),
        variant(f"{F} / {M}", "max", "abs(X[m_i, m_k]) + 1.0"),
    ],
    ids=range(14),
)
def test_accepted_forms_of_the_value(func: Func) -> None:
    for chunk in (1, 5, 16):
        check_close(func, rolling_update(split(func, "k", chunk), "L", "k_o"))


def test_a_finished_sum_as_a_factor() -> None:
    """Rows divided by their sum: nothing is rescaled, and both sums take one pass."""
    func = parse("""
func normalized(X: float32[N, T], F: float32[T], Y: float32[N]; N: 1..32, T: 1..64):
    alloc L: float32[N]
    for i in serial(N):
        for k in serial(T):
            block L(l_i: N = i, reduce l_k: T = k):
                init L[l_i] = 1.0
                L[l_i] = L[l_i] + abs(X[l_i, l_k])
    for i_1 in serial(N):
        for k_1 in serial(T):
            block Y(y_i: N = i_1, reduce y_k: T = k_1):
                init Y[y_i] = 0.0
                Y[y_i] = Y[y_i] + X[y_i, y_k] / L[y_i] * F[y_k]
""")
    one_pass = rolling_update(split(func, "k", 4), "Y", "k_o")
    assert "_old" not in show(one_pass)
    check_close(func, one_pass)
    check_close(func, rolling_update(func, "Y", "k"))


def test_the_loop_of_a_later_reduction() -> None:
    """The maximum is complete there; only the normalizer is moved out of the weighted sum."""
    func = rolling_update(SOFTMAX, "Y", "k_1")
    assert "_old" not in show(func)
    check_close(SOFTMAX, func)


def test_all_of_a_matrix_in_two_reduction_axes() -> None:
    func = parse("""
func matrix(X: float32[N, T], Y: float32[]; N: 1..32, T: 1..64):
    alloc m: float32[]
    for i in serial(N):
        for k in serial(T):
            block m(reduce m_i: N = i, reduce m_k: T = k):
                init m[] = float32('-inf')
                m[] = max(m[], X[m_i, m_k])
    for i_1 in serial(N):
        for k_1 in serial(T):
            block Y(reduce y_i: N = i_1, reduce y_k: T = k_1):
                init Y[] = 0.0
                Y[] = Y[] + exp(X[y_i, y_k] - m[])
""")
    check_close(func, rolling_update(func, "Y", "i"))
    check_close(func, rolling_update(split(func, "i", 4), "Y", "i_o"))


def test_finite_initial_extremum() -> None:
    func = variant(f"exp({X} - {M})", start="-inf")
    func = parse(show(func).replace("float32('-inf')", "1.0"))
    fused = rolling_update(split(func, "k", 4), "L", "k_o")
    assert "0.0, L[" not in show(fused)
    check_close(func, fused)


def test_scores_computed_in_the_same_nest() -> None:
    """The maximum follows a row of scores in the same nest; the sum reads scores of its own row."""
    func = reverse_compute_at(ATTENTION, "m", "i")
    func = rolling_update(func, "L", "m_k_t")
    check_close(ATTENTION, rolling_update(func, "O", "m_k_t"))


# what it refuses


def strided() -> Func:
    """Chunks of the maximum that are not contiguous."""
    return reorder(split(SOFTMAX, "k", 4), ("k_i", "k_o"))


CHANGED = parse("""
func changed(X: float32[8], Y: float32[]):
    alloc S: float32[8]
    alloc m: float32[]
    for j in serial(8):
        block S(s: 8 = j):
            S[s] = X[s]
    for k in serial(8):
        block m(reduce r: 8 = k):
            init m[] = float32('-inf')
            m[] = max(m[], S[r])
        block S_again(t: 8 = k):
            S[t] = S[t] * 2.0
    for l in serial(8):
        block Y(reduce u: 8 = l):
            init Y[] = 0.0
            Y[] = Y[] + exp(S[u] - m[])
""")
"""The sum reads other scores than the maximum did."""

OTHER_AXIS = parse(show(SOFTMAX).replace("exp(X[l_i, l_k] - m[l_i])", "exp(X[l_i, l_k] - m[0])"))
PRODUCT = parse(show(variant(f"exp({X} - {M})")).replace(f"{'L[l_i]'} + exp", "L[l_i] * exp"))
LARGEST = parse(show(variant(f"exp({X} - {M})")).replace("L[l_i] + exp(X[l_i, l_k] - m[l_i])",
                                                         "max(L[l_i], exp(X[l_i, l_k] - m[l_i]))"))  # fmt: skip
NARROW = parse(show(variant(f"exp({X} - {M})")).replace("float32", "float16").replace("= 0.0", "= float16(0.0)"))
STARTED = parse(show(variant(f"exp({X} - {M})")).replace("init L[l_i] = 0.0", "init L[l_i] = 2.0"))
ONLY_SUMS = ", and only sums are rescaled"
OVERFLOW = "it may overflow before the end"
ALLOWED = "'m' may occur in factors exp(c*(x - m)), or in factors without the reduction"


@pytest.mark.parametrize(
    ("make", "place", "message"),
    [
        (
            lambda: rolling_update(variant(f"({X} - {M}) * {F}"), "L", "k"),
            "'L' in loop 'k'",
            f"no factor rescales (X[l_i, l_k] - m[l_i]) * F[l_i, l_k] when m[l_i] changes; {ALLOWED}",
        ),
        (
            lambda: rolling_update(variant(f"(exp({X} - {M}) + {F})"), "L", "k"),
            "'L' in loop 'k'",
            f"no factor rescales exp(X[l_i, l_k] - m[l_i]) + F[l_i, l_k] when m[l_i] changes; {ALLOWED}",
        ),
        (
            lambda: rolling_update(variant(f"exp({X} + {F} - {M})"), "L", "k"),
            "'L' in loop 'k'",
            "the exponent X[l_i, l_k] + F[l_i, l_k] - m[l_i] is not c*(x - m) for c > 0 and x = X[l_i, l_k], of which "
            f"m[l_i] is the max: {OVERFLOW}",
        ),
        (
            lambda: rolling_update(variant(f"exp({M} - {X})"), "L", "k"),
            "'L' in loop 'k'",
            "the exponent m[l_i] - X[l_i, l_k] is not c*(x - m) for c > 0 and x = X[l_i, l_k], of which "
            f"m[l_i] is the max: {OVERFLOW}",
        ),
        (
            lambda: rolling_update(variant(f"exp({X} - {M})", "min", start="inf"), "L", "k"),
            "'L' in loop 'k'",
            "the exponent X[l_i, l_k] - m[l_i] is not c*(m - x) for c > 0 and x = X[l_i, l_k], of which "
            f"m[l_i] is the min: {OVERFLOW}",
        ),
        (lambda: rolling_update(PRODUCT, "L", "k"), "'L' in loop 'k'", f"it is an accumulation with `mul`{ONLY_SUMS}"),
        (lambda: rolling_update(LARGEST, "L", "k"), "'L' in loop 'k'", f"it is an accumulation with `max`{ONLY_SUMS}"),
        (
            lambda: rolling_update(NARROW, "L", "k"),
            "'L' in loop 'k'",
            "'L' is float16, and a partial sum may exceed the final one; "
            "sum up in float32: cast what is summed, and cast the finished sum back",
        ),
        (lambda: rolling_update(STARTED, "L", "k"), "'L' in loop 'k'", "its init is not 0, or was decomposed"),
        (
            lambda: rolling_update(decompose_reduction(SOFTMAX, "L", "k_1"), "L", "k"),
            "'L' in loop 'k'",
            "block 'L_init' writes 'L' too",
        ),
        (
            lambda: rolling_update(variant(F), "L", "k"),
            "'L' in loop 'k'",
            "it uses no result of a reduction over loop 'k'; use reverse_compute_at, or name the loop of the reduction",
        ),
        (
            lambda: rolling_update(SOFTMAX, "L", "i"),
            "'L' in loop 'i'",
            "it uses no result of a reduction over loop 'i'; use reverse_compute_at, or name the loop of the reduction",
        ),
        (
            lambda: rolling_update(strided(), "L", "k_i"),
            "'L' in loop 'k_i', block 'm'",
            "binding k_i + k_o * 4 leaves gaps or is not a number in mixed radix: step 4 after 1 values",
        ),
        (
            lambda: rolling_update(split(SOFTMAX, "k", 4), "L", "k_i"),
            "'L' in loop 'k_i', block 'm'",
            "it also reduces over the enclosing loop 'k_o'; use loop 'k_o'",
        ),
        (
            lambda: rolling_update(OTHER_AXIS, "L", "k"),
            "'L' in loop 'k', block 'm'",
            "the sum does not run over 'm_i', 0..N, but over 0",
        ),
        (
            lambda: rolling_update(variant(f"exp({X} - {M}) * (1.0 + m[0])"), "L", "k"),
            "'L' in loop 'k'",
            "it reads several elements of 'm': m[l_i] and m[0]",
        ),
        (
            lambda: rolling_update(CHANGED, "Y", "k"),
            "'Y' in loop 'k'",
            "block 'S_again' writes 'S' after block 'm' has read it",
        ),
        (
            lambda: rolling_update(rolling_update(SOFTMAX, "L", "k"), "L", "k"),
            "'L' in loop 'k'",
            "it is inside the loop already",
        ),
    ],
)
def test_rolling_update_refuses(make, place: str, message: str) -> None:
    refuses(make, f"rolling_update of {place}: {message}")
