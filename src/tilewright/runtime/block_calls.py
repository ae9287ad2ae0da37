"""Blocks of steps over named values: the steps of a model, a branch of a conditional, the body of a loop.

Values pass from step to step in a dictionary and are dropped after their last use. Sizes of symbolic dimensions are
bound from the results of steps that the runtime executes itself; a block sees those outside and has its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import numpy as np

from tilewright.errors import Defect, InternalError, TilewrightError
from tilewright.runtime.feeds import InputSignature, raise_problems
from tilewright.runtime.linker import Library
from tilewright.runtime.manifest import (
    ControlFlowStep,
    Dim,
    FallbackStep,
    Manifest,
    ManifestStep,
    NativeStep,
    RuntimeManifestStep,
    SizesStep,
    StepBlock,
    SymbolSpec,
    TensorSpec,
    all_steps,
)
from tilewright.runtime.native_call import NativeCall
from tilewright.runtime.symbol_range import violated_limit
from tilewright.runtime.workspace import WorkspacePool

Values = dict[str, Any]
Sizes = dict[str, int]


@dataclass(frozen=True, slots=True)
class Resources:
    """What steps of one call may use: workspaces, and at most so many threads."""

    pool: WorkspacePool
    threads: int


class RuntimeCall(Protocol):
    """A step that the runtime executes, bound to what it needs: a fallback or control flow."""

    @property
    def step(self) -> ManifestStep:
        """The step."""
        ...

    @property
    def blocks(self) -> "Sequence[BlockCalls]":
        """The blocks inside it."""
        ...

    def run(self, inputs: Sequence[Any], sizes: Sizes, resources: Resources) -> list[Any]:
        """Computes the outputs from the inputs, both in the step's order."""
        ...

    def shape_error(
        self, spec: TensorSpec, shape: Sequence[int], sizes: Mapping[str, int], symbols: Mapping[str, SymbolSpec]
    ) -> TilewrightError:
        """The error for a result whose shape contradicts the model."""
        ...


@dataclass(frozen=True, slots=True)
class CallMaker:
    """Makes the calls of steps.

    Attributes:
        library: the linked code.
        weights: all weights by name.
        threads: the most threads that a call uses.
        make_runtime_call: makes the call of a step that the runtime executes.
    """

    library: Library
    weights: Mapping[str, np.ndarray]
    threads: int
    make_runtime_call: "Callable[[RuntimeManifestStep, CallMaker, Mapping[str, SymbolSpec]], RuntimeCall]"


