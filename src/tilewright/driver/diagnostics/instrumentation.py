"""Instrumented compilations: native steps record clock readings around every call in one more output."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.codegen.segment import TimestampBuffer
from tilewright.driver.artifact.segments import PlannedSegment
from tilewright.driver.artifact_names import unused_name
from tilewright.driver.compilation import Compilation
from tilewright.expr.nodes import const
from tilewright.runtime.manifest import (
    FallbackStep,
    IfStep,
    LoopStep,
    ManifestStep,
    NativeStep,
    SizesStep,
    StepBlock,
    TensorSpec,
    all_steps,
)


@dataclass(frozen=True, slots=True, eq=False)
class InstrumentedCompilation:
    """An instrumented compilation.

    Attributes:
        compilation: the same kernels with clock readings around their calls.
        timestamp_outputs: name of the output with the clock readings, per segment (`codegen.segment.TimestampBuffer`).
    """

    compilation: Compilation
    timestamp_outputs: tuple[str, ...]


def instrument(compilation: Compilation, threads: int) -> InstrumentedCompilation:
    """Adds clock readings to the native steps of a compilation.

    Args:
        compilation: the plain compilation.
        threads: the most threads that a call may use.
    """
    manifest = compilation.manifest
    used_names = {spec.name for step in all_steps(manifest.steps) for spec in (*step.inputs, *step.outputs)}
    used_names |= {spec.name for spec in (*manifest.inputs, *manifest.outputs)}
    segments = [_instrument_segment(p, threads, used_names) for p in compilation.segments]
    # the kernels are those of all entries; what bodies record is dropped with their other values
    inside = [_instrument_segment(p, threads, used_names) for p in compilation.body_segments]
    steps = {p.step.prefix: p.step for p in (*segments, *inside)}
    stamps = [p.step.outputs[-1] for p in segments]
    outputs = (*manifest.outputs, *stamps)
    manifest = replace(manifest, steps=_replace_steps(manifest.steps, steps), outputs=outputs, tree=None)
    instrumented = replace(compilation, segments=tuple(segments), body_segments=tuple(inside), manifest=manifest)
    return InstrumentedCompilation(instrumented, tuple(spec.name for spec in stamps))


def _instrument_segment(planned: PlannedSegment, threads: int, used_names: Collection[str]) -> PlannedSegment:
    """A native entry with one more output, for its clock readings."""
    segment, step = planned.segment, planned.step
    name = unused_name(f"stamps:{segment.name}", used_names)
    stamps = TimestampBuffer(len(step.outputs), threads)
    words = stamps.total_words(len(segment.symbols), len(segment.calls))
    instrumented = replace(segment, output_shapes=(*segment.output_shapes, (const(words),)), timestamps=stamps)
    outputs = (*step.outputs, TensorSpec(name, "int64", (words,)))
    return replace(planned, segment=instrumented, step=replace(step, outputs=outputs))


def _replace_steps(steps: Sequence[ManifestStep], native: Mapping[str, NativeStep]) -> tuple[ManifestStep, ...]:
    """The steps, with other native ones by prefix, in blocks, too."""

    def in_block(block: StepBlock) -> StepBlock:
        return replace(block, steps=_replace_steps(block.steps, native))

    result: list[ManifestStep] = []
    for step in steps:
        match step:
            case NativeStep():
                result.append(native[step.prefix])
            case FallbackStep() | SizesStep():
                result.append(step)
            case IfStep():
                then, other = in_block(step.then_block), in_block(step.else_block)
                result.append(replace(step, then_block=then, else_block=other))
            case LoopStep():
                result.append(replace(step, body=in_block(step.body)))
    return tuple(result)
