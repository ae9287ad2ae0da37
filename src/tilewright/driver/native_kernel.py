"""One loop function as native code that can be called: the same entry, linker, workspace and checks as a model's."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.codegen import Call, Input, Location, Output, Segment, Workspace, assembly, compile_object, emit_llvm
from tilewright.driver.interface import Interface, spec_of
from tilewright.errors import FeedError, OptionError
from tilewright.expr.nodes import Expr, ceildiv, const, free_vars
from tilewright.loops.ir import Func
from tilewright.loops.printer import show
from tilewright.loops.reach import reached
from tilewright.machine import Target, team_size, thread_count
from tilewright.measure.functions import with_workspace
from tilewright.runtime.feeds import contiguous
from tilewright.runtime.frame import Plan
from tilewright.runtime.loader import link
from tilewright.runtime.manifest import NativeStep, format_dims
from tilewright.runtime.native import NativeCall, remember
from tilewright.runtime.workspace import ALIGNMENT, WorkspacePool

Array = np.ndarray[Any, Any]

_PREFIX = "tw"


class NativeKernel:
    """A kernel as native code for this machine; made by `Workbench.build`.

    Call it with NumPy arrays (or what has `__dlpack__`), in the order of its inputs or by name, and with the sizes
    that no input tells by name:

        C = kernel(A, B)
        kernel(A, B=B, out=C)

    One output comes back as an array, several as a tuple. Types are never converted. Several threads may call at once.
    """

    def __init__(self, func: Func, target: Target, threads: int | None = None) -> None:
        """Args: scheduled and verified loops, the machine, threads per call (None: environment, then the system).

        Raises:
            TargetError: this machine can't run code for the target, or a loop is bound to an axis of a GPU.
            OptionError: `threads` is no number of threads.
        """
        target.check_host()
        self.func, self.target, self.threads = func, target, thread_count(threads)
        self._team = team_size(self.threads)
        self.interface = Interface(func)
        code = compile_object(native_text(func, target), target)
        outputs = tuple(spec_of(b) for b in self.interface.outputs)
        step = NativeStep(_PREFIX, self.interface.specs, outputs, (), tuple(s.name for s in func.symbols))
        self._native = NativeCall(step, link(code, [_PREFIX], f"kernel '{func.name}'"), {})
        self._pool = WorkspacePool()
        self._plans: dict[tuple[tuple[int, ...], ...], Plan] = {}

    def __call__(self, *arrays: object, out: "Array | Sequence[Array] | None" = None, **named: object) -> Any:
        """Computes the outputs.

        Args:
            arrays: inputs in order.
            out: arrays that receive the outputs: one, or one per output.
            named: inputs by name, and sizes of symbols.

        Raises:
            FeedError: lists every input that is missing, unknown, or of the wrong type or shape.
            ShapeError: sizes that contradict each other or leave their declared range.
        """
        given = self.interface.arrays(arrays, named)
        shapes = tuple(a.shape for a in given.values())
        plan = None if self.interface.free else self._plans.get(shapes)
        if plan is None:
            plan = self._native.plan(self.interface.sizes(given, named))
            if not self.interface.free:
                remember(self._plans, shapes, plan)
        inputs = [contiguous(name, array) for name, array in given.items()]
        into = None if out is None else self._checked_out(out, plan, inputs)
        results = self._native.run(inputs, plan, self._pool, self._team, into)
        return results[0] if len(results) == 1 else tuple(results)

    def _checked_out(self, out: "Array | Sequence[Array]", plan: Plan, inputs: Sequence[Array]) -> list[Array]:
        """The arrays for the outputs, which fit and lie apart from everything else."""
        given: list[Any] = list(out) if isinstance(out, (tuple, list)) else [out]
        outputs = self.interface.outputs
        if len(given) != len(outputs):
            raise FeedError(f"expected {len(outputs)} arrays, got {len(given)}", where="out")
        for k, (b, array, (shape, dtype)) in enumerate(zip(outputs, given, plan.outputs, strict=True)):
            where = f"out, output '{b.name}'"
            wanted = f"{b.dtype} {format_dims(shape)}"
            if not isinstance(array, np.ndarray):
                raise FeedError(f"expected a NumPy array {wanted}, got {type(array).__name__}", where=where)
            if array.dtype != dtype or array.shape != shape:
                raise FeedError(f"expected {wanted}, got {array.dtype.name} {format_dims(array.shape)}", where=where)
            if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
                raise FeedError("expected a contiguous, aligned and writeable array", where=where)
            if any(np.may_share_memory(array, other) for other in (*inputs, *given[:k])):
                raise FeedError("it shares memory with an input or another output", where=where)
        return given

    def inspect(self, level: str = "loops") -> str:
        """The kernel as text; `level` is "loops", "llvm" or "assembly"."""
        return shown(self.func, level, self.target)

    def __repr__(self) -> str:
        ins, outs = (", ".join(map(str, bs)) for bs in (self.interface.inputs, self.interface.outputs))
        return f"<NativeKernel {self.func.name} ({ins}) -> ({outs}), {self.target}, {self.threads} threads>"


def native_segment(func: Func) -> tuple[Func, Segment]:
    """The function with its internal memory as parameters, and the native entry that calls it.

    Every buffer of scope memory gets a place of its own in the workspace.
    """
    kernel, known = with_workspace(func), Interface(func)
    offset: Expr = const(0)
    rooms: list[Location] = []
    for b in kernel.params[len(func.params) :]:
        rooms.append(Workspace(offset))
        offset = offset + ceildiv(b.size * b.dtype.bytes, ALIGNMENT) * ALIGNMENT
    places: dict[str, Location] = {b.name: Input(k) for k, b in enumerate(known.inputs)}
    places |= {b.name: Output(k) for k, b in enumerate(known.outputs)}
    call = Call(func.name, (*(places[p.name] for p in func.params), *rooms), func.symbols)
    sizes = tuple(dict.fromkeys(e for e in (b.size * b.dtype.bytes for b in kernel.params) if free_vars(e)))
    shapes = tuple(b.shape for b in known.outputs)
    return kernel, Segment(_PREFIX, func.symbols, (call,), offset, shapes, (), sizes, reached(func, {}))


def native_text(func: Func, target: Target) -> str:
    """The LLVM IR of a function and its entry.

    Raises:
        TargetError: a loop is bound to an axis of a GPU.
    """
    kernel, segment = native_segment(func)
    return emit_llvm([kernel], [segment], target)


def shown(func: Func, level: str, target: Target) -> str:
    """A scheduled function as text of one level.

    Raises:
        OptionError: there is no such level.
    """
    match level:
        case "loops":
            return show(func)
        case "llvm":
            return native_text(func, target)
        case "assembly":
            return assembly(native_text(func, target), target)
        case _:
            raise OptionError(f"there is no level {level!r}", where="inspect", hint="use loops, llvm or assembly")
