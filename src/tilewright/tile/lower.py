"""Lowering of tile programs: the tree of a program, then its schedule."""

from tilewright.loops.ir import Func
from tilewright.schedule.schedule import Schedule
from tilewright.tile.elementwise_tree import elementwise_tree
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.program import TileProgram, check_program
from tilewright.tile.reduction_tree import reduction_tree
from tilewright.tile.tree import TileTree


def program_tree(program: TileProgram, func: Func, parallel: bool = True, cores: int = 1) -> TileTree:
    """The tree of a program.

    Args:
        program: the program.
        func: its kernel's untransformed loops.
        parallel: whether threads share the tiles.
        cores: maximum number of cores.

    Raises:
        ScheduleError: the program is not legal.
    """
    check_program(program)
    if program.problem.reduce:
        return reduction_tree(program, func, parallel, cores)
    return elementwise_tree(program, func, parallel)


def lower_program(program: TileProgram, func: Func, parallel: bool = True, cores: int = 1) -> Schedule:
    """The schedule of a program; arguments as of `program_tree`.

    Raises:
        ScheduleError: the program is not legal, or one of its steps is not legal for these loops.
    """
    return lower_tree(program_tree(program, func, parallel, cores), func)
