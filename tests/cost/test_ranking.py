"""The model ranks programs as measurements did; by which factor they differ is not its promise."""

from itertools import pairwise

import pytest
from tests.cost.measured_programs import MeasuredPrograms, measured_programs

from tilewright.cost.analytical import program_time


@pytest.mark.parametrize("measured", measured_programs(), ids=lambda x: x.reason.replace(" ", "_"))
def test_programs_are_ranked_as_measured(measured: MeasuredPrograms) -> None:
    assert all(faster < slower for faster, slower in pairwise(measured.microseconds))
    predicted = [program_time(program, measured.machine) for program in measured.programs]
    assert all(faster < slower for faster, slower in pairwise(predicted)), (measured.source, predicted)
