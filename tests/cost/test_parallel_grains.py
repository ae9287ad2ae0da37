"""Grains of work: what takes longer counts more, and a machine on which threads cost more asks for more."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.cost.parallel_grains import grain_ns, parallel_grains
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.machine.shipped import machine_named

MACHINE = machine_named("x86-64-v4")

RELU = parse("""
func relu(X: float32[N], Y: float32[N]; N: 0..100000000):
    for i in serial(N):
        block Y(v: N = i):
            Y[v] = max(X[v], 0.0)
""")
EXP = parse("""
func wave(X: float32[N], Y: float32[N]; N: 0..100000000):
    for i in serial(N):
        block Y(v: N = i):
            Y[v] = exp(tanh(X[v]))
""")
PRODUCT = parse("""
func product(A: float32[N, N], B: float32[N, N], C: float32[N, N]; N: 0..10000):
    for i in serial(N):
        for j in serial(N):
            for k in serial(N):
                block C(x: N = i, y: N = j, reduce z: N = k):
                    init C[x, y] = 0.0
                    C[x, y] = C[x, y] + A[x, z] * B[z, y]
""")


def count(func: Func, size: int, vectorized: bool = True, **changes: object) -> int:
    machine = replace(MACHINE, **changes)  # type: ignore[arg-type]
    value = parallel_grains(func, machine, vectorized)
    return int(evaluate_expr(value, Environment({func.symbols[0]: np.int64(size)}, {})))


def test_a_grain_is_a_multiple_of_the_fork_cost_of_two_threads() -> None:
    assert grain_ns(replace(MACHINE, cores=2, sync_us=1.0)) == MACHINE.cost.fork_cost_margin * 1000.0
    assert grain_ns(replace(MACHINE, cores=16, sync_us=4.0)) == MACHINE.cost.fork_cost_margin * 1000.0
    assert grain_ns(replace(MACHINE, cores=1, sync_us=1.0)) == MACHINE.cost.fork_cost_margin * 1000.0


def test_tiny_kernels_have_no_grain() -> None:
    assert [count(func, size) for func in (RELU, EXP, PRODUCT) for size in (0, 1, 10)] == [0] * 9


def test_grains_of_work_traffic_and_contractions() -> None:
    grain = grain_ns(MACHINE)
    # bytes: one array is read, one written, which reads it first
    assert count(RELU, 1 << 20) == pytest.approx((1 << 20) * 12 / MACHINE.levels[1].core_gbs / grain, rel=0.02)
    # one multiply-add per point, two vectors of them per cycle
    peak = 2.0 * 512**3 / MACHINE.gflops(1)
    assert count(PRODUCT, 512) == pytest.approx(peak / grain, rel=0.02)
    assert count(EXP, 1 << 20) > count(RELU, 1 << 20)
    assert count(RELU, 1 << 20, vectorized=False) > count(RELU, 1 << 20)


def test_grains_grow_with_the_fork_cost() -> None:
    cheap, dear = count(PRODUCT, 512, sync_us=1.0), count(PRODUCT, 512, sync_us=10.0)
    assert cheap == pytest.approx(10 * dear, rel=0.05)
    assert count(PRODUCT, 64, sync_us=100.0) == 0


def test_grains_are_expressions_over_symbols() -> None:
    grains = [count(PRODUCT, n) for n in (8, 64, 512, 4096)]
    assert grains == sorted(grains)
    assert grains[0] < 2 <= grains[-1]
