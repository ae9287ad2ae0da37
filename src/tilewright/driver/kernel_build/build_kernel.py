"""Builds a kernel: schedules, verifies, prepacks and compiles a task, by the task, the optimizer and the machine alone.

It travels between processes and is kept on disk as JSON values: the loops as text, and the code.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.codegen import compile_object, emit_kernel_module
from tilewright.cost.parallel_grains import threads_may_pay
from tilewright.errors import InternalError, ScheduleError, VerifyError
from tilewright.expr.nodes import Expr
from tilewright.expr.parser import parse_expr
from tilewright.expr.printer import show as show_expr
from tilewright.kernel_caches import forget_derived
from tilewright.loops.ir import For, Func, LoopKind, walk
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.lower.kernel_variants import KernelCode, MergedKernel, merge_programs
from tilewright.lower.prepack_constants import PrepackedKernel, prepack_constants
from tilewright.machine.model import Machine
from tilewright.measure.records.replay import replay_checked
from tilewright.optimize.constructions import Constructions
from tilewright.optimize.interface import FALLBACK, ProgramEstimate, ScheduledPrograms, optimizer_named, scheduled
from tilewright.optimize.task import Task
from tilewright.schedule import trace_json
from tilewright.schedule.step import Trace
from tilewright.verify.verifier import verify


@dataclass(frozen=True, slots=True, eq=False)
class BuiltProgram:
    """One program of a kernel.

    Attributes:
        trace: the steps of the optimizer.
        scheduled: the scheduled loops, with the packing of constants; verified.
    """

    trace: Trace
    scheduled: Func


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """A program of a task that was decided earlier.

    Attributes:
        optimizer: name of what chose it.
        traces: the steps of one program, or of several.
        selector: which of several runs; None for one.
        estimates: by which the selector chooses, one per program; empty where it chooses otherwise.
        is_tuned: whether a measurement found it faster than another program of its kernel.
    """

    optimizer: str
    traces: tuple[Trace, ...]
    selector: Expr | None = None
    estimates: tuple[ProgramEstimate, ...] = ()
    is_tuned: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class BuiltKernel:
    """What became of a task.

    Attributes:
        optimizer: name of the optimizer that scheduled it.
        programs: one, or several, of which one runs at every call.
        selector: which of several runs; None for one.
        merged: the programs without the packing of constants, which becomes computations of compile time; verified.
        code: the object file of its function; empty where code was not asked for.
        estimates: by which the selector chooses, one per program; empty where it chooses otherwise.
    """

    optimizer: str
    programs: tuple[BuiltProgram, ...]
    selector: Expr | None
    merged: MergedKernel
    code: bytes
    estimates: tuple[ProgramEstimate, ...] = ()


def build_kernel(
    task: Task, constructions: Constructions, machine: Machine, with_code: bool, where: str
) -> BuiltKernel:
    """Schedules, verifies and compiles a task.

    Args:
        task: the kernel, in canonical form.
        constructions: those of the preferred optimizer; kernels that it cannot schedule go to the rule.
        machine: the machine whose fork/join cost decides which loops run in parallel.
        with_code: whether to generate code.
        where: the place in errors.

    Raises:
        InternalError: an optimizer's schedule is not legal, or no optimizer applies.
    """
    preferred, fallback = constructions.optimizer_of(task).name, optimizer_named(FALLBACK)
    attempts: dict[str, Callable[[Task], ScheduledPrograms | None]] = {preferred: constructions.schedule_programs}
    if preferred != FALLBACK:
        attempts[FALLBACK] = lambda t: scheduled(fallback.optimize(t))
    for optimizer, make_programs in attempts.items():
        try:
            programs = schedule_for_threads(make_programs, task, machine)
            if programs is None:
                continue
            prepacked = [_verified_program(s.func, task.constants) for s in programs.schedules]
        except (ScheduleError, VerifyError) as error:
            raise InternalError(f"optimizer {optimizer!r} made an illegal program: {error}", where=where) from error
        built = tuple(BuiltProgram(s.trace, s.func) for s in programs.schedules)
        program = RecordedProgram(optimizer, (), programs.selector, programs.estimates)
        return _built(task, program, built, prepacked, with_code)
    raise InternalError("no optimizer applies", where=where)


def build_recorded(task: Task, program: RecordedProgram, with_code: bool) -> BuiltKernel:
    """Replays, verifies and compiles a recorded program of a task.

    Raises:
        ScheduleError: a step is not legal for the task.
        VerifyError: the loops are not safe.
    """
    built = tuple(BuiltProgram(t, replay_checked(task.func, t)) for t in program.traces)
    prepacked = [_verified_program(p.scheduled, task.constants) for p in built]
    return _built(task, program, built, prepacked, with_code)


def _built(
    task: Task,
    program: RecordedProgram,
    built: tuple[BuiltProgram, ...],
    prepacked: Sequence[PrepackedKernel],
    with_code: bool,
) -> BuiltKernel:
    merged = merge_programs(task.func.name, prepacked, program.selector, task.func.symbols)
    code = kernel_code(merged.code, task) if with_code else b""
    return BuiltKernel(program.optimizer, built, program.selector, merged, code, program.estimates)


def _verified_program(func: Func, constants: frozenset[str]) -> PrepackedKernel:
    """A scheduled function with its constants prepacked, verified before and after.

    Raises:
        VerifyError: it is not safe.
    """
    forget_derived()
    verify(func)
    prepacked = prepack_constants(func, constants)
    if prepacked.func != func:
        verify(prepacked.func)
    return prepacked


def kernel_code(code: KernelCode, task: Task) -> bytes:
    """The object file of a task's function, given its scheduled loops without the packing of constants."""
    named = replace(code, name=task.func.name)
    forget_derived()
    text = emit_kernel_module(named, kernel_symbol(task), task.target)
    forget_derived()
    return compile_object(text, task.target)


