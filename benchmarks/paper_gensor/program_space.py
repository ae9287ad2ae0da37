"""The program space of a kernel: tile programs and row-wise programs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np

from benchmarks.paper_gensor.rowwise_programs import RowwisePrograms
from benchmarks.paper_gensor.tile_programs import Genes, TilePrograms
from tilewright.codegen import emit_llvm
from tilewright.cost.analytical import program_times
from tilewright.cost.rowwise import rowwise_time
from tilewright.errors import ScheduleError
from tilewright.loops.ir import Func
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.lower.prepack_constants import PrepackedKernel, prepack_constants
from tilewright.machine.calibration_store import machine_for
from tilewright.machine.model import Machine
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.construct.program_tree import KernelProgram
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.interface import Task
from tilewright.schedule.schedule import Schedule
from tilewright.tile.program import Sketch, TileProgram
from tilewright.tile.rowwise import RowwiseProgram

FINGERPRINT_PROGRAMS = 3
"""Random programs whose code identifies the compiler's state."""


@dataclass(frozen=True, slots=True)
class ProgramId:
    """A program: number of its family, and what tells it from the others of the family."""

    family: int
    genes: Genes


@dataclass(frozen=True, slots=True, eq=False)
class ProgramSpace:
    """All programs of a kernel on one thread.

    Attributes:
        task: the kernel in canonical form, on one thread.
        machine: with one core.
        families: those that it has.
    """

    task: Task
    machine: Machine
    families: tuple[TilePrograms | RowwisePrograms, ...]

    @staticmethod
    def of(task: Task) -> "ProgramSpace":
        """The programs of a kernel.

        Raises:
            ValueError: it has none.
        """
        task = replace(task.canonical(), threads=1)
        machine = machine_for(task.target).with_cores(1)
        families = tuple(
            f for f in (TilePrograms.of(task, machine), RowwisePrograms.of(task, machine)) if f is not None
        )
        if not families:
            raise ValueError(f"no program of {task.func.name!r} can be constructed")
        return ProgramSpace(task, machine, families)

    @property
    def spaces(self) -> tuple[tuple[SearchSpace, tuple[Sketch, ...]], ...]:
        """Those of tile programs, with their forms."""
        return next((f.spaces for f in self.families if isinstance(f, TilePrograms)), ())

    def random(self, count: int, rng: np.random.Generator) -> list[ProgramId]:
        """Random programs, as many of each family."""
        many = -(-count // len(self.families))
        candidates = [ProgramId(k, genes) for k, f in enumerate(self.families) for genes in f.random(many, rng)]
        return [candidates[int(k)] for k in rng.permutation(len(candidates))[:count]]

    def mutate(self, parent: ProgramId, rng: np.random.Generator) -> ProgramId:
        """A program that differs a little from another one."""
        return ProgramId(parent.family, self.families[parent.family].mutate(parent.genes, rng))

    def program(self, c: ProgramId) -> KernelProgram:
        """The program of a candidate."""
        return self.families[c.family].program(c.genes)

    def key(self, c: ProgramId) -> str:
        """A text that is equal for equal programs alone."""
        program = self.program(c)
        return str(program) if isinstance(program, RowwiseProgram) else f"{program.sketch} {program.sizes}"

    def sketch_name(self, c: ProgramId) -> str:
        """A name of what a candidate shares with others that differ in sizes."""
        return self.families[c.family].sketch_name(c.genes)

    def predicted_times(self, candidates: Sequence[ProgramId]) -> list[float]:
        """Nanoseconds by the cost model."""
        times = [0.0] * len(candidates)
        for n, family in enumerate(self.families):
            members = [k for k, c in enumerate(candidates) if c.family == n]
            for k, ns in zip(members, family.predicted_times([candidates[k].genes for k in members]), strict=True):
                times[k] = ns
        return times

    def schedule(self, c: ProgramId) -> Schedule:
        """The program's loops.

        Raises:
            ScheduleError: the program can't be lowered.
        """
        return self.families[c.family].schedule(c.genes)

    def encode(self, c: ProgramId) -> dict[str, Any]:
        """A program as JSON values."""
        return {"form": self.sketch_name(c), "family": c.family, "genes": list(c.genes)}

    def decode(self, entry: dict[str, Any]) -> ProgramId:
        """The program of `encode`'s values."""
        return ProgramId(entry["family"], tuple(entry["genes"]))

    def lowered_func(self, c: ProgramId) -> Func:
        """What runs: the program's loops without what is packed at compile time.

        Raises:
            ScheduleError: the program can't be lowered.
        """
        return self.prepack(self.schedule(c).func).func

    def prepack(self, func: Func) -> PrepackedKernel:
        """A scheduled function without what is packed at compile time."""
        return prepack_constants(func, self.task.constants)


def predicted_time(program: KernelProgram, machine: Machine) -> float:
    """Nanoseconds of one program by the cost model."""
    if isinstance(program, TileProgram):
        return float(program_times(program.problem, program.sketch, program.array[None], machine).total[0])
    return float(rowwise_time(program, machine).total[0])


def fingerprint(programs: ProgramSpace) -> str:
    """Hash of a kernel's space and of the code of sample programs."""
    digest = sha256()
    for c in programs.random(FINGERPRINT_PROGRAMS, np.random.default_rng(0)):
        digest.update(programs.key(c).encode())
        try:
            func = replace(expose_workspace(programs.lowered_func(c)), name="probe")
        except ScheduleError:
            continue
        digest.update(emit_llvm([func], [], programs.task.target).encode())
    return digest.hexdigest()[:16]


def current_log(programs: ProgramSpace, log: SearchLog) -> SearchLog:
    """The log, emptied where it is of another space or of other code: an older version wrote it."""
    current = fingerprint(programs)
    if log.fingerprint != current:
        log.clear(current)
    return log
