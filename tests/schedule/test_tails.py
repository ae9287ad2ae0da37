"""Tail strategies of split and tile: semantics, printed result, refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedule.functions import CHAIN, MATMUL, ROWS, SCALE, STENCIL, SUMS, WIDE, applied, check_same, refuses

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import LoopKind
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import bind, parallel, unroll, vectorize
from tilewright.schedule.cache import cache_write, pack
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import fuse, reorder, split, split_parts
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.staging import set_scope
from tilewright.schedule.tails import Tail
from tilewright.schedule.tile import tile
from tilewright.verify.verifier import verify

INDEX = parse("""
func index(Y: float32[N]; N: 1..64):
    alloc T: float32[N]
    for i in serial(N):
        block T(v: N = i):
            T[v] = cast(float32, v)
    for j in serial(N):
        block Y(w: N = j):
            Y[w] = T[w] * T[N - 1 - w]
""")
"""T reads nothing, so its domain may grow."""

PACKED = pack(cache_write(MATMUL, "C"), "C", "B", 1, 4)
"""Its block writes an internal buffer and reads an operand in whole tiles."""


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("loop", ["i", "j", "k"])
def test_remainder_preserves_semantics(loop: str, factor: int) -> None:
    check_same(MATMUL, split(MATMUL, loop, factor, None, Tail.REMAINDER))


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("loop", ["i", "j"])
def test_shift_inwards_preserves_semantics(loop: str, factor: int) -> None:
    check_same(WIDE, split(WIDE, loop, factor, None, Tail.SHIFT_INWARDS))


@pytest.mark.parametrize("factor", [1, 2, 3, 5, 16])
def test_mask_preserves_semantics(factor: int) -> None:
    check_same(MATMUL, split(MATMUL, "j", factor, None, Tail.MASK))
    check_same(SCALE, split(SCALE, "i", factor, None, Tail.MASK))


@pytest.mark.parametrize("factor", [1, 2, 3, 5, 16])
def test_pad_preserves_semantics(factor: int) -> None:
    check_same(INDEX, split(INDEX, "i", factor, None, Tail.PAD))


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("loop", ["i", "j", "k"])
def test_split_parts_preserves_semantics(loop: str, parts: int) -> None:
    check_same(MATMUL, split_parts(MATMUL, loop, parts))


def test_remainder(golden) -> None:
    golden(show(applied(SCALE, "split", "i", 4, ("io", "ii", "rest"), Tail.REMAINDER)))


def test_mask(golden) -> None:
    golden(show(applied(SCALE, "split", "j", 4, None, Tail.MASK)))


def test_shift_inwards(golden) -> None:
    golden(show(applied(WIDE, "split", "i", 4, None, Tail.SHIFT_INWARDS)))


def test_pad(golden) -> None:
    golden(show(applied(PACKED, "split", "j", 4, None, Tail.PAD)))


def test_parts(golden) -> None:
    golden(show(applied(SCALE, "split_parts", "i", 4, ("task", "ii"))))


@pytest.mark.parametrize("tail", [Tail.GUARD, Tail.REMAINDER, Tail.SHIFT_INWARDS])
def test_unneeded_tails_change_nothing(tail: Tail) -> None:
    assert split(MATMUL, "j", 3, None, tail) == split(MATMUL, "j", 3)


def test_a_mask_vectorizes_whole_tiles_too() -> None:
    assert "for j_i in vectorized(3):" in show(split(MATMUL, "j", 3, None, Tail.MASK))


def test_a_parallel_loop_keeps_its_threads() -> None:
    func = split(parallel(SCALE, "i"), "i", 4, None, Tail.REMAINDER)
    assert "for i_o in parallel(N // 4):" in show(func)
    assert "for i_r in parallel(N % 4):" in show(func)
    check_same(SCALE, func)


def test_the_remainder_has_private_buffers_of_its_own() -> None:
    private = parallel(set_scope(compute_at(ROWS, "T", "i_1"), "T", MemoryScope.STACK), "i_1")
    func = split(private, "i_1", 3, None, Tail.REMAINDER)
    assert [a.name for a in func.allocs] == ["T", "T_3"]
    check_same(ROWS, func)


def test_a_tile_inside_a_tile_has_a_remainder() -> None:
    func = split(split(MATMUL, "j", 8, None, Tail.REMAINDER), "j_i", 3, None, Tail.REMAINDER)
    check_same(MATMUL, func)
    check_same(MATMUL, split(split(MATMUL, "i", 4), "i_i", 3, None, Tail.REMAINDER))
    check_same(MATMUL, split(split(MATMUL, "k", 4, None, Tail.REMAINDER), "k_i", 3, None, Tail.REMAINDER))


def test_whole_tiles_and_remainders_are_scheduled_separately() -> None:
    func = tile(MATMUL, ("i", "j"), (4, 4), None, Tail.REMAINDER)
    func = decompose_reduction(func, "C", "i_i")
    check_same(MATMUL, func)
    check_same(MATMUL, decompose_reduction(func, "C_2", "k_2"))


def test_shifted_tiles_may_be_split_fused_and_vectorized() -> None:
    func = split(WIDE, "i", 4, None, Tail.SHIFT_INWARDS)
    check_same(WIDE, split(func, "i_o", 2))
    check_same(WIDE, split(func, "i_i", 3))
    check_same(WIDE, fuse(func, "i_o", "i_i"), verified=False)
    check_same(WIDE, vectorize(func, "i_i"))
    check_same(WIDE, parallel(func, "i_i"))
    check_same(WIDE, decompose_reduction(func, "C", "j"))


def test_producers_may_move_into_shifted_tiles() -> None:
    wide = parse(show(CHAIN).replace("M: 1..64", "M: 4..64"))
    func = compute_at(split(wide, "i_1", 4, None, Tail.SHIFT_INWARDS), "T", "i_1_o")
    assert "alloc T: float32[4, 9]" in show(func)
    check_same(wide, func)


def test_accumulators_may_be_padded_after_their_initialisation() -> None:
    func = decompose_reduction(PACKED, "C", "i")
    init = next(name for name in ("j_2", "j_3") if f"for {name} in" in show(func))
    func = split(func, init, 4, None, Tail.PAD)
    check_same(MATMUL, split(func, "j", 4, None, Tail.PAD))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: split(MATMUL, "j", 16, None, Tail.REMAINDER),
            "split of loop 'j': no tile of 16 is whole in 9 iterations; use a smaller factor or Tail.GUARD",
        ),
        (
            lambda: split(bind(SCALE, "i", LoopKind.BLOCK_X), "i", 4, None, Tail.REMAINDER),
            "split of loop 'i': the loop is bound to block_x already; split it before `bind`",
        ),
        (
            lambda: split(SCALE, "i", 4, ("a", "b", "c")),
            "split of loop 'i': expected names for 2 loops, got a, b, c",
        ),
        (
            lambda: split(SCALE, "i", 4, ("a", "b", "j"), Tail.REMAINDER),
            "split of loop 'i': name 'j' is already used",
        ),
        (
            lambda: split_parts(SCALE, "i", 0),
            "split of loop 'i': factor must be at least 1, got 0",
        ),
    ],
)
def test_split_refuses(make, message: str) -> None:
    refuses(make, message)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: split(MATMUL, "k", 3, None, Tail.MASK),
            "vectorize of loop 'k_i': block 'C' reduces over it and has its init inside; use decompose_reduction first",
        ),
        (
            lambda: split(SUMS, "i", 4, None, Tail.MASK),
            "vectorize of loop 'i_i': block 'S' reads other elements of 'Y' than it writes: its order matters",
        ),
    ],
)
def test_masks_refuse(make, message: str) -> None:
    refuses(make, message)


IN_PLACE = parse("""
func in_place(A: float32[9], Y: float32[9]):
    alloc T: float32[9]
    for j in serial(9):
        block T(w: 9 = j):
            T[w] = A[w]
    for i in serial(9):
        block U(v: 9 = i):
            T[v] = T[v] * 2.0
        block Y(x: 9 = i):
            Y[x] = T[x]
