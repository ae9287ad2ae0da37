"""Machines that are replaced by a clock: jobs take known times, machines are lost at known moments."""

import heapq
import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tilewright.measure.workers.transport import Answered, Event, Joined, Lost, Node, Verb
from tilewright.optimize.measurer import Timing

BUILD_SECONDS, RUN_SECONDS = (0.2, 1.2), (0.1, 1.0)
"""The shortest and longest times of jobs."""


@dataclass
class SimulatedClock:
    """A clock that moves from event to event."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(order=True)
class _Scheduled:
    at: float
    number: int
    event: Event = field(compare=False)
    busy: tuple[str, float] | None = field(compare=False, default=None)


@dataclass
class SimulatedCluster:
    """A transport whose machines answer after times that depend on the job's text alone.

    Attributes:
        nodes: the machines.
        clock: moves with the events.
        lost: when machines are lost.
        joined: machines that join later.
        broken: machines that answer with errors.
        given_up: machines that were given up, with the reasons.
        run: text of what ran, by machine; answered or not.
        acknowledged: text of what was answered, in order.
        busy: seconds in which machines ran or built something.
    """

    nodes: Sequence[Node]
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    lost: Mapping[str, float] = field(default_factory=dict)
    joined: Mapping[Node, float] = field(default_factory=dict)
    broken: Collection[str] = ()
    given_up: dict[str, str] = field(default_factory=dict)
    ran: list[tuple[str, Verb, str]] = field(default_factory=list)
    acknowledged: list[tuple[Verb, str]] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._events: list[_Scheduled] = []
        self._count = 0
        self._jobs: dict[int, tuple[str, Verb, str]] = {}
        self._loads: dict[str, list[Verb]] = {}
        for node in self.nodes:
            self._add_event(0.0, Joined(node))
        for node, at in self.joined.items():
            self._add_event(at, Joined(node))
        for name, at in self.lost.items():
            self._add_event(at, Lost(name))

    def _add_event(self, at: float, event: Event, busy: tuple[str, float] | None = None) -> None:
        self._count += 1
        heapq.heappush(self._events, _Scheduled(at, self._count, event, busy))

    def start(self, node: str, verb: Verb, job: int, text: str) -> None:
        load = self._loads.setdefault(node, [])
        # a machine that runs a candidate does nothing else
        assert Verb.RUN not in load
        assert verb is Verb.BUILD or not load
        if self.clock.now >= self.lost.get(node, float("inf")):
            return
        load.append(verb)
        self.ran.append((node, verb, text))
        self._jobs[job] = (node, verb, text)
        seconds = seconds_of(verb, text)
        reply = json.dumps({"value": answer_of(verb, json.loads(text)), "seconds": seconds})
        if node in self.broken:
            reply = json.dumps({"error": "OSError: no space left", "seconds": seconds})
        self._add_event(self.clock.now + seconds, Answered(job, reply), (node, seconds))

    def give_up(self, node: str, reason: str) -> None:
        self.given_up[node] = reason
        self.lost = {**self.lost, node: self.clock.now}
        self._add_event(self.clock.now, Lost(node))

    def wait(self) -> Event | None:
        while self._events:
            scheduled = heapq.heappop(self._events)
            event = scheduled.event
            if isinstance(event, Answered):
                node, verb, text = self._jobs[event.job]
                if scheduled.at >= self.lost.get(node, float("inf")):
                    continue
                self._loads[node].remove(verb)
                if node not in self.broken:
                    self.acknowledged.append((verb, text))
                self.busy[node] = self.busy.get(node, 0.0) + (scheduled.busy or ("", 0.0))[1]
            self.clock.now = max(self.clock.now, scheduled.at)
            return event
        return None


def seconds_of(verb: Verb, text: str) -> float:
    """How long a job takes, drawn by its text."""
    low, high = BUILD_SECONDS if verb is Verb.BUILD else RUN_SECONDS
    return random.Random(f"{verb} {text}").uniform(low, high)


def answer_of(verb: Verb, request: Mapping[str, Any]) -> dict[str, Any]:
    """What a machine answers: builds give the program back, runs a time that is drawn by the program."""
    if verb is Verb.BUILD:
        return {"code": json.dumps(request["candidate"])}
    ns = nanoseconds_of(request["candidate"]["code"], request["task"]["func"])
    beside = request["incumbent"] and nanoseconds_of(request["incumbent"]["code"], request["task"]["func"])
    timing = Timing(ns, 0.0, ns, 5, 5, 0.0, False, beside)
    return {name: getattr(timing, name) for name in Timing.__dataclass_fields__}


def nanoseconds_of(code: str, func: str) -> float:
    """The time of a program, 100 to 200 ns."""
    return 100.0 + int(sha256(f"{code} {func}".encode()).hexdigest()[:8], 16) % 10_000 / 100
