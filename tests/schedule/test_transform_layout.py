"""transform_layout: semantics, printed result, rebuilt nests, refusals."""

import numpy as np
import pytest
from hypothesis import given
from tests.codegen.native import check
from tests.schedule.functions import CHAIN, ROWS, STENCIL, applied, check_same, refuses
from tests.schedule.strategies import layouts

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import MemoryScope, Symbol
from tilewright.layout.layout import Layout
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import parallel
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import split
from tilewright.schedule.prefetch import prefetch
from tilewright.schedule.staging import set_scope
from tilewright.schedule.transform_layout import transform_layout

M, N = Symbol("M", 1, 64), Symbol("N", 1, 64)
T = Layout.of((M, 9))

SQUARE = parse("""
func square(A: float32[5, 5], Y: float32[5, 5]):
    alloc T: float32[5, 5]
    for i in serial(5):
        for j in serial(5):
            block T(v_i: 5 = i, v_j: 5 = j):
                T[v_i, v_j] = A[v_i, v_j] * 2.0
    for i_1 in serial(5):
        for j_1 in serial(5):
            block Y(w_i: 5 = i_1, w_j: 5 = j_1):
                Y[w_i, w_j] = T[w_i, w_j] + T[w_j, w_i]
""")

WINDOWS = parse("""
func windows(A: float32[N + 2, 4], W: float32[3, 4], Y: float32[N]; N: 1..64):
    alloc T: float32[N + 2, 4]
    for i in serial(N + 2):
        for c in serial(4):
            block T(v_i: N + 2 = i, v_c: 4 = c):
                T[v_i, v_c] = A[v_i, v_c] * 2.0
    for i_1 in serial(N):
        for r in serial(3):
            for c_1 in serial(4):
                block Y(w_i: N = i_1, reduce w_r: 3 = r, reduce w_c: 4 = c_1):
                    init Y[w_i] = 0.0
                    Y[w_i] = Y[w_i] + T[w_i + w_r, w_c] * W[w_r, w_c]
""")


def test_reordered_dimensions(golden) -> None:
    golden(show(applied(CHAIN, "transform_layout", "T", T.reorder((1, 0)))))


def test_tiles_with_padding(golden) -> None:
    tiles = T.pad_to(1, 4).split(1, (None, 4)).reorder((1, 0, 2))
    golden(show(applied(CHAIN, "transform_layout", "T", tiles)))


def test_padding_is_zero(golden) -> None:
    golden(show(applied(WINDOWS, "transform_layout", "T", Layout.of((N + 2, 4)).pad(1, 1, 2))))


