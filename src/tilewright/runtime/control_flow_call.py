"""Control flow of one call: a conditional runs one of its blocks, a loop its block again and again.

What native code runs itself is part of a native step or of a step tree and does not come here. An iteration costs the
Python code around a native call, 4 microseconds, and more where sizes change. Between iterations Ctrl-C interrupts.
"""

import os
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from tilewright.errors import LoopError, OptionError, ShapeError, TilewrightError, pluralize
from tilewright.runtime.block_calls import BlockCalls, CallMaker, Resources, Sizes
from tilewright.runtime.manifest import (
    ControlFlowStep,
    IfStep,
    LoopStep,
    StepBlock,
    SymbolSpec,
    TensorSpec,
    format_dims,
)
from tilewright.runtime.weights import numpy_dtype

MAX_ITERATIONS = 1 << 24
"""Iterations after which a loop without a trip count is endless; TILEWRIGHT_MAX_ITERATIONS sets another limit."""

_VARIABLE = "TILEWRIGHT_MAX_ITERATIONS"
_FIRST_CAPACITY = 16
"""Slices for which the memory of a stacked result is allocated at first, unless the number is known."""


def max_iterations() -> int:
    """The limit of iterations of a loop without a trip count.

    Raises:
        OptionError: the environment variable holds no positive number.
    """
    text = os.environ.get(_VARIABLE)
    if text is None:
        return MAX_ITERATIONS
    if not text.isdecimal() or int(text) == 0:
        raise OptionError(f"expected a number of iterations of at least 1, got {text!r}", where=_VARIABLE)
    return int(text)


def endless_loop(nodes: str, limit: int) -> LoopError:
    """The error for a loop without a trip count that exceeds the limit."""
    what = f"has no trip count, and did not end after {pluralize(limit, 'iteration')}"
    return LoopError(what, where=nodes, hint=f"set {_VARIABLE} if it needs more")


class _ControlFlowCall:
    """What conditionals and loops have in common: errors that name the user's nodes."""

    def __init__(self, step: ControlFlowStep) -> None:
        self._nodes = ", ".join(step.nodes)
        self._positions = {spec.name: k for k, spec in enumerate(step.inputs)}

    def _block(
        self, block: StepBlock, maker: CallMaker, symbols: Mapping[str, SymbolSpec]
    ) -> tuple[BlockCalls, list[int]]:
        """The calls of a block, and the positions of the values that it captures."""
        return BlockCalls(block, maker, symbols), [self._positions[name] for name in block.captures]

    def shape_error(
        self, spec: TensorSpec, shape: Sequence[int], sizes: Mapping[str, int], symbols: Mapping[str, SymbolSpec]
    ) -> TilewrightError:
        """The error for a result whose shape contradicts what later nodes need.

        Args:
            spec: the result that the model says.
            shape: its actual shape.
            sizes: of the symbols that were bound before.
            symbols: all symbols, with their ranges.
        """
        needed = [
            f"{dim}={sizes[dim]}" if dim in sizes else f"{dim} in {symbols[dim].lo}..{symbols[dim].hi}"
            for dim in spec.dims
            if isinstance(dim, str)
        ]
        given = f" with {', '.join(needed)}" if needed else ""
        what = f"has shape {format_dims(shape)}, later nodes need {format_dims(spec.dims)}{given}"
        return ShapeError(what, where=f"result '{spec.name}' of {self._nodes}", hint="these data do not suit the model")


class IfCall(_ControlFlowCall):
    """A conditional bound to linked code."""

    def __init__(self, step: IfStep, maker: CallMaker, symbols: Mapping[str, SymbolSpec]) -> None:
        """Args: the step, what makes calls, and the symbols around it by name."""
        super().__init__(step)
        self.step = step
        self._condition_input = self._positions[step.condition]
        self._then = self._block(step.then_block, maker, symbols)
        self._else = self._block(step.else_block, maker, symbols)
        self.blocks = (self._then[0], self._else[0])

    def run(self, inputs: Sequence[Any], sizes: Sizes, resources: Resources) -> list[Any]:
        """The outputs of the branch that the condition selects.

        Raises:
            ShapeError: the condition is not one bool.
            TilewrightError: a step of the branch fails.
        """
        block, captures = self._then if _is_true(inputs[self._condition_input], self._nodes) else self._else
        return block.run([inputs[k] for k in captures], sizes, resources)


