"""Native calls of one step: sizes in, output shapes and workspace out, then a single call into the object code.

What depends on the sizes alone (constraints, output shapes, workspace size) is computed by native code once per
combination of sizes and cached, so that a repeated shape costs one native call. Its arguments are prepared, too
(`call_frame`): a call takes an idle frame, sets the inputs' addresses, and returns it.
"""

import ctypes
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from tilewright.errors import InternalError, ShapeError, TilewrightError
from tilewright.runtime.call_frame import CAN_REUSE_OUTPUTS, MAX_REUSED_BYTES, CallFrame, CallPlan, address_of
from tilewright.runtime.fast_call import MISMATCH
from tilewright.runtime.linker import CHECK_TYPE, MAIN_TYPE, SHAPES_TYPE, WORKSPACE_TYPE, Library, entry_symbols
from tilewright.runtime.manifest import NativeStep
from tilewright.runtime.pages import populate_read
from tilewright.runtime.weights import numpy_dtype
from tilewright.runtime.workspace import WorkspacePool

MAX_CACHED_PLANS = 512
MAX_FRAMES = 2
"""Frames that alternate where calls do not overlap."""

MAX_MAPPED_AHEAD_BYTES = 64 << 20
"""Memory for the largest sizes that a model declares, which is mapped when it is loaded; then no shape's first call
maps any."""

Key = TypeVar("Key")


def cache_plan(plans: dict[Key, CallPlan], key: Key, plan: CallPlan) -> None:
    """Caches a plan, and drops all others when there are too many.

    Each line is atomic, so no lock is needed: threads may call at once, and a fork cannot leave a lock held.
    """
    if len(plans) >= MAX_CACHED_PLANS:
        plans.clear()
    plans[key] = plan


