"""cache_read, cache_write, pack: semantics, printed result, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.native import Native, compare
from tests.schedule.functions import CHAIN, MATMUL, ROWS, SCALE, STENCIL, applied, check_same, refuses

from tilewright.expr.nodes import MemoryScope, Symbol
from tilewright.layout.layout import Layout
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import parallel, vectorize
from tilewright.schedule.cache import cache_read, cache_write, pack
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import peel, reorder, split
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.staging import set_scope

M = Symbol("M", 1, 64)
TILES = Layout.of((M, 9)).pad_to(1, 4).split(1, (None, 4)).reorder((1, 0, 2))
"""[M, 9] in tiles of 4 columns, one behind the other."""

# cache_read


def test_cache_read(golden) -> None:
    golden(show(applied(MATMUL, "cache_read", "C", "B")))


@pytest.mark.parametrize(
    ("func", "block", "buffer"),
    [(MATMUL, "C", "A"), (SCALE, "Y", "A"), (CHAIN, "Y", "T"), (CHAIN, "Y", "bias"), (STENCIL, "Y", "T"),
     (ROWS, "Y", "T")],
)  # fmt: skip
def test_cache_read_preserves_semantics(func: Func, block: str, buffer: str) -> None:
    applied(func, "cache_read", block, buffer)


def test_cache_read_follows_the_last_writer() -> None:
    text = show(cache_read(CHAIN, "Y", "T"))
    assert text.index("block T(") < text.index("block T_copy_read(") < text.index("block Y(")


def test_cache_read_on_the_stack() -> None:
    func = applied(MATMUL, "cache_read", "C", "B", "fast", MemoryScope.STACK)
    assert "alloc fast: float32[5, 9] in stack\n" in show(func)


@pytest.mark.parametrize("func", [MATMUL, STENCIL], ids=lambda f: f.name)
def test_cache_read_in_a_layout_preserves_semantics(func: Func) -> None:
    block, buffer = ("C", func.params[0]) if func is MATMUL else ("Y", func.allocs[0])
    tiles = Layout.of(buffer.shape).pad_to(0, 4).split(0, (None, 4))
    applied(func, "cache_read", block, buffer.name, None, MemoryScope.MEMORY, tiles)
    applied(func, "cache_read", block, buffer.name, None, MemoryScope.MEMORY, Layout.of(buffer.shape).pad(0, 2, 3))


CONVOLUTION = parse("""
func convolution(X: float32[N + 2], W: float32[3], Y: float32[N]; N: 1..64):
    for i in serial(N):
        for r in serial(3):
            block Y(v: N = i, reduce w: 3 = r):
                init Y[v] = 0.0
                Y[v] = Y[v] + X[v + w] * W[w]
""")


def test_cache_read_in_overlapping_tiles(golden) -> None:
    n = Symbol("N", 1, 64)
    windows = Layout.of((n + 2,)).pad(0, 0, (n + 3) // 4 * 4 - n).unfold(0, 6, 4)
    golden(show(applied(CONVOLUTION, "cache_read", "Y", "X", "X_tiles", MemoryScope.MEMORY, windows)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cache_read(MATMUL, "C", "X"),
            "cache_read of 'X' for block 'C': the block has no operand of that name; its operands: 'A', 'B'",
        ),
        (
            lambda: cache_read(MATMUL, "C", "C"),
            "cache_read of 'C' for block 'C': the block has no operand of that name; its operands: 'A', 'B'",
        ),
        (
            lambda: cache_read(compute_at(ROWS, "T", "i_1"), "Y", "T"),
            "cache_read of 'T' for block 'Y': block 'T' writes it in the same nest",
        ),
        (
            lambda: cache_read(MATMUL, "C", "A", None, MemoryScope.REGISTER),
            "set_scope of 'A_copy' to register: its shape (M, 5) is not literal; use 'stack', which takes any "
            "size, or `split` the loops of its size and compute it per tile",
        ),
        (lambda: cache_read(MATMUL, "C", "B", "k"), "cache_read of 'B' for block 'C': name 'k' is already used"),
        (
            lambda: cache_read(MATMUL, "C", "B", None, MemoryScope.MEMORY, Layout.of((9, 5))),
            "cache_read of 'B' for block 'C': the layout is of shape [9, 5], expected [5, 9]",
        ),
        (
            lambda: cache_read(MATMUL, "C", "B", None, MemoryScope.MEMORY, Layout.of((5, 9)).store_at("bias", (9,), 0)),
            "cache_read of 'B' for block 'C': the layout attaches 'bias', another tensor",
        ),
        (
            lambda: cache_read(MATMUL, "C", "B", None, MemoryScope.MEMORY, Layout.of((5, 9)).unpad(1, 0, 1)),
            "cache_read of 'B' for block 'C': block 'C': index v_j of buffer 'B_copy' (read, dimension 1) is not "
            "proved < 8",
        ),
    ],
)
def test_cache_read_refuses(make, message: str) -> None:
    refuses(make, message)


# Packing where it is used


def gemm(rows: int | str, columns: int | str, depth: int | str) -> Func:
    symbols = sorted({str(n) for n in (rows, columns, depth) if isinstance(n, str)})
    declared = "; " + ", ".join(f"{s}: 1..64" for s in symbols) if symbols else ""
    return parse(f"""
