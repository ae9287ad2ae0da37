"""While what part of the work data come: panels that several tiles share, and what follows."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.tile.problems import SKETCH, matrix_product, tiles

from tilewright.cost.analytical import program_times
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.features import extract_features
from tilewright.cost.load_phase import load_phases
from tilewright.cost.shape_family import ShapeFamily
from tilewright.machine.cost_parameters import CostParameters
from tilewright.machine.shipped import machine_named
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sizes, Sketch

COST = CostParameters()

PANELS = Sketch(1, 16, (1, 0), 2, ((1, 1),))


def phases(
    problem: Problem, sizes: Sizes, capacity: float, sketch: Sketch = SKETCH, far: float = 1.0
) -> list[tuple[float, float]]:
    """The load phases of one program: shares of the work and of the loads."""
    batch = CandidateBatch.of(ShapeFamily.of(problem), sketch, sizes)
    return [
        (float(x.work[0]), float(x.loads[0])) for x in load_phases(problem, sketch, batch, capacity, 64, COST, far=far)
    ]


@given(tiles(), st.floats(0.0, 1e4), st.floats(0.0, 1.0))
def test_load_phases_share_work_and_loads(case: tuple[Problem, Sizes], capacity: float, far: float) -> None:
    nested = phases(*case, capacity, far=far)
    work, loads = zip(*nested, strict=True)
    assert min(work) >= 0.0
    assert min(loads) >= 0.0
    np.testing.assert_allclose((sum(work), sum(loads)), 1.0)
    # the longer something is loaded, the less of it in the same work
    rates = [b / a for a, b in nested if a > 1e-12]
    assert all(later <= earlier * (1.0 + 1e-9) for earlier, later in pairwise(rates))


def test_a_shared_panel_is_loaded_during_the_first_row() -> None:
    problem = matrix_product(16, 4096, 4096)
    several = np.array([[[4, 64, 1], [4, 64, 512], [4, 64, 4096]]])
    single = np.array([[[16, 16, 1], [16, 16, 512], [16, 16, 4096]]])
    # rows of A are read in the first of 64 panels, panels of B in the first of four rows of tiles, results all the time
    work, loads = zip(*phases(problem, several, 2e6, PANELS), strict=True)
    np.testing.assert_allclose(work, (1 / 64, 15 / 64, 3 / 4))
    assert loads[0] + loads[1] > 0.98
    assert np.allclose(phases(problem, single, 2e6, PANELS)[-1], (1.0, 1.0), atol=0.02)


def test_each_operand_has_a_load_phase_of_its_own() -> None:
    # rows of A are read for every panel, a panel of B in the first of eight register tiles of every row of L2 tiles
    problem = matrix_product(512, 1024, 4096)
    sizes = np.array([[[8, 32, 1], [64, 32, 256], [64, 32, 4096]]])
    nested = phases(problem, sizes, 2e5, PANELS)
    work = [a for a, _ in nested]
    np.testing.assert_allclose(work, (1 / 8, 7 / 8), rtol=0.05)
    # what private caches hold does not come in bursts
    (at_once, *_), (bursts, *_) = phases(problem, sizes, 2e5, PANELS, 0.0), nested
    assert at_once[1] > 1.0 - 1e-9
    assert at_once[0] > 4.0 * bursts[0]


def test_work_outside_the_load_phase_adds_to_memory_time() -> None:
    problem, machine = matrix_product(16, 4096, 4096), machine_named("x86-64-v4")

    def time(*sizes: tuple[int, ...]) -> tuple[float, float, float]:
        times = program_times(problem, PANELS, np.array([sizes]), machine)
        return float(times.compute[0]), float(times.memory[1][0]), float(times.total[0])

    several = time((4, 64, 1), (4, 64, 512), (4, 64, 4096))
    single = time((16, 16, 1), (16, 16, 512), (16, 16, 4096))
    assert several[0] < single[0]
    assert several[2] > several[1] + 0.7 * several[0]
    assert single[2] < several[2]


def test_reduction_lanes_have_separate_accumulators() -> None:
    problem = matrix_product(8, 3, 100)
    sketch = Sketch(2, 16, (0, 1), None, ((1, 2),))
    sizes = np.array([[[4, 3, 32], [8, 3, 128], [8, 3, 128]]], np.int64)
    features = extract_features(problem, sketch, CandidateBatch.of(ShapeFamily.of(problem), sketch, sizes), 64, COST)
    assert features.accumulators[0] == features.vector_operations[0] == 4 * 3 * 2
    assert features.steps[0] == 4
    assert features.register_tiles[0] == 2
    assert features.vector_loads[0] == (4 + 3) * 2
    assert features.broadcast_loads[0] == 0
