"""Prefetches of tile programs: where the next register tile's rows are fetched ahead, and where not."""

from dataclasses import replace

import numpy as np
import pytest
from tests.optimize.computations import product, products_of_pictures, row_sums
from tests.optimize.programs import Program, axes, buffer
from tests.optimize.tasks import task_of
from tests.tile.results import check_same_results

from tilewright.expr.computation import Computation, Reducer
from tilewright.loops.ir import For, walk
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.reduction_sketches import reduction_sketches
from tilewright.tile.lower import lower_program
from tilewright.tile.prefetches import prefetches
from tilewright.tile.problem import extract_problem
from tilewright.tile.program import Sketch, TileProgram
from tilewright.tile.tree import Prefetch
from tilewright.verify.verifier import verify

PICTURES = products_of_pictures(2, 32, 40, 32)
TASK = task_of(PICTURES)
CHANNELS_AS_LANES = Sketch(1, 16, (1, 0, 2), 3, ((1, 1),))


def a_program(pixels: int) -> TileProgram:
    """A 1x1 convolution whose register tiles have so many pixels of 32 filters, in blocks of 16 channels."""
    problem = extract_problem(TASK.func, TASK.constants)
    assert problem is not None
    return TileProgram(
        problem, CHANNELS_AS_LANES, ((1, 32, pixels, 2), (1, 32, 2 * pixels, 16), (1, 32, 4 * pixels, 32))
    )


def hints_of(program: TileProgram) -> list[Prefetch]:
    """The prefetches of the pictures."""
    return [p for p in prefetches(program) if p.source == program.problem.operands[0].buffer]


def test_the_rows_of_the_next_tile_are_prefetched():
    program = a_program(10)
    pictures = program.problem.operands[0].buffer
    assert hints_of(program) == [Prefetch(pictures, 8)]
    lowered = lower_program(program, TASK.func)
    verify(lowered.func)
    check_same_results(TASK.func, lowered.func, PICTURES, np.random.default_rng())
    loops = [s for s, _ in walk(lowered.func.body) if isinstance(s, For)]
    hints = [p for s in loops for p in s.prefetches if p.buffer.name == pictures]
    # a hint per channel: the last one of the next ten pixels, which no earlier tile has touched
    assert len(hints) == 2
    assert all(str(p.indices[2]).endswith("+ 19") for p in hints), hints


@pytest.mark.parametrize(("tiles", "count"), [(32, 1), (33, 0)])
def test_constants_that_many_tiles_read_are_not_prefetched(tiles: int, count: int):
    task = task_of(Program([product(7 * tiles, 64, 48)], {}, frozenset({"w"})))
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    sizes = ((7, 32, 2), (28, 32, 48), (28, 64, 48))
    small, large = Sketch(1, 16, (0, 1), 2, ((1, 1),)), Sketch(1, 16, (0, 1), 2, ((1, 1),), prefetched_operands=(1,))
    assert len(prefetches(TileProgram(problem, small, sizes))) == count
    assert len(prefetches(TileProgram(problem, large, sizes))) == 1


@pytest.mark.parametrize(("rows", "distances"), [(7, [12]), (3, [])])
def test_rows_of_a_large_operand_that_is_read_along_lanes_are_prefetched(rows: int, distances: list[int]):
    """As many bytes ahead as of packed copies, 3072, where tiles have rows enough to spare the slots of loads."""
    computations = Program([product(4 * rows, 64, 48)], {}, frozenset())
    task = task_of(computations)
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    sizes = ((rows, 32, 2), (4 * rows, 32, 16), (4 * rows, 64, 48))
    small, large = Sketch(1, 16, (1, 0), 2), Sketch(1, 16, (1, 0), 2, prefetched_operands=(1,))
    assert prefetches(TileProgram(problem, small, sizes)) == ()
    program = TileProgram(problem, large, sizes)
    assert prefetches(program) == tuple(Prefetch(problem.operands[1].buffer, d) for d in distances)
    lowered = lower_program(program, task.func)
    verify(lowered.func)
    check_same_results(task.func, lowered.func, computations, np.random.default_rng())
    hints = [p for s, _ in walk(lowered.func.body) if isinstance(s, For) for p in s.prefetches]
    # two terms of two lines each, and a further one where the parameter does not begin at a line
    assert len(hints) == 6 * len(distances)


@pytest.mark.parametrize(
    ("columns", "terms", "constant", "named"),
    [(820, 4360, "", True), (820, 200, "", False), (8, 447_620, "", False), (820, 4360, "w", False)],
    ids=["large", "in_the_private_caches", "rows_of_half_a_line", "packed_ahead_of_time"],
)
def test_sketches_name_operands_with_distant_rows_that_exceed_private_caches(
    columns: int, terms: int, constant: str, named: bool
):
    task = task_of(Program([product(43, columns, terms)], {}, frozenset(constant.split())))
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    along_columns = [x for x in reduction_sketches(problem, task.target, machine_named("zen5")) if x.lane == 1]
    in_place = [x for x in along_columns if 1 not in dict(x.packed)]
    assert [x.prefetched_operands == (1,) for x in in_place] == [named] * len(in_place)
    assert bool(in_place) != bool(constant)


def dot_products(rows: int, terms: int) -> Computation:
    """The dot products of the rows of two matrices."""
    i, r = axes("ir", (rows, terms))
    x, y = buffer("x", (rows, terms)), buffer("y", (rows, terms))
    return Computation(buffer("t", (rows,)), (i,), (r,), x[i.var, r.var] * y[i.var, r.var], Reducer.SUM)


