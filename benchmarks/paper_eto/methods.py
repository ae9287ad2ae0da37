"""Methods of tuning a set of operators: full searches, reuse along a tree, and selective tuning.

Every search has a log of its own, which a later run goes on with. Methods share the logs of equal searches, such as the
full search of an operator, and each counts the programs and the seconds of all that it uses.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.result_store import file_lock
from benchmarks.paper_eto.operator_tasks import SetTasks
from tilewright.codegen.generator_version import generator_version
from tilewright.errors import ScheduleError, VerifyError
from tilewright.measure.search import fastest_programs, run_search, timed_entries
from tilewright.measure.search_log import SearchLog
from tilewright.optimize.construct.optimizer import Roller
from tilewright.optimize.measurer import Candidate, Measurement, Measurer
from tilewright.optimize.reuse.loop_vector import LoopVector
from tilewright.optimize.reuse.plan import PROCESSOR_COSTS, Operator, PlanStep, ReusePlan, costs_in_seconds, plan_reuse
from tilewright.optimize.reuse.recognize import tile_program_of
from tilewright.optimize.reuse.reusable_task import ReusableTask, bridge_task
from tilewright.optimize.reuse.reuse_graph import BridgeChoice, SearchCosts
from tilewright.optimize.reuse.reuse_search import ReuseSearch, ReuseSource
from tilewright.optimize.reuse.selective_tuning import TOP_PROGRAMS, clusters
from tilewright.optimize.search.interface import Search
from tilewright.optimize.search.measurement_history import MeasurementHistory
from tilewright.optimize.search.start_search import start_search
from tilewright.schedule.step import replay
from tilewright.verify.verifier import verify

LOGS = Path("build/paper_eto")
"""Folder of the searches' logs."""

FULL_VARIANT = "ansor"
"""The full search: from nothing."""

BRIDGES = {"no bridges": BridgeChoice.NONE, "eto": BridgeChoice.ONE_HOP, "all bridges": BridgeChoice.ALL}
METHODS = ("full search", *BRIDGES, "selective tuning")


@dataclass(frozen=True, slots=True)
class Context:
    """What methods measure with.

    Attributes:
        measurer: times programs.
        trials: programs of a full search.
        deadline: on the monotonic clock.
        say: called with a line about every batch.
    """

    measurer: Measurer
    trials: int
    deadline: float
    say: Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """What a method did.

    Attributes:
        best: the fastest program per operator; None where there is none.
        logs: the searches.
        full_searches: how many of these were full.
        estimated: programs that were estimated beforehand.
    """

    best: dict[int, Candidate | None] = field(default_factory=dict[int, Candidate | None])
    logs: dict[str, SearchLog] = field(default_factory=dict[str, SearchLog])
    full_searches: int = 0
    estimated: float = 0.0

    @property
    def programs(self) -> int:
        """Programs that were measured."""
        return sum(len(log.entries) for log in self.logs.values())

    @property
    def seconds(self) -> float:
        """Seconds that measuring took."""
        return sum(e["seconds"] for log in self.logs.values() for e in log.entries)


class OutOfTimeError(Exception):
    """The deadline came before a search was done."""


def run_method(method: str, tasks: SetTasks, context: Context) -> Outcome:
    """Tunes operators by a method.

    Raises:
        OutOfTimeError: the deadline has come; the same call goes on.
    """
    outcome = Outcome()
    if method == "full search":
        for k, (_, task) in enumerate(tasks):
            outcome.best[k] = _best_of(_full_search(task, outcome, context))
        outcome.estimated = float(context.trials * len(tasks))
    elif method == "selective tuning":
        _tune_selectively([t for _, t in tasks], outcome, context)
    else:
        _tune_along_tree(BRIDGES[method], tasks, outcome, context)
    return outcome


def _tune_along_tree(bridges: BridgeChoice, tasks: SetTasks, outcome: Outcome, context: Context) -> None:
    """Tunes along the cheapest tree. A step whose source has no program, or whose bridge can't be made, is searched in
    full."""
    plan = plan_of(bridges, tasks, context.trials)
    outcome.estimated = plan.programs
    context.say(plan.text())
    sources: dict[int, ReuseSource] = {}
    for position, step in enumerate(plan.steps):
        task = _task_of(step, [t for _, t in tasks])
        if task is None:
            continue
        source = None if step.source is None else sources.get(step.source)
        log = _full_search(task, outcome, context) if source is None else _reuse(task, source, outcome, context)
        best = _best_of(log)
        program = None if best is None else tile_program_of(task, best.trace)
        if program is not None:
            sources[position] = ReuseSource(task, program)
        if step.operator is not None:
            outcome.best[step.operator] = best


