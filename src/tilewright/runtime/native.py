"""One native step: sizes in, output shapes and workspace out, then a single call into the object code.

What depends only on the sizes (constraints, output shapes, bytes of workspace) is asked from native code once per
combination of sizes and remembered, so that a repeated shape costs one native call.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tilewright.errors import FeedError, InternalError, ShapeError
from tilewright.runtime.loader import CHECK, MAIN, SHAPES, WORKSPACE, Library, entry_names
from tilewright.runtime.manifest import Constraint, NativeStep
from tilewright.runtime.weights import numpy_dtype
from tilewright.runtime.workspace import WorkspacePool

REMEMBERED_SHAPES = 512
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What is known about a call once its sizes are.

    Attributes:
        sizes: the int64 sizes of the symbols, as native code reads them.
        outputs: shape and type of every output.
        workspace: bytes.
    """

    sizes: ctypes.Array[ctypes.c_int64]
    outputs: tuple[tuple[tuple[int, ...], np.dtype], ...]
    workspace: int


def remember(plans: dict[Key, Plan], key: Key, plan: Plan) -> None:
    """Keep a plan, and forget all others once there are too many.

    Each line is atomic, so that no lock is needed: threads may call at once, and a fork can't leave a lock held.
    """
    if len(plans) >= REMEMBERED_SHAPES:
        plans.clear()
    plans[key] = plan


def address_of(array: Any) -> int:
    """Address of a NumPy array's first element; the buffer protocol tells it four times as fast as NumPy itself."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError, BufferError):  # read-only, empty, or of a type without a buffer format
        return int(array.__array_interface__["data"][0])


class NativeCall:
    """A native step bound to its linked functions and its weights; safe to use from several threads at once."""

    def __init__(self, step: NativeStep, library: Library, weights: Mapping[str, np.ndarray]) -> None:
        """Args: the step, the linked code, and all weights by name (64-byte aligned; kept alive here)."""
        check, shapes, workspace, main = (library.addresses[name] for name in entry_names(step.prefix))
        self.step = step
        self._library = library
        self._check, self._shapes = CHECK(check), SHAPES(shapes)
        self._workspace, self._main = WORKSPACE(workspace), MAIN(main)
        self._arrays = [weights[name] for name in step.weights]
        self._weights = (ctypes.c_void_p * len(self._arrays))(*(address_of(array) for array in self._arrays))
        self._dtypes = [numpy_dtype(spec.dtype) for spec in step.outputs]
        self._inputs_type = ctypes.c_void_p * len(step.inputs)
        self._outputs_type = ctypes.c_void_p * len(step.outputs)
        self._plans: dict[tuple[int, ...], Plan] = {}

    def plan(self, sizes: Mapping[str, int]) -> Plan:
        """Output shapes and workspace for the sizes of the symbols.

        Raises:
            ShapeError: the sizes break a constraint of the model.
        """
        key = tuple(sizes[name] for name in self.step.symbols)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(key)
            remember(self._plans, key, plan)
        return plan

    def _make_plan(self, key: tuple[int, ...]) -> Plan:
        sizes = (ctypes.c_int64 * max(1, len(key)))(*key)
        status = self._check(sizes)
        if status:
            given = ", ".join(f"{name}={size}" for name, size in zip(self.step.symbols, key, strict=True))
            constraint = self._reason(self.step.constraints, status)
            raise ShapeError(f"expected {constraint.text}, got {given}", where=constraint.where or "call")
        ranks = [len(spec.dims) for spec in self.step.outputs]
        flat = (ctypes.c_int64 * max(1, sum(ranks)))()
        self._shapes(sizes, flat)
        outputs: list[tuple[tuple[int, ...], np.dtype]] = []
        start = 0
        for rank, dtype in zip(ranks, self._dtypes, strict=True):
            outputs.append((tuple(flat[start : start + rank]), dtype))
            start += rank
        workspace = self._workspace(sizes)
        if workspace < 0 or any(size < 0 for shape, _ in outputs for size in shape):
            raise InternalError(f"native code asked for {workspace} bytes and the outputs {[s for s, _ in outputs]}")
        return Plan(sizes, tuple(outputs), workspace)

    def run(self, inputs: Sequence[np.ndarray], plan: Plan, pool: WorkspacePool, threads: int) -> list[np.ndarray]:
        """Compute the outputs.

        Args:
            inputs: contiguous arrays of the step's types and of shapes that fit the plan.
            plan: the answer of `plan` for their sizes.
            pool: where the workspace comes from.
            threads: at most this many threads work.

        Raises:
            FeedError: native code found an input value that the model does not allow, such as an index out of range.
        """
        outputs = [np.empty(shape, dtype) for shape, dtype in plan.outputs]
        room = pool.take(plan.workspace)
        try:
            status = self._main(
                self._inputs_type(*map(address_of, inputs)),
                self._outputs_type(*map(address_of, outputs)),
                self._weights,
                room.address,
                plan.sizes,
                threads,
            )
        finally:
            pool.give(room)
        if status:
            fault = self._reason(self.step.faults, status)
            raise FeedError(fault.text, where=fault.where or "call")
        return outputs

    def _reason(self, reasons: Sequence[Constraint], status: int) -> Constraint:
        if not 1 <= status <= len(reasons):
            raise InternalError(f"native code of step '{self.step.prefix}' answered {status}")
        return reasons[status - 1]
