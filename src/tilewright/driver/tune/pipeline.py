"""The pipeline of `tilewright.tune`: plan, session, last measurements, and the comparison with the untuned model."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from tilewright.driver.compile import Progress, make_compilation
from tilewright.driver.kernel_build.build_resources import BuildResources, build_resources
from tilewright.driver.kernel_build.record_source import RecordSource
from tilewright.driver.options import CompileOptions
from tilewright.driver.tune.budget import Budget, parse_seconds
from tilewright.driver.tune.compare_model import ModelComparison, compare_models
from tilewright.driver.tune.draw_sizes import check_choices, draw_sizes, parse_sizes
from tilewright.driver.tune.plan import PlannedKernel, TuningPlan, make_plan
from tilewright.driver.tune.record_store import TuningRecords
from tilewright.driver.tune.recorded_sources import recorded_sources
from tilewright.driver.tune.result import TuningResult
from tilewright.driver.tune.reuse_order import ReuseOrder
from tilewright.driver.tune.reuse_schedule import ReuseSchedule
from tilewright.driver.tune.session import (
    TRIAL_SECONDS,
    EndReason,
    Instruments,
    SessionResult,
    SessionStatus,
    TuningSession,
)
from tilewright.errors import MachineWarning, OptionError, TargetError, TilewrightError
from tilewright.lower.abstract_sizes import implied_ranges
from tilewright.machine.model import Machine
from tilewright.measure.local_measurer import Builder, LocalMeasurer, MeasureOptions, Runner
from tilewright.measure.records.jsonl import open_writable
from tilewright.measure.records.store import RecordStore
from tilewright.measure.workers.cluster import ClusterWorkers
from tilewright.measure.workers.interface import EFFORT_PLANS, MeasureWorkers
from tilewright.measure.workers.local import LocalWorkers
from tilewright.measure.workers.ray_transport import RayTransport, load_ray
from tilewright.optimize.measurer import Measurement
from tilewright.optimize.reuse.arborescence import load_networkx
from tilewright.optimize.search.interface import Search, SearchVariant
from tilewright.optimize.search.start_search import start_search
from tilewright.runtime import Executable
from tilewright.runtime.feeds import InputSignature
from tilewright.runtime.manifest import Manifest
from tilewright.user_warnings import warn_user

if TYPE_CHECKING:
    import onnx

    from tilewright.frontend.onnx import ShapeOption
    from tilewright.graph.layouts.plan import Choice, Plan


WORKERS = ("local", "ray")
"""Where candidates are measured: on this machine, or on the machines of a Ray cluster."""

DEFAULT_COMPARE_SECONDS = 10.0
"""Time of the comparison of the whole model in a tuning without a budget of time."""

PLANS = ("gradient", "eto")
"""In which order kernels are tuned: by the task scheduler alone, or by reuse of each other's programs first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What a caller may choose about a tuning, apart from the model and its compilation.

    Attributes:
        budget: when it ends.
        variant: how candidates are chosen: "search", "ansor", "evolution" or "random".
        seed: of the random numbers.
        plan: the order of kernels: "gradient" or "eto".
        sizes: which sizes the model sees, as text ("batch=1:8,seq=16..512"); empty for its ranges.
        feeds: the inputs of the comparison at the end, arrays by name; None for random ones.
        workers: "local" or "ray".
        address: of the Ray cluster; None for one of this machine alone.
    """

    budget: Budget
    variant: str = SearchVariant.SEARCH
    seed: int = 0
    plan: str = PLANS[0]
    sizes: str = ""
    feeds: Mapping[str, Any] | None = None
    workers: str = WORKERS[0]
    address: str | None = None

    def __post_init__(self) -> None:
        if self.variant not in tuple(SearchVariant):
            hint = f"use one of {', '.join(SearchVariant)}"
            raise OptionError(f"there is no search {self.variant!r}", where="search", hint=hint)
        if self.plan not in PLANS:
            raise OptionError(f"there is no plan {self.plan!r}", where="plan", hint=f"use one of {', '.join(PLANS)}")
        if self.plan == "eto":
            load_networkx()  # a model of one kernel needs no tree, but the next one does
        if self.workers not in WORKERS:
            hint = f"use one of {', '.join(WORKERS)}"
            raise OptionError(f"there are no workers {self.workers!r}", where="workers", hint=hint)
        if self.workers == "ray":
            load_ray(self.address)
        elif self.address is not None:
            raise OptionError("only a Ray cluster has one", where="address", hint="use workers 'ray'")


def make_budget(
    budget: str | float | None = None, trials: int | None = None, target_speedup: float | None = None
) -> Budget:
    """The budget of a tuning; seconds as a number or a text such as "5m".

    Raises:
        OptionError: one of them is impossible.
    """
    seconds = parse_seconds(budget) if isinstance(budget, str) else budget
    return Budget(seconds, trials, target_speedup)


def plan_tuning(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    options: CompileOptions,
    sizes: str = "",
    progress: Progress | None = None,
    resources: BuildResources | None = None,
    feeds: Mapping[str, Any] | None = None,
) -> TuningPlan:
    """The plan of a tuning, without measuring anything.

    Args:
        model, options, progress: as for `make_compilation`.
        sizes: as of `TuneOptions`.
        resources: what the compilation may use.
        feeds: inputs that the model must take; None for none.

    Raises:
        What `make_compilation` raises.
        FeedError, ShapeError: the model does not take the inputs.
        TargetError: this machine can't run the code.
        OptionError: the sizes are not those of the model.
    """
    used = replace(resources or build_resources(), records=None)
    choices = parse_sizes(sizes)

    def check(manifest: Manifest) -> None:
        check_choices(choices, {s.name: (s.lo or 1, s.hi) for s in manifest.symbols})
        if feeds is not None:
            InputSignature(manifest.inputs, manifest.symbols).collect(feeds)

    compilation = make_compilation(model, options, progress, resources=used, check_signature=check)
    if not compilation.target.runs_here:
        what, hint = f"this machine can't run code for {compilation.target}", "tune on such a machine"
        raise TargetError(what, where="target", hint=hint)
    program = compilation.program
    drawn = draw_sizes(program.symbols, implied_ranges(program), choices, names=program.symbol_names)
    return make_plan(compilation, drawn, used)


def tune(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    budget: str | float | None = None,
    trials: int | None = None,
    target_speedup: float | None = None,
    shapes: "Mapping[str, ShapeOption] | None" = None,
    sizes: str = "",
    optimizer: str | None = None,
    machine: Machine | str | os.PathLike[str] | None = None,
    layouts: "Plan | Mapping[str, Choice] | None" = None,
    exact: bool = False,
    winograd: str | None = None,
    fusion: str | None = None,
    variants: int | None = None,
    search: str = SearchVariant.SEARCH,
    seed: int = 0,
    plan: str = PLANS[0],
    records: str | os.PathLike[str] | None = None,
    feeds: Mapping[str, Any] | None = None,
    workers: str = WORKERS[0],
    address: str | None = None,
    jobs: int | None = None,
    cache: bool | None = None,
    progress: Progress | None = None,
    report: Callable[[SessionStatus], None] | None = None,
) -> TuningResult:
    """Measures programs of a model's kernels and records the fastest, which `compile` then finds.

    It ends at the first limit that is reached, after five minutes where there is neither a time nor a number of trials,
    or by a KeyboardInterrupt, with the result so far. Everything measured is kept at once.

    Args:
        model: a path, the bytes of a file, or a ModelProto.
        budget: wall-clock time of everything: seconds, or a text such as "5m".
        trials: programs to measure at most.
        target_speedup: end when the measured kernels predict a model that is so many times faster.
        shapes, optimizer, machine, layouts, exact, winograd, fusion, variants, jobs, cache, progress: as for `compile`,
            which finds the records where those before `jobs` are the same.
        sizes: sizes that the model sees, such as "batch=1:8,seq=16..512": ranges, or sizes with weights.
        search: how programs are chosen: "search", "ansor" (from nothing), "evolution" or "random".
        seed: of the random numbers.
        plan: "gradient", or "eto", where kernels start from each other's programs first (needs networkx).
        records: file of the store; by default the user's.
        feeds: the inputs of the comparison at the end; random ones by default.
        workers, address: "local"; or "ray" and the address of a cluster, by default a new one of this machine alone.
        report: called after every round of measurements.

    Raises:
        What `compile` raises, and OptionError, MeasureError, StoreError: a limit is impossible, the sizes are not those
            of the model, nothing can be measured here, or the store can't be written.
    """
    options = CompileOptions(
        shapes=shapes, optimizer=optimizer, machine=machine, layouts=layouts, exact=exact, winograd=winograd,
        fusion=fusion, variants=variants,
    )  # fmt: skip
    tuning = TuneOptions(
        budget=make_budget(budget, trials, target_speedup), variant=search, seed=seed, plan=plan, sizes=sizes,
        feeds=feeds, workers=workers, address=address,
    )  # fmt: skip
    return tune_with_options(model, options, tuning, progress, build_resources(jobs, cache, records=records), report)


def tune_with_options(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    options: CompileOptions,
    tuning: TuneOptions,
    progress: Progress | None = None,
    resources: BuildResources | None = None,
    report: Callable[[SessionStatus], None] | None = None,
) -> TuningResult:
    """Tunes a model; arguments and errors as for `tune`.

    Args:
        model: a path, the bytes of a file, or a ModelProto.
        options: of its compilation.
        tuning: of the tuning.
        progress: called while it compiles and compares.
        resources: what compilations may use; its records are the store.
        report: called after every round of measurements.
    """
    started, used = time.monotonic(), resources or build_resources()
    source = _store_of(used)
    used = replace(used, records=source)
    with ExitStack() as stack:
        workers = _make_workers(stack, tuning)
        compiling = time.monotonic()
        plan = plan_tuning(model, options, tuning.sizes, progress, used, tuning.feeds)
        untuned = Executable(plan.compilation.artifact()).prepare()
        compile_seconds = time.monotonic() - compiling
        store = stack.enter_context(open_writable(source.path))
        records = TuningRecords(store, plan.machine, tuning.variant)
        order = _order_of(plan, tuning, store)
        instruments = Instruments(workers, records)
        # what the compilation with the tuned programs takes is kept for it; `result` says what has been asked for
        within = replace(tuning, budget=tuning.budget.with_default_time.without_compilation(compile_seconds))
        session = _make_session(plan, order, instruments, within, started, report)
        outcome = session.run()
        end = time.monotonic()
        seconds = tuning.budget.with_default_time.seconds
        deadline = None if seconds is None else started + seconds
        outcome, comparison, note, is_reverted = _end_session(
            session, outcome, lambda: _compare(model, options, tuning, plan, untuned, deadline, progress, used)
        )
    return TuningResult(
        model=str(model) if isinstance(model, str | os.PathLike) else plan.compilation.manifest.meta.graph_name,
        plan=plan,
        budget=tuning.budget,
        variant=tuning.variant,
        seed=tuning.seed,
        records=str(source.path),
        session=outcome,
        reuse=None if order is None else order.reuse,
        reuse_kernels=() if order is None else order.kernel_of,
        comparison=comparison,
        is_reverted=is_reverted,
        note=note,
        compile_seconds=compile_seconds,
        end_seconds=time.monotonic() - end,
        seconds=time.monotonic() - started,
    )


def _store_of(resources: BuildResources) -> RecordSource:
    """The store that a tuning writes, and that compilations then read.

    It is opened once, so that a wrong path is noticed before the compilation, which takes long.

    Raises:
        OptionError: there is none.
        StoreError: it is an export, or can't be written.
    """
    if resources.records is None:
        what = "a tuning keeps what it measures, so it needs a store"
        raise OptionError(what, where="records", hint="name one, or unset TILEWRIGHT_RECORDS")
    source = replace(resources.records, frozen=False)
    open_writable(source.path).close()
    return source


def _order_of(plan: TuningPlan, tuning: TuneOptions, store: RecordStore) -> ReuseOrder | None:
    """The order of reuse, with the programs of a store as sources; None for other orders."""
    if tuning.plan != "eto":
        return None
    return ReuseOrder.of(plan, lambda vectors: recorded_sources(store, plan.machine, vectors))


def _make_session(
    plan: TuningPlan,
    order: ReuseOrder | None,
    instruments: Instruments,
    tuning: TuneOptions,
    started: float,
    report: Callable[[SessionStatus], None] | None,
) -> TuningSession:
    """The session of a plan, in an order of reuse if there is one."""
    searches = _searches(plan.machine, tuning)
    if order is None:
        return TuningSession(plan, instruments, searches, tuning.budget, time.monotonic, started, report)
    budget = tuning.budget.with_default_time
    in_time = inf if budget.seconds is None else budget.seconds / TRIAL_SECONDS
    schedule = ReuseSchedule(order, searches, min(budget.trials or inf, in_time))
    session = TuningSession(
        order.plan, instruments, schedule.start_search, tuning.budget, time.monotonic, started, report, schedule.next
    )
    schedule.bind(session)
    return session


def _make_workers(stack: ExitStack, tuning: TuneOptions) -> MeasureWorkers:
    """The machines of a cluster; or measurers of short, longer and long blocks on this machine, which share their
    builders and their runner."""
    if tuning.workers == "ray":
        transport = stack.enter_context(closing(RayTransport(tuning.address, _warn_of_machine)))
        return ClusterWorkers(transport, transport.runners)
    builder, runner = Builder(MeasureOptions()), Runner()
    options = {effort: MeasureOptions(plan=plan) for effort, plan in EFFORT_PLANS.items()}
    return LocalWorkers({e: stack.enter_context(LocalMeasurer(o, builder, runner)) for e, o in options.items()})


def _warn_of_machine(line: str) -> None:
    """Warns of a machine that is not used any more."""
    warn_user(line, MachineWarning)


def _searches(machine: Machine, tuning: TuneOptions) -> Callable[[PlannedKernel, Sequence[Measurement]], Search]:
    """What starts the search of a kernel; the variants but "search" begin without the constructed programs."""

    def start(kernel: PlannedKernel, history: Sequence[Measurement]) -> Search:
        starts = kernel.programs if tuning.variant == SearchVariant.SEARCH else ()
        return start_search(kernel.task, machine, tuning.variant, tuning.seed, starts, history)

    return start


def _end_session(
    session: TuningSession, outcome: SessionResult, compare: Callable[[], tuple[tuple[ModelComparison, ...], str]]
) -> tuple[SessionResult, tuple[ModelComparison, ...], str, bool]:
    """The end of a session: the last measurements, the comparison of the whole model or why there is none, and whether
    all kernels went back to what they were, as the tuned model is slower."""
    comparison, note = (), ""
    try:
        if outcome.end is not EndReason.INTERRUPTED:
            outcome = session.finish(outcome.end)
        if outcome.end is not EndReason.INTERRUPTED and outcome.improved:
            comparison, note = compare()
    except KeyboardInterrupt:
        outcome = replace(outcome, end=EndReason.INTERRUPTED)
    if outcome.end is EndReason.INTERRUPTED:
        return outcome, (), "interrupted before the whole model was compared", False
    is_reverted = any(c.is_slower for c in comparison)
    if is_reverted:
        for kernel in session.kernels:
            kernel.revert()
    return outcome, comparison, note, is_reverted


def _compare(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    options: CompileOptions,
    tuning: TuneOptions,
    plan: TuningPlan,
    untuned: Executable,
    deadline: float | None,
    progress: Progress | None,
    resources: BuildResources,
) -> tuple[tuple[ModelComparison, ...], str]:
    """The tuned model beside the untuned one, until a deadline if there is one; nothing and the reason where that is
    not possible."""
    try:
        compilation = make_compilation(model, options, progress, resources=resources)
        tuned = Executable(compilation.artifact()).prepare()
        if deadline is None:
            deadline = time.monotonic() + DEFAULT_COMPARE_SECONDS
        return compare_models(untuned, tuned, tuning.feeds, plan.sizes, deadline, progress), ""
    except TilewrightError as error:
        return (), f"the whole model was not compared: {error}"
