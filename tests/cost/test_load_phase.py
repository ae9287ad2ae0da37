"""While what part of the work data come: panels that several tiles share, and what follows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.tile.problems import SKETCH, matrix_product, tiles

from tilewright.cost.analytical import program_times
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.features import extract_features
from tilewright.cost.load_phase import load_phase_fraction
from tilewright.cost.shape_family import ShapeFamily
from tilewright.machine.cost_parameters import CostParameters
from tilewright.machine.shipped import machine_named
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sizes, Sketch

COST = CostParameters()

PANELS = Sketch(1, 16, (1, 0), 2, ((1, 1),))


def part(problem: Problem, sizes: Sizes, capacity: float, sketch: Sketch = SKETCH) -> float:
    """The part of the work of one program while data come."""
    return float(
        load_phase_fraction(
            problem, sketch, CandidateBatch.of(ShapeFamily.of(problem), sketch, sizes), capacity, 64, COST
        )[0]
    )


@given(tiles(), st.floats(0.0, 1e4))
def test_load_phase_is_a_fraction(case: tuple[Problem, Sizes], capacity: float) -> None:
    assert 0.0 < part(*case, capacity) <= 1.0


def test_a_shared_panel_is_loaded_during_the_first_row() -> None:
    problem = matrix_product(16, 4096, 4096)
    several = np.array([[[4, 64, 1], [4, 64, 512], [4, 64, 4096]]])
    single = np.array([[[16, 16, 1], [16, 16, 512], [16, 16, 4096]]])
    assert np.isclose(part(problem, several, 2e6, PANELS), 0.25, atol=0.02)
    assert part(problem, single, 2e6, PANELS) > 0.98
    # the results alone come and go all the time
    assert 0.25 < part(matrix_product(16, 4096, 8), np.array([[[4, 64, 1], [4, 64, 8], [4, 64, 8]]]), 2e6, PANELS) < 1.0


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
