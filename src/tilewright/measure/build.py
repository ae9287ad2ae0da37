"""Building of candidates: from a task and a trace to object code that another process runs.

The result depends on the arguments alone, so workers and this process build the same bytes.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.codegen import compile_object, emit_llvm
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Buffer, const
from tilewright.loops.ir import Func, blocks
from tilewright.loops.lowering import lower_to_loops
from tilewright.loops.private_memory import is_private, workspace_of
from tilewright.lower.prepack_constants import prepack_constants
from tilewright.optimize.measurer import Candidate
from tilewright.optimize.task import Task
from tilewright.schedule import trace_json
from tilewright.schedule.step import replay
from tilewright.verify.verifier import verify

KERNEL, PREPACK = "kernel", "prepack"
"""Names of the functions of a built candidate."""

Sizes = Mapping[str, int]
"""Sizes of a task's symbols by name."""


@dataclass(frozen=True, slots=True)
class BuiltParameter:
    """A parameter of a function.

    Attributes:
        name: of the task's parameter, of a prepacked constant, or of workspace.
        dtype: name of its element type.
        shapes: its shape per case, for one thread.
        is_written: whether the function writes it.
        is_private: whether its first dimension has one entry per thread.
    """

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    is_written: bool
    is_private: bool


@dataclass(frozen=True, slots=True)
class BuiltFunction:
    """An exported function: `void name(void *parameters..., int64 symbols..., int64 threads)`.

    Attributes:
        name: its symbol.
        parameters: in order.
        symbols: values of its symbols per case.
    """

    name: str
    parameters: tuple[BuiltParameter, ...]
    symbols: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class BuiltCandidate:
    """Object code of a candidate.

    Attributes:
        code: an object file.
        kernel: the function that is timed.
        prepack: the function that computes prepacked constants, which are parameters of the kernel by name; None where
            there are none.
    """

    code: bytes
    kernel: BuiltFunction
    prepack: BuiltFunction | None


def build_candidate(task: Task, candidate: Candidate, cases: Sequence[Sizes]) -> BuiltCandidate:
    """Builds a candidate.

    Args:
        task: the kernel, in canonical form.
        candidate: its program.
        cases: sizes of the task's symbols for which it will run.

    Raises:
        ScheduleError: a step of the trace is not legal.
        VerifyError: the loops are refused.
        InternalError: they cannot be expressed.
    """
    scheduled = replay(task.func, candidate.trace)
    verify(scheduled)
    prepacked = prepack_constants(scheduled, task.constants)
    if prepacked.func != scheduled:
        verify(prepacked.func)
    functions = [_renamed_func(prepacked.func, KERNEL)]
    if prepacked.prepacked:
        inputs = dict.fromkeys(b for c in prepacked.prepacked for b in c.inputs)
        outputs = [c.output for c in prepacked.prepacked]
        params = [*(b for b in inputs if b not in outputs), *outputs]
        functions.append(lower_to_loops(PREPACK, prepacked.prepacked, params, ()))
        verify(functions[-1])
    code = compile_object(emit_llvm(functions, [], task.target), task.target)
    kernel, *prepack = (_describe_function(f, cases) for f in functions)
    return BuiltCandidate(code, kernel, prepack[0] if prepack else None)


def _renamed_func(func: Func, name: str) -> Func:
    return Func(name, func.params, func.symbols, func.allocs, func.body)


def _describe_function(func: Func, cases: Sequence[Sizes]) -> BuiltFunction:
    written = {b.body.buffer.name for b in blocks(func.body)}
    symbols = tuple(tuple(sizes[s.name] for s in func.symbols) for sizes in cases)

    def parameter(b: Buffer) -> BuiltParameter:
        room = workspace_of(func, b, const(1))
        shapes = tuple(shape_at(room, func, sizes) for sizes in cases)
        return BuiltParameter(b.name, b.dtype.name, shapes, b.name in written, is_private(b))

    return BuiltFunction(func.name, tuple(map(parameter, func.params)), symbols)


def shape_at(b: Buffer, func: Func, sizes: Sizes) -> tuple[int, ...]:
    """The shape of a parameter of a function for sizes of its symbols."""
    env = Environment({s: np.int64(sizes[s.name]) for s in func.symbols}, {})
    return tuple(int(evaluate_expr(n, env)) for n in b.shape)


def encode_candidate(candidate: Candidate) -> dict[str, Any]:
    """A candidate as JSON values."""
    return trace_json.encode(candidate.trace)


def decode_candidate(data: object) -> Candidate:
    """The candidate in JSON values.

    Raises:
        TraceError: the values are no trace.
    """
    return Candidate(trace_json.decode(data))


def encode_built(built: BuiltCandidate) -> dict[str, Any]:
    """A built candidate as JSON values."""
    functions = [_encode_function(f) for f in (built.kernel, built.prepack) if f is not None]
    return {"code": b64encode(built.code).decode(), "functions": functions}


def decode_built(data: Mapping[str, Any]) -> BuiltCandidate:
    """The built candidate in JSON values of `encode_built`; machine code, so the writer is trusted."""
    kernel, *prepack = map(_decode_function, data["functions"])
    return BuiltCandidate(b64decode(data["code"]), kernel, prepack[0] if prepack else None)


def _encode_function(f: BuiltFunction) -> dict[str, Any]:
    parameters = [[p.name, p.dtype, p.shapes, p.is_written, p.is_private] for p in f.parameters]
    return {"name": f.name, "parameters": parameters, "symbols": f.symbols}


def _decode_function(data: Mapping[str, Any]) -> BuiltFunction:
    parameters = (
        BuiltParameter(name, dtype, tuple(map(tuple, shapes)), is_written, is_private)
        for name, dtype, shapes, is_written, is_private in data["parameters"]
    )
    return BuiltFunction(data["name"], tuple(parameters), tuple(map(tuple, data["symbols"])))
