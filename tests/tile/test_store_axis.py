"""Along which axis a register tile's results are stored, and its epilogue computes."""

import pytest
from tests.driver.test_variants import pointwise

from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.loops.ir import For, LoopKind, walk
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import search_spaces
from tilewright.optimize.task import Task
from tilewright.tile.lower import lower_program
from tilewright.tile.problem import extract_problem
from tilewright.tile.program import TileProgram
from tilewright.verify.verifier import verify

CHANNELS, PIXELS = 0, 1


@pytest.mark.parametrize("columns", [2, 4, 8])
def test_an_epilogue_computes_with_no_fewer_lanes_than_four(columns: int) -> None:
    """Tiles of two pixels and 16 channels: their functions of 16 channels at once, although stores are contiguous
    along pixels."""
    compilation = make_compilation(pointwise(), CompileOptions(machine="zen5", target="x86-64-v4"))
    kernel = next(k for k in compilation.kernels if len(k.programs) > 1)
    task = Task(kernel.origin, kernel.constants, Target.parse("x86-64-v4"), kernel.fusion, kernel.samples)
    problem = extract_problem(task.func, task.constants, task.samples)
    assert problem is not None
    spaces = search_spaces(problem, task, machine_named("zen5"))
    space, sketch = next((x, y) for x, ys in spaces.items() for y in ys if y.transposed_store and y.lane != y.order[-1])
    pixels = next(a for a in problem.spatial if not problem.axes[a].is_static)
    sizes = space.sizes(space.initial_state()[None])[0]
    sizes[:, pixels] = columns
    func = lower_program(TileProgram.of(problem, sketch, sizes), task.func, False).func
    verify(func)
    lanes = {str(s.extent) for s, _ in walk(func.body) if isinstance(s, For) and s.kind is LoopKind.VECTORIZED}
    assert (str(columns) in lanes) is (columns >= 4)
    assert "2" not in lanes
