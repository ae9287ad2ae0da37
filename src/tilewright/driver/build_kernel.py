"""What becomes of a task: scheduled loops and object code; a function of the task, the optimizer and the machine alone.

It travels between processes and is kept on disk as JSON values: the loops as text, and the code.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.codegen import compile_object, emit_kernel_module
from tilewright.cost.parallel_grains import threads_may_pay
from tilewright.errors import InternalError, ScheduleError, VerifyError
from tilewright.loops.ir import For, Func, LoopKind, walk
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.lower.prepack_constants import PrepackedKernel, prepack_constants
from tilewright.machine.model import Machine
from tilewright.optimize.constructions import Constructions
from tilewright.optimize.interface import FALLBACK, optimizer_named
from tilewright.optimize.task import Task
from tilewright.schedule import trace_json
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Trace
from tilewright.verify.verifier import verify


@dataclass(frozen=True, slots=True, eq=False)
class BuiltKernel:
    """What became of a task.

    Attributes:
        optimizer: name of the optimizer that scheduled it.
        trace: its steps.
        scheduled: the scheduled loops, with the packing of constants; verified.
        prepacked: the same without the packing, which becomes computations of compile time; verified.
        code: the object file of its function; empty where code was not asked for.
    """

    optimizer: str
    trace: Trace
    scheduled: Func
    prepacked: PrepackedKernel
    code: bytes


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
    attempts = {preferred: constructions.schedule} | ({} if preferred == FALLBACK else {FALLBACK: fallback.optimize})
    for optimizer, make_schedule in attempts.items():
        try:
            schedule = schedule_for_threads(make_schedule, task, machine)
            if schedule is None:
                continue
            verify(schedule.func)
            prepacked = prepack_constants(schedule.func, task.constants)
            if prepacked.func != schedule.func:
                verify(prepacked.func)
        except (ScheduleError, VerifyError) as error:
            raise InternalError(f"optimizer {optimizer!r} made an illegal program: {error}", where=where) from error
        code = kernel_code(prepacked.func, task) if with_code else b""
        return BuiltKernel(optimizer, schedule.trace, schedule.func, prepacked, code)
    raise InternalError("no optimizer applies", where=where)


def kernel_code(func: Func, task: Task) -> bytes:
    """The object file of a task's function, given its scheduled loops without the packing of constants."""
    named = replace(func, name=task.func.name)
    return compile_object(emit_kernel_module(named, kernel_symbol(task), task.target), task.target)


def kernel_symbol(task: Task) -> str:
    """The symbol of a task's function: the same in every model, and another for every task."""
    return f"kernel.{task.hash[:32]}"


def schedule_for_threads(
    make_schedule: Callable[[Task], Schedule | None], task: Task, machine: Machine
) -> Schedule | None:
    """The schedule for a task, without parallel loops where threads pay at no size (`cost.parallel_grains`).

    Loops that turn out scalar take longer than vectorised ones, so they may pay for threads where those do not.
    """
    serial = task.with_threads(1)
    if not threads_may_pay(task.func, machine, vectorized=False):
        return make_schedule(serial)
    if not threads_may_pay(task.func, machine, vectorized=True):
        schedule = make_schedule(serial)
        if schedule is None or _is_vectorized(schedule.func):
            return schedule
    return make_schedule(task)


def _is_vectorized(func: Func) -> bool:
    return any(isinstance(s, For) and s.kind is LoopKind.VECTORIZED for s, _ in walk(func.body))


def encode_built(built: BuiltKernel) -> dict[str, Any]:
    """A built kernel as JSON values."""
    return {
        "optimizer": built.optimizer,
        "trace": trace_json.encode(built.trace),
        "scheduled": show(built.scheduled),
        "code": b64encode(built.code).decode(),
    }


def decode_built(data: Mapping[str, Any], task: Task) -> BuiltKernel:
    """The built kernel of a task in JSON values of `encode_built`; machine code, so the writer is trusted."""
    scheduled = parse(data["scheduled"])
    prepacked = prepack_constants(scheduled, task.constants)
    trace = trace_json.decode(data["trace"])
    return BuiltKernel(data["optimizer"], trace, scheduled, prepacked, b64decode(data["code"]))
