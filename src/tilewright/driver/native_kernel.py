"""One loop function as native code that can be called: the same entry, linker, workspace and checks as a model's."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.codegen import KernelCall, Segment, assembly, compile_object, emit_llvm
from tilewright.driver.kernel_signature import KernelSignature, parameter_spec
from tilewright.errors import FeedError, OptionError
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import ceildiv
from tilewright.expr.traversal import free_vars
from tilewright.graph.buffer_location import BufferLocation, InputLocation, OutputLocation, WorkspaceLocation
from tilewright.loops.ir import Func
from tilewright.loops.printer import show
from tilewright.machine import Target, team_size, thread_count
from tilewright.machine.alignment import BUFFER_ALIGNMENT
from tilewright.measure.native_functions import with_workspace_params
from tilewright.runtime.call_frame import CallPlan
from tilewright.runtime.feeds import make_contiguous
from tilewright.runtime.linker import link
from tilewright.runtime.manifest import NativeStep, format_dims
from tilewright.runtime.native_call import NativeCall, cache_plan
from tilewright.runtime.workspace import WorkspacePool
from tilewright.verify.index_overflow import overflow_candidates

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
        self.signature = KernelSignature(func)
        code = compile_object(kernel_llvm(func, target), target)
        outputs = tuple(parameter_spec(b) for b in self.signature.outputs)
        step = NativeStep(_PREFIX, self.signature.specs, outputs, (), tuple(s.name for s in func.symbols))
        self._native = NativeCall(step, link(code, [_PREFIX], f"kernel '{func.name}'"), {})
        self._pool = WorkspacePool()
        self._plans: dict[tuple[tuple[int, ...], ...], CallPlan] = {}

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
        given = self.signature.bind_inputs(arrays, named)
        shapes = tuple(a.shape for a in given.values())
        plan = None if self.signature.free_symbols else self._plans.get(shapes)
        if plan is None:
            plan = self._native.plan(self.signature.bind_sizes(given, named))
            if not self.signature.free_symbols:
                cache_plan(self._plans, shapes, plan)
        inputs = [make_contiguous(name, array) for name, array in given.items()]
        into = None if out is None else self._checked_out(out, plan, inputs)
        results = self._native.run(inputs, plan, self._pool, self._team, into)
        return results[0] if len(results) == 1 else tuple(results)

    def _checked_out(self, out: "Array | Sequence[Array]", plan: CallPlan, inputs: Sequence[Array]) -> list[Array]:
        """The arrays for the outputs, which fit and lie apart from everything else."""
        given: list[Any] = list(out) if isinstance(out, (tuple, list)) else [out]
        outputs = self.signature.outputs
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
        return kernel_text(self.func, level, self.target)

    def __repr__(self) -> str:
        ins, outs = (", ".join(map(str, bs)) for bs in (self.signature.inputs, self.signature.outputs))
        return f"<NativeKernel {self.func.name} ({ins}) -> ({outs}), {self.target}, {self.threads} threads>"


def native_segment(func: Func) -> tuple[Func, Segment]:
    """The function with its internal memory as parameters, and the native entry that calls it.

    Every buffer of scope memory gets a place of its own in the workspace.
    """
    kernel, known = with_workspace_params(func), KernelSignature(func)
    offset: Expr = const(0)
    rooms: list[BufferLocation] = []
    for b in kernel.params[len(func.params) :]:
        rooms.append(WorkspaceLocation(offset))
        offset = offset + ceildiv(b.size * b.dtype.bytes, BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
    places: dict[str, BufferLocation] = {b.name: InputLocation(k) for k, b in enumerate(known.inputs)}
    places |= {b.name: OutputLocation(k) for k, b in enumerate(known.outputs)}
    call = KernelCall(func.name, (*(places[p.name] for p in func.params), *rooms), func.symbols)
    sizes = tuple(dict.fromkeys(e for e in (b.size * b.dtype.bytes for b in kernel.params) if free_vars(e)))
    shapes = tuple(b.shape for b in known.outputs)
    bounds = overflow_candidates(func, {})
    return kernel, Segment(_PREFIX, func.symbols, (call,), offset, shapes, (), (), sizes, bounds)


def kernel_llvm(func: Func, target: Target) -> str:
    """The LLVM IR of a function and its entry.

    Raises:
        TargetError: a loop is bound to an axis of a GPU.
    """
    kernel, segment = native_segment(func)
    return emit_llvm([kernel], [segment], target)


def kernel_text(func: Func, level: str, target: Target) -> str:
    """A scheduled function as text of one level.

    Raises:
        OptionError: there is no such level.
    """
    match level:
        case "loops":
            return show(func)
        case "llvm":
            return kernel_llvm(func, target)
        case "assembly":
            return assembly(kernel_llvm(func, target), target)
        case _:
            raise OptionError(f"there is no level {level!r}", where="inspect", hint="use loops, llvm or assembly")