func gemm(A: float32[{rows}, {depth}], B: float32[{depth}, {columns}], C: float32[{rows}, {columns}]{declared}):
    for i in serial({rows}):
        for j in serial({columns}):
            for k in serial({depth}):
                block C(v_i: {rows} = i, v_j: {columns} = j, reduce v_k: {depth} = k):
                    init C[v_i, v_j] = 0.0
                    C[v_i, v_j] = C[v_i, v_j] + A[v_i, v_k] * B[v_k, v_j]
""")


def blocked(func: Func, columns: int, depth: int, lanes: int) -> Func:
    """Tiles of `depth` x `columns` of B, packed in vectors of `lanes` on the stack of the thread that uses them."""
    func = split(split(func, "j", columns, ("jo", "j")), "k", depth, ("ko", "k"))
    func = split(func, "j", lanes, ("ji", "jv"))
    func = reorder(func, ("jo", "ko", "i", "ji", "k", "jv"))
    func = compute_at(pack(func, "C", "B", 1, lanes, "P"), "P_pack", "ko")
    return parallel(set_scope(func, "P", MemoryScope.STACK), "jo")


def test_gemm_with_a_tile_packed_at_its_use(golden) -> None:
    golden(show(blocked(gemm("N", 24, 12), 8, 4, 4)))


@given(
    st.tuples(*[st.sampled_from((1, 5, 8, 13, "M", "N"))] * 3), st.sampled_from((1, 2)), st.integers(1, 6),
    st.sampled_from((2, 4)),
)  # fmt: skip
def test_packing_at_the_use_preserves_semantics(sizes, vectors: int, depth: int, lanes: int) -> None:
    func = gemm(*sizes)
    check_same(func, blocked(func, vectors * lanes, depth, lanes))


def test_packing_at_the_use_in_native_code() -> None:
    func = blocked(gemm("M", "N", "K"), 32, 16, 16)
    func = vectorize(decompose_reduction(func, "C", "ko"), "jv")
    native = Native(func)
    rng = np.random.default_rng(3)
    for m, n, k in ((1, 1, 1), (7, 37, 19), (5, 64, 32)):
        shapes = {"A": (m, k), "B": (k, n), "C": (m, n)}
        arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        compare(native, arrays, {"M": m, "N": n, "K": k})


# cache_write


def test_cache_write(golden) -> None:
    golden(show(applied(MATMUL, "cache_write", "C")))


def test_cache_write_in_a_layout(golden) -> None:
    golden(show(applied(MATMUL, "cache_write", "C", None, MemoryScope.MEMORY, TILES)))


def test_cache_write_in_a_layout_of_a_scheduled_nest() -> None:
    func = split(MATMUL, "j", 4)
    check_same(MATMUL, cache_write(func, "C", "tile", MemoryScope.MEMORY, TILES))


def test_cache_write_on_the_stack() -> None:
    func = applied(ROWS, "cache_write", "Y", None, MemoryScope.STACK)
    assert "alloc Y_local: float32[8] in stack\n" in show(func)


@pytest.mark.parametrize(("func", "block"), [(SCALE, "Y"), (CHAIN, "T"), (CHAIN, "Y"), (ROWS, "T")])
def test_cache_write_preserves_semantics(func: Func, block: str) -> None:
    check_same(func, cache_write(func, block))


def test_cache_write_of_a_scalar() -> None:
    total = parse("""
