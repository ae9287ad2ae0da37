"""Estimates and builds the tasks of a compilation: from the cache, on worker processes, and in this process.

What a task becomes does not depend on where that happens, so the same model gives the same bytes with any number of
jobs and with any cache. A worker keeps the constructions that it made for estimates, and builds these tasks later.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tilewright.driver.build import Build, with_variants
from tilewright.driver.build_kernel import BuiltKernel, build_kernel, decode_built, encode_built
from tilewright.driver.build_resources import BuildResources
from tilewright.driver.worker_threads import Job, Request, TaskQueue, ThisProcess, WorkerThread, start_workers
from tilewright.errors import TilewrightError
from tilewright.graph.fusion import FusionPattern
from tilewright.loops.ir import blocks
from tilewright.machine import Target
from tilewright.machine.model import Machine, parse_machine, to_json
from tilewright.measure.machine_code_key import machine_code_key
from tilewright.optimize import task_json
from tilewright.optimize.constructions import Constructions, Estimate, construction_key
from tilewright.optimize.interface import MachineOptimizer, optimizer_named
from tilewright.optimize.task import Task

MIN_TASKS = 4
"""Tasks from which on workers are started. A worker is ready after half a second; a task takes 0.05 to 0.4 s."""


@dataclass(frozen=True, slots=True)
class ConstructionCounts:
    """How many kernels an optimizer worked on.

    Attributes:
        constructed: tasks, each once: those of the model's functions and of alternatives that were estimated.
        reused: functions of the model whose program had been constructed for an estimate.
        cached: functions of the model that earlier compilations had built.
    """

    constructed: int
    reused: int
    cached: int = 0


KernelProgress = Callable[[int, int, str], None]
"""Called with the number of finished tasks, that of all tasks, and the label of one that is next."""


class KernelBuilds:
    """The tasks of one compilation; a context manager, which ends the workers.

    Attributes:
        constructions: those of this process, with the estimates of all.
    """

    def __init__(self, build: Build, target: Target, resources: BuildResources) -> None:
        """Args: the options that decide the code, its target, and what the compilation may use."""
        self.constructions = Constructions(build.optimizer, build.chain_optimizer(target))
        self._cached_functions = 0
        self._build_machine = build.machine_for(target)
        self._resources = resources
        spec = build.spec()
        self._optimizer_text = f"{spec.optimizer}, seed {spec.seed}, {spec.fusion}, {spec.variants} variants"
        self._build, self._code_target = build, target
        self._has_started = False
        self._worker_threads: list[WorkerThread] = []

    def __enter__(self) -> "KernelBuilds":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for worker in self._worker_threads:
            worker.close()
        cache = self._resources.cache
        if cache is not None and cache.has_added:
            cache.prune()

    @property
    def is_shared(self) -> bool:
        """Whether something else than this process may know or make estimates."""
        return self._resources.jobs > 1 or self._resources.cache is not None

    def counts(self) -> ConstructionCounts:
        """How many kernels were worked on."""
        return ConstructionCounts(self.constructions.constructed, self.constructions.reused, self._cached_functions)

    def estimate(self, tasks: Iterable[Task], progress: KernelProgress | None = None) -> None:
        """Lets `constructions` know the estimates of tasks in canonical form."""
        waiting: dict[str, Task] = {}
        for task in tasks:
            if self.constructions.has_estimate(task):
                continue
            entry = self._cached("estimate", task)
            if entry is not None:
                self.constructions.learn(task, Estimate(tuple(entry["nanoseconds"]), entry["refusal"]))
                continue
            waiting[construction_key(task)] = task
            # they start while the other tasks are made
            self._start_workers(len(waiting))

        def finish(number: int, answer: Any) -> None:
            task = unknown[number]
            if answer is not None:
                self.constructions.learn(task, Estimate(tuple(answer[0]), answer[1]))
            estimate = self.constructions.estimate(task)
            self._add_entry("estimate", task, {"nanoseconds": list(estimate.nanoseconds), "refusal": estimate.refusal})

        # the longest ones first, so that no process waits for another at the end
        unknown = sorted(waiting.values(), key=lambda t: t.fusion.pattern is not FusionPattern.CHAIN)
        self._run("estimate", unknown, finish, lambda done: progress and progress(done, len(unknown), ""))

    def build(
        self, tasks: Sequence[Task], labels: Sequence[str], progress: KernelProgress | None = None
    ) -> list[BuiltKernel]:
        """What tasks in canonical form become, in their order.

        Args:
            tasks: the tasks.
            labels: the user's names of the nodes that they compute, for errors and progress.
            progress: is told how far it is.

        Raises:
            InternalError: an optimizer's schedule is not legal.
        """
        built: dict[int, BuiltKernel] = {}
        for k, task in enumerate(tasks):
            found = self._cached("build", task)
            if found is not None:
                built[k] = decode_built(found, task)
        self._cached_functions += len(built)
        # reductions, which take longest, first: no process waits for another one for long at the end
        missing = sorted((k for k in range(len(tasks)) if k not in built), key=lambda k: not _has_reduction(tasks[k]))

        def finish(number: int, answer: Any) -> None:
            k = missing[number]
            if answer is None:
                where = f"kernel of {labels[k]}" if labels[k] else "a kernel"
                built[k] = build_kernel(
                    tasks[k], self.constructions, self._build_machine, self._resources.with_code, where
                )
                answer = encode_built(built[k]) if self._resources.cache is not None else None
            else:
                built[k] = decode_built(answer, tasks[k])
            self._add_entry("build", tasks[k], answer)

        self._run(
            "build",
            [tasks[k] for k in missing],
            finish,
            lambda done: progress and progress(done + len(tasks) - len(missing), len(tasks), labels[missing[done]]),
        )
        return [built[k] for k in range(len(tasks))]

    def _run(
        self, what: str, tasks: Sequence[Task], finish: Callable[[int, Any], None], progress: Callable[[int], object]
    ) -> None:
        """Calls `finish` for every task in this process: with a worker's answer, or with None for it to do the work."""
        keys = [construction_key(t) for t in tasks]
        self._start_workers(len(tasks))
        workers = [w for w in self._worker_threads if w.is_alive]
        queue = TaskQueue([self._owner_of(k, workers) for k in keys])
        job = Job(queue, lambda k: {"do": what, "task": task_json.encode(tasks[k])}, keys)
        for worker in workers:
            worker.begin(job)
        for done in range(len(tasks)):
            progress(done)
            finish(*queue.next_for_this_process())
        for worker in workers:
            worker.finish()

    def _start_workers(self, tasks: int) -> None:
        """Starts workers, once, where there are enough tasks for them."""
        if tasks < MIN_TASKS or self._has_started or self._resources.jobs == 1:
            return
        self._has_started = True
        setup = _worker_setup(self._build, self._build_machine, self._code_target, self._resources.with_code)
        if setup is not None:
            start_workers(self._resources.jobs - 1, setup, self._worker_threads)

    def _owner_of(self, key: str, workers: Sequence[WorkerThread]) -> WorkerThread | ThisProcess | None:
        """Who has constructed a task; None where nobody has."""
        if self.constructions.has_constructed(key):
            return ThisProcess.OWNER
        return next((w for w in workers if key in w.constructed), None)

    def _cached(self, what: str, task: Task) -> Mapping[str, Any] | None:
        cache = self._resources.cache
        return None if cache is None else cache.get(self._key(what, task))

    def _add_entry(self, what: str, task: Task, value: Mapping[str, Any] | None) -> None:
        if self._resources.cache is not None and value is not None:
            self._resources.cache.put(self._key(what, task), value)

    def _key(self, what: str, task: Task) -> str:
        kind = what if self._resources.with_code else f"{what} without code"
        return machine_code_key(task, self._build_machine, f"{kind}: {self._optimizer_text}")


def _has_reduction(task: Task) -> bool:
    return any(b.init is not None for b in blocks(task.func.body))


def _worker_setup(build: Build, machine: Machine, target: Target, with_code: bool) -> Request | None:
    """The request that sets a worker up; None where a worker can't know the target, optimizer or machine by what
    requests say, as those of a test."""
    described = to_json(machine)
    try:
        known_target = Target.parse(target.name)
        optimizer = with_variants(optimizer_named(build.optimizer.name), build.max_variants)
        if isinstance(optimizer, MachineOptimizer):
            optimizer = optimizer.for_machine(machine)
        is_known = parse_machine(described, "machine") == machine and known_target == target
    except TilewrightError:
        return None
    if not is_known or optimizer != build.optimizer:
        return None
    names = {"optimizer": build.optimizer.name, "machine": described, "fusion": build.fusion}
    return {"do": "set up", **names, "variants": build.max_variants, "with_code": with_code}
