"""Sizes at which rows alias: which they are, and that estimates at run time tell them from their neighbours."""

import numpy as np
import pytest

from tilewright.expr.nodes import Symbol, const
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.aliased_rows import rows_alias
from tilewright.optimize.construct.run_time_cost import run_time_cost
from tilewright.optimize.construct.time_model import CostModel
from tilewright.tile.problem import Problem, extract_problem, problems_at
from tilewright.tile.program import Sketch, TileProgram
from tilewright.tile.shape_samples import grid_shapes, value_of

CONSTANTS = frozenset({"w"})

POINTWISE = """
func pointwise(w: float32[96, 96], x: float32[96, h * v], y: float32[96, h * v]; h: 8..256, v: 8..256):
    for i in serial(96):
        for j in serial(h * v):
            for k in serial(96):
                block y(a: 96 = i, b: h * v = j, reduce c: 96 = k):
                    init y[a, b] = 0.0
                    y[a, b] = y[a, b] + w[a, c] * x[c, b]
"""

ROWS = """
func rows(w: float32[64, 96], x: float32[n, 64], y: float32[n, 96]; n: 1..512):
    for i in serial(n):
        for j in serial(96):
            for k in serial(64):
                block y(a: n = i, b: 96 = j, reduce c: 64 = k):
                    init y[a, b] = 0.0
                    y[a, b] = y[a, b] + x[a, c] * w[c, b]
"""


def pointwise_problem(func: Func) -> Problem:
    problem = extract_problem(func, CONSTANTS)
    assert problem is not None
    return problem


@pytest.mark.parametrize(("height", "width", "expected"), [
    (64, 64, 1), (128, 128, 1), (160, 128, 1), (192, 192, 1), (96, 96, 0), (80, 80, 0), (63, 65, 0), (32, 32, 0),
])  # fmt: skip
def test_planes_of_powers_of_two_alias(height: int, width: int, expected: int) -> None:
    func = parse(POINTWISE)
    alias = rows_alias(func)
    assert alias is not None
    assert value_of(alias, dict(zip(func.symbols, (height, width), strict=True))) == expected


def test_rows_of_literal_length_do_not_depend_on_sizes() -> None:
    assert rows_alias(parse(ROWS)) is None


def test_grids_of_pictures_have_aliased_shapes() -> None:
    func = parse(POINTWISE)
    alias = rows_alias(func)
    assert alias is not None
    aliased = [value_of(alias, x) for x in grid_shapes(func.symbols)]
    assert 2 <= sum(aliased) < len(aliased) / 3
    n, m = Symbol("n", 10, 100), Symbol("m", 3, 5)
    grid = grid_shapes((n, m))
    assert {32, 64} <= {x[n] for x in grid}
    assert all(10 <= x[n] <= 100 and 3 <= x[m] <= 5 for x in grid)


def test_estimates_tell_aliased_shapes_from_their_neighbours() -> None:
    func, model = parse(POINTWISE), CostModel(machine_named("sapphire-rapids").with_cores(1))
    problem, shapes = pointwise_problem(func), grid_shapes(func.symbols)
    problems = [p for p in problems_at(func, CONSTANTS, shapes) if p is not None]
    alias = rows_alias(func)
    assert alias is not None
    aliased = np.array([float(value_of(alias, x)) for x in shapes])
    program = TileProgram(problem, Sketch(1, 16, (1, 0), 2), ((6, 64, 1), (6, 64, 96), (6, 64, 96)))
    cost = run_time_cost(program, problems, model, None, aliased)
    extents = np.array([[96, 4096, 96], [96, 4097, 96]]).T
    at_aliased, beside = cost.values(extents, np.array([1.0, 0.0]))
    assert at_aliased > 2 * beside
    # what native code computes, in picoseconds
    height, width = func.symbols
    form = cost.expression([const(96), height * width, const(96)], 1000.0, alias)
    for sizes in ((64, 64), (63, 65), (128, 32)):
        extents_there = np.array([[96], [sizes[0] * sizes[1]], [96]])
        is_aliased = np.array([float(value_of(alias, dict(zip(func.symbols, sizes, strict=True))))])
        picoseconds = value_of(form, dict(zip(func.symbols, sizes, strict=True)))
        assert picoseconds == pytest.approx(1000.0 * cost.values(extents_there, is_aliased)[0], rel=1e-3)
    blind = run_time_cost(program, problems, model)
    relative = [abs(c - b) / b for c, b in zip(blind.values(extents), (at_aliased, beside), strict=True)]
    assert max(relative) > 0.3
