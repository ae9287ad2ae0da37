"""Estimated times of kernels: contractions as they are constructed, everything else as data movement."""

from dataclasses import replace

import numpy as np
import pytest
from tests.driver.models import array
from tests.graph.convolutions import convolution
from tests.graph.running import program_of

from tilewright.graph.alternatives import choose
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import partition
from tilewright.graph.rewrites import REWRITES
from tilewright.graph.winograd.rewrite import winograd_forms
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import Gensor, Roller
from tilewright.optimize.constructions import Constructions
from tilewright.optimize.cost_oracle import CostOracle, data_movement_time
from tilewright.optimize.interface import optimizer_named
from tilewright.optimize.kernel_task import TaskContext, make_kernel_task

MACHINE = replace(machine_named("x86-64-v4"), cores=2)
TARGET = Target.parse("x86-64-v4")


def oracle_for(program, optimizer=Roller):
    return CostOracle(MACHINE, TaskContext(program.symbols, TARGET), Constructions(optimizer(MACHINE)))


def kernels_of(program):
    return [u for u in partition(program).units if isinstance(u, Kernel)]


def kernel_times(program, optimizer=Roller):
    oracle = oracle_for(program, optimizer)
    return [oracle(k, frozenset(program.constants)) for k in kernels_of(program)]


def conv3(batch, channels, size):
    w = array(1, channels, channels, 3, 3)
    return program_of(convolution((batch, channels, size, size), w, pads=[1, 1, 1, 1]))


def test_estimates_grow_with_traffic_and_arithmetic():
    a, b = (kernel_times(conv3(1, 64, n)) for n in (14, 56))
    assert all(x is not None and y is not None and x < y for x, y in zip(a, b, strict=True))


def test_estimates_are_those_of_the_optimizer_that_schedules():
    program = conv3(1, 64, 28)
    (kernel,) = (k for k in kernels_of(program) if any(s.is_reduction for s in k.stages))
    weights = next(b for b in kernel.arguments if b.name in program.constants and b.rank == 4)
    read = (64 * 64 * 9 + 64) * 4 / MACHINE.levels[-1].gbs(2)
    assert weights.name in program.constants
    for optimizer in (Roller, Gensor):
        oracle = oracle_for(program, optimizer)
        constants = frozenset(program.constants)
        time = oracle(kernel, constants)
        construction = optimizer(MACHINE).construct(make_kernel_task(kernel, constants, oracle.context).sampled_task)
        assert time == pytest.approx(construction.nanoseconds[0] + read)
        assert oracle(kernel, constants) == time
        assert oracle.constructions.constructed == 1


def test_there_is_no_estimate_without_a_constructor():
    program = conv3(1, 4, 8)
    oracle = CostOracle(MACHINE, TaskContext((), TARGET), Constructions(optimizer_named("rule")))
    times = [oracle(k, frozenset()) for k in kernels_of(program)]
    assert [t is None for t in times] == [False, True]


def test_transposing_copy_costs_more():
    program = conv3(1, 64, 14)
    (form,) = winograd_forms(program, 8.0)
    padded, turned = (make_kernel([c]) for c in (form.before[0], form.after[0]))
    assert data_movement_time(turned, MACHINE) > 1.2 * data_movement_time(padded, MACHINE)


def test_estimates_decide_winograd_per_filter():
    for channels, size, expected in ((128, 28, True), (8, 8, False)):
        program = conv3(1, channels, size)
        rewritten, _ = choose(program, REWRITES, oracle_for(program), 8.0)
        assert (rewritten is not program) == expected


@pytest.mark.parametrize("batch", ["n", 2])
def test_symbolic_sizes_are_estimated(batch):
    assert all((t or 0) > 0 for t in kernel_times(conv3(batch, 16, 28)))


def test_data_beyond_the_shared_cache_comes_from_memory():
    copies = []
    for size in (28, 280):
        program = program_of(convolution((1, 64, size, size), array(1, 64, 64, 3, 3), pads=[1, 1, 1, 1]))
        copies.append(program.steps[0])
    small, large = (data_movement_time(make_kernel([c]), MACHINE) - MACHINE.sync_us * 1e3 for c in copies)
    elements = [float(np.prod([int(n.value) for n in c.output.shape])) for c in copies]
    cache, memory = (MACHINE.level(x).gbs(MACHINE.cores) for x in ("L3", "memory"))
    assert large / elements[1] == pytest.approx(small / elements[0] * cache / memory, rel=0.1)


def test_contractions_over_many_axes_are_searched():
    """Greedy growth ends at a program that takes a third longer than the best one."""
    w = array(1, 64, 64, 1, 3, 3)
    program = program_of(convolution((1, 64, 16, 56, 56), w, pads=[0, 1, 1, 0, 1, 1]))
    operations = 2 * 64 * 64 * 9 * 16 * 56 * 56
    _, greedy = kernel_times(program, Roller)
    _, time = kernel_times(program, Gensor)
    assert time < 2.0 * operations / MACHINE.gflops(2)
    assert greedy > 1.2 * time
