"""Which axes hold columns that are transposed in registers, and programs that use them."""

from dataclasses import replace

import numpy as np
import pytest
from tests.cost.measured_programs import transposition
from tests.tile.problems import matrix_product

from tilewright.cost.analytical import program_time
from tilewright.loops.ir import For, LoopKind, walk
from tilewright.loops.parser import parse
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.tile.lower import lower_program
from tilewright.tile.problem import Problem, extract_problem
from tilewright.tile.program import Sketch, TileProgram
from tilewright.tile.transposed_columns import MIN_COLUMNS, column_axis

LANES_ACROSS = Sketch(1, 16, (0, 1), None)
"""Vectors along the written rows, which are columns of what is read."""

XEON = machine_named("sapphire-rapids").with_cores(1)

TEXT = """
func f(X: float32[200, 53], Y: float32[53, 200]):
    for i in serial(53):
        for j in serial(200):
            block Y(a: 53 = i, b: 200 = j):
                Y[a, b] = VALUE
"""


def kernel(value: str = "X[b, a]") -> Problem:
    """The problem of a transposition."""
    problem = extract_problem(parse(TEXT.replace("VALUE", value)), frozenset())
    assert problem is not None
    return problem


def test_columns_lie_along_the_contiguous_axis() -> None:
    assert column_axis(kernel(), LANES_ACROSS, 0) == 0


def test_lanes_along_contiguous_elements_need_no_transposition() -> None:
    assert column_axis(kernel(), Sketch(0, 16, (1, 0), None), 0) is None


def test_elements_that_are_near_each_other_are_shuffled_out_of_vectors() -> None:
    assert column_axis(transposition(4, 200), LANES_ACROSS, 0) is None
    assert column_axis(transposition(5, 200), LANES_ACROSS, 0) == 0


def test_elements_that_a_select_leaves_out_are_read_one_by_one() -> None:
    problem = kernel("select(a < 50, X[b, a], 0.0)")
    assert problem.operands[0].conditional
    assert column_axis(problem, LANES_ACROSS, 0) is None


def test_distances_that_symbols_determine_are_known_at_run_time_only() -> None:
    problem = replace(transposition(64, 200), samples=(transposition(64, 200), transposition(32, 200)))
    assert column_axis(problem, LANES_ACROSS, 0) is None


def test_reductions_gather() -> None:
    assert column_axis(matrix_product(64, 64, 64), Sketch(0, 16, (1, 0), 2), 0) is None


@pytest.mark.parametrize(("rows", "kind"), [(16, LoopKind.UNROLLED), (MIN_COLUMNS, LoopKind.UNROLLED),
                                            (3, LoopKind.SERIAL)])  # fmt: skip
def test_columns_are_unrolled_next_to_the_lanes(rows: int, kind: LoopKind) -> None:
    func = parse(TEXT.replace("VALUE", "X[b, a]"))
    program = TileProgram(kernel(), LANES_ACROSS, ((rows, 16), (rows, 16), (rows, 16)))
    loops = [s for s, _ in walk(lower_program(program, func, False).func.body) if isinstance(s, For)]
    assert [loop.kind for loop in loops[-2:]] == [kind, LoopKind.VECTORIZED]


def test_tiles_with_columns_are_the_faster_ones() -> None:
    """3 x 712 x 53 transposed takes 0.44 cycles per element in tiles of 8 columns, 1.08 one by one (one core of a Xeon;
    docs/cost-model.md, transpose_shuffle_cycles)."""
    problem = transposition(53, 712)
    few, many = (
        program_time(TileProgram(problem, LANES_ACROSS, ((rows, 16), (rows, 16), (rows, 16))), XEON) for rows in (2, 8)
    )
    assert many < few


def test_columns_beyond_whole_tiles_have_no_tiles_of_caches() -> None:
    """Code generation peels the last tile of the loop that counts all of them."""
    space = SearchSpace.of(kernel(), LANES_ACROSS, XEON)
    sizes = np.array([[[16, 16], [16, 16], [16, 16]], [[16, 16], [48, 16], [48, 16]], [[2, 16], [26, 16], [52, 16]]])
    assert space.are_lowerable(sizes).tolist() == [True, False, True]
