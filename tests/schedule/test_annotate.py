"""parallel, vectorize, unroll, bind, virtual_thread: semantics, printed result, refusals."""

import pytest
from tests.schedule.functions import CHAIN, MATMUL, ROWS, SCALE, SUMS, applied, check_same, refuses

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import GPU_AXES, Func, LoopKind
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.annotate import bind, parallel, unroll, vectorize, virtual_thread
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import fuse, split
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.staging import set_scope
from tilewright.schedule.tile import tile


def test_all_kinds(golden) -> None:
    func = unroll(vectorize(parallel(MATMUL, "i"), "j"), "k")
    golden(show(func))
    check_same(MATMUL, func)


@pytest.mark.parametrize("loop", ["i", "j"])
def test_parallel_preserves_semantics(loop: str) -> None:
    check_same(MATMUL, parallel(MATMUL, loop))


def test_parallel_of_a_fused_and_of_a_split_loop() -> None:
    check_same(MATMUL, parallel(fuse(MATMUL, "i", "j"), "i_j"))
    check_same(MATMUL, parallel(split(MATMUL, "i", 4), "i_o"))


@pytest.mark.parametrize("loops", [("i", "j"), ("j", "i")])
def test_parallel_loops_may_be_nested(loops: tuple[str, str]) -> None:
    check_same(MATMUL, parallel(parallel(MATMUL, loops[0]), loops[1]))


def test_a_reduction_may_be_vectorized() -> None:
    check_same(MATMUL, vectorize(decompose_reduction(MATMUL, "C", "k"), "k"))


def private(scope: MemoryScope) -> object:
    return parallel(set_scope(compute_at(ROWS, "T", "i_1"), "T", scope), "i_1")


@pytest.mark.parametrize("scope", [MemoryScope.STACK, MemoryScope.REGISTER])
def test_a_private_buffer_does_not_race(scope: MemoryScope) -> None:
    check_same(ROWS, private(scope))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: parallel(MATMUL, "k"),
            "parallel of loop 'k': block 'C': reduces over parallel loop 'k' (variable 'v_k')",
        ),
        (
            lambda: private(MemoryScope.MEMORY),
            "parallel of loop 'i_1': block 'T': iterations of parallel loop 'i_1' may write the same element: T[]; "
            "every iteration needs a part of 'T' of its own: use set_scope('T', 'stack'), or parallel before "
            "compute_at, which then keeps the dimension",
        ),
        (
            lambda: parallel(SUMS, "i"),
            "parallel of loop 'i': block 'S' reads other elements of 'Y' than it writes: its order matters",
        ),
        (
            lambda: parallel(vectorize(split(SCALE, "j", 2), "j_o"), "j_i"),
            "parallel of loop 'j_i': parallel loop 'j_i' would be inside vectorized loop 'j_o'",
        ),
        (
            lambda: set_scope(private(MemoryScope.STACK), "T", MemoryScope.MEMORY),
            "set_scope of 'T' to memory: block 'T': iterations of parallel loop 'i_1' may write the same element: T[]",
        ),
    ],
)
def test_parallel_refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: vectorize(SCALE, "i"),
            "vectorize of loop 'i': the extent N is not a literal; split the loop first",
        ),
        (
            lambda: vectorize(vectorize(split(SCALE, "j", 2), "j_i"), "j_o"),
            "vectorize of loop 'j_o': vectorized loop 'j_i' would be inside vectorized loop 'j_o'",
        ),
        (
            lambda: vectorize(MATMUL, "k"),
            "vectorize of loop 'k': block 'C' reduces over it and has its init inside; use decompose_reduction first",
        ),
        (
            lambda: vectorize(parallel(split(SCALE, "j", 2), "j_i"), "j_o"),
            "vectorize of loop 'j_o': parallel loop 'j_i' would be inside vectorized loop 'j_o'",
        ),
        (
            lambda: vectorize(set_scope(compute_at(ROWS, "T", "i_1"), "T", MemoryScope.STACK), "i_1"),
            "vectorize of loop 'i_1': block 'T': iterations of vectorized loop 'i_1' may write the same element: T[]",
        ),
        (
            lambda: vectorize(SUMS, "i"),
            "vectorize of loop 'i': block 'S' reads other elements of 'Y' than it writes: its order matters",
        ),
    ],
)
def test_vectorize_refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: unroll(CHAIN, "i"), "unroll of loop 'i': the extent M is not a literal; split the loop first"),
        (lambda: unroll(split(CHAIN, "i", 600), "i_i"), "unroll of loop 'i_i': 600 iterations are more than 512"),
        (lambda: unroll(CHAIN, "z"), "chain: there is no loop 'z'; loops are i, j, k, i_1, j_1"),
    ],
)
def test_unroll_refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"


X, Y, TX, TY = LoopKind.BLOCK_X, LoopKind.BLOCK_Y, LoopKind.THREAD_X, LoopKind.THREAD_Y


def bound(func: Func, **axes: LoopKind) -> Func:
    """The function with loops bound to axes, in that order."""
    for loop, axis in axes.items():
        func = bind(func, loop, axis)
    return func


def test_bind(golden) -> None:
    func = applied(MATMUL, "bind", "i", X)
    golden(show(applied(func, "bind", "j", TX)))


@pytest.mark.parametrize("axis", GPU_AXES)
@pytest.mark.parametrize("loop", ["i", "j"])
def test_bind_preserves_semantics(loop: str, axis: LoopKind) -> None:
    check_same(MATMUL, bind(MATMUL, loop, axis))


