"""Whether a case is right: verified, and equal to the untransformed program in the interpreter and in native code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.codegen.native import TARGETS, Native
from tests.fuzz.case import Case, Program

from tilewright.errors import ScheduleError, VerifyError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Const, MemoryScope, const
from tilewright.layout.layout import Layout
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import GPU_AXES, For, Func, blocks, walk
from tilewright.loops.private_memory import workspace_of
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.schedule.step import Step, apply, replay
from tilewright.schedule.trace_json import decode, encode
from tilewright.verify.verifier import verify

Arrays = dict[str, np.ndarray[Any, Any]]

MAX_THREADS = 3
"""The largest number of threads that native code runs on."""


class WrongError(Exception):
    """A case is wrong: the stage at which that showed, and what showed."""

    def __init__(self, stage: str, what: str) -> None:
        super().__init__(f"{stage}: {what}")
        self.stage, self.what = stage, what


def failure_of(stage: str, error: BaseException) -> WrongError:
    """An exception as a failure; where it came from is part of the stage, so that two faults are told apart."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "tilewright" in file:
            place = f"{file.rsplit('/', 1)[-1]}:{trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return WrongError(f"{stage} {type(error).__name__} {place}".strip(), str(error))


def guarded(stage: str, action: Callable[[], Any]) -> Any:
    """What an action returns; an exception becomes a failure."""
    try:
        return action()
    except WrongError:
        raise
    except Exception as error:
        raise failure_of(stage, error) from error


def scheduled(case: Case, lenient: bool = False) -> tuple[Program, Func, Case]:
    """The program, its loops after the schedule, and the case with the steps that apply.

    Args:
        case: the case.
        lenient: whether steps that are not legal are left out.

    Raises:
        WrongError: a step raises something else than `ScheduleError`.
    """
    program = guarded("computation", case.program)
    func: Func = guarded("layouts", lambda: program.stored(case.layouts))
    steps = []
    for step in case.trace:
        try:
            func = apply(func, step)
        except ScheduleError:
            if not lenient:
                raise
            continue
        except Exception as error:
            raise failure_of(f"apply {step.primitive}", error) from error
        steps.append(step)
    return program, func, replace(case, record=program.record, trace=tuple(steps))


@dataclass(frozen=True)
class Expected:
    """The right answer: arrays as they are stored, and how far values may be off."""

    inputs: Arrays
    results: Arrays
    errors: Mapping[str, Any]


def expected(case: Case, program: Program, sizes: Mapping[str, int]) -> Expected:
    """Runs the untransformed program."""
    logical = random_arrays(case, program.func, sizes)
    results = ran(program.func, logical, sizes)
    written = outputs(program.func)
    errors: dict[str, Any] = {}
    for p in program.func.params:
        if p.name in written and p.dtype.is_float and not exact(case, program):
            wide, limit = with_error(case, logical, sizes, p.name)
            results[p.name], errors[p.name] = wide, limit
    laid = {p.name: case.layouts[p.name] for p in program.func.params if p.name in case.layouts}
    symbols = {v: sizes[v.name] for v in program.func.symbols}

    def stored(arrays: Mapping[str, Any]) -> Arrays:
        return {n: np.ascontiguousarray(laid[n].transform(a, sizes=symbols)) if n in laid else a
                for n, a in arrays.items()}  # fmt: skip

    return Expected(stored(logical), stored({n: results[n] for n in written}), stored(errors))


def exact(case: Case, program: Program) -> bool:
    """Whether no rounding happens: sums and products of small whole numbers."""
    return bool(case.record.get("whole")) and case.kind not in ("softmax", "attention")


