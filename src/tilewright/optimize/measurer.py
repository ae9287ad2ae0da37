"""Measuring as optimizers see it: candidates of a task go in, times or named failures come out.

Optimizers know nothing of code generation; one that measures is handed a measurer (`measure/local_measurer.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tilewright.optimize.task import Task
from tilewright.schedule.step import Trace


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program of a task: the steps from its canonical untransformed loops to those that run.

    Attributes:
        trace: the steps; names are those of `task.canonical()`.
    """

    trace: Trace


class FailureKind(StrEnum):
    """Why a candidate has no time.

    Attributes:
        ILLEGAL_PROGRAM: a step of its trace is refused, or the verifier refuses its loops.
        BUILD_ERROR: code generation fails.
        CRASH: its process ended by a signal or without an answer.
        TIMEOUT: it was not done in time and was stopped.
        OUT_OF_MEMORY: it needs more memory than it is granted.
        WRONG_ANSWER: its results differ from those of the untransformed loops.
    """

    ILLEGAL_PROGRAM = "illegal program"
    BUILD_ERROR = "build error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out of memory"
    WRONG_ANSWER = "wrong answer"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure with its name and one sentence about it."""

    kind: FailureKind
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of a candidate's calls, in nanoseconds.

    Attributes:
        nanoseconds: median over the blocks that count of their medians.
        spread: distance between the quartiles of these medians, relative to `nanoseconds`.
        fastest: the fastest call.
        blocks: number of blocks of calls; 0 where it was given up after its first calls, which were far too slow.
        undisturbed: number of blocks that count, because a canary beside them ran at its speed.
        others: share of the machine's processors that other processes took meanwhile, 0 to 1; 0 where it was too short
            to tell.
        is_disturbed: whether the machine was too busy for reliable times: of several blocks fewer than two count (all
            of them do where none would), or other processes took processors that the candidate's threads need.
        incumbent: the incumbent's `nanoseconds` from blocks in turns with these; None without an incumbent.
    """

    nanoseconds: float
    spread: float
    fastest: float
    blocks: int
    undisturbed: int
    others: float
    is_disturbed: bool
    incumbent: float | None = None

    @property
    def is_reliable(self) -> bool:
        """Whether blocks of its calls were timed, and the machine was not too busy for that."""
        return self.blocks > 0 and not self.is_disturbed


@dataclass(frozen=True, slots=True)
class Measurement:
    """What became of a candidate: a timing or a failure."""

    candidate: Candidate
    result: Timing | Failure

    @property
    def nanoseconds(self) -> float | None:
        """Its time; None where it failed."""
        return self.result.nanoseconds if isinstance(self.result, Timing) else None


class Measurer(Protocol):
    """What runs candidates; it survives whatever they do."""

    def measure(
        self, task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None
    ) -> Sequence[Measurement]:
        """Times candidates.

        Args:
            task: the kernel, in canonical form.
            candidates: its programs.
            incumbent: the program to be beaten; each candidate is timed in turns with it.

        Returns:
            One measurement per candidate, in their order.
        """
        ...