class LoopCall(_ControlFlowCall):
    """A loop bound to linked code."""

    def __init__(self, step: LoopStep, maker: CallMaker, symbols: Mapping[str, SymbolSpec]) -> None:
        """Args: the step, what makes calls, and the symbols around it by name.

        Raises:
            OptionError: the environment variable that limits iterations holds no positive number.
        """
        super().__init__(step)
        self.step = step
        self._trip_count = None if step.trip_count is None else self._positions[step.trip_count]
        self._condition_input = None if step.condition is None else self._positions[step.condition]
        self._initial = [self._positions[name] for name in step.initial]
        self._body, self._captures = self._block(step.body, maker, symbols)
        self.blocks = (self._body,)
        self._number_shape, self._condition_shape = ((1,) * len(spec.dims) for spec in step.body.inputs[:2])
        self._max_iterations = max_iterations()

    def run(self, inputs: Sequence[Any], sizes: Sizes, resources: Resources) -> list[Any]:
        """The carried values after the last iteration, and the stacked results of all iterations.

        Raises:
            LoopError: a loop without a trip count does not end.
            ShapeError: a trip count or condition is not one number, or the shapes of stacked results differ.
            TilewrightError: a step of the body fails.
        """
        step, carried = self.step, [inputs[k] for k in self._initial]
        trips = None if self._trip_count is None else _number(inputs[self._trip_count], self._nodes)
        go = self._condition_input is None or _is_true(inputs[self._condition_input], self._nodes)
        captured = [inputs[k] for k in self._captures]
        first = 0 if step.is_counted else 1
        last = first + len(carried)
        stacks = [_Stack(spec, trips, self._nodes) for spec in step.outputs[len(carried) :]]
        condition = np.ones(self._condition_shape, np.bool_)
        for k in count() if trips is None else range(trips):
            if not go:
                break
            if trips is None and k == self._max_iterations:
                raise endless_loop(self._nodes, k)
            # an array of its own, as the body may keep it
            number = np.array(k, np.int64).reshape(self._number_shape)
            results = self._body.run([number, condition, *carried, *captured], sizes, resources)
            if first:
                condition = results[0].reshape(self._condition_shape)
                go = _is_true(condition, self._nodes)
            carried = results[first:last]
            for stack, result in zip(stacks, results[last:], strict=True):
                stack.append(result)
        return [*carried, *(stack.result(sizes) for stack in stacks)]


class _Stack:
    """Results of iterations, stacked along a new first dimension; its memory doubles when it is full."""

    def __init__(self, spec: TensorSpec, trips: int | None, nodes: str) -> None:
        self._result_spec, self._nodes = spec, nodes
        self._capacity = _FIRST_CAPACITY if trips is None else max(0, min(trips, _FIRST_CAPACITY))
        self._trips, self._length = trips, 0
        self._array: np.ndarray | None = None

    def append(self, result: np.ndarray) -> None:
        """Copies the result of one iteration."""
        array = self._array
        if array is None:
            array = self._array = np.empty((self._capacity, *result.shape), result.dtype)
        elif result.shape != array.shape[1:]:
            what = (
                f"stacks {format_dims(result.shape)} after {format_dims(array.shape[1:])} in '{self._result_spec.name}'"
            )
            raise ShapeError(what, where=self._nodes, hint="all iterations must give one shape")
        elif self._length == len(array):
            longer = 2 * len(array) if self._trips is None else min(2 * len(array), self._trips)
            grown = np.empty((longer, *result.shape), result.dtype)
            grown[: self._length] = array
            array = self._array = grown
        array[self._length] = result
        self._length += 1

    def result(self, sizes: Mapping[str, int]) -> np.ndarray:
        """The stacked results; without any, the declared shape with 0 for sizes that no iteration determines."""
        if self._array is not None:
            return self._array[: self._length]
        dims = [sizes.get(d, 0) if isinstance(d, str) else d or 0 for d in self._result_spec.dims[1:]]
        return np.empty((0, *dims), numpy_dtype(self._result_spec.dtype))


def _is_true(value: Any, nodes: str) -> bool:
    if value.size != 1:
        raise ShapeError(f"expected a condition of one element, got {format_dims(value.shape)}", where=nodes)
    return bool(value.item())


def _number(value: Any, nodes: str) -> int:
    if value.size != 1:
        raise ShapeError(f"expected a trip count of one element, got {format_dims(value.shape)}", where=nodes)
    return int(value.item())