class BlockCalls:
    """A block bound to linked code and weights; thread-safe.

    Attributes:
        calls: of its steps, in order.
    """

    def __init__(
        self, block: StepBlock, maker: CallMaker, symbols: Mapping[str, SymbolSpec] | None, reuse_outputs: bool = True
    ) -> None:
        """Args: the block, what makes its calls, the symbols outside by name, None for a model's own steps, and whether
        the memory of intermediate results is reused by later calls.
        """
        is_model, symbols = symbols is None, symbols or {}
        self._block = block
        self._symbols = {**symbols, **{s.name: s for s in block.symbols}}
        self._has_symbols = bool(block.symbols)
        self.constants: Values = {c.value.name: maker.weights[c.weight] for c in block.constants}
        self.calls: tuple[NativeCall | RuntimeCall, ...] = tuple(
            NativeCall(step, maker.library, maker.weights, maker.threads, reuse_outputs)
            if isinstance(step, NativeStep)
            else maker.make_runtime_call(step, maker, self._symbols)
            for step in block.steps
        )
        self._inputs = [spec.name for spec in block.inputs]
        self._outputs = [spec.name for spec in block.outputs]
        bound = frozenset(symbols) | {d for spec in block.inputs for d in spec.dims if isinstance(d, str)}
        computed = {spec.name: spec.dims for spec in (*block.inputs, *(c.value for c in block.constants))}
        data_symbols = {name for step in block.steps if isinstance(step, SizesStep) for name in step.symbols}
        changing = frozenset(data_symbols if is_model else (s.name for s in block.symbols))
        self._plans: list[_StepPlan] = []
        for step, unused in zip(block.steps, dead_after_steps(block), strict=True):
            plan = _plan_step(step, unused, bound, computed, changing)
            # memory that is not reused needs no preparation
            is_changing = plan.has_changing_sizes or not reuse_outputs
            self._plans.append(replace(plan, has_changing_sizes=is_changing and isinstance(step, NativeStep)))
            bound |= {d for spec in (*step.inputs, *step.outputs) for d in spec.dims if isinstance(d, str)}
            bound |= set(step.symbols) if isinstance(step, SizesStep) else set()
            computed.update((spec.name, spec.dims) for spec in step.outputs)

    def native_calls(self) -> Iterator[NativeCall]:
        """The native calls, those of blocks inside among them."""
        for call in self.calls:
            if isinstance(call, NativeCall):
                yield call
            else:
                for block in call.blocks:
                    yield from block.native_calls()

    def run(self, arguments: Sequence[Any], sizes: Sizes, resources: Resources) -> list[Any]:
        """The outputs of the block.

        Args:
            arguments: values of its inputs, in order.
            sizes: of the symbols outside; not changed where the block has its own.
            resources: of the call.

        Raises:
            ShapeError: a size is out of its range, or contradicts another one.
            EvaluatorError: a fallback fails.
        """
        values = dict(zip(self._inputs, arguments, strict=True))
        if self._has_symbols:
            sizes = dict(sizes)
            for spec, value in zip(self._block.inputs, arguments, strict=True):
                if not self._bind(spec, value, sizes):
                    _raise_input_error(spec, value, sizes, self._symbols)
        self.run_steps(values, sizes, resources)
        return [values[name] for name in self._outputs]

    def run_steps(self, values: Values, sizes: Sizes, resources: Resources) -> None:
        """Runs the steps.

        Args:
            values: by name; results are added, and values without further use dropped.
            sizes: of the symbols; extended.
            resources: of the call.
        """
        values.update(self.constants)
        for call, plan in zip(self.calls, self._plans, strict=True):
            inputs = [values[name] for name in plan.inputs]
            if isinstance(call, NativeCall):
                for spec in plan.binding:
                    if not self._bind(spec, values[spec.name], sizes):
                        _raise_input_error(spec, values[spec.name], sizes, self._symbols)
                results = _run_native(call, inputs, sizes, resources, plan)
            else:
                results = call.run(inputs, sizes, resources)
                for spec, value in zip(call.step.outputs, results, strict=True):
                    known = dict(sizes) if plan.binds_symbols else sizes
                    if not self._bind(spec, value, sizes):
                        raise call.shape_error(spec, np.shape(value), known, self._symbols)
            values.update(zip(plan.outputs, results, strict=True))
            del inputs, results  # large values are freed after their last use
            for name in plan.unused:
                values.pop(name, None)

    def _bind(self, spec: TensorSpec, value: Any, sizes: Sizes) -> bool:
        """Binds the symbols of a value's dims that have no size yet; whether its shape fits."""
        if spec.dtype == "any":
            return True
        shape = value.shape
        if len(shape) != len(spec.dims):
            return False
        for dim, size in zip(spec.dims, shape, strict=True):
            if isinstance(dim, str):
                known = sizes.get(dim)
                if known is None:
                    symbol = self._symbols[dim]
                    if violated_limit(symbol, size):
                        return False
                    sizes[dim] = size
                elif known != size:
                    return False
            elif dim is not None and dim != size:
                return False
        return True


def _run_native(
    call: NativeCall, inputs: Sequence[Any], sizes: Sizes, resources: Resources, plan: "_StepPlan"
) -> list[np.ndarray]:
    """The outputs of a native step.

    Where the sizes change from iteration to iteration, so would the prepared arguments of a call and the memory of its
    outputs: plain arrays take less time.
    """
    pool, threads = resources.pool, resources.threads
    if plan.has_changing_sizes:
        sized = call.plan(sizes)
        into = [np.empty(shape, dtype) for shape, dtype in sized.outputs]
        return call.run(inputs, sized, pool, threads, into)
    results = call.try_fast_call(inputs, pool, threads) if plan.is_shaped else None
    return call.run(inputs, call.plan(sizes), pool, threads) if results is None else results


