"""A loop function as a native callable, with the entry, linker, workspace and checks of compiled models."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.codegen import compile_object
from tilewright.driver.kernel_build.kernel_entry import ENTRY_PREFIX, kernel_llvm, kernel_text
from tilewright.driver.kernel_build.kernel_signature import KernelSignature, parameter_spec
from tilewright.errors import FeedError, pluralize
from tilewright.loops.ir import Func
from tilewright.machine import Target, team_size, thread_count
from tilewright.runtime.call_frame import CallPlan
from tilewright.runtime.feeds import make_contiguous
from tilewright.runtime.linker import link
from tilewright.runtime.manifest import NativeStep, format_dims
from tilewright.runtime.native_call import NativeCall, cache_plan
from tilewright.runtime.workspace import WorkspacePool

Array = np.ndarray[Any, Any]


class NativeKernel:
    """A kernel as native code for this machine; made by `Workbench.build`.

    Call it with NumPy arrays (or what has `__dlpack__`), in the order of its inputs or by name, and with the sizes
    that no input determines, by name:

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
        step = NativeStep(ENTRY_PREFIX, self.signature.specs, outputs, (), tuple(s.name for s in func.symbols))
        self._native = NativeCall(step, link(code, [ENTRY_PREFIX], f"kernel '{func.name}'"), {}, self._team)
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
        feeds = self.signature.bind_inputs(arrays, named)
        shapes = tuple(a.shape for a in feeds.values())
        plan = None if self.signature.free_symbols else self._plans.get(shapes)
        if plan is None:
            plan = self._native.plan(self.signature.bind_sizes(feeds, named))
            if not self.signature.free_symbols:
                cache_plan(self._plans, shapes, plan)
        inputs = [make_contiguous(name, array) for name, array in feeds.items()]
        into = None if out is None else self._checked_out(out, plan, inputs)
        results = self._native.run(inputs, plan, self._pool, self._team, into)
        return results[0] if len(results) == 1 else tuple(results)

    def _checked_out(self, out: "Array | Sequence[Array]", plan: CallPlan, inputs: Sequence[Array]) -> list[Array]:
        """The arrays for the outputs, which fit and share no memory with inputs or each other."""
        targets: list[Any] = list(out) if isinstance(out, (tuple, list)) else [out]
        outputs = self.signature.outputs
        if len(targets) != len(outputs):
            raise FeedError(f"expected {pluralize(len(outputs), 'array')}, got {len(targets)}", where="out")
        for k, (b, array, (shape, dtype)) in enumerate(zip(outputs, targets, plan.outputs, strict=True)):
            where = f"out, output '{b.name}'"
            expected = f"{b.dtype} {format_dims(shape)}"
            if not isinstance(array, np.ndarray):
                raise FeedError(f"expected a NumPy array {expected}, got {type(array).__name__}", where=where)
            if array.dtype != dtype or array.shape != shape:
                raise FeedError(f"expected {expected}, got {array.dtype.name} {format_dims(array.shape)}", where=where)
            if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
                raise FeedError("expected a contiguous, aligned and writeable array", where=where)
            if any(np.may_share_memory(array, other) for other in (*inputs, *targets[:k])):
                raise FeedError("it shares memory with an input or another output", where=where)
        return targets

    def inspect(self, level: str = "loops") -> str:
        """The kernel as text; `level` is "loops", "llvm" or "assembly"."""
        return kernel_text(self.func, level, self.target)

    def __repr__(self) -> str:
        ins, outs = (", ".join(map(str, bs)) for bs in (self.signature.inputs, self.signature.outputs))
        threads = pluralize(self.threads, "thread")
        return f"<NativeKernel {self.func.name} ({ins}) -> ({outs}), {self.target}, {threads}>"
