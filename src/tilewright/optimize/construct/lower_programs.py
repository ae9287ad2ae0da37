"""Lowers the first legal one of ranked programs; the reasons of refused ones are logged."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.cost.analytical import is_parallel_profitable
from tilewright.cost.rowwise import is_rowwise_parallel_profitable
from tilewright.errors import ScheduleError
from tilewright.kernel_caches import forget_derived
from tilewright.machine.model import Machine
from tilewright.optimize.construct.program_tree import KernelProgram, lower_kernel_program
from tilewright.optimize.task import Task
from tilewright.schedule.schedule import Schedule
from tilewright.tile.rowwise import RowwiseProgram

_log = logging.getLogger("tilewright.construct")


@dataclass(frozen=True, slots=True)
class LoweringResult:
    """The outcome of lowering ranked programs.

    Attributes:
        schedule: of the first program that is legal; None where none is.
        refusals: the error messages of the programs before it, one each.
    """

    schedule: Schedule | None
    refusals: tuple[str, ...] = ()


def lower_first_legal(programs: Sequence[KernelProgram], task: Task, machine: Machine) -> LoweringResult:
    """Lowers the first legal program, best first; its loops are parallel where that pays on the machine.

    A refused program is a gap between what construction considers legal and what schedules allow. Results stay right:
    the next program, or the rule, takes its place. The logger `tilewright.construct` gets the reason, at level debug
    for every program, at level info where the rule takes the kernel.
    """
    refused: list[str] = []
    for program in programs:
        try:
            return LoweringResult(lower_for_machine(program, task, machine), tuple(refused))
        except ScheduleError as error:
            refused.append(str(error))
            _log.debug("%s: %s can't be lowered: %s", task.func.name, program, error)
    if refused:
        what = "%s: none of %d constructed programs can be lowered, the rule takes the kernel; the best one: %s"
        _log.info(what, task.func.name, len(refused), refused[0])
    return LoweringResult(None, tuple(refused))


def lower_all(programs: Sequence[KernelProgram], task: Task, machine: Machine) -> tuple[Schedule, ...] | None:
    """Lowers the programs that serve a kernel's sizes together; None where one of them is refused, and its reason is
    logged."""
    try:
        return tuple(lower_for_machine(p, task, machine) for p in programs)
    except ScheduleError as error:
        _log.info("%s: a variant can't be lowered, one program serves all sizes: %s", task.func.name, error)
        return None


def lower_for_machine(program: KernelProgram, task: Task, machine: Machine) -> Schedule:
    """The schedule of a program, on as many threads as pay on the machine.

    Raises:
        ScheduleError: the program is not legal, or one of its steps is not legal for these loops.
    """
    forget_derived()
    if isinstance(program, RowwiseProgram):
        is_parallel = task.threads != 1 and is_rowwise_parallel_profitable(program, machine)
        return lower_kernel_program(program, task, is_parallel)
    is_parallel = task.threads != 1 and is_parallel_profitable(program, machine)
    return lower_kernel_program(program, task, is_parallel, machine.cores)