def kernel_symbol(task: Task) -> str:
    """The symbol of a task's function: the same in every model, and another for every task."""
    return f"kernel.{task.hash[:32]}"


def schedule_for_threads(
    make_programs: Callable[[Task], ScheduledPrograms | None], task: Task, machine: Machine
) -> ScheduledPrograms | None:
    """The programs for a task, without parallel loops where threads pay at no size (`cost.parallel_grains`).

    Loops that turn out scalar take longer than vectorised ones, so they may pay for threads where those do not.
    """
    serial = task.with_threads(1)
    if not threads_may_pay(task.func, machine, vectorized=False):
        return make_programs(serial)
    if not threads_may_pay(task.func, machine, vectorized=True):
        programs = make_programs(serial)
        if programs is None or all(_is_vectorized(s.func) for s in programs.schedules):
            return programs
    return make_programs(task)


def _is_vectorized(func: Func) -> bool:
    return any(isinstance(s, For) and s.kind is LoopKind.VECTORIZED for s, _ in walk(func.body))


def encode_program(program: RecordedProgram) -> dict[str, Any]:
    """A recorded program as JSON values."""
    selector = None if program.selector is None else show_expr(program.selector)
    traces = [trace_json.encode(t) for t in program.traces]
    estimates = _encode_estimates(program.estimates)
    return {"optimizer": program.optimizer, "traces": traces, "selector": selector, "estimates": estimates}


def decode_program(data: Mapping[str, Any], task: Task) -> RecordedProgram:
    """The recorded program of a task in JSON values of `encode_program`."""
    selector, estimates = _decode_choice(data, task)
    return RecordedProgram(data["optimizer"], tuple(map(trace_json.decode, data["traces"])), selector, estimates)


def _encode_estimates(estimates: Sequence[ProgramEstimate]) -> list[list[str]]:
    return [[e.program, show_expr(e.picoseconds)] for e in estimates]


def _decode_choice(data: Mapping[str, Any], task: Task) -> tuple[Expr | None, tuple[ProgramEstimate, ...]]:
    """The selector and the estimates in JSON values."""
    symbols = {v.name: v for v in task.func.symbols}
    selector = None if data["selector"] is None else parse_expr(data["selector"], symbols, {})
    estimates = tuple(ProgramEstimate(text, parse_expr(time, symbols, {})) for text, time in data["estimates"])
    return selector, estimates


def encode_built(built: BuiltKernel) -> dict[str, Any]:
    """A built kernel as JSON values."""
    programs = [{"trace": trace_json.encode(p.trace), "scheduled": show(p.scheduled)} for p in built.programs]
    return {
        "optimizer": built.optimizer,
        "programs": programs,
        "selector": None if built.selector is None else show_expr(built.selector),
        "code": b64encode(built.code).decode(),
        "estimates": _encode_estimates(built.estimates),
    }


def decode_built(data: Mapping[str, Any], task: Task) -> BuiltKernel:
    """The built kernel of a task in JSON values of `encode_built`; machine code, so the writer is trusted."""
    programs = tuple(BuiltProgram(trace_json.decode(p["trace"]), parse(p["scheduled"])) for p in data["programs"])
    selector, estimates = _decode_choice(data, task)
    prepacked = [prepack_constants(p.scheduled, task.constants) for p in programs]
    merged = merge_programs(task.func.name, prepacked, selector, task.func.symbols)
    return BuiltKernel(data["optimizer"], programs, selector, merged, b64decode(data["code"]), estimates)