def plan_of(bridges: BridgeChoice, tasks: SetTasks, trials: int) -> ReusePlan:
    """The cheapest plan of a set in estimated seconds, with full searches of so many programs."""
    operators = [
        Operator(f"{o.type} {o.vector}", t.vector, float(o.frequency * o.vector.points), predicted_seconds(t))
        for o, t in tasks
    ]
    costs = SearchCosts(full=trials, sizes=PROCESSOR_COSTS.sizes)
    return plan_reuse(operators, bridges=bridges, costs=costs_in_seconds(operators, costs))


def predicted_seconds(task: ReusableTask) -> float:
    """Seconds of a call, as the cost model predicts them for a program that is constructed greedily; 0 if unknown."""
    construction = Roller(task.machine).construct(task.task)
    return 0.0 if construction is None else construction.estimate * 1e-9


def _task_of(step: PlanStep, tasks: Sequence[ReusableTask]) -> ReusableTask | None:
    if step.operator is not None:
        return tasks[step.operator]
    vector: LoopVector | None = step.vector
    like = next((t for t in tasks if vector is not None and t.vector.has_kind_of(vector)), None)
    return None if vector is None or like is None else bridge_task(vector, like)


def _tune_selectively(tasks: Sequence[ReusableTask], outcome: Outcome, context: Context) -> None:
    """Searches one operator of each cluster; the others take its fastest programs as they are, until three run."""
    groups = clusters([t.vector for t in tasks])
    outcome.estimated = float(sum(context.trials + TOP_PROGRAMS * len(g.others) for g in groups))
    for group in groups:
        log = _full_search(tasks[group.searched], outcome, context)
        outcome.best[group.searched] = _best_of(log)
        ranked = fastest_programs(log, len(log.entries))
        for k in group.others:
            search = _Transfer(tasks[k], ranked)
            outcome.best[k] = _best_of(_logged_search("transfer", tasks[k], log.path.stem, search, outcome, context))


class _Transfer:
    """A `Search` that asks for programs of another task as they are, the fastest first, until three of them ran.

    Attributes:
        history: what it was told.
    """

    def __init__(self, task: ReusableTask, programs: Sequence[Candidate]) -> None:
        self._programs, self._task, self._done = list(programs), task, 0
        self.history = MeasurementHistory()

    def ask(self, count: int) -> list[Candidate]:
        """The next program whose steps are legal for the task."""
        while self._programs and self._done < TOP_PROGRAMS:
            candidate = self._programs.pop(0)
            try:
                verify(replay(self._task.task.func, candidate.trace))
            except (ScheduleError, VerifyError):
                continue
            return [candidate]
        return []

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Counts those that ran."""
        self._done += sum(m.nanoseconds is not None for m in self.history.add(measurements))
        known = {m.candidate for m in measurements}
        self._programs = [p for p in self._programs if p not in known]


def _full_search(task: ReusableTask, outcome: Outcome, context: Context) -> SearchLog:
    outcome.full_searches += 1
    search = start_search(task.task, task.machine, FULL_VARIANT)
    return _logged_search(f"full{context.trials}", task, "", search, outcome, context)


def _reuse(task: ReusableTask, source: ReuseSource, outcome: Outcome, context: Context) -> SearchLog:
    origin = f"{source.reusable.task.hash} {source.program.sketch} {source.program.sizes}"
    return _logged_search("reuse", task, origin, ReuseSearch(task, source), outcome, context)


def _logged_search(
    kind: str, task: ReusableTask, origin: str, search: Search, outcome: Outcome, context: Context
) -> SearchLog:
    """A search with its log, which is shared by all methods that make it."""
    key = hashlib.sha256(f"{task.task.hash} {origin}".encode()).hexdigest()[:16]
    name = f"{kind}-{key}"
    path = LOGS / f"{name}.jsonl"
    # another process that makes the same search is waited for, and its log taken
    with file_lock(path):
        log = SearchLog(path)
        if log.fingerprint != generator_version():
            log.clear(generator_version())
        status = run_search(search, task.task, log, context.trials, context.deadline, context.measurer,
                            lambda line: context.say(f"{kind} {task.vector}: {line}"))  # fmt: skip
    if not status.is_finished and time.monotonic() > context.deadline:
        raise OutOfTimeError
    outcome.logs[name] = log
    return log


def _best_of(log: SearchLog) -> Candidate | None:
    best = fastest_programs(log, 1)
    return best[0] if best and timed_entries(log) else None
