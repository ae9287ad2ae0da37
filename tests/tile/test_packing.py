"""Panels of operands that are not contiguous along their points: transposed in registers, and what that costs."""

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.optimize import programs
from tests.optimize.programs import Program
from tests.optimize.tasks import task_of
from tests.tile.problems import matrix_product
from tests.tile.results import check_same_results

from tilewright.codegen import assembly, emit_llvm
from tilewright.cost.packing import packing_time
from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Var
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.machine.shipped import machine_named
from tilewright.tile.lower import lower_program
from tilewright.tile.problem import extract_problem
from tilewright.tile.program import Sketch, TileProgram
from tilewright.verify.verifier import verify

XEON = machine_named("sapphire-rapids").with_cores(1)

ELEMENTS = r"v?insertps|v?pinsr|v?pextr|v?gather|v?p?scatter"
"""Instructions that move single elements to or from vectors, or each element of a vector by itself."""


def by_rows(columns: int, terms: int, heads: int = 2) -> Program:
    """out[h, a, b] = sum over i of x[h, a, i] * w[h, b, i], both operands contiguous along the sum."""
    x, w = programs.buffer("x", (heads, 12, terms)), programs.buffer("w", (heads, columns, terms))
    h, a, b, i = map(Var, "habi")
    out, sizes = programs.buffer("t", (heads, 12, columns)), (heads, 12, columns)
    body = x[h, a, i] * w[h, b, i]
    return Program([Computation(out, programs.axes("hab", sizes), programs.axes("i", (terms,)), body, Reducer.SUM)], {})


@pytest.mark.parametrize(
    ("columns", "terms", "width"), [(64, 64, 32), (70, 77, 32), (37, 13, 16), (33, 5, 48), (40, 4, 16)]
)
@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3"])
def test_packed_rows_compute_the_same(target: str, columns: int, terms: int, width: int) -> None:
    program = by_rows(columns, terms)
    task = task_of(program, target)
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    whole = -(-columns // width) * width
    sizes = ((1, 6, width, 1), (1, 6, width, terms), (1, 12, whole, terms))
    lanes = task.target.lanes(32)
    lowered = lower_program(TileProgram(problem, Sketch(2, lanes, (0, 1, 2), 3, ((1, 2),)), sizes), task.func).func
    verify(lowered)
    check_same_results(task.func, lowered, program, np.random.default_rng(columns))
    lines = assembly(emit_llvm([expose_workspace(lowered)], [], task.target), task.target).splitlines()
    is_by_element = any(re.match(rf"\s+({ELEMENTS})", line) for line in lines)
    assert is_by_element == (terms < 5)


@pytest.mark.parametrize("machine", [XEON, machine_named("zen3").with_cores(1)])
def test_transposing_in_registers_costs_less_than_element_by_element(machine) -> None:
    """320 x 64 elements take 0.41 cycles each and 1.18 one by one (one core of a Xeon; docs/cost-model.md)."""
    problem = matrix_product(320, 64, 64)
    rows = next(k for k, o in enumerate(problem.operands) if o.strides[0] not in (0, 1))
    sketch = Sketch(0, machine.vector_bits // 32, (0, 1), None, ((rows, 0),))
    symbolic = tuple(replace(a, is_static=a.name != problem.axes[2].name) for a in problem.axes)
    in_registers, by_element = (packing_time(p, sketch, machine) for p in (problem, replace(problem, axes=symbolic)))
    assert 2.0 * in_registers < by_element