func total(A: float32[6], Y: float32[]):
    for k in serial(6):
        block Y(reduce v: 6 = k):
            init Y[] = 0.0
            Y[] = Y[] + A[v]
""")
    check_same(total, cache_write(total, "Y"))


UPDATE = parse("""
func update(A: float32[6], Y: float32[6]):
    for i in serial(6):
        block Y(v: 6 = i):
            Y[v] = Y[v] + A[v]
""")

PART = parse("""
func part(A: float32[6], Y: float32[8]):
    for i in serial(6):
        block Y(v: 6 = i):
            Y[v] = A[v]
""")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cache_write(peel(MATMUL, "j", 4), "C"),
            "cache_write of 'C': block 'C_2' writes 'C' too",
        ),
        (
            lambda: cache_write(decompose_reduction(MATMUL, "C", "k"), "C"),
            "cache_write of 'C': block 'C_init' writes 'C' too",
        ),
        (lambda: cache_write(UPDATE, "Y"), "cache_write of 'Y': it accumulates into existing values of 'Y'"),
        (
            lambda: cache_write(PART, "Y"),
            "cache_write of 'Y': it does not write all of 'Y' at its plain iteration variables",
        ),
        (
            lambda: cache_write(compute_at(ROWS, "T", "i_1"), "T"),
            "cache_write of 'T': block 'Y' uses 'T' there too",
        ),
        (lambda: cache_write(MATMUL, "C", "A"), "cache_write of 'C': name 'A' is already used"),
        (
            lambda: cache_write(MATMUL, "C", None, MemoryScope.REGISTER),
            "set_scope of 'C_local' to register: its shape (M, 9) is not literal; use 'stack', which takes any "
            "size, or `split` the loops of its size and compute it per tile",
        ),
        (
            lambda: cache_write(MATMUL, "C", None, MemoryScope.MEMORY, Layout.of((M, 8))),
            "transform_layout of 'C_local': the layout is of shape [M, 8], expected [M, 9]",
        ),
        (lambda: cache_write(MATMUL, "D"), "matmul: there is no block 'D'; blocks are C"),
    ],
)
def test_cache_write_refuses(make, message: str) -> None:
    refuses(make, message)


def test_a_stencil_keeps_its_guarded_reads_when_cached() -> None:
    applied(STENCIL, "cache_write", "T")


# pack


@pytest.mark.parametrize(("dim", "factor"), [(1, 4), (1, 3), (0, 2), (0, 5), (1, 16)])
def test_pack_preserves_semantics(dim: int, factor: int) -> None:
    applied(MATMUL, "pack", "C", "B", dim, factor)


def test_pack_of_a_symbolic_dimension_preserves_semantics() -> None:
    applied(MATMUL, "pack", "C", "A", 0, 4)


def test_pack_of_an_internal_buffer_preserves_semantics() -> None:
    applied(CHAIN, "pack", "Y", "T", 0, 4)


def test_pack_with_a_padded_tile(golden) -> None:
    golden(show(pack(MATMUL, "C", "B", 1, 4)))


def test_pack_without_padding(golden) -> None:
    golden(show(pack(MATMUL, "C", "B", 1, 3)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: pack(MATMUL, "C", "X", 0, 4),
            "pack of 'X' for block 'C': the block has no operand of that name; its operands: 'A', 'B'",
        ),
        (
            lambda: pack(compute_at(ROWS, "T", "i_1"), "Y", "T", 0, 4),
            "pack of 'T' for block 'Y': block 'T' writes it in the same nest",
        ),
        (
            lambda: pack(MATMUL, "C", "B", 2, 4),
            "pack of 'B' for block 'C': dimension 2 with factor 4 does not fit 2 dimensions",
        ),
        (
            lambda: pack(MATMUL, "C", "B", 1, 0),
            "pack of 'B' for block 'C': dimension 1 with factor 0 does not fit 2 dimensions",
        ),
        (lambda: pack(MATMUL, "C", "B", 1, 4, "i"), "pack of 'B' for block 'C': name 'i' is already used"),
    ],
)
def test_pack_refuses(make, message: str) -> None:
    refuses(make, message)
