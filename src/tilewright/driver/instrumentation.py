"""Instrumented compilations: native steps record clock readings around every call in one more output."""

from dataclasses import dataclass, replace

from tilewright.codegen.segment import TimestampBuffer
from tilewright.driver.artifact_names import unused_name
from tilewright.driver.compilation import Compilation
from tilewright.expr.nodes import const
from tilewright.runtime.manifest import NativeStep, TensorSpec


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
    used_names = {spec.name for step in compilation.manifest.steps for spec in (*step.inputs, *step.outputs)}
    used_names |= {spec.name for spec in (*compilation.manifest.inputs, *compilation.manifest.outputs)}
    steps = {p.step.prefix: p.step for p in compilation.segments}
    segments = list(compilation.segments)
    names: list[str] = []
    for k, planned in enumerate(segments):
        segment, step = planned.segment, planned.step
        name = unused_name(f"stamps:{segment.name}", used_names)
        stamps = TimestampBuffer(len(step.outputs), threads)
        words = stamps.total_words(len(segment.symbols), len(segment.calls))
        instrumented = replace(segment, output_shapes=(*segment.output_shapes, (const(words),)), timestamps=stamps)
        steps[step.prefix] = replace(step, outputs=(*step.outputs, TensorSpec(name, "int64", (words,))))
        segments[k] = replace(planned, segment=instrumented, step=steps[step.prefix])
        names.append(name)
    manifest = replace(
        compilation.manifest,
        steps=tuple(steps[s.prefix] if isinstance(s, NativeStep) else s for s in compilation.manifest.steps),
        outputs=(*compilation.manifest.outputs, *(p.step.outputs[-1] for p in segments)),
    )
    return InstrumentedCompilation(replace(compilation, segments=tuple(segments), manifest=manifest), tuple(names))
