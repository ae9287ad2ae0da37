"""Trees of the programs that construction chooses: tile programs, and row-wise programs of several stages."""

from tilewright.optimize.construct.rowwise_programs import tile_row_axis
from tilewright.optimize.rowwise import RowwisePlan, rowwise_tree
from tilewright.optimize.rowwise_stage import StageTile
from tilewright.optimize.task import Task
from tilewright.schedule.schedule import Schedule
from tilewright.tile.lower import tile_program_tree
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.program import TileProgram
from tilewright.tile.rowwise import RowwiseProgram
from tilewright.tile.tree import TileTree

KernelProgram = TileProgram | RowwiseProgram
"""The programs that the cost model scores."""


def program_tree(program: KernelProgram, task: Task, parallel: bool, cores: int = 1) -> TileTree:
    """The tree of a program.

    Args:
        program: the program.
        task: its kernel.
        parallel: whether threads share the tiles, or the blocks of rows.
        cores: maximum number of cores.

    Raises:
        ScheduleError: the program is not legal.
    """
    if isinstance(program, TileProgram):
        return tile_program_tree(program, task.func, parallel, cores)
    tiles = {p.problem.block: _stage_tile(p) for p in program.stages if p.sketch.lanes > 1}
    return rowwise_tree(task, RowwisePlan(program.blocking.rows_per_block, tiles), parallel)


def lower_kernel_program(program: KernelProgram, task: Task, parallel: bool, cores: int = 1) -> Schedule:
    """The schedule of a program; arguments as of `program_tree`.

    Raises:
        ScheduleError: the program is not legal, or one of its steps is not legal for these loops.
    """
    return lower_tree(program_tree(program, task, parallel, cores), task.func)


def _stage_tile(p: TileProgram) -> StageTile:
    """The register tile of a stage's program."""
    lane, (register, *_) = p.sketch.lane, p.sizes
    row_axis = tile_row_axis(p.problem, lane)
    rows = 1 if row_axis is None else register[row_axis]
    is_unrolled = bool(p.problem.reduce) and all(register[k] == p.problem.axes[k].extent for k in p.problem.reduce)
    # narrow registers hold whole axes: one vector, which the loops over lanes make as narrow again
    return StageTile(lane, register[lane] // p.sketch.lanes, rows, is_unrolled)
