"""The hybrid analyser: the recurrence over levels, and what measured register tiles change."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.machine.register_tile_cycles import RegisterTileCycles
from tilewright.machine.shipped import machine_named
from tilewright.optimize.vortex.analyser import Analyser, LevelTimes, RegisterTileSource, parallel_cost
from tilewright.optimize.vortex.register_tiles import RegisterTileTimes, filter_by_isa
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem, ProblemAxis
from tilewright.tile.program import Sizes, Sketch

MACHINE = machine_named("zen5").with_cores(2)


def product(m: int, n: int, k: int) -> Problem:
    """The product of two matrices of float32, the second one constant."""
    axes = tuple(ProblemAxis(x, size, True, x == "k") for x, size in zip("mnk", (m, n, k), strict=True))
    left = Operand("x", 4, False, (m, k), ((1, 0, 0), (0, 0, 1)), False)
    right = Operand("w", 4, True, (k, n), ((0, 0, 1), (0, 1, 0)), False)
    result = Operand("y", 4, False, (m, n), ((1, 0, 0), (0, 1, 0)), True)
    return Problem("sum", "sum", axes, (left, right), (result,), 1, 32)


def program(m: int, n: int, k: int) -> tuple[Problem, Sketch, Sizes]:
    """A product in register tiles of 8 x 32 without larger tiles than these."""
    sizes = np.array([[[8, 32, 1], [8, 32, k], [8, 32, k]]])
    return product(m, n, k), Sketch(1, 16, (1, 0), 2, ((1, 1),)), sizes


@pytest.mark.parametrize(
    ("load", "inner", "expected"),
    [(1.0, 5.0, 1 + 9 * 5 + 5 + 2), (5.0, 1.0, 5 + 9 * 5 + 1 + 2), (3.0, 3.0, 3 + 9 * 3 + 3 + 2)],
)
def test_loads_hide_behind_the_level_below_or_it_behind_them(load: float, inner: float, expected: float) -> None:
    stage = LevelTimes(np.array([load]), np.array([10.0]), np.array([2.0]))
    assert stage.temporal(np.array([inner])) == pytest.approx([expected])


def test_a_unit_that_has_one_task_more_decides() -> None:
    assert parallel_cost(np.array([3.0, 3.0, 3.0]), np.array([4.0, 5.0, 6.0]), 2) == pytest.approx([6, 9, 9])


def test_time_of_many_tiles_is_proportional_to_their_number() -> None:
    small, large = (float(Analyser(MACHINE).on_one_core().times(*program(m, 64, 64))[0]) for m in (512, 1024))
    assert large == pytest.approx(2 * small, rel=0.02)


def test_two_cores_take_at_least_half_the_time() -> None:
    problem = program(1024, 256, 256)
    one, two = (float(x.times(*problem)[0]) for x in (Analyser(MACHINE).on_one_core(), Analyser(MACHINE)))
    assert one / 2 <= two < one


def test_rows_beyond_whole_tiles_take_longer_than_none() -> None:
    times = [float(Analyser(MACHINE).times(*program(m, 256, 256))[0]) for m in (64, 65, 72)]
    assert times[0] < times[1]
    assert times[0] < times[2]


def test_measured_tiles_replace_computed_ones_and_scale_the_others() -> None:
    computed = RegisterTileTimes.computed(MACHINE)
    rows, vectors, unroll = (np.array([x]) for x in (8, 2, 1))
    cycles = float(computed.at(rows, vectors, unroll)[0])
    machine = replace(MACHINE, register_tiles=(RegisterTileCycles(512, 32, 8, 2, 1, 2 * cycles),))
    measured = RegisterTileTimes.of(machine, 32)
    assert measured.measured == 1
    np.testing.assert_allclose(measured.cycles, 2 * computed.cycles)
    # other widths of vectors or elements are other tiles
    for other in (replace(machine, vector_bits=256), machine):
        bits = 64 if other is machine else 32
        unmeasured = RegisterTileTimes.of(other, bits)
        assert unmeasured.measured == 0
        np.testing.assert_array_equal(unmeasured.cycles, RegisterTileTimes.computed(other).cycles)


def test_only_the_hybrid_analyser_reads_measurements() -> None:
    tile = RegisterTileCycles(512, 32, 8, 2, 1, 100.0)
    machine = replace(MACHINE, register_tiles=(tile,))
    sources = RegisterTileSource.MEASURED, RegisterTileSource.COMPUTED
    hybrid, analytical = (Analyser(machine, x).times(*program(64, 64, 64)) for x in sources)
    assert analytical == pytest.approx(Analyser(MACHINE).times(*program(64, 64, 64)))
    assert hybrid > 2 * analytical


def test_larger_tiles_take_longer() -> None:
    times = RegisterTileTimes.computed(MACHINE)
    tiles = filter_by_isa(MACHINE)
    rows, vectors, unroll = tiles.T
    cycles = times.at(rows, vectors, unroll)
    assert (cycles > 0).all()
    assert (times.at(rows + 1, vectors, unroll) >= cycles).all()
    # tiles beyond the table are several
    assert times.at(np.array([64]), np.array([1]), np.array([1])) == pytest.approx(
        2 * times.at(np.array([32]), np.array([1]), np.array([1]))
    )
