"""Transport between a tuning and the machines that work for it: JSON text goes to a machine, JSON text comes back.

What is sent is data: tasks, traces, and object code in base64. No object of this package crosses.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Verb(StrEnum):
    """What a machine is asked to do.

    Attributes:
        BUILD: make object code of a candidate.
        RUN: check and time a built candidate; nothing else may happen on the machine meanwhile.
    """

    BUILD = "build"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Node:
    """A machine.

    Attributes:
        name: of the machine, unique.
        cores: candidates that it can build at a time.
        runs: whether it runs candidates; one that does not builds for the others.
    """

    name: str
    cores: int = 1
    runs: bool = True


@dataclass(frozen=True, slots=True)
class Answered:
    """A machine has answered a job."""

    job: int
    text: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A machine does not answer any more; what it was asked to do is not done."""

    node: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A machine can be asked from now on."""

    node: Node


Event = Answered | Lost | Joined


class Transport(Protocol):
    """What carries jobs to machines and tells what becomes of them."""

    def start(self, node: str, verb: Verb, job: int, text: str) -> None:
        """Sends a job to a machine; its answer is an event. Where the machine is lost, that is one."""
        ...

    def wait(self) -> Event | None:
        """The next event; None where no machine is left, and none is expected.

        The first events are the machines that there are at the start.
        """
        ...

    def give_up(self, node: str, reason: str) -> None:
        """Asks a machine that answered with an error nothing more; that it is lost is an event."""
        ...
