"""The measurer of this machine: worker processes build candidates, which run one by one in processes of their own."""

import os
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import Any

from tilewright.errors import MeasureError, SourcesChangedError
from tilewright.machine import thread_count
from tilewright.measure.build import BuiltCandidate, Sizes, decode_built, encode_built, encode_candidate
from tilewright.measure.case_files import CaseFiles
from tilewright.measure.interleaved_blocks import RunPlan
from tilewright.measure.task_cases import case_sizes
from tilewright.measure.worker import INCUMBENT_FAILURE, Reply, answer_build
from tilewright.measure.worker_process import WorkerPool
from tilewright.optimize import task_json
from tilewright.optimize.measurer import Candidate, Failure, FailureKind, Measurement, Timing
from tilewright.optimize.task import Task

ANSWER_SECONDS = 20.0
"""Time beyond the limits of a run and of its incumbent's preparation in which their worker, which stops both, has to
read operands and to answer."""

PREPARATION_TRIES = 2
"""How often an incumbent is prepared that fails: it ran before, and a busy machine may have stopped it."""

QUICK_PLAN = RunPlan(rounds=3, seconds=0.005, pause=0.0, canary_seconds=0.001)
"""Blocks of a candidate among hundreds."""

CHECK_PLAN = RunPlan(rounds=1, seconds=0.0, pause=0.0, canary_seconds=0.0)
"""Blocks of an incumbent that runs by itself, whose time does not matter."""


MAX_KEPT = 64
"""Built candidates that a builder keeps: incumbents, and those that are timed again in longer blocks."""

_BuildKey = tuple[str, Candidate, tuple[tuple[tuple[str, int], ...], ...]]
"""Hash of a task, a program, and the sizes of its cases."""


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


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
        max_ratio: a candidate that takes so many times the incumbent's time in its first block is not timed further;
            what it may take more shrinks with the square of the number of blocks (`run.is_decided`).
        builders: processes that build at a time; None for one per processor.
    """

    build_seconds: float = 60.0
    run_seconds: float = 20.0
    memory_bytes: int = field(default_factory=default_memory_bytes)
    plan: RunPlan = QUICK_PLAN
    max_ratio: float = 1.1
    builders: int | None = None


class Builder:
    """Builds candidates in worker processes; where none can be started, in this process, to the same bytes.

    Attributes:
        in_process: whether this process builds.
    """

    def __init__(self, options: MeasureOptions) -> None:
        self._options = options
        self._pool = WorkerPool(options.builders or processors(), options.memory_bytes)
        self._kept: OrderedDict[_BuildKey, BuiltCandidate] = OrderedDict()
        self.in_process = False

    def build(
        self, task: Task, candidates: Sequence[Candidate], cases: Sequence[Sizes]
    ) -> list[BuiltCandidate | Failure]:
        """Object code or a failure per candidate, in their order."""
        built = dict(self.build_each(task, candidates, cases))
        return [built[k] for k in range(len(candidates))]

    def build_each(
        self, task: Task, candidates: Sequence[Candidate], cases: Sequence[Sizes], ahead: int | None = None
    ) -> Generator[tuple[int, BuiltCandidate | Failure]]:
        """Object code or a failure of candidates with their positions, as they come.

        Args:
            task: the kernel, in canonical form.
            candidates: its programs.
            cases: sizes for which they will run.
            ahead: how many may be built at a time while the caller works on one; None for all.
        """
        keys = [(task.hash, c, tuple(tuple(sorted(sizes.items())) for sizes in cases)) for c in candidates]
        known = {k: self._kept[key] for k, key in enumerate(keys) if key in self._kept}
        yield from known.items()
        missing = [k for k in range(len(candidates)) if k not in known]
        described = task_json.encode(task)
        requests = [
            {"do": "build", "task": described, "candidate": encode_candidate(candidates[k]), "cases": list(cases)}
            for k in missing
        ]
        for n, answer in self._answers(requests, ahead):
            built = _decode_reply(answer)
            if isinstance(built, BuiltCandidate):
                self._kept[keys[missing[n]]] = built
                while len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            yield missing[n], built

    def _answers(self, requests: Sequence[dict[str, Any]], ahead: int | None) -> Iterator[tuple[int, Reply]]:
        left = dict(enumerate(requests))
        if not self.in_process:
            try:
                for n, answer in self._pool.answers(requests, self._options.build_seconds, ahead):
                    del left[n]
                    yield n, answer
            except SourcesChangedError:
                raise
            except MeasureError:
                self.in_process = True
        for n, request in left.items():
            yield n, answer_build(request)

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


class UnpreparedIncumbentError(Exception):
    """A candidate did not run, as its incumbent could not be prepared; says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


