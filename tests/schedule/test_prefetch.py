"""prefetch: the inserted prefetches in loops, text and native code, their fate under other primitives, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.native import TARGETS, Native, check, compare
from tests.schedule.functions import CHAIN, MATMUL, SCALE, STENCIL, applied, check_same, refuses

from tilewright.codegen import assembly, emit_llvm
from tilewright.errors import ParseError, VerifyError
from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.machine import Target
from tilewright.schedule.annotate import parallel, unroll, vectorize
from tilewright.schedule.cache import cache_read
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.inline import inline
from tilewright.schedule.loop_transforms import fuse, peel, reorder, split
from tilewright.schedule.prefetch import prefetch
from tilewright.schedule.reverse_compute_at import reverse_compute_at
from tilewright.schedule.reverse_inline import reverse_inline
from tilewright.schedule.staging import pad_storage, set_scope
from tilewright.verify.verifier import verify

ROWS = parse("""
func rows(A: float32[N, 40], Y: float32[N]; N: 1..64):
    for i in serial(N):
        for k in serial(40):
            block Y(v: N = i, reduce w: 40 = k):
                init Y[v] = 0.0
                Y[v] = Y[v] + A[v, w]
""")
"""A row is two and a half lines."""

GATHER = parse("""
func gather(X: int64[N], T: float32[8], Y: float32[N]; N: 1..64):
    for i in serial(N):
        block Y(v: N = i):
            Y[v] = select(0 <= X[v] and X[v] < 8, T[X[v]], 0.0)
""")


def header(func: Func, loop: str) -> str:
    return next(line.strip() for line in show(func).splitlines() if line.strip().startswith(f"for {loop} "))


def test_prefetch(golden) -> None:
    golden(show(applied(ROWS, "prefetch", "i", "A", 4)))


@pytest.mark.parametrize(
    ("func", "loop", "buffer"),
    [(MATMUL, "k", "B"), (MATMUL, "i", "A"), (MATMUL, "i", "C"), (CHAIN, "i_1", "T"), (STENCIL, "j", "T"),
     (SCALE, "j", "A")],
)  # fmt: skip
def test_prefetch_preserves_semantics(func: Func, loop: str, buffer: str) -> None:
    applied(func, "prefetch", loop, buffer, 3)


def test_one_prefetch_per_cache_line() -> None:
    assert header(prefetch(ROWS, "i", "A", 2), "i") == (
        "for i in serial(N) prefetching A[i + 2, 0], A[i + 2, 16], A[i + 2, 32], A[i + 2, 39]:"
    )
    assert header(prefetch(split(ROWS, "i", 2), "i_o", "A", 1), "i_o") == (
        # two whole rows are one run of 80 elements
        "for i_o in serial((N + 1) // 2) prefetching A[i_o * 2 + 2, 0], A[i_o * 2 + 2, 16], A[i_o * 2 + 2, 32], "
        "A[i_o * 2 + 3, 8], A[i_o * 2 + 3, 24], A[i_o * 2 + 3, 39]:"
    )


def test_copies_begin_at_lines_and_parameters_anywhere() -> None:
    func = parse("""
func f(A: float32[8, 32], Y: float32[8, 32]):
    alloc T: float32[8, 32]
    for a in serial(8):
        for b in serial(32):
            block T(v: 8 = a, w: 32 = b):
                T[v, w] = A[v, w]
    for i in serial(8):
        for j in serial(32):
            block Y(v: 8 = i, w: 32 = j):
                Y[v, w] = T[v, w] + A[v, w]
""")
    assert header(prefetch(func, "i", "T", 1), "i") == "for i in serial(8) prefetching T[i + 1, 0], T[i + 1, 16]:"
    assert header(prefetch(func, "i", "A", 1), "i") == (
        "for i in serial(8) prefetching A[i + 1, 0], A[i + 1, 16], A[i + 1, 31]:"
    )


def test_at_most_sixteen_lines() -> None:
    large = parse(show(ROWS).replace("40", "4096"))
    assert header(prefetch(large, "i", "A", 1), "i").count("A[") == 16
    tall = prefetch(split(large, "k", 8), "k_o", "A", 1)
    assert header(tall, "k_o") == "for k_o in serial(512) prefetching A[i, k_o * 8 + 15]:"


def test_symbolic_size_counts_with_its_minimum_and_rows_begin_anywhere_in_a_line() -> None:
    func = parse(show(ROWS).replace("40", "M").replace("; N", "; M: 20..99, N"))
    assert header(prefetch(func, "i", "A", 1), "i") == (
        "for i in serial(N) prefetching A[i + 1, 0], A[i + 1, 16], A[i + 1, 19]:"
    )


def test_several_buffers() -> None:
    func = prefetch(prefetch(MATMUL, "k", "B", 1), "k", "A", 2)
    assert header(func, "k") == "for k in serial(5) prefetching B[(k + 1) % 5, (k + 1) // 5 + j], A[i, k + 2]:"
    assert prefetch(func, "k", "B", 1) == func


def test_the_next_execution_of_a_loop_is_prefetched_for() -> None:
    """Panels are read in blocks of 16 rows: after 16 rows of one panel those of the next panel, not its next rows."""
    func = parse(PANELS)
    assert header(prefetch(func, "r", "B", 4), "r") == (
        "for r in serial(16) prefetching B[(r + 4) // 16 + p, (r + 4) % 16 + b * 16, 7]:"
    )
    same_row = header(prefetch(func, "r", "B", 16), "r")
    assert same_row == "for r in serial(16) prefetching B[p + 1, b * 16 + r, 7]:"
    contiguous = reorder(func, ("p", "b", "r"))
    assert header(prefetch(contiguous, "r", "B", 4), "r") == "for r in serial(16) prefetching B[p, b * 16 + r + 4, 7]:"
    one_block = parse(PANELS.replace("serial(2)", "serial(1)").replace("32", "16"))
    assert header(prefetch(one_block, "r", "B", 4), "r") == "for r in serial(16) prefetching B[p, b * 16 + r + 4, 7]:"
    applied(func, "prefetch", "r", "B", 4)


PANELS = """
func panels(A: float32[32], B: float32[3, 32, 8], Y: float32[3, 8]):
    for b in serial(2):
        for p in serial(3):
            for r in serial(16):
                for l in serial(8):
                    block Y(u: 3 = p, v: 8 = l, reduce w: 32 = r + b * 16):
                        init Y[u, v] = 0.0
                        Y[u, v] = Y[u, v] + A[w] * B[u, w, v]