def rows_by_rows(rows: int, columns: int, terms: int, same: bool = False) -> Computation:
    """The products of the rows of two matrices, or of one with its own first ones."""
    i, j, r = axes("ijr", (rows, columns, terms))
    x = buffer("x", (rows, terms))
    w = x if same else buffer("w", (columns, terms))
    return Computation(buffer("t", (rows, columns)), (i, j), (r,), x[i.var, r.var] * w[j.var, r.var], Reducer.SUM)


def filtered(length: int, filters: int, taps: int) -> Computation:
    """A convolution over one dimension whose windows overlap."""
    i, f, r = axes("ifr", (length, filters, taps))
    x, w = buffer("x", (length + taps - 1,)), buffer("w", (filters, taps))
    return Computation(buffer("t", (length, filters)), (i, f), (r,), x[i.var + r.var] * w[f.var, r.var], Reducer.SUM)


def rows_of_pieces(rows: int, columns: int, pieces: int, terms: int) -> Computation:
    """Products of rows whose pieces are apart: a sum over two axes."""
    i, j, p, r = axes("ijpr", (rows, columns, pieces, terms))
    x, w = buffer("x", (pieces, rows, terms)), buffer("w", (columns, pieces, terms))
    body = x[p.var, i.var, r.var] * w[j.var, p.var, r.var]
    return Computation(buffer("t", (rows, columns)), (i, j), (p, r), body, Reducer.SUM)


@pytest.mark.parametrize(
    ("computation", "constant", "named"),
    [
        (product(1903, 8, 1589), "w", (0,)),
        (product(4000, 1, 1000), "", (0,)),
        (rows_by_rows(4000, 8, 1000), "", (0,)),
        (rows_by_rows(4, 4000, 1000), "", (1,)),
        (product(60, 8, 1589), "w", ()),
        (rows_by_rows(4, 4000, 1000), "w", ()),
        (row_sums(1903, 1589), "", ()),
        (dot_products(1903, 1589), "", ()),
        (rows_by_rows(2000, 2000, 1000), "", ()),
        (rows_by_rows(4000, 8, 1000, same=True), "", ()),
        (filtered(1_000_000, 8, 64), "", ()),
        (rows_of_pieces(4000, 8, 10, 100), "", ()),
    ],
    ids=[
        "narrow", "one_column", "columns_are_rows", "few_rows", "in_the_private_caches", "constant",
        "nothing_else_is_read", "no_columns", "many_columns", "of_itself", "windows", "two_axes",
    ],
)  # fmt: skip
def test_lane_reductions_name_large_rows_beside_few_columns(
    computation: Computation, constant: str, named: tuple[int, ...]
):
    task = task_of(Program([computation], {}, frozenset(constant.split())))
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    sketches = reduction_sketches(problem, task.target, machine_named("zen5"))
    along_rows = [x for x in sketches if problem.axes[x.lane].is_reduction]
    assert along_rows
    assert {x.prefetched_operands for x in along_rows} == {named}


@pytest.mark.parametrize(("rows", "columns", "distance"), [(2, 2, 24), (4, 8, 12)])
def test_lane_reductions_prefetch_rows_further_along(rows: int, columns: int, distance: int):
    """3072 bytes ahead, which the rows of a tile share; not the packed columns, which the next tile reads again."""
    computations = Program([product(3 * rows, columns, 600)], {}, frozenset({"w"}))
    task = task_of(computations)
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    sketch = Sketch(2, 16, (0, 1), None, ((1, 2),), prefetched_operands=(0,))
    program = TileProgram(problem, sketch, ((rows, columns, 16), (rows, columns, 608), (rows, columns, 608)))
    x = problem.operands[0].buffer
    assert prefetches(program) == (Prefetch(x, distance),)
    lowered = lower_program(program, task.func)
    verify(lowered.func)
    check_same_results(task.func, lowered.func, computations, np.random.default_rng())
    loops = [s for s, _ in walk(lowered.func.body) if isinstance(s, For) and s.prefetches]
    (loop,) = [s for s in loops if str(s.extent) == "37"]  # the last vector, which is partial, is peeled
    assert {p.buffer.name for s in loops for p in s.prefetches} == {x}
    # behind the end of the rows come the beginnings of the next tile's
    ahead = f"({loop.var.name} + {distance})"
    assert {str(p.indices[1]) for p in loop.prefetches} == {f"{ahead} % 38 * 16", f"{ahead} % 38 * 16 + 15"}
    assert all(f"{ahead} // 38 * {rows}" in str(p.indices[0]) for p in loop.prefetches)
    assert len(loop.prefetches) == 2 * rows


@pytest.mark.parametrize("pixels", [2, 20])
def test_few_pixels_have_no_slots_to_spare_and_many_are_whole_lines(pixels):
    assert hints_of(a_program(pixels)) == []


def test_rows_along_lanes_constants_and_conditional_rows_are_not_prefetched():
    program = a_program(10)
    along_lanes = replace(program, sketch=replace(CHANNELS_AS_LANES, lane=2, packed=()))
    assert hints_of(along_lanes) == []
    for change in ({"constant": True}, {"conditional": True}, {"private": True}):
        operands = (replace(program.problem.operands[0], **change), *program.problem.operands[1:])
        assert hints_of(replace(program, problem=replace(program.problem, operands=operands))) == []
