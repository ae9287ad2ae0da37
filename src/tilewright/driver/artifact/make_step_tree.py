"""The step tree of a model whose steps are all native, as code generation takes it, from the artifact's steps.

Only models with data-dependent sizes, or with control flow that is no part of a segment, have one; a fallback needs
the runtime to walk the steps.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from tilewright.codegen.step_tree import (
    BindStep,
    BranchStep,
    RepeatStep,
    SegmentStep,
    StepTree,
    TreeBlock,
    TreeStep,
    TreeSymbol,
    TreeValue,
)
from tilewright.errors import InternalError
from tilewright.machine.tree_call import TREE_NAME
from tilewright.runtime import manifest as m
from tilewright.runtime.block_calls import dead_after_steps
from tilewright.runtime.step_tree_call import tree_addresses, tree_symbols
from tilewright.runtime.weights import numpy_dtype


def make_step_tree(manifest: m.Manifest) -> StepTree | None:
    """The step tree of a manifest; None where the runtime walks the steps: native ones only, or none."""
    steps = list(m.all_steps(manifest.steps))
    if all(isinstance(s, m.NativeStep) for s in manifest.steps) or not any(isinstance(s, m.NativeStep) for s in steps):
        return None
    blocks = [manifest.block, *(b for s in steps if isinstance(s, m.ControlFlowStep) for b in s.blocks)]
    specs = [spec for b in blocks for spec in (*b.inputs, *b.outputs, *(c.value for c in b.constants))]
    specs += [spec for s in steps for spec in (*s.inputs, *s.outputs)]
    if any(isinstance(s, m.FallbackStep) for s in steps) or any(spec.dtype not in m.DTYPES for spec in specs):
        return None
    if any(None in spec.dims for spec in manifest.inputs):
        return None
    return StepTree(TREE_NAME, tuple(tree_symbols(manifest)), _TreeMaker(manifest).block(manifest.block))


def with_step_tree(manifest: m.Manifest) -> m.Manifest:
    """The manifest with the symbol of its step tree, where it has one."""
    return replace(manifest, tree=None if make_step_tree(manifest) is None else TREE_NAME)


class _TreeMaker:
    """Translates blocks and steps."""

    def __init__(self, manifest: m.Manifest) -> None:
        addresses = list(enumerate(tree_addresses(manifest)))
        self._segments = {what.prefix: k for k, what in addresses if isinstance(what, m.NativeStep)}
        self._weights = {what: k for k, what in addresses if isinstance(what, str)}
        self._loop_numbers = count()

    def block(self, block: m.StepBlock) -> TreeBlock:
        """The block with its steps."""
        return TreeBlock(
            inputs=_values(block.inputs),
            captures=block.captures,
            constants=tuple((_value(c.value), self._weights[c.weight]) for c in block.constants),
            symbols=tuple(TreeSymbol(s.name, s.lo, s.hi) for s in block.symbols),
            steps=tuple(map(self._translate_step, block.steps)),
            dead=dead_after_steps(block),
            outputs=tuple(spec.name for spec in block.outputs),
        )

    def _translate_step(self, step: m.ManifestStep) -> TreeStep:
        inputs, outputs = _values(step.inputs), _values(step.outputs)
        match step:
            case m.NativeStep():
                return SegmentStep(step.prefix, self._segments[step.prefix], inputs, outputs, step.symbols)
            case m.SizesStep():
                return BindStep(step.symbols, step.positions, inputs)
            case m.IfStep():
                blocks = self.block(step.then_block), self.block(step.else_block)
                return BranchStep(step.condition, *blocks, inputs, outputs)
            case m.LoopStep():
                number = next(self._loop_numbers)
                return RepeatStep(
                    number, step.trip_count, step.condition, step.initial, step.is_counted, self.block(step.body),
                    inputs, outputs,
                )  # fmt: skip
            case m.FallbackStep():
                raise InternalError("a fallback is in a step tree")


def _values(specs: Iterable[m.TensorSpec]) -> tuple[TreeValue, ...]:
    return tuple(map(_value, specs))


def _value(spec: m.TensorSpec) -> TreeValue:
    return TreeValue(spec.name, numpy_dtype(spec.dtype).itemsize, spec.dims)