def test_a_grid_of_blocks_of_threads() -> None:
    func = tile(MATMUL, ("i", "j"), (4, 2))
    func = bound(func, i_o=Y, j_o=X, i_i=TY, j_i=TX)
    check_same(MATMUL, func)
    check_same(MATMUL, split(func, "j_i", 2))
    assert "for j_i_i in serial(2):" in show(split(func, "j_i", 2))


def test_loops_of_different_launches_may_have_different_extents() -> None:
    check_same(CHAIN, bound(CHAIN, i=X, j=TX, i_1=X))
    check_same(CHAIN, bound(CHAIN, j=X, i_1=X))


PRODUCER = parse("""
func producer(A: float32[8, 6], Y: float32[8, 6]):
    alloc T: float32[8, 6]
    for i in serial(8):
        for j in serial(6):
            block T(v: 8 = i, w: 6 = j):
                T[v, w] = A[v, w] + 1.0
        for k in serial(6):
            block Y(x: 8 = i, y: 6 = k):
                Y[x, y] = T[x, 5 - y]
        for m in serial(3):
            block Z(z: 8 = i, u: 3 = m):
                Y[z, u] = Y[z, u] * 2.0
""")
"""Threads of one block hand elements to each other."""


def test_loops_of_one_gpu_block_run_in_sequence() -> None:
    check_same(PRODUCER, bound(PRODUCER, i=X, j=TX, k=TX))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: bind(MATMUL, "i", LoopKind.PARALLEL),
            "bind of loop 'i' to parallel: expected an axis (block_x, block_y, block_z, thread_x, thread_y, thread_z), "
            "got parallel",
        ),
        (
            lambda: bind(MATMUL, "k", TX),
            "bind of loop 'k' to thread_x: block 'C': reduces over thread_x loop 'k' (variable 'v_k')",
        ),
        (
            lambda: bound(MATMUL, i=X, j=X),
            "bind of loop 'j' to block_x: loop 'j': it is inside loop 'i', which is on block_x too",
        ),
        (
            lambda: bound(MATMUL, i=TX, j=X),
            "bind of loop 'j' to block_x: loop 'j': block axis block_x can't be inside thread axis thread_x (loop 'i')",
        ),
        (
            lambda: bound(PRODUCER, i=X, j=TX, m=TX),
            "bind of loop 'm' to thread_x: loop 'm': its extent on thread_x must be that of loop 'j', 6; got 3",
        ),
        (
            lambda: bound(split(MATMUL, "i", 2), i_o=X, j=Y),
            "bind of loop 'j' to block_y: loop 'j': the block axes of a launch must be directly inside one another",
        ),
        (
            lambda: bind(parallel(MATMUL, "i"), "j", TX),
            "bind of loop 'j' to thread_x: loop 'j': thread_x can't be inside parallel loop 'i'",
        ),
        (
            lambda: parallel(bind(MATMUL, "i", X), "j"),
            "parallel of loop 'j': loop 'j': a parallel loop can't be inside loop 'i' on block_x",
        ),
        (
            lambda: bind(vectorize(split(SCALE, "j", 2), "j_o"), "j_i", TX),
            "bind of loop 'j_i' to thread_x: thread_x loop 'j_i' would be inside vectorized loop 'j_o'",
        ),
        (
            lambda: set_scope(bound(PRODUCER, i=X, j=TX, k=TX), "T", MemoryScope.STACK),
            "set_scope of 'T' to stack: loop 'j' on thread_x: stack buffer 'T' of one thread is used outside of it "
            "too, in block 'Y'",
        ),
        (
            lambda: bind(SUMS, "i", X),
            "bind of loop 'i' to block_x: block 'S' reads other elements of 'Y' than it writes: its order matters",
        ),
    ],
)
def test_bind_refuses(make, message: str) -> None:
    refuses(make, message)


def test_virtual_thread(golden) -> None:
    func = split(MATMUL, "j", 3)
    golden(show(applied(func, "virtual_thread", "j_i")))


def test_virtual_threads_may_be_around_threads_and_vectors() -> None:
    func = tile(MATMUL, ("i", "j"), (4, 3))
    check_same(MATMUL, virtual_thread(bound(func, i_o=X, i_i=TX), "j_i"))
    check_same(SCALE, virtual_thread(vectorize(split(SCALE, "j", 3), "j_i"), "j_o"))


def test_registers_of_virtual_threads_are_indexed_by_them() -> None:
    tiled = tile(CHAIN, ("i_1", "j_1"), (4, 3))
    func = set_scope(compute_at(tiled, "T", "j_1_o"), "T", MemoryScope.REGISTER)
    check_same(CHAIN, virtual_thread(virtual_thread(func, "v_j_t"), "j_1_i"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: virtual_thread(SCALE, "i"),
            "virtual_thread of loop 'i': the extent N is not a literal; split the loop first",
        ),
        (
            lambda: virtual_thread(split(SCALE, "i", 600), "i_i"),
            "virtual_thread of loop 'i_i': 600 iterations are more than 512",
        ),
        (
            lambda: virtual_thread(MATMUL, "k"),
            "virtual_thread of loop 'k': block 'C': reduces over vthread loop 'k' (variable 'v_k')",
        ),
        (
            lambda: virtual_thread(set_scope(compute_at(ROWS, "T", "i_1"), "T", MemoryScope.REGISTER), "i_1"),
            "virtual_thread of loop 'i_1': block 'T': iterations of vthread loop 'i_1' may write the same element: T[]",
        ),
        (
            lambda: virtual_thread(vectorize(split(SCALE, "j", 2), "j_o"), "j_i"),
            "virtual_thread of loop 'j_i': vthread loop 'j_i' would be inside vectorized loop 'j_o'",
        ),
    ],
)
def test_virtual_thread_refuses(make, message: str) -> None:
    refuses(make, message)
