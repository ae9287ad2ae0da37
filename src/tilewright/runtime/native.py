"""One native step: sizes in, output shapes and workspace out, then a single call into the object code.

What depends only on the sizes (constraints, output shapes, bytes of workspace) is asked from native code once per
combination of sizes and remembered, so that a repeated shape costs one native call.
"""

import ctypes
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tilewright.errors import InternalError, ShapeError, TilewrightError
from tilewright.runtime.loader import CHECK, MAIN, SHAPES, WORKSPACE, Library, entry_names
from tilewright.runtime.manifest import NativeStep
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
            ShapeError: the sizes break a constraint of the model, or need more memory than there can be.
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
            raise self._rejected(key, status)
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

    def run(
        self,
        inputs: Sequence[np.ndarray],
        plan: Plan,
        pool: WorkspacePool,
        threads: int,
        into: Sequence[np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """Compute the outputs.

        Args:
            inputs: contiguous arrays of the step's types and of shapes that fit the plan.
            plan: the answer of `plan` for their sizes.
            pool: where the workspace comes from.
            threads: at most this many threads work.
            into: contiguous arrays of the plan's types and shapes that are written; None allocates them.

        Raises:
            ShapeError: there is not enough memory for these sizes.
        """
        try:
            outputs = list(into) if into is not None else [np.empty(shape, dtype) for shape, dtype in plan.outputs]
            room = pool.take(plan.workspace)
        except (MemoryError, ValueError) as error:  # NumPy's ValueError: more bytes than it can count
            raise self._no_memory(plan) from error
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
            raise self._unknown(status)
        return outputs

    def _rejected(self, sizes: Sequence[int], status: int) -> TilewrightError:
        """The error for sizes that native code does not accept."""
        constraints = self.step.constraints
        if status == len(constraints) + 1:
            what = f"these sizes need more than 2^46 bytes or 2^62 operations: {self._given(sizes)}"
            return ShapeError(what, where="call", hint="feed smaller arrays")
        if not 1 <= status <= len(constraints):
            return self._unknown(status)
        broken = constraints[status - 1]
        return ShapeError(f"expected {broken.text}, got {self._given(sizes)}", where=broken.where or "call")

    def _no_memory(self, plan: Plan) -> ShapeError:
        needed = plan.workspace + sum(math.prod(shape) * dtype.itemsize for shape, dtype in plan.outputs)
        given = self._given(plan.sizes)
        what = f"not enough memory: these sizes need {needed} bytes{': ' if given else ''}{given}"
        return ShapeError(what, where="call", hint="feed smaller arrays")

    def _given(self, sizes: Iterable[int]) -> str:
        # the array of sizes that native code reads has one element even without symbols
        return ", ".join(f"{name}={size}" for name, size in zip(self.step.symbols, sizes, strict=False))

    def _unknown(self, status: int) -> InternalError:
        return InternalError(f"native code of step '{self.step.prefix}' answered {status}")