def decode_failure(answer: Reply) -> Failure:
    """The failure in an answer."""
    kind, message = answer["failure"]
    return Failure(FailureKind(kind), message)


class Runner:
    """Checks and times built candidates, one at a time, each in a process of its own.

    Attributes:
        cases: operands of tasks.
        sound: programs that were timed, so that what happens beside them is not their doing.
    """

    def __init__(self) -> None:
        self._pool, self.cases = WorkerPool(1), CaseFiles()
        self.sound: set[BuiltCandidate] = set()

    def run(
        self,
        candidate: BuiltCandidate,
        incumbent: BuiltCandidate | None,
        cases: Sequence[dict[str, Any]],
        threads: int,
        options: MeasureOptions,
    ) -> Timing | Failure:
        """Times a candidate.

        Args:
            candidate: object code.
            incumbent: what it takes turns with.
            cases: what `CaseFiles` gave, the last one of what is timed.
            threads: threads per call.
            options: limits and blocks.

        Raises:
            MeasureError: no process can be started.
            UnpreparedIncumbentError: the incumbent fails, repeatedly.
        """
        request = {
            "do": "run",
            "candidate": encode_built(candidate),
            "incumbent": None if incumbent is None else encode_built(incumbent),
            "cases": list(cases),
            "options": [threads, list(asdict(options.plan).values()), options.max_ratio],
            "limits": [options.run_seconds, options.memory_bytes],
        }
        answer: Reply = {}
        calls = 1 if incumbent is None else 2
        for _ in range(PREPARATION_TRIES):
            (answer,) = self._pool.ask_all([request], calls * options.run_seconds + ANSWER_SECONDS)
            if INCUMBENT_FAILURE not in answer:
                break
        else:
            raise UnpreparedIncumbentError(decode_failure({"failure": answer[INCUMBENT_FAILURE]}))
        result = decode_result(answer)
        if isinstance(result, Timing):
            self.sound.add(candidate)
        return result

    def close(self) -> None:
        """Ends the worker and removes operands."""
        with closing(self.cases):
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
        self._builder, self._runner = builder or Builder(self.options), runner or Runner()

    def measure(
        self, task: Task, candidates: Sequence[Candidate], incumbent: Candidate | None = None
    ) -> list[Measurement]:
        """Times candidates; see `Measurer`.

        Raises:
            MeasureError: the task is not in canonical form, this machine cannot run its code, the incumbent fails, or
                no process can be started.
        """
        _check_task(task)
        cases = case_sizes(task)
        best = None if incumbent is None else self._sound_incumbent(task, incumbent, cases)
        # what is timed has the processors that its threads need; the others build meanwhile
        spare = processors() - thread_count(task.threads)
        results: dict[int, Timing | Failure] = {}
        with closing(self._builder.build_each(task, candidates, cases, spare if spare > 0 else None)) as each:
            for k, built in each if spare > 0 else list(each):
                results[k] = built if isinstance(built, Failure) else self._run(task, built, best, self.options)
        return [Measurement(c, results[k]) for k, c in enumerate(candidates)]

    def _sound_incumbent(self, task: Task, incumbent: Candidate, cases: Sequence[Sizes]) -> BuiltCandidate:
        """An incumbent that was run by itself, so that what happens beside it is the candidate's doing."""
        (built,) = self._builder.build(task, [incumbent], cases)
        if isinstance(built, Failure):
            raise incumbent_error(task, built)
        if built not in self._runner.sound:
            result = self._run(task, built, None, replace(self.options, plan=CHECK_PLAN))
            if isinstance(result, Failure):
                raise incumbent_error(task, result)
        return built

    def _run(
        self, task: Task, built: BuiltCandidate, incumbent: BuiltCandidate | None, options: MeasureOptions
    ) -> Timing | Failure:
        cases, threads = self._runner.cases.of(task), thread_count(task.threads)
        try:
            return self._runner.run(built, incumbent, cases, threads, options)
        except UnpreparedIncumbentError as error:
            raise incumbent_error(task, error.failure) from error

    def close(self) -> None:
        """Ends all processes and removes operands."""
        with closing(self._runner):
            self._builder.close()

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
