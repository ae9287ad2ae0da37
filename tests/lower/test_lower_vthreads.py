"""Lowering of vthread loops, refusal of GPU axes, tails of split loops, and empty reductions."""

import numpy as np
import pytest
from tests.codegen.native import TARGETS, Native, check, compare
from tests.loops.scheduled_matmuls import SCHEDULED_MATMULS
from tests.schedule.functions import CHAIN, SCALE, WIDE, run

from tilewright.codegen import emit_llvm
from tilewright.errors import TargetError
from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import GPU_AXES, Func, LoopKind
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.lower.lower_vthreads import lower_vthreads
from tilewright.machine import Target
from tilewright.schedule.annotate import bind, parallel, vectorize, virtual_thread
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import reorder, split
from tilewright.schedule.staging import set_scope
from tilewright.schedule.tails import Tail
from tilewright.schedule.tile import tile

HOST = Target.parse("host")


def arrays_of(func: Func, size: int) -> dict[str, np.ndarray]:
    """Random inputs of a function whose symbols all have one size."""
    return run(func, {s.name: size for s in func.symbols})


def assert_same_results(before: Func, after: Func, sizes: tuple[int, ...], target: str = "host") -> None:
    """Native code of `after` agrees with its interpretation, and that with the interpretation of `before`."""
    native = Native(after, target=target)
    for size in sizes:
        symbols = {s.name: size for s in before.symbols}
        arrays, expected = arrays_of(after, size), arrays_of(before, size)
        for p in before.params:
            np.testing.assert_array_equal(arrays[p.name], expected[p.name])
        compare(native, arrays, symbols)


@pytest.mark.parametrize("axis", GPU_AXES)
def test_gpu_axes_are_refused(axis: LoopKind) -> None:
    with pytest.raises(TargetError) as error:
        emit_llvm([bind(SCALE, "i", axis)], [], Target.parse("x86-64-v3"))
    assert str(error.value) == (
        f"[target] func 'scale': loop 'i' is bound to {axis}, an axis of a GPU, but the target x86-64-v3 is a CPU; "
        "make the loop `parallel` instead, or leave it serial"
    )


def test_bound_loop_can_become_parallel() -> None:
    assert_same_results(SCALE, parallel(bind(SCALE, "i", LoopKind.BLOCK_X), "i"), (1, 7))


REGISTERS = """
func registers(A: float32[8, K], Y: float32[8]; K: 1..64):
    alloc T: float32[4] in register
    for o in parallel(2):
        for v in vthread(4):
            block T_init(a: 8 = o * 4 + v):
                T[a - o * 4] = 0.0
            for k in serial(K):
                block T(b: 8 = o * 4 + v, reduce c: K = k):
                    T[b - o * 4] = T[b - o * 4] + A[b, c]
            block Y(d: 8 = o * 4 + v):
                Y[d] = T[d - o * 4]
"""


def test_interleaved(golden) -> None:
    golden(show(lower_vthreads(parse(REGISTERS), HOST)))


def test_vthread_accumulators_are_registers() -> None:
    text = emit_llvm([parse(REGISTERS)], [], HOST)
    assert text.count("fadd") == 4
    func = parse(REGISTERS)
    a = np.random.default_rng(0).standard_normal((8, 9)).astype(np.float32)
    check(func, {"A": a, "Y": np.zeros(8, np.float32)}, {"K": 9})


@pytest.mark.parametrize("target", TARGETS)
def test_vthreads_are_correct(target: str) -> None:
    func = tile(CHAIN, ("i_1", "j_1"), (4, 3))
    func = set_scope(compute_at(func, "T", "j_1_o"), "T", MemoryScope.REGISTER)
    func = virtual_thread(virtual_thread(func, "v_j_t"), "j_1_i")
    func = parallel(virtual_thread(virtual_thread(func, "v_i_t"), "i_1_i"), "i_1_o")
    assert_same_results(CHAIN, func, (1, 6, 9), target)
    lanes = virtual_thread(vectorize(reorder(tile(WIDE, ("i", "j"), (2, 4)), ("k", "j_i")), "j_i"), "i_i")
    assert_same_results(WIDE, lanes, (6, 9), target)


@pytest.mark.parametrize("tail", [Tail.GUARD, Tail.MASK, Tail.REMAINDER, Tail.SHIFT_INWARDS])
@pytest.mark.parametrize("target", TARGETS)
def test_tails_of_vthreads_are_correct(target: str, tail: Tail) -> None:
    assert_same_results(WIDE, tile(WIDE, ("i", "j"), (3, 4), None, tail), (6, 7, 17), target)
    func = split(WIDE, "j", 4, None, tail)
    assert_same_results(WIDE, func if tail is Tail.MASK else vectorize(func, "j_i"), (6, 7), target)


@pytest.mark.parametrize("form", SCHEDULED_MATMULS)
def test_empty_reductions_are_initialised(form: str) -> None:
    func = SCHEDULED_MATMULS[form]()
    rng = np.random.default_rng(2)
    native = Native(func)
    for m, k in ((0, 3), (3, 0), (5, 7)):
        arrays = {"A": rng.standard_normal((m, k)), "B": rng.standard_normal((k, 5)), "C": np.full((m, 5), 7.0)}
        compare(native, {n: a.astype(np.float32) for n, a in arrays.items()}, {"M": m, "K": k})
