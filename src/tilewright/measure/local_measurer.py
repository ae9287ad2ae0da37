"""The measurer of this machine: worker processes build candidates, which run one by one in processes of their own."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

from tilewright.errors import MeasureError
from tilewright.machine import thread_count
from tilewright.measure.build import BuiltCandidate, Sizes, decode_built, encode_built, encode_candidate
from tilewright.measure.case_files import CaseFiles
from tilewright.measure.interleaved_blocks import RunPlan
from tilewright.measure.task_cases import case_sizes
from tilewright.measure.worker import Reply, answer_build
from tilewright.measure.worker_process import WorkerPool
from tilewright.optimize import task_json
from tilewright.optimize.measurer import Candidate, Failure, FailureKind, Measurement, Timing
from tilewright.optimize.task import Task

ANSWER_SECONDS = 20.0
"""Time beyond a run's limit in which its worker, which stops the run, has to answer."""

QUICK_PLAN = RunPlan(rounds=3, seconds=0.005, pause=0.0, canary_seconds=0.001)
"""Blocks of a candidate among hundreds."""


def default_memory_bytes() -> int:
    """Half of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Limits and durations.

    Attributes:
        build_seconds: longest time of a build.
        run_seconds: longest time of a check with its timing.
        memory_bytes: memory that a build or a run may need.
        plan: blocks of calls.
        max_ratio: a candidate whose first calls take so many times the incumbent's is not timed further.
        builders: processes that build at a time; None for one per processor.
    """

    build_seconds: float = 60.0
    run_seconds: float = 20.0
    memory_bytes: int = field(default_factory=default_memory_bytes)
    plan: RunPlan = QUICK_PLAN
    max_ratio: float = 1.5
    builders: int | None = None


class Builder:
    """Builds candidates in worker processes; where none can be started, in this process, to the same bytes.

    Attributes:
        in_process: whether this process builds.
    """

    def __init__(self, options: MeasureOptions) -> None:
        self._options = options
        self._pool = WorkerPool(options.builders or len(os.sched_getaffinity(0)), options.memory_bytes)
        self.in_process = False

    def build(
        self, task: Task, candidates: Sequence[Candidate], cases: Sequence[Sizes]
    ) -> list[BuiltCandidate | Failure]:
        """Object code or a failure per candidate, in their order."""
        described = task_json.encode(task)
        requests = [
            {"do": "build", "task": described, "candidate": encode_candidate(c), "cases": list(cases)}
            for c in candidates
        ]
        return [_decode_reply(a) for a in self._answers(requests)]

    def _answers(self, requests: Sequence[dict[str, Any]]) -> list[Reply]:
        if not self.in_process:
            try:
                return self._pool.ask_all(requests, self._options.build_seconds)
            except MeasureError:
                self.in_process = True
        return [answer_build(r) for r in requests]

    def close(self) -> None:
        """Ends the workers."""
        self._pool.close()


def _decode_reply(answer: Reply) -> BuiltCandidate | Failure:
    return decode_failure(answer) if "failure" in answer else decode_built(answer["value"])


def decode_result(answer: Reply) -> Timing | Failure:
    """The timing or failure in the answer to a run."""
    return decode_failure(answer) if "failure" in answer else Timing(**answer["value"])


def incumbent_error(task: Task, failure: Failure) -> MeasureError:
    """The error of an incumbent that fails by itself."""
    place = f"the incumbent of task {task.hash[:16]}"
    return MeasureError(f"it fails: {failure}", where=place, hint="pass a program that was measured")


def decode_failure(answer: Reply) -> Failure:
    """The failure in an answer."""
    kind, message = answer["failure"]
    return Failure(FailureKind(kind), message)


class Runner:
    """Checks and times built candidates, one at a time, each in a process of its own."""

    def __init__(self, options: MeasureOptions) -> None:
        self._options, self._pool = options, WorkerPool(1)

    def run(
        self,
        candidate: BuiltCandidate,
        incumbent: BuiltCandidate | None,
        cases: Sequence[dict[str, Any]],
        threads: int,
    ) -> Timing | Failure:
        """Times a candidate.

        Args:
            candidate: object code.
            incumbent: what it takes turns with.
            cases: what `CaseFiles` gave, the last one of what is timed.
            threads: threads per call.

        Raises:
            MeasureError: no process can be started.
        """
        options = self._options
        request = {
            "do": "run",
            "candidate": encode_built(candidate),
            "incumbent": None if incumbent is None else encode_built(incumbent),
            "cases": list(cases),
            "options": [threads, list(asdict(options.plan).values()), options.max_ratio],
            "limits": [options.run_seconds, options.memory_bytes],
        }
        (answer,) = self._pool.ask_all([request], options.run_seconds + ANSWER_SECONDS)
        return decode_result(answer)

    def close(self) -> None:
        """Ends the worker."""
        self._pool.close()


class LocalMeasurer:
    """A `Measurer` on this machine's processors; a context manager.

    Args:
        options: limits and durations.
        builder: builds candidates; by default a `Builder`.
        runner: runs them; by default a `Runner`.
    """

    def __init__(
        self, options: MeasureOptions | None = None, builder: Builder | None = None, runner: Runner | None = None
    ) -> None:
        self.options = options or MeasureOptions()
        self._builder, self._runner = builder or Builder(self.options), runner or Runner(self.options)
        self._cases = CaseFiles()
        self._sound: set[BuiltCandidate] = set()

    def measure(
        self, task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None
    ) -> list[Measurement]:
        """Times candidates; see `Measurer`.

        Raises:
            MeasureError: the task is not in canonical form, this machine cannot run its code, the incumbent fails, or
                no process can be started.
        """
        _check_task(task)
        wanted = [*candidates, *(() if incumbent is None else (incumbent,))]
        built = self._builder.build(task, wanted, case_sizes(task))
        best = None if incumbent is None else self._sound_incumbent(task, built.pop())
        results = (b if isinstance(b, Failure) else self._run(task, b, best) for b in built)
        return [Measurement(c, r) for c, r in zip(candidates, results, strict=True)]

    def _sound_incumbent(self, task: Task, built: BuiltCandidate | Failure) -> BuiltCandidate:
        """An incumbent that was run by itself, so that what happens beside it is the candidate's doing."""
        if isinstance(built, Failure):
            raise incumbent_error(task, built)
        if built not in self._sound:
            result = self._run(task, built, None)
            if isinstance(result, Failure):
                raise incumbent_error(task, result)
            self._sound.add(built)
        return built

    def _run(self, task: Task, built: BuiltCandidate, incumbent: BuiltCandidate | None) -> Timing | Failure:
        return self._runner.run(built, incumbent, self._cases.of(task), thread_count(task.threads))

    def close(self) -> None:
        """Ends all processes and removes operands."""
        self._builder.close()
        self._runner.close()
        self._cases.close()

    def __enter__(self) -> "LocalMeasurer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def _check_task(task: Task) -> None:
    """Checks that names of traces mean the same here and in other processes, and that this machine runs the code."""
    where = f"task {task.hash[:16]}"
    if task.func.body != task.form.func.body:
        raise MeasureError("its loops are not in canonical form", where=where, hint="pass task.canonical()")
    if not task.target.runs_here:
        raise MeasureError(f"this machine can't run code for {task.target}", where=where, hint="measure on such a one")