""")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: split(MATMUL, "i", 4, None, Tail.SHIFT_INWARDS),
            "split of loop 'i': it is not proved that M iterations fill a tile of 4; use Tail.GUARD, or declare the "
            "size to be at least that",
        ),
        (
            lambda: split(MATMUL, "k", 3, None, Tail.SHIFT_INWARDS),
            "split of loop 'k': block 'C' reduces over it: points would count twice",
        ),
        (
            lambda: split(reorder(MATMUL, ("k", "i", "j")), "j", 4, None, Tail.SHIFT_INWARDS),
            "split of loop 'j': block 'C' reads 'C', which a repeated iteration has changed",
        ),
        (
            lambda: split(IN_PLACE, "i", 4, None, Tail.SHIFT_INWARDS),
            "split of loop 'i': block 'U' reads 'T', which a repeated iteration has changed",
        ),
        (
            lambda: split(SUMS, "i", 4, None, Tail.SHIFT_INWARDS),
            "split of loop 'i': block 'S' reads 'Y', which a repeated iteration has changed",
        ),
        (
            lambda: split(parallel(WIDE, "i"), "i", 4, None, Tail.SHIFT_INWARDS),
            "split of loop 'i': the loop is parallel: two iterations would write one element at once; use Tail.GUARD "
            "or Tail.REMAINDER",
        ),
        (
            lambda: parallel(split(WIDE, "i", 4, None, Tail.SHIFT_INWARDS), "i_o"),
            "parallel of loop 'i_o': block 'C': iterations of parallel loop 'i_o' may write the same element: "
            "C[v_i, v_j]",
        ),
        (
            lambda: decompose_reduction(split(WIDE, "i", 4, None, Tail.SHIFT_INWARDS), "C", "i_o"),
            "decompose_reduction of 'C': block 'C': iterations of loop 'i_o' accumulate the same points into one "
            "element of 'C'",
        ),
    ],
)
def test_shifted_tiles_refuse(make, message: str) -> None:
    refuses(make, message)


BEYOND = parse("""
func beyond(A: float32[8], Y: float32[8]):
    alloc T: float32[8]
    for i in serial(5):
        block T(v: 5 = i):
            T[v] = 1.0
    for j in serial(3):
        block U(w: 3 = j):
            T[w + 5] = A[w]
    for k in serial(8):
        block Y(x: 8 = k):
            Y[x] = T[x]