class NativeCall:
    """A native step bound to its linked functions and weights; thread-safe."""

    def __init__(
        self,
        step: NativeStep,
        library: Library,
        weights: Mapping[str, np.ndarray],
        threads: int,
        reuse_outputs: bool = True,
    ) -> None:
        """Args:
        step: the step.
        library: the linked code.
        weights: all weights by name (64-byte aligned; kept alive here).
        threads: the most threads that a call uses; workspaces have room for so many.
        reuse_outputs: whether memory of outputs that the caller has dropped is reused by the next call.
        """
        check, shapes, workspace, main = (library.addresses[name] for name in entry_symbols(step.prefix))
        self.step = step
        self._library, self._threads = library, threads
        self._check, self._shapes = CHECK_TYPE(check), SHAPES_TYPE(shapes)
        self._workspace, self._main, self._main_address = WORKSPACE_TYPE(workspace), MAIN_TYPE(main), main
        self._weight_arrays = [weights[name] for name in step.weights]
        self._weights = (ctypes.c_void_p * len(self._weight_arrays))(
            *(address_of(array) for array in self._weight_arrays)
        )
        self._dtypes = [numpy_dtype(spec.dtype) for spec in step.outputs]
        self._reuse_outputs = reuse_outputs and CAN_REUSE_OUTPUTS
        self._frames: deque[CallFrame] = deque()
        self._frame_count = 0
        self._plans: dict[tuple[int, ...], CallPlan] = {}

    def plan(self, sizes: Mapping[str, int]) -> CallPlan:
        """Output shapes and workspace size for the sizes of the symbols.

        Raises:
            ShapeError: the sizes violate a constraint of the model, or need more memory than there can be.
        """
        return self.plan_of(tuple([sizes[name] for name in self.step.symbols]))

    def plan_of(self, key: tuple[int, ...]) -> CallPlan:
        """`plan` for sizes in the order of the step's symbols."""
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(key)
            cache_plan(self._plans, key, plan)
        return plan

    def _make_plan(self, key: tuple[int, ...]) -> CallPlan:
        sizes = (ctypes.c_int64 * max(1, len(key)))(*key)
        status = self._check(sizes, self._threads)
        if status:
            raise self._size_error(key, status)
        ranks = [len(spec.dims) for spec in self.step.outputs]
        flat = (ctypes.c_int64 * max(1, sum(ranks)))()
        self._shapes(sizes, flat)
        outputs: list[tuple[tuple[int, ...], np.dtype]] = []
        start = 0
        for rank, dtype in zip(ranks, self._dtypes, strict=True):
            outputs.append((tuple(flat[start : start + rank]), dtype))
            start += rank
        workspace = self._workspace(sizes, self._threads)
        if workspace < 0 or any(size < 0 for shape, _ in outputs for size in shape):
            raise InternalError(f"native code asked for {workspace} bytes and the outputs {[s for s, _ in outputs]}")
        output_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in outputs)
        return CallPlan(sizes, tuple(outputs), workspace, output_bytes)

    def warm_up(self, pool: WorkspacePool, largest: Mapping[str, int]) -> None:
        """Does the one-time work of the first call: maps the weights, the workspace and the memory of the outputs,
        unless they are very large or sizes have no declared maximum.

        Args:
            pool: of the calls' workspaces.
            largest: maxima of the symbols that have one.
        """
        for array in self._weight_arrays:
            populate_read(address_of(array), array.nbytes)
        if not all(name in largest for name in self.step.symbols):
            return
        try:
            plan = self.plan(largest)
        except TilewrightError:
            return  # no call can have all sizes at their maxima
        # calls alternate between frames; with fixed sizes the second is mapped when it is needed, once
        frames, most = (MAX_FRAMES, MAX_MAPPED_AHEAD_BYTES) if self.step.symbols else (1, MAX_REUSED_BYTES)
        if plan.workspace_bytes + frames * plan.output_bytes > most:
            return
        try:
            if plan.workspace_bytes:
                pool.give(pool.take(plan.workspace_bytes))
            for _ in range(frames if self._reuse_outputs else 0):
                frame = self._new_frame()
                frame.prepare(plan)
                self._frames.append(frame)
        except (MemoryError, ValueError):
            return  # the call reports it

    def try_fast_call(self, inputs: Sequence[object], pool: WorkspacePool, threads: int) -> list[np.ndarray] | None:
        """Computes the outputs if the inputs are arrays of the dtypes and shapes of an earlier call of `run`; None,
        without any effect, where they are not, or where all memory of outputs is in use.

        Args: as for `run`.
        """
        try:
            frame = self._frames.popleft()
        except IndexError:
            return None
        fast_call, status = frame.fast_call, MISMATCH
        outputs: list[np.ndarray] = []
        if fast_call is not None and threads == frame.threads and frame.is_unused():
            outputs = [array.view() for array in frame.arrays]
            if frame.workspace_bytes:
                block = pool.take(frame.workspace_bytes)
                frame.set_workspace(block.address)
                try:
                    status = fast_call(*inputs)
                finally:
                    pool.give(block)
            else:
                status = fast_call(*inputs)
        if status == MISMATCH:
            # the caller falls back to `run`, with the frame that has been idle longest
            self._frames.appendleft(frame)
            return None
        self._frames.append(frame)
        if status:
            raise self._status_error(status)
        return outputs

    def run(
        self,
        inputs: Sequence[np.ndarray],
        plan: CallPlan,
        pool: WorkspacePool,
        threads: int,
        into: Sequence[np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """Computes the outputs.

        Args:
            inputs: contiguous arrays of the step's dtypes and of shapes that fit the plan.
            plan: the result of `plan` for their sizes.
            pool: of workspaces.
            threads: limit of threads, at most that of the constructor.
            into: contiguous arrays of the plan's dtypes and shapes to write to; None allocates them.

        Raises:
            ShapeError: there is not enough memory for these sizes.
        """
        try:
            # deque.popleft and deque.append are atomic, so no lock is needed and a fork cannot leave one held. The
            # frame that has been idle longest comes first, as its outputs are the likeliest to be dropped
            frame = self._frames.popleft()
        except IndexError:
            frame = self._new_frame()
        is_repeated = into is None and frame.is_ready_for(plan)
        try:
            if not is_repeated:
                frame = self._prepare_frame(frame, plan, into)
            block = pool.take(plan.workspace_bytes) if plan.workspace_bytes else None
        except (MemoryError, ValueError) as error:  # NumPy's ValueError: more bytes than it can count
            raise self._memory_error(plan) from error
        outputs = [array.view() for array in frame.arrays] if into is None else list(into)
        try:
            status = frame.call(self._main, inputs, 0 if block is None else block.address, threads)
        finally:
            if block is not None:
                pool.give(block)
        if into is not None or not self._reuse_outputs or plan.output_bytes > MAX_REUSED_BYTES:
            frame.release()
        elif is_repeated and not status:
            # not in the first call of a shape, which may be the only one
            frame.prepare_fast_call(inputs, threads)
        self._frames.append(frame)
        if status:
            raise self._status_error(status)
        return outputs

    def _prepare_frame(self, frame: CallFrame, plan: CallPlan, into: Sequence[np.ndarray] | None) -> CallFrame:
        """A frame with the given or new outputs: this frame, or another one where its outputs are still in use."""
        if into is not None:
            frame.use_outputs(plan, into)
            return frame
        if frame.arrays and self._frame_count < MAX_FRAMES:
            # a loop drops the results of a call only after the next one
            self._frames.append(frame)
            frame = self._new_frame()
        frame.prepare(plan)
        return frame

    def _new_frame(self) -> CallFrame:
        self._frame_count += 1
        return CallFrame(len(self.step.inputs), len(self.step.outputs), self._weights, self._main_address)

    def _size_error(self, sizes: Sequence[int], status: int) -> TilewrightError:
        """The error for sizes that native code rejects."""
        constraints = self.step.constraints
        if status == len(constraints) + 1:
            what = f"these sizes need more than 2^46 bytes or 2^62 operations: {self._format_sizes(sizes)}"
            return ShapeError(what, where="call", hint="feed smaller arrays")
        if not 1 <= status <= len(constraints):
            return self._status_error(status)
        broken = constraints[status - 1]
        return ShapeError(f"expected {broken.text}, got {self._format_sizes(sizes)}", where=broken.where or "call")

    def _memory_error(self, plan: CallPlan) -> ShapeError:
        needed = plan.workspace_bytes + plan.output_bytes
        sizes = self._format_sizes(plan.sizes)
        what = f"not enough memory: these sizes need {needed} bytes{': ' if sizes else ''}{sizes}"
        return ShapeError(what, where="call", hint="feed smaller arrays")

    def _format_sizes(self, sizes: Iterable[int]) -> str:
        # the array of sizes has one element even without symbols
        return ", ".join(f"{name}={size}" for name, size in zip(self.step.symbols, sizes, strict=False))

    def _status_error(self, status: int) -> TilewrightError:
        if 1 <= status <= len(self.step.failures):
            failure = self.step.failures[status - 1]
            return ShapeError(failure.text, where=failure.where, hint="these data do not suit the model")
        return InternalError(f"native code of step '{self.step.prefix}' answered {status}")
