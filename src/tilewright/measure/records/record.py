"""Records of programs: a kernel, its program, on which machine, and its times or why it has none.

Measurements of a tuning are records, and so are programs and estimates that an optimizer constructed. Data alone, which
is checked wherever it is read: a program is replayed step by step on the untransformed loops and verified before it
runs, so a record can be slow or useless, but not wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256

from tilewright.expr.nodes import Expr
from tilewright.machine.model import Machine, to_json
from tilewright.optimize.constructions import Estimate
from tilewright.optimize.interface import ProgramEstimate
from tilewright.optimize.measurer import Failure, Timing
from tilewright.optimize.task import Task
from tilewright.schedule.step import Trace
from tilewright.tile.tree import TileTree

Result = Timing | Failure | Estimate


class RecordKind(IntEnum):
    """What a record is, in the order in which a look-up prefers them.

    Attributes:
        CHOICE: the measured program or set of programs that a tuning chose for its kernel.
        TIMING: a program that was timed, among others.
        CONSTRUCTION: a program that an optimizer constructed, not measured.
        ESTIMATE: times by the cost model without a program, by which alternatives are chosen.
        FAILURE: a program that could not be built or run.
    """

    CHOICE = 0
    TIMING = 1
    CONSTRUCTION = 2
    ESTIMATE = 3
    FAILURE = 4


class Proximity(IntEnum):
    """How close a record is to a compilation.

    Attributes:
        EXACT: the same description of the machine, target and version of the code generator.
        OTHER_VERSION: the same type of machine and target; another version, or another calibration.
        OTHER_MACHINE: another type of machine, or another target.
    """

    EXACT = 0
    OTHER_VERSION = 1
    OTHER_MACHINE = 2


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one program, or of one set of programs, of a kernel.

    Attributes:
        task: the kernel, in canonical form; its target is that of the code.
        traces: the steps of its program; of several, of which `selector` names the one that runs; none for an estimate
            alone.
        result: its times, why it has none, or what the cost model estimates.
        optimizer: name of what chose the program ("gensor", "ansor").
        machine: `machine_key` of the description of the machine that it is for.
        generator: version of the code generator (`codegen.generator_version`).
        settings: everything that decided the choice of a constructed program ("gensor, seed 0, ..."); empty for others.
        selector: the index of the program that runs, over the symbols of the task's function; None for one program.
        estimates: by which the selector chooses, one per program; empty where it chooses otherwise.
        trees: tile trees of the programs, by which the cost model judges them on another machine; empty where unknown.
        sizes: sizes of the task's symbols at which it was timed.
        worst_ratio: the largest measured time of a set of programs over the best one's of a size; None where unknown.
        is_choice: whether a tuning chose it for its kernel, so that compilations use it.
        created: seconds since the epoch.
    """

    task: Task
    traces: tuple[Trace, ...]
    result: Result
    optimizer: str
    machine: str
    generator: str
    settings: str = ""
    selector: Expr | None = None
    estimates: tuple[ProgramEstimate, ...] = ()
    trees: tuple[TileTree, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    worst_ratio: float | None = None
    is_choice: bool = False
    created: float = 0.0

    @property
    def target(self) -> str:
        """Name of the target."""
        return self.task.target.name

    @property
    def trace(self) -> Trace:
        """The steps of its first program."""
        return self.traces[0]

    @property
    def kind(self) -> RecordKind:
        """What it is."""
        return record_kind(self.result, len(self.traces), self.is_choice)

    @property
    def is_tuned(self) -> bool:
        """Whether its program was measured in turns with the best one before it: a tuning's choice that the
        constructed program stays was not."""
        return isinstance(self.result, Timing) and self.result.incumbent is not None

    @property
    def nanoseconds(self) -> float | None:
        """Its time, measured or estimated; None where there is none."""
        if isinstance(self.result, Timing):
            return self.result.nanoseconds
        return self.result.nanoseconds[0] if isinstance(self.result, Estimate) and self.result.nanoseconds else None


@dataclass(frozen=True, slots=True)
class RankedRecord:
    """A record that a look-up answers with, and how close it is."""

    record: Record
    proximity: Proximity


def record_kind(result: Result, programs: int, is_choice: bool) -> RecordKind:
    """What a record with this result and so many programs is."""
    if isinstance(result, Failure):
        return RecordKind.FAILURE
    if isinstance(result, Timing):
        return RecordKind.CHOICE if is_choice else RecordKind.TIMING
    return RecordKind.CONSTRUCTION if programs else RecordKind.ESTIMATE


@lru_cache(maxsize=8)
def machine_key(machine: Machine) -> str:
    """Identifies the description of a machine: its type, and a hash of the description ("zen5, 2 cores, 0123...")."""
    return f"{machine.name}, {machine.cores} cores, {sha256(to_json(machine).encode()).hexdigest()[:16]}"


def machine_type(key: str) -> str:
    """The type of machine in a `machine_key`: "zen5, 2 cores"."""
    return key.rpartition(", ")[0] or key