"""


# With other primitives


@pytest.mark.parametrize(
    ("change", "loop", "expected"),
    [
        (lambda f: split(f, "i", 4), "i_i", "4) prefetching A[i_i + i_o * 4 + 1, 0]"),
        (lambda f: fuse(split(f, "i", 4), "i_o", "i_i", "f"), "f", "(N + 3) // 4 * 4) prefetching A[f + 1, 0]"),
        (lambda f: peel(f, "i", 1), "i_2", "N - 1) prefetching A[i_2 + 2, 0]"),
        (lambda f: parallel(f, "i"), "i", "N) prefetching A[i + 1, 0]"),
        (lambda f: reorder(f, ("k", "i")), "i", "N) prefetching A[i + 1, 0]"),
        (lambda f: pad_storage(cache_read(f, "Y", "A"), "A_copy", 1, 64), "i", "N) prefetching A[i + 1, 0]"),
    ],
)
def test_prefetches_stay_with_their_loop(change, loop: str, expected: str) -> None:
    func = change(prefetch(ROWS, "i", "A", 1))
    assert header(func, loop).partition("(")[2].startswith(expected)
    check_same(ROWS, func)


def test_stale_prefetches_are_dropped() -> None:
    inner = prefetch(ROWS, "k", "A", 16)
    assert header(inner, "k") == "for k in serial(40) prefetching A[i, k + 16]:"
    outside = reorder(inner, ("k", "i"))
    assert header(outside, "k") == "for k in serial(40):"
    fused = compute_at(prefetch(CHAIN, "i_1", "T", 1), "T", "i_1")
    assert "prefetching" not in show(fused)
    lanes = vectorize(prefetch(split(SCALE, "j", 2), "j_i", "A", 1), "j_i")
    assert "prefetching" not in show(lanes)
    static = parse(show(CHAIN).replace("; M: 1..64", "").replace("M", "7"))
    assert "prefetching" not in show(set_scope(prefetch(static, "i_1", "T", 1), "T", MemoryScope.STACK))
    for func, origin in ((outside, ROWS), (fused, CHAIN), (lanes, SCALE)):
        check_same(origin, func)


@given(st.integers(1, 5), st.sampled_from("ik"), st.integers(1, 9))
def test_prefetches_survive_splits(factor: int, loop: str, distance: int) -> None:
    func = split(prefetch(ROWS, loop, "A", distance), loop, factor)
    check_same(ROWS, prefetch(func, f"{loop}_o", "A", distance))


@pytest.mark.parametrize(
    "change",
    [lambda f: inline(f, "T"), lambda f: reverse_inline(f, "Y"), lambda f: reverse_compute_at(f, "Y", "i")],
    ids=["inline", "reverse_inline", "reverse_compute_at"],
)
def test_prefetches_of_a_removed_buffer_are_dropped(change) -> None:
    hinted = prefetch(prefetch(COPIES, "i_1", "T", 1), "i", "A", 2)
    check_same(COPIES, change(hinted))


COPIES = parse("""
func copies(A: float32[N, 4], Y: float32[N, 4]; N: 1..64):
    alloc T: float32[N, 4]
    for i in serial(N):
        for k in serial(4):
            block T(v: N = i, w: 4 = k):
                T[v, w] = A[v, w] * 2.0
    for i_1 in serial(N):
        for k_1 in serial(4):
            block Y(v_1: N = i_1, w_1: 4 = k_1):
                Y[v_1, w_1] = T[v_1, w_1] + 1.0
