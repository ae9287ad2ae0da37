"""store_at: semantics, printed result, refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedule.functions import BLUR, CHAIN, ROWS, STENCIL, applied, check_same, refuses, tiled_producer

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import parallel, vectorize
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import fuse, split
from tilewright.schedule.reverse_compute_at import reverse_compute_at
from tilewright.schedule.staging import set_scope
from tilewright.schedule.store_at import store_at

FUSED = reverse_compute_at(tiled_producer(4, 4), "Y", "j_o")


def test_store_at(golden) -> None:
    golden(show(applied(FUSED, "store_at", "T", "j_o")))


def test_one_element(golden) -> None:
    golden(show(applied(reverse_compute_at(ROWS, "Y", "i"), "store_at", "T", "i")))


@pytest.mark.parametrize(("loop", "shape"), [("i_o", "4, 9"), ("j_o", "4, 4")])
def test_shape_depends_on_the_loop(loop: str, shape: str) -> None:
    func = store_at(FUSED, "T", loop)
    assert f"alloc T: float32[{shape}]\n" in show(func)
    check_same(CHAIN, parallel(set_scope(func, "T", MemoryScope.STACK), "i_o"))


@settings(max_examples=25)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["i_o", "j_o", "i_i", "j_i"]), st.integers(0, 3))
def test_any_tile(rows: int, lanes: int, at: str, outwards: int) -> None:
    loops = ["i_o", "j_o", "i_i", "j_i"]
    func = reverse_compute_at(tiled_producer(rows, lanes), "Y", at)
    check_same(CHAIN, store_at(func, "T", loops[max(0, loops.index(at) - outwards)]))


def test_the_loop_of_fused_tiles() -> None:
    func = reverse_compute_at(fuse(tiled_producer(4, 3), "i_o", "j_o"), "Y", "i_o_j_o")
    check_same(CHAIN, store_at(func, "T", "i_o_j_o"))


CARRIED = parse("""
func carried(A: float32[8], Y: float32[8]):
    alloc T: float32[8]
    for i in serial(8):
        block T(v: 8 = i):
            T[v] = A[v]
        block Y(w: 8 = i):
            Y[w] = T[w] + select(1 <= w, T[w - 1], 0.0)
""")

AGAIN = parse("""
func again(A: float32[3, 8], Y: float32[3, 8]):
    alloc T: float32[8]
    for n in serial(3):
        for i in serial(8):
            block T(v_n: 3 = n, v: 8 = i):
                T[v] = A[v_n, v] + select(1 <= v_n, T[v], 0.0)
            block Y(w_n: 3 = n, w: 8 = i):
                Y[w_n, w] = T[w]
""")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: store_at(CARRIED, "T", "i"),
            "'T' in loop 'i': elements of 'T' are not proved to belong to one iteration of loop 'i'; "
            "they would carry values from one iteration to the next",
        ),
        (
            lambda: store_at(AGAIN, "T", "i"),
            "'T' in loop 'i': elements of 'T' are not proved to belong to one iteration of loop 'n'; "
            "they would carry values from one iteration to the next",
        ),
        (
            lambda: store_at(compute_at(split(BLUR, "j", 4), "T", "j_o"), "T", "j_o"),
            "'T' in loop 'j_o': elements of 'T' are not proved to belong to one iteration of loop 'j_o'; "
            "they would carry values from one iteration to the next",
        ),
        (lambda: store_at(STENCIL, "T", "i"), "'T' in loop 'i': block 'Y' uses 'T' outside the loop"),
        (
            lambda: store_at(parallel(FUSED, "i_o"), "T", "j_o"),
            "'T' in loop 'j_o': loop 'i_o' is parallel; its iterations would share 'T'; "
            "use store_at and set_scope before the loop is made concurrent",
        ),
        (
            lambda: store_at(vectorize(reverse_compute_at(ROWS, "Y", "i"), "i"), "T", "i"),
            "'T' in loop 'i': loop 'i' is vectorized; its iterations would share 'T'; "
            "use store_at and set_scope before the loop is made concurrent",
        ),
    ],
)
def test_store_at_refuses(make, message: str) -> None:
    refuses(make, f"store_at of {message}")


def test_only_internal_buffers() -> None:
    refuses(lambda: store_at(FUSED, "Y", "i_o"), "chain: there is no internal buffer 'Y'; there are: T")
