"""Tasks of one kind and of several sizes, and their tile programs."""

from functools import cache

import numpy as np
from tests.optimize.computations import image, product, relu
from tests.optimize.programs import Program
from tests.optimize.search_tasks import MACHINE
from tests.optimize.tasks import task_of

from tilewright.expr.nodes import Const
from tilewright.loops.ir import Func
from tilewright.optimize.reuse.reusable_task import ReusableTask
from tilewright.optimize.search.tile_programs import TilePrograms
from tilewright.schedule.schedule import Schedule
from tilewright.tile.lower import lower_program
from tilewright.tile.program import TileProgram


@cache
def product_of(m: int, n: int, k: int, with_epilogue: bool = False) -> ReusableTask:
    """A product with constant weights."""
    stages = [p := product(m, n, k), *([relu(p)] if with_epilogue else [])]
    return reusable(Program(stages, {}, frozenset({"w"})))


@cache
def convolution_of(channels: int, filters: int, size: int) -> ReusableTask:
    """A convolution with windows of 3 x 3 and constant weights."""
    return reusable(Program([image(1, channels, filters, size, 3)], {}, frozenset({"w"})))


def reusable(program: Program) -> ReusableTask:
    """The task of a program on the tests' machine."""
    task = ReusableTask.of(task_of(program), MACHINE)
    assert task is not None
    return task


def random_programs(task: ReusableTask, count: int, rng: np.random.Generator) -> list[TileProgram]:
    """Programs of a task's space."""
    programs = TilePrograms.of(task.task, task.machine)
    assert programs is not None
    return [programs.program(g) for g in programs.random(count, rng)]


def random_arrays(func: Func, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Small whole numbers for all parameters of a function with literal shapes."""
    shapes = {p.name: [int(n.value) for n in p.shape if isinstance(n, Const)] for p in func.params}
    return {name: rng.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()}


def lowered(task: ReusableTask, program: TileProgram, parallel: bool = False) -> Schedule:
    """The schedule of a program."""
    return lower_program(program, task.task.func, parallel, task.machine.cores)
