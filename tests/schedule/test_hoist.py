"""hoist: hoisted and remaining parts, printed result, native code, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.native import TARGETS, Native, compare
from tests.schedule.functions import CHAIN, MATMUL, STENCIL, applied, check_same, refuses

from tilewright.loops.ir import Func, LoopKind
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import bind, parallel, unroll, vectorize, virtual_thread
from tilewright.schedule.hoist import hoist
from tilewright.schedule.loop_transforms import peel, reorder, split
from tilewright.schedule.reduction import decompose_reduction
from tilewright.verify.verifier import verify

OUTER = parse("""
func outer(A: float32[N], B: float32[9], Y: float32[N, 9]; N: 1..64):
    for i in serial(N):
        for j in serial(9):
            block Y(v: N = i, w: 9 = j):
                Y[v, w] = (A[v] * A[v] + 1.0) * B[w] + max(A[v], B[w] * B[w])
""")


def value(text: str, loops: str = "ij") -> Func:
    """A function over two loops that stores this value."""
    i, j = ("i", "j") if loops == "ij" else ("j", "i")
    extents = {"i": "N", "j": "9"}
    return parse(f"""
func values(A: float32[N], B: float32[9], K: int64[N], Y: float32[N, 9]; N: 1..64):
    for {i} in serial({extents[i]}):
        for {j} in serial({extents[j]}):
            block Y(v: N = i, w: 9 = j):
                Y[v, w] = {text}
""")


def test_hoist(golden) -> None:
    golden(show(applied(OUTER, "hoist", "Y", "j")))


def test_hoist_inside_a_tile(golden) -> None:
    func = split(OUTER, "i", 4)
    golden(show(hoist(func, "Y", "j", "once")))
    check_same(OUTER, hoist(func, "Y", "j", "once"))


def body(func: Func) -> str:
    return next(line for line in show(func).splitlines() if "Y[v, w] = " in line).partition(" = ")[2]


@pytest.mark.parametrize(
    ("text", "loop", "expected"),
    [
        # the largest part, once
        ("exp(A[v]) * B[w] + exp(A[v])", "j", "Y_part[] * B[w] + Y_part[]"),
        ("(A[v] + 1.0) * (A[v] - 1.0) * B[w]", "j", "Y_part[] * B[w]"),
        # several, and the whole
        ("exp(A[v]) * B[w] + abs(A[v])", "j", "Y_part[] * B[w] + Y_part_2[]"),
        ("exp(A[v])", "j", "Y_part[]"),
        # in the outer loop, only expressions without loop variables are invariant
        ("A[0] * A[v] * B[w]", "i", "Y_part[] * A[v] * B[w]"),
        # indices stay, values computed from them are hoisted
        ("cast(float32, v * 3) + B[w]", "j", "Y_part[] + B[w]"),
        ("select(v * 2 <= w, A[v] + 1.0, B[w])", "j", None),
        # a select as a whole, or what its condition compares
        ("select(1 <= v, A[v - 1], 0.0) + B[w]", "j", "Y_part[] + B[w]"),
        ("select(exp(A[v]) < B[w], A[v], exp(A[v]))", "j", "select(Y_part[] < B[w], A[v], exp(A[v]))"),
        # integers from memory
        ("cast(float32, K[v] * K[v] + cast(int64, B[w]))", "j", "cast(float32, cast(int64, B[w]) + Y_part[])"),
    ],
)
def test_hoisted_parts(text: str, loop: str, expected: str | None) -> None:
    func = value(text)
    if expected is None:
        what = "no part of its value stays the same while the loop runs"
        refuses(lambda: hoist(func, "Y", loop), f"hoist of block 'Y' before loop '{loop}': {what}")
        return
    after = hoist(func, "Y", loop)
    assert body(after) == expected
    check_same(func, after)
    verify(after)


def test_a_factor_of_a_reduction() -> None:
    func = reorder(MATMUL, ("i", "k", "j"))
    after = hoist(func, "C", "j")
    assert "C_part[] = A[v_i_h, v_k_h]" in show(after)
    check_same(MATMUL, after)


def test_outer_predicates_are_hoisted_along() -> None:
    func = split(split(OUTER, "i", 4), "j", 2)
    text = show(hoist(func, "Y", "j_o"))
    assert "block Y_hoist(v_h: N = i_i + i_o * 4) where i_i + i_o * 4 < N:" in text
    check_same(OUTER, hoist(func, "Y", "j_o"))


def concurrent(kind: str) -> Func:
    func = split(OUTER, "i", 4)
    match kind:
        case "threads":
            return hoist(parallel(func, "i_o"), "Y", "j")
        case "lanes inside":
            return hoist(vectorize(parallel(func, "i_o"), "j"), "Y", "j")
        case "lanes outside":
            return hoist(vectorize(func, "i_i"), "Y", "j")
        case "virtual threads":
            return hoist(virtual_thread(func, "i_i"), "Y", "j")
        case "unrolled":
            return hoist(unroll(unroll(func, "i_i"), "j"), "Y", "j")
        case _:
            return parallel(hoist(value("exp(B[1]) * A[v] + B[w]"), "Y", "i"), "i")


KINDS = ["threads", "lanes inside", "lanes outside", "virtual threads", "unrolled", "threads inside"]


@pytest.mark.parametrize("kind", KINDS)
def test_concurrent_loops(kind: str) -> None:
    func = concurrent(kind)
    verify(func)
    check_same(value("exp(B[1]) * A[v] + B[w]") if kind == "threads inside" else OUTER, func)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", TARGETS)
def test_native_code(kind: str, target: str) -> None:
    func = concurrent(kind)
    native = Native(func, target=target)
    for n in (1, 7, 32):
        rng = np.random.default_rng(n)
        arrays = {p.name: np.zeros((n, 9), np.float32) if p.name == "Y" else
                  rng.standard_normal(9 if p.name == "B" else n).astype(np.float32)
                  for p in func.params if p.name != "K"}  # fmt: skip
        if any(p.name == "K" for p in func.params):
            arrays["K"] = np.ones(n, np.int64)
        compare(native, arrays, {"N": n})


@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from(("j", "j_o", "j_i", "i_i")))
def test_hoist_preserves_semantics_in_tiles(rows: int, columns: int, loop: str) -> None:
    func = split(split(OUTER, "i", rows), "j", columns)
    func = reorder(func, ("i_o", "j_o", "j_i", "i_i")) if loop == "i_i" else func
    if loop == "j":
        func = split(OUTER, "i", rows)
    check_same(OUTER, hoist(func, "Y", loop))


SHRINKING = parse("""
func shrinking(A: float32[N], B: float32[N, 9], Y: float32[N, 9]; N: 1..64):
    for i in serial(N):
        for j in serial(9):
            block Y(v: N = i, w: 9 = j):
                Y[v, w] = A[v] * B[v, w]
            block B2(v_1: N = i, w_1: 9 = j):
                A[v_1] = B[v_1, w_1]
