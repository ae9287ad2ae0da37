"""Sums that use every element once: what counts is where their elements lie and in which runs they are read."""

from dataclasses import replace

import pytest
from tests.optimize.computations import product, row_sums
from tests.tile.problems import matrix_product, problem

from tilewright.cost.analytical import program_time
from tilewright.cost.reduction_kind import is_streaming
from tilewright.machine.shipped import machine_named
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem, ProblemAxis
from tilewright.tile.program import Sketch, TileProgram

MACHINE = machine_named("zen5").with_cores(1)
COST = MACHINE.cost
L2_GBS, FAR_GBS = MACHINE.levels[1].core_gbs, MACHINE.levels[2].core_gbs


def columns(rows: int, width: int, added: bool = True) -> Problem:
    """The sum over the rows of a matrix."""
    axes = (ProblemAxis("j", width, True, False), ProblemAxis("k", rows, True, True))
    matrix = Operand("x", 4, False, (rows, width), ((0, 1), (1, 0)), False)
    total = Operand("y", 4, False, (width,), ((1, 0),), True)
    return Problem("y", "y", axes, (matrix,), (total,), 1, 32, is_plain_sum=added)


def time_of(p: Problem, register: int, near: int, far: int, chunk: int) -> float:
    sizes = ((register, 1), (near, chunk), (far, p.axes[1].extent))
    return program_time(TileProgram(p, Sketch(0, 16, (0,), 1), sizes), MACHINE)


def test_streaming_is_a_long_reduction_without_reuse() -> None:
    assert is_streaming(columns(128, 768), COST)
    assert not is_streaming(columns(8, 768), COST)  # its sums are short: nothing waits for them
    assert not is_streaming(matrix_product(64, 64, 64), COST)


def test_plain_sums_are_recognised() -> None:
    assert problem([row_sums(128, 256)]).is_plain_sum
    assert not problem([product(28, 64, 5)]).is_plain_sum


def test_data_in_l2_is_not_loaded_from_memory() -> None:
    small, large = columns(64, 512), columns(2048, 4096)
    assert 64 * 512 * 4 / L2_GBS < time_of(small, 64, 512, 512, 64) < 64 * 512 * 4 / FAR_GBS
    assert time_of(large, 64, 4096, 4096, 16) > 2048 * 4096 * 4 / FAR_GBS


def test_short_segments_in_many_pages_are_slow() -> None:
    p = columns(2048, 4096)
    # the pages of a chunk of few rows are known when the next register tile goes on with them
    few = time_of(p, 16, 4096, 4096, 32)
    assert few < time_of(p, 16, 16, 16, 2048)
    assert few < time_of(p, 16, 4096, 4096, 512)


def test_a_single_accumulator_is_latency_bound() -> None:
    p = columns(256, 512)
    assert time_of(p, 16, 16, 512, 256) > time_of(p, 64, 64, 512, 256)
    # cut into chunks whose totals stay in registers it is the same chain
    assert time_of(p, 16, 16, 512, 16) > time_of(p, 16, 512, 512, 16)
    assert time_of(p, 16, 16, 512, 256) < time_of(replace(p, is_plain_sum=False), 16, 16, 512, 256)


def test_masked_loads_of_partial_tiles_cost_in_every_step() -> None:
    assert time_of(columns(64, 480), 48, 480, 480, 64) < time_of(columns(64, 470), 48, 480, 480, 64)


@pytest.mark.parametrize("lane", [1, 0])
def test_transposes_prefer_long_segments(lane: int) -> None:
    axes = (ProblemAxis("i", 2048, True, False), ProblemAxis("j", 2048, True, False))
    read = Operand("x", 4, False, (2048, 2048), ((0, 1), (1, 0)), False)
    written = Operand("y", 4, False, (2048, 2048), ((1, 0), (0, 1)), True)
    p = Problem("y", "y", axes, (read, written), (), 1, 32)

    def of(near: tuple[int, int], far: tuple[int, int]) -> float:
        register = (4, 16) if lane else (16, 4)
        return program_time(TileProgram(p, Sketch(lane, 16, (0, 1), None), (register, near, far)), MACHINE)

    assert of((16, 64), (2048, 64)) < of((16, 2048), (16, 2048))
