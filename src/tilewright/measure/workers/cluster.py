"""Workers of several machines: candidates are built and run wherever there is room, each of them once.

A machine that runs a candidate does nothing else meanwhile. What a lost machine had not answered is sent to another
one; what it had answered is kept, and is never asked for again. A job that loses several machines is taken for a
candidate that brings them down.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import MeasureError
from tilewright.machine import thread_count
from tilewright.measure.build import encode_candidate
from tilewright.measure.local_measurer import decode_failure, decode_result, incumbent_error
from tilewright.measure.task_cases import case_sizes
from tilewright.measure.worker import INCUMBENT_FAILURE, failed
from tilewright.measure.workers.interface import MeasureAnswer, MeasureRequest
from tilewright.measure.workers.transport import Answered, Joined, Lost, Node, Transport, Verb
from tilewright.optimize import task_json
from tilewright.optimize.measurer import Candidate, Failure, FailureKind, Measurement, Timing

MAX_LOSSES = 3
"""Machines that may be lost with a job before its candidate counts as one that crashes them."""

MAX_KEPT = 512
"""Built candidates that are kept; the incumbents and those that are timed again are among them."""

ROUNDS_PER_MACHINE = 2
"""Requests that keep a machine busy, as each has a part in which little can be done at once."""

_Reply = dict[str, Any]
_ProgramKey = tuple[str, Candidate]


@dataclass(slots=True, eq=False)
class _Batch:
    """A request that is not answered yet.

    Attributes:
        described: the task as JSON values.
        results: per candidate, None where it has none yet.
        asked: positions of candidates that were handed to machines.
    """

    number: int
    request: MeasureRequest
    described: dict[str, Any]
    results: list[Timing | Failure | None]
    asked: set[int] = field(default_factory=set[int])
    seconds: float = 0.0

    def key(self, candidate: Candidate) -> _ProgramKey:
        """Identifies a built candidate."""
        return self.request.task.hash, candidate


@dataclass(slots=True, eq=False)
class _Job:
    """A part of a request that a machine does.

    Attributes:
        position: of the candidate that runs; None for builds, and for the incumbent by itself.
    """

    number: int
    verb: Verb
    batch: _Batch
    candidate: Candidate
    position: int | None
    losses: int = 0

    @property
    def order(self) -> tuple[int, bool, int]:
        """Older requests come first, and in one request what is built already."""
        return self.batch.number, self.verb is Verb.BUILD, self.number


@dataclass(slots=True, eq=False)
class _MachineLoad:
    """A machine with the jobs that it has not answered."""

    node: Node
    jobs: dict[int, _Job] = field(default_factory=dict[int, _Job])

    @property
    def is_running(self) -> bool:
        """Whether it runs a candidate."""
        return any(j.verb is Verb.RUN for j in self.jobs.values())

    def can_do(self, verb: Verb) -> bool:
        """Whether there is room for a job."""
        if verb is Verb.RUN:
            return self.node.runs and not self.jobs
        return not self.is_running and len(self.jobs) < self.node.cores


class ClusterWorkers:
    """Workers on the machines of a transport.

    Args:
        transport: carries JSON text to machines and back.
        machines: how many machines run candidates at the start; it decides how many requests there are at once.
    """

    def __init__(self, transport: Transport, machines: int) -> None:
        self._transport, self._concurrency = transport, ROUNDS_PER_MACHINE * max(1, machines)
        self._machines: dict[str, _MachineLoad] = {}
        self._open_batches: dict[int, _Batch] = {}
        self._ready: list[_Job] = []
        self._pending_builds: dict[_ProgramKey, _Job] = {}
        self._pending_checks: set[_ProgramKey] = set()
        self._built: OrderedDict[_ProgramKey, _Reply] = OrderedDict()
        self._sound: dict[_ProgramKey, Failure | None] = {}
        self._answers: list[MeasureAnswer] = []
        self._count = 0

    @property
    def concurrency(self) -> int:
        """Two per machine that there was at the start."""
        return self._concurrency

    def submit(self, number: int, request: MeasureRequest) -> None:
        """Hands a request over; its parts go to machines in `wait`."""
        described = task_json.encode(request.task)
        self._open_batches[number] = _Batch(number, request, described, [None] * len(request.candidates))
        self._advance(self._open_batches[number])

    def wait(self) -> MeasureAnswer:
        """The next answer.

        Raises:
            MeasureError: all machines are lost.
        """
        while not self._answers:
            self._assign()
            event = self._transport.wait()
            if event is None:
                hint = "what was measured is in the store: the same command goes on, once there are machines"
                raise MeasureError("no machine is left", where="workers", hint=hint)
            if isinstance(event, Joined):
                self._machines[event.node.name] = _MachineLoad(event.node)
            elif isinstance(event, Lost):
                self._lose(event.node)
            else:
                self._take_answer(event)
        return self._answers.pop(0)

    def _assign(self) -> None:
        """Gives machines what they have room for, the oldest requests first. While something waits that is to be run,
        machines that run candidates get nothing to build."""
        free = [m for m in self._machines.values() if m.can_do(Verb.BUILD)]
        if not free:
            return
        waiting: list[_Job] = []
        has_runs = False
        for job in sorted(self._ready, key=lambda j: j.order):
            able = [m for m in free if m.can_do(job.verb)]
            if job.verb is Verb.BUILD:
                able = [m for m in able if not (has_runs and m.node.runs)]
            chosen = min(able, key=lambda m: (m.node.runs and job.verb is Verb.BUILD, len(m.jobs)), default=None)
            if chosen is None:
                has_runs |= job.verb is Verb.RUN
                waiting.append(job)
                continue
            chosen.jobs[job.number] = job
            self._transport.start(chosen.node.name, job.verb, job.number, json.dumps(self._message(job)))
        self._ready = waiting

    def _message(self, job: _Job) -> dict[str, Any]:
        """What a machine is told."""
        batch = job.batch
        if job.verb is Verb.BUILD:
            cases = [dict(sizes) for sizes in case_sizes(batch.request.task)]
            return {"task": batch.described, "candidate": encode_candidate(job.candidate), "cases": cases}
        incumbent = batch.request.incumbent if job.position is not None else None
        return {
            "task": batch.described,
            "candidate": self._built[batch.key(job.candidate)]["value"],
            "incumbent": None if incumbent is None else self._built[batch.key(incumbent)]["value"],
            "effort": batch.request.effort.value,
            "threads": thread_count(batch.request.task.threads),
        }

    def _take_answer(self, event: Answered) -> None:
        """Takes an answer. One of a machine that was taken for lost comes too late; after an error its machine is, and
        what it has in hand goes to others."""
        machine = next((m for m in self._machines.values() if event.job in m.jobs), None)
        if machine is None:
            return
        reply = json.loads(event.text)
        if "error" in reply:
            self._transport.give_up(machine.node.name, reply["error"])
            return
        job = machine.jobs.pop(event.job)
        job.batch.seconds += float(reply.get("seconds", 0.0))
        if INCUMBENT_FAILURE not in reply:
            self._settle(job, reply)
        elif job.batch.number in self._open_batches:
            self._answer(job.batch, decode_failure({"failure": reply[INCUMBENT_FAILURE]}))

    def _lose(self, name: str) -> None:
        """Sends what a lost machine did not answer to others."""
        machine = self._machines.pop(name, None)
        for job in () if machine is None else machine.jobs.values():
            job.losses += 1
            if job.losses < MAX_LOSSES:
                # another number, as the machine may yet answer that one
                job.number = self._next_number()
                self._ready.append(job)
                continue
            what = f"{job.losses} machines were lost while they {job.verb.value} it, the last one {name}"
            self._settle(job, failed(FailureKind.CRASH, what))

    def _settle(self, job: _Job, reply: _Reply) -> None:
        """Keeps what became of a job, and goes on with what waited for it."""
        key = job.batch.key(job.candidate)
        if job.verb is Verb.BUILD:
            del self._pending_builds[key]
            self._built[key] = reply
        else:
            result = decode_result(reply)
            if job.position is None:
                self._pending_checks.discard(key)
                self._sound[key] = result if isinstance(result, Failure) else None
            else:
                job.batch.results[job.position] = result
                if isinstance(result, Timing):
                    self._sound[key] = None
        for batch in list(self._open_batches.values()):
            self._advance(batch)

    def _advance(self, batch: _Batch) -> None:
        """Makes jobs of what can be done next of a request, and an answer where all is done."""
        request, incumbent = batch.request, batch.request.incumbent
        if incumbent is not None:
            reply = self._built_reply(batch, incumbent)
            failure = None if reply is None else self._incumbent_failure(batch, incumbent, reply)
            if failure is not None:
                self._answer(batch, failure)
                return
        can_run = incumbent is None or self._sound.get(batch.key(incumbent), True) is None
        for k, candidate in enumerate(request.candidates):
            if k in batch.asked:
                continue
            reply = self._built_reply(batch, candidate)
            if reply is not None and "failure" in reply:
                batch.asked.add(k)
                batch.results[k] = decode_failure(reply)
            elif reply is not None and can_run and (incumbent is None or batch.key(incumbent) in self._built):
                batch.asked.add(k)
                self._add_job(Verb.RUN, batch, candidate, k)
        if all(r is not None for r in batch.results):
            self._answer(batch)

    def _built_reply(self, batch: _Batch, candidate: Candidate) -> _Reply | None:
        """What became of building a candidate; None where it is not known yet."""
        key = batch.key(candidate)
        if key in self._built:
            self._built.move_to_end(key)
            return self._built[key]
        if key not in self._pending_builds:
            self._pending_builds[key] = self._add_job(Verb.BUILD, batch, candidate, None)
        return None

    def _incumbent_failure(self, batch: _Batch, incumbent: Candidate, reply: _Reply) -> Failure | None:
        """Why an incumbent can't be built, or run by itself; None where it can, or that is not known yet.

        It runs by itself once, so that what happens beside it is the candidate's doing.
        """
        if "failure" in reply:
            return decode_failure(reply)
        key = batch.key(incumbent)
        if key not in self._sound and key not in self._pending_checks:
            self._pending_checks.add(key)
            self._add_job(Verb.RUN, batch, incumbent, None)
        return self._sound.get(key)

    def _add_job(self, verb: Verb, batch: _Batch, candidate: Candidate, position: int | None) -> _Job:
        job = _Job(self._next_number(), verb, batch, candidate, position)
        self._ready.append(job)
        return job

    def _next_number(self) -> int:
        self._count += 1
        return self._count

    def _answer(self, batch: _Batch, broken: Failure | None = None) -> None:
        """Answers a request and forgets it; with an error where its incumbent is broken."""
        del self._open_batches[batch.number]
        self._ready = [j for j in self._ready if j.batch is not batch or j.position is None]
        error = None if broken is None else incumbent_error(batch.request.task, broken)
        measured = () if error else tuple(self._measurements(batch))
        self._answers.append(MeasureAnswer(batch.number, measured, error, batch.seconds))
        in_use = {b.key(c) for b in self._open_batches.values() for c in _programs(b.request)}
        in_use |= {j.batch.key(c) for j in self._jobs() for c in _programs(j.batch.request)}
        for key in [k for k in self._built if k not in in_use][: max(0, len(self._built) - MAX_KEPT)]:
            del self._built[key]

    def _jobs(self) -> Iterator[_Job]:
        """All jobs that are not answered."""
        yield from self._ready
        for machine in self._machines.values():
            yield from machine.jobs.values()

    @staticmethod
    def _measurements(batch: _Batch) -> Iterator[Measurement]:
        for candidate, result in zip(batch.request.candidates, batch.results, strict=True):
            if result is not None:
                yield Measurement(candidate, result)


def _programs(request: MeasureRequest) -> tuple[Candidate, ...]:
    return (*request.candidates, *(() if request.incumbent is None else (request.incumbent,)))

