"""Schedules of loops with and without loop-carried values."""

from tilewright.loops.parser import parse
from tilewright.schedule.loop_transforms import split_parts
from tilewright.verify.verifier import verify


def test_a_parallel_loop_of_one_iteration_may_be_split() -> None:
    func = parse("""
func f(A: float32[6, 1, 3], Y: float32[6]):
    for i in serial(6):
        for ky in parallel(1):
            for kx in serial(3):
                block C(v: 6 = i, reduce y: 1 = ky, reduce x: 3 = kx):
                    init Y[v] = 0.0
                    Y[v] = Y[v] + A[v, y, x]
""")
    verify(func)
    verify(split_parts(func, "ky", 8))