def with_error(
    case: Case, arrays: Arrays, sizes: Mapping[str, int], name: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The result in double precision and a bound of what rounding in the program's own type may change."""
    wide = case.program("float64")
    inputs = {p.name: arrays[p.name].astype(p.dtype.numpy) for p in wide.func.params}
    result = ran(wide.func, inputs, sizes)[name]
    size = ran(wide.func, {n: abs(a) for n, a in inputs.items()}, sizes)[name] if wide.linear else result
    steps = 1
    for stage in wide.stages:
        for axis in stage.reduce_axes:
            steps *= at(axis.extent, wide.func, sizes)
    unit = float(np.finfo(arrays[name].dtype).eps)
    # The result too: differences of absolute values say nothing of it.
    largest = np.maximum(np.abs(size), np.abs(result) if wide.linear else np.abs(size).max(initial=0))
    return result, (4 * unit * (steps + 16)) * largest + 1e-30


def ran(func: Func, arrays: Arrays, sizes: Mapping[str, int], seed: int | None = None) -> Arrays:
    """All arrays after a run of the interpreter on copies."""
    copies = {n: np.array(a) for n, a in arrays.items()}
    with np.errstate(all="ignore"):
        interpret(func, copies, sizes, seed=seed)
    return copies


def at(size: Any, func: Func, sizes: Mapping[str, int]) -> int:
    """A size as a number."""
    value = substitute(size, {s: const(sizes[s.name]) for s in func.symbols})
    assert isinstance(value, Const), value
    return int(value.value)


def outputs(func: Func) -> list[str]:
    """Names of the parameters that are written."""
    written = {b.body.buffer.name for b in blocks(func.body)}
    return [p.name for p in func.params if p.name in written]


def random_arrays(case: Case, func: Func, sizes: Mapping[str, int]) -> Arrays:
    """Data for all parameters; outputs hold garbage."""
    rng = np.random.default_rng(case.seed)
    written = outputs(func)
    arrays: Arrays = {}
    for p in func.params:
        shape = tuple(at(n, func, sizes) for n in p.shape)
        if p.name in written:
            arrays[p.name] = np.full(shape, 99, p.dtype.numpy)
        elif case.record.get("whole") or p.dtype.is_int:
            low = 0 if p.dtype.kind == "u" else -3
            arrays[p.name] = rng.integers(low, 4, shape).astype(p.dtype.numpy)
        else:
            arrays[p.name] = rng.standard_normal(shape).astype(p.dtype.numpy)
    return arrays


def compare(stage: str, expected: Expected, actual: Arrays) -> None:
    """Raises a failure where a result differs, or an input was changed."""
    for name, right in expected.results.items():
        value = actual[name]
        limit = expected.errors.get(name)
        wrong = value != right
        if limit is not None:
            with np.errstate(invalid="ignore"):  # infinities are equal or wrong
                wrong &= ~(np.abs(value.astype(np.float64) - right) <= limit)
        if np.any(wrong):
            place = tuple(int(k[0]) for k in np.nonzero(wrong)) if value.ndim else ()
            count = f"{int(wrong.sum())} of {value.size} wrong"
            what = f"{name}{list(place)}: expected {right[place]}, got {value[place]}; {count}"
            raise WrongError(stage, what)
    for name, before in expected.inputs.items():
        if name not in expected.results and not np.array_equal(actual[name], before, equal_nan=True):
            raise WrongError(stage, f"input {name} was changed")


def runnable(func: Func) -> Func:
    """The function with register buffers that are not in their final form on the stack, or else in memory."""
    for scope in (None, MemoryScope.STACK, MemoryScope.MEMORY):
        try:
            verify(func)
            return func
        except VerifyError:
            if scope is MemoryScope.MEMORY:
                break
        func = without_registers(func)
    return func


def without_registers(func: Func) -> Func:
    """The function with its register buffers on the stack, or in memory where that is not legal."""
    for b in func.allocs:
        if b.scope is MemoryScope.REGISTER:
            for scope in (MemoryScope.STACK, MemoryScope.MEMORY):
                try:
                    func = apply_scope(func, b, scope)
                    break
                except ScheduleError:
                    continue
    return func


def apply_scope(func: Func, buffer: Buffer, scope: MemoryScope) -> Func:
    """`set_scope`."""
    return apply(func, Step.of("set_scope", buffer.name, scope))


def other_sizes(program: Program, layouts: Mapping[str, Layout]) -> list[Mapping[str, int]]:
    """The sizes that a case runs with: those drawn, and the least ones."""
    if not program.sizes:
        return [{}]
    return [program.sizes, program.least] if program.sizes != program.least else [program.sizes]


def check(case: Case, native: bool = True, deep: bool = False) -> None:
    """Raises a `WrongError` where the case is wrong.

    Args:
        case: the case, whose steps are legal.
        native: whether code is made and run.
        deep: whether the trace is also replayed from its JSON form.
    """
    program, func, case = scheduled(case)
    guarded("verify", lambda: verify(func, registers=False))
    if deep:
        again = guarded("replay", lambda: replay(program.stored(case.layouts), decode(encode(case.trace))))
        if again != func:
            raise WrongError("replay", "the trace from JSON makes another function")
    expected_results = [(sizes, guarded("oracle", lambda s=sizes: expected(case, program, s)))
              for sizes in other_sizes(program, case.layouts)]  # fmt: skip
    for number, (sizes, reference) in enumerate(expected_results):
        for seed in (None, case.seed) if number == 0 else (case.seed,):
            stage = "interpreter" if seed is None else "interpreter, shuffled"
            actual = guarded(stage, lambda s=sizes, w=reference, k=seed: ran(func, w.inputs, s, k))
            compare(stage, reference, actual)
    if native and not any(isinstance(s, For) and s.kind in GPU_AXES for s, _ in walk(func.body)):
        check_native(func, case, expected_results)


def check_native(func: Func, case: Case, expected_results: list[tuple[Mapping[str, int], Expected]]) -> None:
    """Runs the function on every instruction set, its arrays before and behind pages that trap."""
    final = runnable(func)
    guarded("verify, registers", lambda: verify(final))
    # workspace is the caller's then, so that it is guarded too
    open_func = expose_workspace(final)
    rooms = [workspace_of(open_func, b, const(MAX_THREADS)) for b in open_func.params[len(func.params) :]]
    for target in TARGETS:
        code: Native = guarded(f"compile {target}", lambda t=target: Native(open_func, target=t))
        for sizes, expected in expected_results:
            room = {b.name: np.full([at(n, func, sizes) for n in b.shape], 77, b.dtype.numpy) for b in rooms}
            for at_end in (True, False):
                threads = 1 + (case.seed + at_end) % MAX_THREADS
                actual = code({**expected.inputs, **room}, sizes, threads, at_end=at_end)
                compare(f"native {target}", expected, actual)
