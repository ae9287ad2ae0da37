"""The decision between ways to compute the same, by times that tests make up and by the cost model's."""

from dataclasses import replace

import numpy as np
import pytest
from tests.driver.models import array
from tests.graph.running import program_of
from tests.graph.test_winograd import convolution

from tilewright.expr.computation import Computation
from tilewright.graph.winograd.rewrite import with_winograd
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.stage_cost import (
    MAX_PEAK_TIME_RATIO,
    MAX_TIME_RATIO,
    data_movement_time,
    pick_fastest,
    stage_cost_oracle,
)

MACHINE = replace(machine_named("x86-64-v4"), cores=2)


def decided(times, tiles=(2, 4)):
    """The tile that is chosen where sums of products take what `times` says, by tile (0: direct), the rest nothing."""
    program = program_of(convolution((1, 4, 8, 8), array(1, 4, 4, 3, 3), pads=[1, 1, 1, 1]))
    chosen = []

    def time_of(stage, constants):
        if not stage.is_reduction:
            return 0.0
        assert any(b.name in constants for b in stage.inputs)
        return times[0 if stage.output.rank == 4 else int(stage.output.shape[0].value) - 2]

    decide = pick_fastest(frozenset(program.constants), time_of)

    def spy(direct, ways):
        found = decide(direct, ways)
        chosen.append(None if found is None else found.transforms[0].tile_size)
        return found

    with_winograd(program, tiles, spy)
    return chosen[0]


def test_the_fastest_way_is_chosen():
    assert decided({0: 100.0, 2: 50.0, 4: 30.0}) == 4
    assert decided({0: 100.0, 2: 50.0, 4: 80.0}) == 2


def test_the_direct_way_stays_unless_another_is_clearly_faster():
    assert decided({0: 100.0, 2: 101.0, 4: 200.0}) is None
    assert decided({0: 100.0, 2: 100.0 * MAX_TIME_RATIO, 4: 200.0}) is None
    assert decided({0: 100.0, 2: 99.0 * MAX_TIME_RATIO, 4: 200.0}) == 2


def test_what_nobody_can_estimate_is_not_chosen():
    assert decided({0: 100.0, 2: None, 4: None}) is None
    assert decided({0: None, 2: 1.0, 4: 1.0}) is None
    assert decided({0: 100.0, 2: None, 4: 10.0}) == 4


def test_estimates_grow_with_what_is_moved_and_computed():
    times = stage_cost_oracle(Target.parse("x86-64-v4"), MACHINE)
    small, large = (program_of(convolution((1, 64, n, n), array(1, 64, 64, 3, 3), pads=[1, 1, 1, 1])) for n in (14, 56))
    a, b = ([times(s, frozenset(p.constants)) for s in p.steps] for p in (small, large))
    assert all(x is not None and y is not None and x < y for x, y in zip(a, b, strict=True))


def test_a_copy_that_turns_around_costs_more():
    program = program_of(convolution((1, 64, 14, 14), array(1, 64, 64, 3, 3), pads=[1, 1, 1, 1]))
    found = []
    with_winograd(program, (2,), lambda direct, ways: found.extend([direct[0], ways[0].padded_input]))
    padded, turned = found
    assert data_movement_time(turned, MACHINE) > 1.2 * data_movement_time(padded, MACHINE)


def test_the_estimate_of_a_filter_says_yes_and_no():
    times = stage_cost_oracle(Target.parse("x86-64-v4"), MACHINE)
    for channels, size, wanted in ((128, 28, 2), (8, 8, None)):
        w = array(1, channels, channels, 3, 3)
        program = program_of(convolution((1, channels, size, size), w, pads=[1, 1, 1, 1]))
        decide = pick_fastest(frozenset(program.constants), times)
        made = with_winograd(program, (2,), decide)
        assert (made is not program) == (wanted is not None)


@pytest.mark.parametrize("batch", ["n", 2])
def test_symbolic_sizes_have_an_estimate(batch):
    times = stage_cost_oracle(Target.parse("x86-64-v4"), MACHINE)
    program = program_of(convolution((batch, 16, 28, 28), array(1, 16, 16, 3, 3), pads=[1, 1, 1, 1]))
    assert all((times(s, frozenset(program.constants)) or 0) > 0 for s in program.steps)


def test_what_the_shared_cache_does_not_hold_comes_from_memory():
    copies = []
    for size in (28, 280):
        program = program_of(convolution((1, 64, size, size), array(1, 64, 64, 3, 3), pads=[1, 1, 1, 1]))
        with_winograd(program, (2,), lambda direct, ways: copies.append(direct[0]))
    small, large = (data_movement_time(c, MACHINE) - MACHINE.sync_us * 1e3 for c in copies)
    elements = [float(np.prod([int(n.value) for n in c.output.shape])) for c in copies]
    cache, memory = (MACHINE.level(x).gbs(MACHINE.cores) for x in ("L3", "memory"))
    assert large / elements[1] == pytest.approx(small / elements[0] * cache / memory, rel=0.1)


def test_sums_of_many_axes_are_not_taken_for_slow():
    """Greedy growth ends at a program for them that takes thrice as long as the best one."""
    w = array(1, 64, 64, 1, 3, 3)
    program = program_of(convolution((1, 64, 16, 56, 56), w, pads=[0, 1, 1, 0, 1, 1]))
    (direct,) = (s for s in program.steps if isinstance(s, Computation) and s.is_reduction)
    operations = 2 * 64 * 64 * 9 * 16 * 56 * 56
    time = stage_cost_oracle(Target.parse("x86-64-v4"), MACHINE)(direct, frozenset(program.constants))
    assert time is not None
    assert time < MAX_PEAK_TIME_RATIO * operations / MACHINE.gflops(2)