""")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: split(SCALE, "i", 4, None, Tail.PAD),
            "split of loop 'i': block 'Y' writes 'Y', a parameter, which can't grow; use cache_write first, or "
            "Tail.GUARD",
        ),
        (
            lambda: split(CHAIN, "i", 4, None, Tail.PAD),
            "split of loop 'i': block 'T': index v_i of buffer 'A' (read, dimension 0) is not proved < M; use "
            "Tail.GUARD, or pack the operand in tiles of the factor first",
        ),
        (
            lambda: split(CHAIN, "k", 4, None, Tail.PAD),
            "split of loop 'k': block 'T' does not iterate over 0..5 with one spatial variable bound to it; pad the "
            "loops before they are transformed, or use Tail.GUARD",
        ),
        (
            lambda: split(BEYOND, "i", 4, None, Tail.PAD),
            "split of loop 'i': block 'Y' may read elements of 'T' that the added iterations write",
        ),
    ],
)
def test_padding_refuses(make, message: str) -> None:
    refuses(make, message)


@pytest.mark.parametrize("tail", [Tail.GUARD, Tail.MASK, Tail.REMAINDER, Tail.SHIFT_INWARDS])
@pytest.mark.parametrize("loops", [("i", "j"), ("i",), ("j",)])
def test_tile_preserves_semantics(loops: tuple[str, ...], tail: Tail) -> None:
    check_same(WIDE, tile(WIDE, loops, (4, 2)[: len(loops)], None, tail))


@pytest.mark.parametrize("tail", [Tail.GUARD, Tail.REMAINDER])
@pytest.mark.parametrize("factors", [(4, 3, 2), (1, 2, 5), (5, 9, 3)])
def test_reductions_are_tiled_too(factors: tuple[int, ...], tail: Tail) -> None:
    check_same(MATMUL, tile(MATMUL, ("i", "j", "k"), factors, None, tail))


def test_tile(golden) -> None:
    golden(show(applied(SCALE, "tile", ("i", "j"), (4, 3), ("io", "jo", "ii", "ji"))))


def test_tile_with_remainders(golden) -> None:
    golden(show(applied(SCALE, "tile", ("i", "j"), (4, 4), None, Tail.REMAINDER)))


def test_loops_between_keep_their_places() -> None:
    func = tile(MATMUL, ("i", "k"), (4, 2))
    loops = [line.split()[1] for line in show(func).splitlines() if line.strip().startswith("for")]
    assert loops == ["i_o", "k_o", "j", "i_i", "k_i"]
    check_same(MATMUL, func)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tile(SCALE, (), ()), "tile of : expected a factor for each of 0 loops, got 0"),
        (lambda: tile(SCALE, ("i", "j"), (4,)), "tile of i, j: expected a factor for each of 2 loops, got 1"),
        (lambda: tile(SCALE, ("i", "j"), (4, 2), ("a", "b")), "tile of i, j: expected 4 names, got 2"),
        (
            lambda: tile(SCALE, ("j", "i"), (4, 2)),
            "tile of j, i: expected loops inside one another, the outermost first",
        ),
        (
            lambda: tile(STENCIL, ("i", "j"), (4, 2)),
            "tile of i, j: expected loops inside one another, the outermost first",
        ),
        (lambda: tile(SCALE, ("i", "j"), (4, 0)), "split of loop 'j': factor must be at least 1, got 0"),
        (lambda: tile(unroll(SUMS, "i"), ("z",), (2,)), "sums: there is no loop 'z'; loops are i"),
    ],
)
def test_tile_refuses(make, message: str) -> None:
    refuses(make, message)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.sampled_from(Tail)), min_size=1, max_size=4),
)
def test_tails_in_any_combination(steps: list[tuple[int, int, Tail]]) -> None:
    """Every accepted combination is well-formed and computes the same."""
    func = WIDE
    for which, factor, tail in steps:
        loops = [line.split()[1] for line in show(func).splitlines() if line.strip().startswith("for")]
        try:
            func = split(func, loops[which % len(loops)], factor, None, tail)
        except ScheduleError:
            continue
    verify(func, registers=False)
    check_same(WIDE, func)