""")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: hoist(MATMUL, "C", "k"),
            "hoist of block 'C' before loop 'k': no part of its value stays the same while the loop runs",
        ),
        (
            lambda: hoist(CHAIN, "T", "j_1"),
            "hoist of block 'T' before loop 'j_1': the loop does not enclose the block; enclosing loops: i, j, k",
        ),
        (
            # A is written while the loop runs
            lambda: hoist(SHRINKING, "Y", "j"),
            "hoist of block 'Y' before loop 'j': no part of its value stays the same while the loop runs",
        ),
        (
            lambda: hoist(value("cast(float32, (K[v] // (K[v] + 1)) + cast(int64, B[w]))"), "Y", "j"),
            "hoist of block 'Y' before loop 'j': K[v] // (K[v] + 1): it may divide by 0 where the loop does not run: "
            "K[v] // (K[v] + 1)",
        ),
        (
            # with M = 0 there is no row 0
            lambda: hoist(
                parse("""
func empty(A: float32[M], Y: float32[M]; M: 0..64):
    for i in serial(M):
        block Y(v: M = i):
            Y[v] = exp(A[0]) + A[v]
"""),
                "Y",
                "i",
            ),
            "hoist of block 'Y' before loop 'i': exp(A[0]): index 0 of buffer 'A' (read, dimension 0) is not proved "
            "< M",
        ),
        (lambda: hoist(OUTER, "Y", "j", "B"), "hoist of block 'Y' before loop 'j': name 'B' is already used"),
        (
            lambda: hoist(bind(OUTER, "j", LoopKind.THREAD_X), "Y", "j"),
            "hoist of block 'Y' before loop 'j': loop 'j' on thread_x: register buffer 'Y_part' of one thread is used "
            "outside of it too, in block 'Y_hoist'",
        ),
        (lambda: hoist(OUTER, "Y", "k"), "outer: there is no loop 'k'; loops are i, j"),
    ],
)
def test_hoist_refuses(make, message: str) -> None:
    refuses(make, message)


def test_only_computable_parts_are_hoisted() -> None:
    func = value("cast(float32, K[v] // (K[v] + 1) + cast(int64, B[w])) + exp(A[v])")
    after = hoist(func, "Y", "j")
    assert body(after).endswith("+ Y_part[]")
    verify(after)


def test_after_other_primitives() -> None:
    func = peel(decompose_reduction(reorder(MATMUL, ("i", "k", "j")), "C", "k"), "i", 1)
    check_same(MATMUL, hoist(func, "C", "j"))
    refuses(
        lambda: hoist(STENCIL, "Y", "j"),
        "hoist of block 'Y' before loop 'j': no part of its value stays the same while the loop runs",
    )