@dataclass(frozen=True, slots=True)
class _StepPlan:
    """What a call of a step needs to know.

    Attributes:
        inputs: names of the inputs.
        outputs: names of the outputs.
        unused: values that nothing reads after the step.
        binding: inputs of a native step whose shapes are to be checked, or bind symbols.
        is_shaped: whether shapes of a native step's inputs determine its symbols.
        has_changing_sizes: whether a native step depends on sizes that belong to the block, or memory of its outputs is
            not reused.
        binds_symbols: whether outputs bind symbols.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    unused: tuple[str, ...]
    binding: tuple[TensorSpec, ...]
    is_shaped: bool
    has_changing_sizes: bool
    binds_symbols: bool


def _plan_step(
    step: ManifestStep,
    unused: tuple[str, ...],
    bound: frozenset[str],
    computed: Mapping[str, tuple[Dim, ...]],
    changing: frozenset[str],
) -> _StepPlan:
    """What a call of a step needs to know.

    Args:
        step: the step.
        unused: values that nothing reads after it.
        bound: symbols that have a size before it.
        computed: dims of the values that there are before it, as their producers declare them.
        changing: symbols of a branch or of a loop's body, and data-dependent ones.
    """
    symbols = {d for spec in step.inputs for d in spec.dims if isinstance(d, str)}
    native = isinstance(step, NativeStep)

    def is_known(spec: TensorSpec) -> bool:
        dims = computed.get(spec.name, ())
        same = len(dims) == len(spec.dims) and all(a in (None, b) for a, b in zip(spec.dims, dims, strict=True))
        return same and all(d in bound for d in spec.dims if isinstance(d, str))

    return _StepPlan(
        inputs=tuple(spec.name for spec in step.inputs),
        outputs=tuple(spec.name for spec in step.outputs),
        unused=unused,
        binding=tuple(spec for spec in step.inputs if not is_known(spec)) if native else (),
        is_shaped=native and set(step.symbols) <= symbols,
        has_changing_sizes=native and not changing.isdisjoint(step.symbols),
        binds_symbols=not native and any(isinstance(d, str) for spec in step.outputs for d in spec.dims),
    )


def dead_after_steps(block: StepBlock) -> tuple[tuple[str, ...], ...]:
    """Per step, the values that nothing reads after it."""
    needed = {spec.name for spec in block.outputs}
    unused: list[tuple[str, ...]] = []
    for step in reversed(block.steps):
        touched = dict.fromkeys(spec.name for spec in (*step.inputs, *step.outputs))
        unused.append(tuple(name for name in touched if name not in needed))
        needed.update(touched)
    return tuple(reversed(unused))


def _raise_input_error(
    spec: TensorSpec, value: Any, sizes: Mapping[str, int], symbols: Mapping[str, SymbolSpec]
) -> NoReturn:
    """Raises the error for a value whose shape does not fit a block or a native step."""
    problems: list[Defect] = []
    InputSignature((spec,), tuple(symbols.values()), "tensor").bind({spec.name: np.shape(value)}, sizes, problems)
    raise_problems(problems)
    raise InternalError(f"the shape {np.shape(value)} of '{spec.name}' is refused, but fits {spec}")


def may_alias(manifest: Manifest) -> frozenset[str]:
    """Values that may share memory with inputs or constants without being these: results of the evaluator, and of
    control flow around it or around constants."""
    names: set[str] = set()
    for step in manifest.steps:
        if isinstance(step, FallbackStep):
            names |= {spec.name for spec in step.outputs}
        elif isinstance(step, ControlFlowStep):
            inner = [s for block in step.blocks for s in all_steps(block.steps)]
            blocks = [*step.blocks, *(b for s in inner if isinstance(s, ControlFlowStep) for b in s.blocks)]
            if any(isinstance(s, FallbackStep) for s in inner) or any(b.constants for b in blocks):
                names |= {spec.name for spec in step.outputs}
    return frozenset(names)
