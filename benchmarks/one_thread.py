"""Kernels on one thread, as benchmarks search them: machine, program spaces, predicted times, and logs of one code."""

from dataclasses import replace
from functools import lru_cache
from hashlib import sha256

import numpy as np

from tilewright.codegen import emit_llvm
from tilewright.cost.analytical import program_times
from tilewright.cost.rowwise import rowwise_time
from tilewright.errors import ScheduleError
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.lower.prepack_constants import prepack_constants
from tilewright.machine import Target
from tilewright.machine.calibration_store import machine_for
from tilewright.machine.model import Machine
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.construct.program_tree import KernelProgram
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.search.program_space import ProgramSpace
from tilewright.optimize.search.tile_programs import TilePrograms
from tilewright.optimize.task import Task
from tilewright.tile.program import Sketch, TileProgram

FINGERPRINT_PROGRAMS = 3
"""Random programs whose code identifies the compiler's state."""


@lru_cache(maxsize=1)
def one_thread_machine() -> Machine:
    """This machine with one core."""
    return machine_for(Target.host()).with_cores(1)


def one_thread_space(task: Task) -> ProgramSpace:
    """The programs of a kernel on one thread.

    Raises:
        ValueError: it has none.
    """
    space = ProgramSpace.of(task.canonical().with_threads(1), machine_for(task.target))
    if space is None:
        raise ValueError(f"no program of {task.func.name!r} can be constructed")
    return space


def tile_spaces(space: ProgramSpace) -> tuple[tuple[SearchSpace, tuple[Sketch, ...]], ...]:
    """The spaces of tile programs with their sketches."""
    return next((f.spaces for f in space.families if isinstance(f, TilePrograms)), ())


def predicted_time(program: KernelProgram, machine: Machine) -> float:
    """Nanoseconds of one program by the cost model."""
    if isinstance(program, TileProgram):
        return float(program_times(program.problem, program.sketch, program.array[None], machine).total[0])
    return float(rowwise_time(program, machine).total[0])


def fingerprint(space: ProgramSpace) -> str:
    """Hash of a kernel's space and of the code of sample programs."""
    digest = sha256()
    for program in space.random(FINGERPRINT_PROGRAMS, np.random.default_rng(0)):
        digest.update(space.describe(program).encode())
        try:
            lowered = prepack_constants(space.schedule(program).func, space.task.constants).func
            func = replace(expose_workspace(lowered), name="probe")
        except ScheduleError:
            continue
        digest.update(emit_llvm([func], [], space.task.target).encode())
    return digest.hexdigest()[:16]


def current_log(space: ProgramSpace, log: SearchLog) -> SearchLog:
    """The log, emptied where it is of another space or of other code: an older version wrote it."""
    current = fingerprint(space)
    if log.fingerprint != current:
        log.clear(current)
    return log
