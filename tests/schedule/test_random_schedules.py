"""Random sequences of primitives: whatever is accepted keeps the meaning of the function."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedule.functions import CHAIN, MATMUL, ROWS, SCALE, STENCIL, run
from tests.schedule.strategies import layouts

from tilewright.errors import ScheduleError
from tilewright.expr.buffer import Buffer, Scope
from tilewright.expr.nodes import as_expr
from tilewright.layout.layout import Layout
from tilewright.loops.access import reads
from tilewright.loops.ir import GPU_AXES, Func, blocks
from tilewright.loops.parser import parse
from tilewright.schedule.tails import Tail
from tilewright.schedule.trace import PRIMITIVES, Schedule, replay
from tilewright.schedule.tree import find_block, find_loop, loop_names

TWO_STEPS = parse("""
func two_steps(A: float32[M, 6], B: float32[6], Y: float32[M, 6]; M: 1..64):
    alloc R: float32[M]
    alloc S: float32[M, 6]
    for i in serial(M):
        for k in serial(6):
            block R(v_i: M = i, reduce v_k: 6 = k):
                init R[v_i] = 0.0
                R[v_i] = R[v_i] + A[v_i, v_k]
    for i_1 in serial(M):
        for j_1 in serial(6):
            block S(w_i: M = i_1, w_j: 6 = j_1):
                S[w_i, w_j] = A[w_i, w_j] * R[w_i]
    for i_2 in serial(M):
        for j_2 in serial(6):
            block Y(x_i: M = i_2, x_j: 6 = j_2):
                Y[x_i, x_j] = S[x_i, x_j] + B[x_j] * R[x_i]
""")

MATRICES = parse("""
func matrices(A: float32[M, 5], B: float32[5, 9], D: float32[9, 4], C: float32[M, 4]; M: 1..64):
    alloc T: float32[M, 9]
    for i in serial(M):
        for j in serial(9):
            for k in serial(5):
                block T(v_i: M = i, v_j: 9 = j, reduce v_k: 5 = k):
                    init T[v_i, v_j] = 0.0
                    T[v_i, v_j] = T[v_i, v_j] + A[v_i, v_k] * B[v_k, v_j]
    for i_1 in serial(M):
        for j_1 in serial(4):
            for k_1 in serial(9):
                block C(w_i: M = i_1, w_j: 4 = j_1, reduce w_k: 9 = k_1):
                    init C[w_i, w_j] = 0.0
                    C[w_i, w_j] = C[w_i, w_j] + T[w_i, w_k] * D[w_k, w_j]
""")

FUNCTIONS = {f.name: f for f in (SCALE, MATMUL, CHAIN, STENCIL, ROWS, TWO_STEPS, MATRICES)}


def arguments(draw: st.DrawFn, primitive: str, func: Func) -> tuple[object, ...]:
    """Arguments that fit the function more often than not."""
    loops, names = loop_names(func), [b.name for b in blocks(func.body)]
    internal = [b.name for b in func.allocs] or ["none"]
    loop = draw(st.sampled_from(loops))
    match primitive:
        case "split":
            return loop, draw(st.integers(1, 6)), None, draw(st.sampled_from(Tail))
        case "split_parts":
            return loop, draw(st.integers(1, 6))
        case "tile":
            around = draw(st.sampled_from([[x.var.name for x in nest] for _, nest in nests(func)]))
            factors = draw(st.lists(st.integers(1, 4), min_size=1, max_size=len(around)))
            return tuple(around[-len(factors) :]), tuple(factors), None, draw(st.sampled_from(Tail))
        case "bind":
            return loop, draw(st.sampled_from(GPU_AXES))
        case "fuse":
            return loop, loops[(loops.index(loop) + 1) % len(loops)]
        case "reorder":
            around = draw(st.sampled_from([[x.var.name for x in nest] for _, nest in nests(func)]))
            return (tuple(draw(st.permutations(around))),)
        case "peel":
            extent = find_loop(func, loop)[0].extent
            at = draw(st.sampled_from([extent // 2, extent // 4 * 4, as_expr(1), as_expr(3)]))
            return loop, at
        case "set_scope":
            return draw(st.sampled_from(internal)), draw(st.sampled_from(list(Scope)))
        case "cache_read":
            name = draw(st.sampled_from(names))
            operand = draw(st.sampled_from(reads(find_block(func, name)[0]) or func.params))
            return name, operand.name, None, draw(st.sampled_from(Scope)), layout_of(draw, operand)
        case "cache_write":
            name = draw(st.sampled_from(names))
            own = find_block(func, name)[0].body.buffer
            return name, None, draw(st.sampled_from(Scope)), layout_of(draw, own)
        case "clone_producer":
            return draw(st.sampled_from(names)), draw(st.sampled_from(names))
        case "transform_layout":
            buffer = draw(st.sampled_from(func.allocs or func.params))
            return buffer.name, draw(layouts(Layout.of(buffer.shape)))
        case "pad_storage":
            return draw(st.sampled_from(internal)), draw(st.integers(0, 2)), draw(st.integers(1, 8))
        case "prefetch":
            return loop, draw(st.sampled_from([*func.params, *func.allocs])).name, draw(st.integers(1, 5))
        case "pack":
            p = draw(st.sampled_from(func.params))
            return draw(st.sampled_from(names)), p.name, draw(st.integers(0, p.rank - 1)), draw(st.integers(1, 5))
        case "rfactor":
            return draw(st.sampled_from(names)), 0, draw(st.sampled_from([1, 2, 3, 5]))
        case "inline" | "reverse_inline":
            return (draw(st.sampled_from(names)),)
        case "store_at":
            return draw(st.sampled_from(internal)), loop
        case "decompose_reduction" | "compute_at" | "reverse_compute_at" | "rolling_update" | "hoist":
            return draw(st.sampled_from(names)), loop
        case _:
            return (loop,)


def layout_of(draw: st.DrawFn, buffer: Buffer) -> Layout | None:
    """Rows, mostly, or any other layout of a buffer."""
    return draw(layouts(Layout.of(buffer.shape))) if draw(st.integers(0, 2)) == 2 else None


def nests(func: Func) -> list[tuple[object, tuple]]:
    """The blocks with the loops around them."""
    from tilewright.loops.ir import Block, walk

    return [(s, around) for s, around in walk(func.body) if isinstance(s, Block) and around]


@st.composite
def schedules(draw, func: Func) -> Schedule:
    """A function after up to a dozen primitives, most of them accepted."""
    s = Schedule(func)
    for _ in range(draw(st.integers(1, 12))):
        primitive = draw(st.sampled_from([*sorted(PRIMITIVES), "split", "reorder", "compute_at", "compute_at"]))
        args = arguments(draw, primitive, s.func)
        try:
            s.do(primitive, *args)
        except ScheduleError:
            continue
    return s


def check(s: Schedule, size: int) -> None:
    """The function computes what it did, in every order that its loops allow, and its trace replays."""
    sizes = {v.name: size for v in s.origin.symbols}
    assert replay(s.origin, s.trace) == s.func
    expected, result = run(s.origin, sizes), run(s.func, sizes, seed=size)
    for p in s.origin.params:
        np.testing.assert_array_equal(result[p.name], expected[p.name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accepted_schedules_keep_the_meaning(name: str) -> None:
    @settings(max_examples=40)
    @given(schedules(FUNCTIONS[name]), st.sampled_from([1, 3, 4, 7]))
    def explore(s: Schedule, size: int) -> None:
        check(s, size)

    explore()