def test_overlapping_tiles(golden) -> None:
    tiles = Layout.of((N + 2, 4)).pad(0, 0, (N + 3) // 4 * 4 - N).unfold(0, 6, 4)
    golden(show(applied(WINDOWS, "transform_layout", "T", tiles)))


def test_square_buffer_is_transformed_once() -> None:
    applied(SQUARE, "transform_layout", "T", Layout.of((5, 5)).reorder((1, 0)))


@pytest.mark.parametrize(
    "layout",
    [T, T.split(1, (3, 3)), T.fuse(0), T.fuse(0).pad_to(0, 7), T.pad_to(0, 4).split(0, (None, 4)), T.unfold(1, 4, 2),
     T.pad(1, 2, 0).unfold(1, 5, 3).reorder((2, 1, 0)), T.pad(0, 1, 1).fuse(0)],
    ids=str,
)  # fmt: skip
def test_layouts_preserve_semantics(layout: Layout) -> None:
    applied(CHAIN, "transform_layout", "T", layout)


def test_a_guarded_read_stays_guarded() -> None:
    applied(STENCIL, "transform_layout", "T", Layout.of((N,)).pad_to(0, 4).split(0, (None, 4)))


RUNNING = parse("""
func running(A: float32[6], Y: float32[6]):
    alloc S: float32[6]
    for z in serial(6):
        block Z(u: 6 = z):
            S[u] = 0.0
    for i in serial(6):
        block S(v: 6 = i):
            S[v] = A[v] + select(1 <= v, S[v - 1], 0.0)
    for j in serial(6):
        block Y(w: 6 = j):
            Y[w] = S[w]
""")


def test_nests_with_a_common_buffer_keep_their_loops() -> None:
    func = applied(RUNNING, "transform_layout", "S", Layout.of((6,)).split(0, (3, 2)))
    assert "for z in serial(6):\n        block Z(u: 6 = z):\n            S[u // 2, u % 2] = " in show(func)
    assert "for i in serial(6):\n        block S(v: 6 = i):\n            S[v // 2, v % 2] = " in show(func)


def test_a_scheduled_nest_keeps_its_loops() -> None:
    func = parallel(split(CHAIN, "j", 4), "i")
    changed = transform_layout(func, "T", T.reorder((1, 0)))
    assert "for i in parallel(M):\n        for j_o in serial(3):\n            for j_i in serial(4):" in show(changed)
    check_same(CHAIN, changed)


def test_after_compute_at() -> None:
    func = compute_at(split(CHAIN, "i_1", 4), "T", "i_1_o")
    check_same(CHAIN, transform_layout(func, "T", Layout.of((4, 9)).reorder((1, 0))))


def test_prefetches_follow_the_buffer() -> None:
    func = prefetch(CHAIN, "i_1", "T", 2)
    changed = transform_layout(func, "T", T.reorder((1, 0)))
    assert "for i_1 in serial(M) prefetching T[8, i_1 + 2]:" in show(changed)
    check_same(CHAIN, changed)


def test_in_native_code() -> None:
    tiles = Layout.of((7, 9)).pad_to(1, 4).split(1, (None, 4)).reorder((1, 0, 2))
    fixed = parse(show(CHAIN).replace("; M: 1..64", "").replace("M", "7"))
    func = transform_layout(set_scope(fixed, "T", MemoryScope.STACK), "T", tiles)
    rng = np.random.default_rng(2)
    shapes = {"A": (7, 5), "B": (5, 9), "bias": (9,), "Y": (7, 9)}
    check(func, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})


@pytest.mark.parametrize("func", [CHAIN, ROWS, SQUARE, WINDOWS, STENCIL], ids=lambda f: f.name)
def test_random_layouts_preserve_semantics(func: Func) -> None:
    buffer = func.allocs[0]

    @given(layouts(Layout.of(buffer.shape)))
    def explore(layout: Layout) -> None:
        try:
            changed = transform_layout(func, buffer.name, layout)
        except ScheduleError as e:
            if "is not proved" not in e.what:  # bounds that the prover cannot show are refused, as by the verifier
                raise
            return
        check_same(func, changed)

    explore()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: transform_layout(CHAIN, "T", Layout.of((9, M))),
            "transform_layout of 'T': the layout is of shape [9, M], expected [M, 9]",
        ),
        (
            lambda: transform_layout(CHAIN, "A", Layout.of((M, 5))),
            "chain: there is no internal buffer 'A'; there are: T",
        ),
        (
            lambda: transform_layout(CHAIN, "T", T.store_at("bias", (M,), 1)),
            "transform_layout of 'T': the layout attaches 'bias', another tensor",
        ),
        (
            lambda: transform_layout(ROWS, "T", Layout.of((8,)).unfold(0, 4, 2).fold(0, 4, 2, 8)),
            "transform_layout of 'T': fold keeps one of several elements, which may differ",
        ),
        (
            lambda: transform_layout(split(CHAIN, "j", 3), "T", T.unfold(1, 4, 2)),
            "transform_layout of 'T': unfold repeats elements, but 'T' can't be rebuilt to write them all; "
            "transform the layout before the loops of the block that writes the buffer are changed",
        ),
        (
            lambda: transform_layout(CHAIN, "T", T.unpad(1, 0, 1)),
            "transform_layout of 'T': block 'Y': index w_j of buffer 'T' (read, dimension 1) is not proved < 8",
        ),
        (
            lambda: transform_layout(set_scope(ROWS, "T", MemoryScope.REGISTER), "T", Layout.of((8,)).pad(0, 0, M)),
            "transform_layout of 'T': its shape (M + 8) is not literal, as scope register needs it",
        ),
    ],
)
def test_transform_layout_refuses(make, message: str) -> None:
    refuses(make, message)
