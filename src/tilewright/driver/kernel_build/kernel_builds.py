"""Estimates and builds the tasks of a compilation: from the cache, on worker processes, and in this process.

What a task becomes does not depend on where that happens, so the same model gives the same bytes with any number of
jobs and with any cache. A worker keeps the constructions that it made for estimates, and builds these tasks later.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from tilewright.driver.build import Build, with_variants
from tilewright.driver.kernel_build.build_kernel import (
    BuiltKernel,
    RecordedProgram,
    build_kernel,
    build_recorded,
    decode_built,
    encode_built,
    encode_program,
)
from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.kernel_build.kernel_records import KernelRecords
from tilewright.driver.kernel_build.task_groups import task_groups
from tilewright.driver.kernel_build.worker_threads import (
    Job,
    Request,
    TaskQueue,
    ThisProcess,
    WorkerThread,
    start_workers,
)
from tilewright.errors import TilewrightError, TilewrightWarning
from tilewright.kernel_caches import forget_derived
from tilewright.machine import Target
from tilewright.machine.model import Machine, parse_machine, to_json
from tilewright.measure.machine_code_key import machine_code_key
from tilewright.measure.records.record import Proximity
from tilewright.measure.started_program import close_all
from tilewright.optimize import task_json
from tilewright.optimize.constructions import Constructions, Estimate, construction_key
from tilewright.optimize.interface import MachineOptimizer, optimizer_named
from tilewright.optimize.task import Task
from tilewright.user_warnings import warn_user
from tilewright.version import sources_have_changed

MIN_TASKS = 4
"""Tasks from which on workers are started. A worker is ready after half a second; a task takes 0.05 to 0.4 s."""

ENTRIES_AT_ONCE = 16
"""New entries of the cache that are written together: whether the sources have changed takes 10 ms to find out."""


@dataclass(frozen=True, slots=True)
class ConstructionCounts:
    """How many kernels an optimizer worked on.

    Attributes:
        constructed: tasks, each once: those of the model's functions and of alternatives that were estimated.
        reused: functions of the model whose program had been constructed for an estimate.
        cached: functions of the model whose code earlier compilations had generated.
        recorded: functions of the model whose program records gave, and whose code was generated.
        tuned: functions of the model whose program, by records, was measured to be faster than another one.
        skipped_records: why records were not used.
    """

    constructed: int
    reused: int
    cached: int = 0
    recorded: int = 0
    tuned: int = 0
    skipped_records: tuple[str, ...] = ()


KernelProgress = Callable[[int, int, str], None]
"""Called with the number of finished tasks, that of all tasks, and the label of one that is next."""


class KernelBuilds:
    """The tasks of one compilation; a context manager, which ends the workers.

    Attributes:
        constructions: those of this process, with the estimates of all.
    """

    def __init__(
        self,
        build: Build,
        target: Target,
        resources: BuildResources,
        estimate_progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """
        Args:
            build: the options that decide the code.
            target: its target.
            resources: what the compilation may use.
            estimate_progress: called with the number of finished estimates, and that of those that are known to be
                needed so far.
        """
        self._estimate_progress = estimate_progress
        self._estimates = 0
        self.constructions = Constructions(build.optimizer, build.chain_optimizer(target))
        self._cached_functions = self._recorded_functions = self._tuned_functions = 0
        self._build_machine = build.machine_for(target)
        # asked when the compiler has been imported: without a known hash of what this process runs there are no keys,
        # and no workers that certainly run the same code
        self._resources = resources
        if sources_have_changed():
            self._resources = replace(resources, jobs=1, cache=None)
            what = "no cache and no other process is used: the sources of this package have changed since this process"
            warn_user(f"{what} has imported it, or are newer than the clock; start it again", TilewrightWarning)
        self._new_entries: list[tuple[str, Mapping[str, Any]]] = []
        # tasks that workers have constructed
        self._constructed_elsewhere: set[str] = set()
        spec = build.spec()
        self._optimizer_text = f"{spec.optimizer}, seed {spec.seed}, {spec.fusion}, {spec.variants} variants"
        source = resources.records
        self._records = None if source is None else KernelRecords(source, self._build_machine, self._optimizer_text)
        self._build, self._code_target = build, target
        self._has_started = False
        self._worker_threads: list[WorkerThread] = []

    def __enter__(self) -> "KernelBuilds":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            close_all(self._worker_threads)
        finally:  # an impatient Ctrl-C loses no entry
            self._keep_entries()
            if self._records is not None:
                self._records.close()
        cache = self._resources.cache
        if cache is not None and cache.has_added:
            cache.prune()

    @property
    def is_shared(self) -> bool:
        """Whether something else than this process may know or make estimates."""
        return self._resources.jobs > 1 or self._resources.cache is not None or self._records is not None

    def counts(self) -> ConstructionCounts:
        """How many kernels were worked on."""
        return ConstructionCounts(
            self.constructions.constructed + len(self._constructed_elsewhere),
            self.constructions.reused,
            self._cached_functions,
            self._recorded_functions,
            self._tuned_functions,
            () if self._records is None else tuple(self._records.skipped),
        )

    def estimate(self, tasks: Iterable[Task]) -> None:
        """Lets `constructions` know the estimates of tasks in canonical form."""
        waiting: dict[str, Task] = {}
        for task in tasks:
            if self.constructions.has_estimate(task):
                continue
            entry = None if self._is_frozen else self._cached("estimate", task)
            if entry is not None:
                self._learn(task, Estimate(tuple(entry["nanoseconds"]), entry["refusal"]))
                continue
            recorded = None if self._records is None else self._records.estimate(task)
            if recorded is not None:
                self.constructions.learn(task, recorded)
                continue
            waiting[construction_key(task)] = task
            # they start while the other tasks are made
            self._start_workers(len(waiting))

        def finish(number: int, answer: Any) -> None:
            task = unknown[number]
            if answer is not None:
                self.constructions.learn(task, Estimate(tuple(answer[0]), answer[1]))
                self._constructed_elsewhere.add(construction_key(task))
            estimate = self.constructions.estimate(task)
            self._learn(task, estimate)
            self._add_entry("estimate", task, {"nanoseconds": list(estimate.nanoseconds), "refusal": estimate.refusal})

        unknown, before = list(waiting.values()), self._estimates
        self._estimates += len(unknown)
        report = self._estimate_progress
        self._run("estimate", unknown, finish, lambda done: report and report(before + done, self._estimates))

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
            StoreError: records alone are to be used, and kernels have none; names them.
        """
        built: dict[int, BuiltKernel] = {}
        chosen = self._measured_programs(tasks, labels)
        for k, task in enumerate(tasks):
            entry = self._cached("build", task, chosen[k])
            if entry is not None:
                built[k] = decode_built(entry, task)
        self._cached_functions += len(built)
        missing = [k for k in range(len(tasks)) if k not in built]
        given = [chosen[k] or self._constructed_program(tasks[k]) for k in missing]

        def finish(number: int, answer: Any) -> None:
            k = missing[number]
            if answer is None:
                built[k] = self._build_here(tasks[k], given[number], chosen, k, labels[k])
                answer = encode_built(built[k]) if self._resources.cache is not None else None
            else:
                built[k] = decode_built(answer, tasks[k])
                self._count_elsewhere(tasks[k], given[number])
            self._add_entry("build", tasks[k], answer, chosen[k])

        self._run(
            "build",
            [tasks[k] for k in missing],
            finish,
            lambda done: progress and progress(done + len(tasks) - len(missing), len(tasks), labels[missing[done]]),
            [None if program is None else encode_program(program) for program in given],
        )
        for k, task in enumerate(tasks):
            program = chosen[k]
            self._tuned_functions += program is not None and program.is_tuned
            if self._records is not None and chosen[k] is None:
                estimate = self.constructions.estimate(task) if self.constructions.has_estimate(task) else None
                self._records.keep_program(task, built[k], estimate)
        return [built[k] for k in range(len(tasks))]

    @property
    def _is_frozen(self) -> bool:
        return self._records is not None and self._records.is_frozen

    def _learn(self, task: Task, estimate: Estimate) -> None:
        self.constructions.learn(task, estimate)
        if self._records is not None:
            self._records.keep_estimate(task, estimate)

    def _measured_programs(self, tasks: Sequence[Task], labels: Sequence[str]) -> list[RecordedProgram | None]:
        """The programs that records decide; None for kernels that are constructed.

        Raises:
            StoreError: records alone are to be used, and kernels have none.
        """
        records = self._records
        if records is None or not records.has_store:
            return [None] * len(tasks)
        candidates = [records.candidates(t) for t in tasks]
        # programs of other versions and machines are compared with what is constructed here
        judged = not records.is_frozen
        doubtful = [judged and bool(c) and c[0].proximity is not Proximity.EXACT for c in candidates]
        self.estimate(t for t, is_doubtful in zip(tasks, doubtful, strict=True) if is_doubtful)
        estimates = [self.constructions.estimate(t) if x else None for t, x in zip(tasks, doubtful, strict=True)]
        programs = [records.choose(*x) for x in zip(candidates, estimates, labels, strict=True)]
        unknown = [label or "a kernel" for label, p in zip(labels, programs, strict=True) if p is None]
        if records.is_frozen and unknown:
            records.refuse(unknown)
        return programs

    def _constructed_program(self, task: Task) -> RecordedProgram | None:
        """The program that an earlier compilation constructed."""
        if self._records is None or self.constructions.has_constructed(construction_key(task)):
            return None
        return self._records.constructed(task)

    def _build_here(
        self, task: Task, program: RecordedProgram | None, chosen: list[RecordedProgram | None], k: int, label: str
    ) -> BuiltKernel:
        """Builds a task in this process; a recorded program that can't be built is skipped, and `chosen[k]` is None."""
        where = f"kernel of {label}" if label else "a kernel"
        if program is not None and self._records is not None:
            try:
                built = build_recorded(task, program, self._resources.with_code)
                self._recorded_functions += 1
                return built
            except (TilewrightError, RecursionError) as error:
                chosen[k] = None
                self._records.fail(where, program, error)
        return build_kernel(task, self.constructions, self._build_machine, self._resources.with_code, where)

    def _count_elsewhere(self, task: Task, program: RecordedProgram | None) -> None:
        """Counts a function that a worker has built."""
        if program is not None:
            self._recorded_functions += 1
        else:
            self._constructed_elsewhere.add(construction_key(task))

    def _run(
        self,
        what: str,
        tasks: Sequence[Task],
        finish: Callable[[int, Any], None],
        progress: Callable[[int], object],
        programs: Sequence[Any] = (),
    ) -> None:
        """Calls `finish` for every task in this process: with a worker's answer, or with None for it to do the work."""
        keys = [construction_key(t) for t in tasks]
        self._start_workers(len(tasks))
        workers = [w for w in self._worker_threads if w.is_alive]
        owners = [self._owner_of(k, workers) for k in keys]
        is_given = [bool(programs) and programs[k] is not None for k in range(len(tasks))]
        is_alone = [owner is not None or given for owner, given in zip(owners, is_given, strict=True)]
        groups = task_groups(tasks, is_alone, 1 + len(workers))

        def request(number: int) -> Request:
            group = groups[number]
            given = {"programs": [programs[k] for k in group]} if programs else {}
            return {"do": what, "tasks": [task_json.encode(tasks[k]) for k in group], **given}

        queue = TaskQueue([owners[group[0]] for group in groups])
        job = Job(queue, request, [[keys[k] for k in group] for group in groups])
        for worker in workers:
            worker.begin(job)
        done = 0
        for _ in groups:
            progress(done)
            number, answers = queue.next_for_this_process()
            group = groups[number]
            if answers is None:
                self.constructions.construct_all(tasks[k] for k in group if not is_given[k])
                forget_derived(0)
            for k, answer in zip(group, answers or [None] * len(group), strict=True):
                finish(k, answer)
                forget_derived()
                done += 1
                if k != group[-1]:
                    progress(done)
        for worker in workers:
            worker.finish()

    def _start_workers(self, tasks: int) -> None:
        """Starts workers, once, where there are enough tasks for them."""
        if tasks < MIN_TASKS or self._has_started or self._resources.jobs == 1:
            return
        self._has_started = True
        setup = _worker_setup(self._build, self._build_machine, self._code_target, self._resources.with_code)
        if setup is not None:
            start_workers(self._resources.jobs - 1, setup, self._worker_threads, self._resources.started)

    def _owner_of(self, key: str, workers: Sequence[WorkerThread]) -> WorkerThread | ThisProcess | None:
        """Who has constructed a task; None where nobody has."""
        if self.constructions.has_constructed(key):
            return ThisProcess.OWNER
        return next((w for w in workers if key in w.constructed), None)

    def _cached(self, what: str, task: Task, program: RecordedProgram | None = None) -> Mapping[str, Any] | None:
        cache = self._resources.cache
        return None if cache is None else cache.get(self._key(what, task, program))

    def _add_entry(
        self, what: str, task: Task, value: Mapping[str, Any] | None, program: RecordedProgram | None = None
    ) -> None:
        if self._resources.cache is not None and value is not None:
            self._new_entries.append((self._key(what, task, program), value))
            if len(self._new_entries) >= ENTRIES_AT_ONCE:
                self._keep_entries()

    def _keep_entries(self) -> None:
        """Writes new entries where the sources are still those that their keys have the hash of."""
        cache = self._resources.cache
        if cache is not None and self._new_entries and not sources_have_changed():
            for key, value in self._new_entries:
                cache.put(key, value)
        self._new_entries.clear()

    def _key(self, what: str, task: Task, program: RecordedProgram | None) -> str:
        kind = what if self._resources.with_code else f"{what} without code"
        program_text = self._optimizer_text if program is None else json.dumps(encode_program(program), sort_keys=True)
        return machine_code_key(task, self._build_machine, f"{kind}: {program_text}")


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