""")


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: prefetch(ROWS, "i", "X", 1), "prefetch of 'X' in loop 'i': there is no buffer 'X'"),
        (lambda: prefetch(ROWS, "i", "A", 0), "prefetch of 'A' in loop 'i': expected a distance in 1..256, got 0"),
        (lambda: prefetch(ROWS, "i", "A", 257), "prefetch of 'A' in loop 'i': expected a distance in 1..256, got 257"),
        (
            lambda: prefetch(CHAIN, "i_1", "A", 1),
            "prefetch of 'A' in loop 'i_1': no block inside accesses 'A'",
        ),
        (
            lambda: prefetch(MATMUL, "j", "A", 1),
            "prefetch of 'A' in loop 'j': which elements of 'A' an iteration touches does not follow from 'j'",
        ),
        (
            lambda: prefetch(GATHER, "i", "T", 1),
            "prefetch of 'T' in loop 'i': T[X[i + 1]]: index X[i + 1] depends on data",
        ),
        (
            lambda: prefetch(vectorize(SCALE, "j"), "j", "A", 1),
            "prefetch of 'A' in loop 'j': the loop is vectorized: its iterations run at once",
        ),
        (
            lambda: prefetch(set_scope(compute_at(ROWS_TWICE, "T", "i_1"), "T", MemoryScope.REGISTER), "i_1", "T", 1),
            "prefetch of 'T' in loop 'i_1': it is in scope register, not in memory",
        ),
    ],
)  # fmt: skip
def test_prefetch_refuses(make, message: str) -> None:
    refuses(make, message)


ROWS_TWICE = parse("""
func rows_twice(A: float32[N, 4], Y: float32[N]; N: 1..64):
    alloc T: float32[N, 4]
    for i in serial(N):
        for k in serial(4):
            block T(v: N = i, w: 4 = k):
                T[v, w] = A[v, w] * 2.0
    for i_1 in serial(N):
        for k_1 in serial(4):
            block Y(v_1: N = i_1, reduce w_1: 4 = k_1):
                init Y[v_1] = 0.0
                Y[v_1] = Y[v_1] + T[v_1, w_1]
""")


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ("A[k, 0]", "variable 'k' is not defined here"),
        ("A[i * 9999999, 0]", "prefetch of A[i * 9999999, 0]: index i * 9999999 is not proved to be within 1024 times"),
        ("A[i // (N - 1), 0]", "prefetch of A[i // (N - 1), 0]: index i // (N - 1) may divide by 0"),
        ("Y[X[i]]", "prefetch of Y[X[i]]: index X[i] depends on data"),
        ("A[i, 1.0]", "indices must be int64"),
    ],
)
def test_verifier_refuses_unsafe_prefetches(hint: str, message: str) -> None:
    text = """
func refused(X: int64[N], A: float32[N, 40], Y: float32[N]; N: 1..64):
    for k in serial(N):
        block Z(u: N = k):
            Y[u] = 0.0
    for i in serial(N) prefetching HINT:
        block Y(v: N = i):
            Y[v] = A[v, 0]
"""
    with pytest.raises(VerifyError) as error:
        verify(parse(text.replace("HINT", hint)))
    assert message in str(error.value)


def test_the_parser_wants_elements() -> None:
    with pytest.raises(ParseError, match=r"expected an element to prefetch, got ':'"):
        parse(show(ROWS).replace("serial(N):", "serial(N) prefetching :"))
    with pytest.raises(ParseError, match=r"buffer 'A' has 2 dimensions, got 1 index"):
        parse(show(ROWS).replace("serial(N):", "serial(N) prefetching A[i]:"))


# Native code


def scheduled(kind: str) -> Func:
    func = prefetch(split(split(ROWS, "i", 4), "k", 8), "i_i", "A", 1)
    func = prefetch(func, "k_o", "A", 2)
    func = prefetch(func, "i_o", "A", 3)
    match kind:
        case "parallel":
            return parallel(func, "i_o")
        case "unrolled":
            return unroll(unroll(func, "i_i"), "k_o")
        case _:
            return func


@pytest.mark.parametrize("kind", ["serial", "parallel", "unrolled"])
@pytest.mark.parametrize("target", TARGETS)
def test_native_code(kind: str, target: str) -> None:
    native = Native(scheduled(kind), target=target)
    for n in (1, 7, 64):
        a = np.random.default_rng(n).standard_normal((n, 40)).astype(np.float32)
        compare(native, {"A": a, "Y": np.zeros(n, np.float32)}, {"N": n})


def test_native_code_with_vector_lanes() -> None:
    func = vectorize(prefetch(prefetch(split(SCALE, "i", 2), "i_i", "A", 5), "i_o", "Y", 5), "j")
    a = np.random.default_rng(1).standard_normal((9, 6)).astype(np.float32)
    check(func, {"A": a, "Y": np.zeros_like(a)}, {"N": 9})


@pytest.mark.parametrize(("target", "instruction"), [("x86-64-v3", "prefetcht0"), ("aarch64", "prfm\tpldl1keep")])
def test_instructions(target: str, instruction: str) -> None:
    machine = Target.parse(target)
    functions = (ROWS, prefetch(ROWS, "i", "A", 4))
    plain, hinted = (assembly(emit_llvm([f], [], machine), machine) for f in functions)
    assert instruction not in plain
    assert hinted.count(instruction) >= 3
