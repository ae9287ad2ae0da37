"""rfactor: semantics, printed result, use with compute_at, refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedule.functions import CHAIN, MATMUL, ROWS, SCALE, applied, check_same, refuses

from tilewright.expr.nodes import const
from tilewright.loops.ir import blocks
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import vectorize
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import peel, reorder, split
from tilewright.schedule.reduction import decompose_reduction, rfactor
from tilewright.schedule.rewrite_tree import find_block

BARE = decompose_reduction(ROWS, "T", "k")


def test_rfactor(golden) -> None:
    func = rfactor(ROWS, "T", 0, 3)
    golden(show(func))
    check_same(ROWS, func)


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 5, 6, 7])
def test_every_factor_preserves_semantics(factor: int) -> None:
    check_same(ROWS, rfactor(ROWS, "T", 0, factor))


def test_a_parameter_may_be_the_result() -> None:
    check_same(MATMUL, rfactor(MATMUL, "C", 0, 5))


def test_partial_results_are_computed_at_the_chunk_loop() -> None:
    func = rfactor(CHAIN, "T", 0, 1)
    chunks, partial = find_block(func, "T")[1][-1].var.name, blocks(func.body)[0].name
    func = decompose_reduction(func, "T", chunks)
    func = compute_at(func, partial, chunks)
    assert next(b for b in func.allocs if b.name == "T_partial").shape == ()
    check_same(CHAIN, func)


STARTED = parse("""
func started(A: float32[M * 4, M, 6], B: float32[M], Y: float32[M], Z: float32[M]; M: 1..16):
    for i in serial(M):
        for k in serial(M * 4):
            for l in serial(6):
                block Y(v_i: M = i, reduce v_k: M * 4 = k, reduce v_l: 6 = l):
                    init Y[v_i] = B[v_i]
                    Y[v_i] = Y[v_i] + A[v_k, v_i, v_l]
    for i_1 in serial(M):
        for k_1 in serial(M * 4):
            block Z(w_i: M = i_1, reduce w_k: M * 4 = k_1):
                init Z[w_i] = 3.0
                Z[w_i] = max(Z[w_i], A[w_k, w_i, 0])
""")
"""Reductions over symbolic axes that start from something else than nothing."""


@pytest.mark.parametrize(("block", "axis", "factor"), [("Y", 0, 4), ("Y", 0, 2), ("Y", 1, 3), ("Z", 0, 4), ("Z", 0, 1),
                          ("Y", 0, 8), ("Y", 1, 4), ("Z", 0, 7), ("Z", 0, 100)])  # fmt: skip
def test_symbolic_axes_and_nonzero_inits(block: str, axis: int, factor: int) -> None:
    func = applied(STARTED, "rfactor", block, axis, factor)
    assert f"alloc {block}_partial: float32[M, {'2' if axis else func.allocs[0].shape[1]}]" in show(func)


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from(["+", "*", "max", "min"]), st.sampled_from(["0.0", "2.0"]))
def test_any_divisor_of_any_reduction(factor: int, chunks: int, op: str, start: str) -> None:
    value = f"{op}(Y[v], A[v, r])" if op.isalpha() else f"Y[v] {op} A[v, r]"
    func = parse(f"""
func reduction(A: int32[M, {factor * chunks}], Y: int32[M]; M: 1..64):
    for i in serial(M):
        for k in serial({factor * chunks}):
            block Y(v: M = i, reduce r: {factor * chunks} = k):
                init Y[v] = int32({start[0]})
                Y[v] = {value}
""")
    check_same(func, rfactor(func, "Y", 0, factor, "P"))


def test_strands(golden) -> None:
    func = rfactor(ROWS, "T", 0, 4, strands=True)
    golden(show(func))
    check_same(ROWS, func)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 16])
def test_any_number_of_strands_preserves_semantics(count: int) -> None:
    func = rfactor(ROWS, "T", 0, count, strands=True)
    check_same(ROWS, func)
    assert func.allocs[-1].shape[-1] is const(count)


@pytest.mark.parametrize(("block", "axis", "count"), [("Y", 0, 4), ("Y", 0, 3), ("Y", 1, 4), ("Z", 0, 16)])
def test_strands_of_symbolic_axes(block: str, axis: int, count: int) -> None:
    applied(STARTED, "rfactor", block, axis, count, None, True)


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 20), st.sampled_from(["+", "*", "max", "min"]), st.booleans())
def test_strands_of_any_reduction(count: int, extent: int, op: str, symbolic: bool) -> None:
    size = "K" if symbolic else extent
    value = f"{op}(Y[v], A[v, r])" if op.isalpha() else f"Y[v] {op} A[v, r]"
    func = parse(f"""
func reduction(A: int32[M, {size}], Y: int32[M]; M: 1..9{f", K: 1..{extent}" if symbolic else ""}):
    for i in serial(M):
        for k in serial({size}):
            block Y(v: M = i, reduce r: {size} = k):
                init Y[v] = int32(2)
                Y[v] = {value}
""")
    check_same(func, rfactor(func, "Y", 0, count, "P", True))


def test_strands_as_vector_lanes_with_a_peeled_partial_step() -> None:
    func = rfactor(ROWS, "T", 0, 4, strands=True)
    partial = blocks(func.body)[0].name
    func = compute_at(func, "T", find_block(func, "Y")[1][0].var.name)
    func = compute_at(func, partial, find_block(func, "Y")[1][0].var.name)
    lanes, steps = (x.var.name for x in find_block(func, partial)[1][-2:])
    func = decompose_reduction(reorder(func, (steps, lanes)), partial, steps)
    func = peel(vectorize(func, lanes), steps, const(1))
    check_same(ROWS, func)


BEFORE = "use rfactor before its loops are split, reordered or fused with others"


@pytest.mark.parametrize(
    ("make", "block", "message"),
    [
        (lambda: rfactor(ROWS, "T", 0, 0), "T", "expected at least 1 step of a block, got 0"),
        (lambda: rfactor(ROWS, "T", 0, 0, None, True), "T", "expected at least 1 lane, got 0"),
        (lambda: rfactor(ROWS, "T", 1, 2), "T", "there is no reduction axis 1; it has 1"),
        (lambda: rfactor(SCALE, "Y", 0, 2), "Y", "there is no reduction axis 0; it has 0"),
        (lambda: rfactor(BARE, "T", 0, 2), "T", "its init was decomposed; use rfactor before decompose_reduction"),
        (lambda: rfactor(split(ROWS, "k", 4), "T", 0, 2), "T", f"it has a predicate; {BEFORE}"),
        (lambda: rfactor(split(ROWS, "k", 3), "T", 0, 2), "T", f"its loops were changed; {BEFORE}"),
        (lambda: rfactor(reorder(ROWS, ("k", "i")), "T", 0, 2), "T", f"its loops were changed; {BEFORE}"),
        (lambda: rfactor(peel(ROWS, "k", const(2)), "T", 0, 2), "T", f"other blocks share its loops; {BEFORE}"),
        (lambda: rfactor(ROWS, "T", 0, 2, "A"), "T", "name 'A' is already used"),
    ],
)
def test_rfactor_refuses(make, block: str, message: str) -> None:
    refuses(make, f"rfactor of block {block!r}: {message}")
