"""Schedules that tests of traces share."""

from tests.schedule.functions import CHAIN

from tilewright.expr.define import Size, collect_stages, compute, placeholder, reduce_axis
from tilewright.expr.define import sum as sum_over
from tilewright.expr.nodes import Var
from tilewright.layout.layout import Layout
from tilewright.loops.ir import Func
from tilewright.loops.lowering import lower_to_loops
from tilewright.schedule.schedule import Schedule


def chain_schedule() -> Schedule:
    """A schedule with many primitives."""
    s = Schedule(CHAIN)
    packed = s.pack("T", "B", 1, 4)
    assert packed == "B_packed"
    rows, row = s.split("i_1", 4)
    lanes, lane = s.split("j_1", 4)
    s.reorder((rows, lanes, row, lane))
    assert s.compute_at("T", lanes) == ("v_i_t", "v_j_t", "v_k_t")
    s.set_scope("T", "register")
    s.reorder(("v_k_t", "v_i_t", "v_j_t"))
    assert s.decompose_reduction("T", "v_k_t") == "T_init"
    s.vectorize("v_j_t")
    s.unroll("v_i_t")
    s.vectorize(lane)
    s.parallel(s.fuse(rows, lanes))
    return s


def gemm(m: Size, n: Size, k: Size) -> Func:
    """C = A B for the given sizes; symbols are parameters."""
    a, b, r = placeholder((m, k), name="A"), placeholder((k, n), name="B"), reduce_axis(k, "k")
    c = compute((m, n), lambda i, j: sum_over(a[i, r] * b[r, j], r), "C")
    inputs, stages = collect_stages([c])
    symbols = tuple(x for x in (m, n, k) if isinstance(x, Var))
    return lower_to_loops("gemm", stages, [*(t.plain_buffer for t in inputs), c.plain_buffer], symbols)


def gemm_schedule() -> Schedule:
    """The schedule of a GEMM of 512 x 512 x 512."""
    s = Schedule(gemm(512, 512, 512))
    s.pack("C", "B", 1, 16)
    outer = s.tile(("i", "j"), (8, 16))[:2]
    local = s.cache_write("C")
    s.transform_layout(local, Layout.of((512, 512)).reorder((1, 0)))
    s.parallel(s.fuse(*outer))
    s.peel("k", 256)
    return s
