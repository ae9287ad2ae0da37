"""The choice between equivalent forms, by made-up times and by the cost model."""

from dataclasses import replace

import numpy as np
import pytest
from tests.driver.models import array
from tests.graph.convolutions import convolution
from tests.graph.running import program_of

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


def choose(times, tiles=(2, 4)):
    """The Winograd tile that is chosen if contractions take `times` by tile (0: direct form) and other stages
    nothing."""
    program = program_of(convolution((1, 4, 8, 8), array(1, 4, 4, 3, 3), pads=[1, 1, 1, 1]))
    chosen = []

    def time_of(stage, constants):
        if not stage.is_reduction:
            return 0.0
        assert any(b.name in constants for b in stage.inputs)
        return times[0 if stage.output.rank == 4 else int(stage.output.shape[0].value) - 2]

    decide = pick_fastest(frozenset(program.constants), time_of)

    def spy(direct, alternatives):
        choice = decide(direct, alternatives)
        chosen.append(None if choice is None else choice.transforms[0].tile_size)
        return choice

    with_winograd(program, tiles, spy)
    return chosen[0]


def test_fastest_alternative_is_chosen():
    assert choose({0: 100.0, 2: 50.0, 4: 30.0}) == 4
    assert choose({0: 100.0, 2: 50.0, 4: 80.0}) == 2


def test_direct_form_stays_unless_an_alternative_is_clearly_faster():
    assert choose({0: 100.0, 2: 101.0, 4: 200.0}) is None
    assert choose({0: 100.0, 2: 100.0 * MAX_TIME_RATIO, 4: 200.0}) is None
    assert choose({0: 100.0, 2: 99.0 * MAX_TIME_RATIO, 4: 200.0}) == 2


def test_alternatives_without_estimate_are_not_chosen():
    assert choose({0: 100.0, 2: None, 4: None}) is None
    assert choose({0: None, 2: 1.0, 4: 1.0}) is None
    assert choose({0: 100.0, 2: None, 4: 10.0}) == 4


def test_estimates_grow_with_traffic_and_arithmetic():
    times = stage_cost_oracle(Target.parse("x86-64-v4"), MACHINE)
    small, large = (program_of(convolution((1, 64, n, n), array(1, 64, 64, 3, 3), pads=[1, 1, 1, 1])) for n in (14, 56))
    a, b = ([times(s, frozenset(p.constants)) for s in p.steps] for p in (small, large))
    assert all(x is not None and y is not None and x < y for x, y in zip(a, b, strict=True))


def test_transposing_copy_costs_more():
    program = program_of(convolution((1, 64, 14, 14), array(1, 64, 64, 3, 3), pads=[1, 1, 1, 1]))
    inputs = []
    with_winograd(program, (2,), lambda direct, ways: inputs.extend([direct[0], ways[0].padded_input]))
    padded, turned = inputs
    assert data_movement_time(turned, MACHINE) > 1.2 * data_movement_time(padded, MACHINE)


def test_estimates_decide_winograd_per_filter():
    times = stage_cost_oracle(Target.parse("x86-64-v4"), MACHINE)
    for channels, size, expected in ((128, 28, 2), (8, 8, None)):
        w = array(1, channels, channels, 3, 3)
        program = program_of(convolution((1, channels, size, size), w, pads=[1, 1, 1, 1]))
        decide = pick_fastest(frozenset(program.constants), times)
        rewritten = with_winograd(program, (2,), decide)
        assert (rewritten is not program) == (expected is not None)


@pytest.mark.parametrize("batch", ["n", 2])
def test_symbolic_sizes_are_estimated(batch):
    times = stage_cost_oracle(Target.parse("x86-64-v4"), MACHINE)
    program = program_of(convolution((batch, 16, 28, 28), array(1, 16, 16, 3, 3), pads=[1, 1, 1, 1]))
    assert all((times(s, frozenset(program.constants)) or 0) > 0 for s in program.steps)


def test_data_beyond_the_shared_cache_comes_from_memory():
    copies = []
    for size in (28, 280):
        program = program_of(convolution((1, 64, size, size), array(1, 64, 64, 3, 3), pads=[1, 1, 1, 1]))
        with_winograd(program, (2,), lambda direct, ways: copies.append(direct[0]))
    small, large = (data_movement_time(c, MACHINE) - MACHINE.sync_us * 1e3 for c in copies)
    elements = [float(np.prod([int(n.value) for n in c.output.shape])) for c in copies]
    cache, memory = (MACHINE.level(x).gbs(MACHINE.cores) for x in ("L3", "memory"))
    assert large / elements[1] == pytest.approx(small / elements[0] * cache / memory, rel=0.1)


def test_contractions_over_many_axes_are_searched_further():
    """Greedy growth ends at a program that takes three times as long as the best one."""
    w = array(1, 64, 64, 1, 3, 3)
    program = program_of(convolution((1, 64, 16, 56, 56), w, pads=[0, 1, 1, 0, 1, 1]))
    (direct,) = (s for s in program.steps if isinstance(s, Computation) and s.is_reduction)
    operations = 2 * 64 * 64 * 9 * 16 * 56 * 56
    time = stage_cost_oracle(Target.parse("x86-64-v4"), MACHINE)(direct, frozenset(program.constants))
    assert time is not None
    assert time < MAX_PEAK_TIME_RATIO * operations / MACHINE.gflops(2)
