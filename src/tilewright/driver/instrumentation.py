"""A compilation whose native steps note clock readings: the same kernels, one more output per step."""

from dataclasses import dataclass, replace

from tilewright.codegen.segment import TimestampBuffer
from tilewright.driver.compilation import Compilation
from tilewright.expr.nodes import const
from tilewright.runtime.manifest import NativeStep, TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class InstrumentedCompilation:
    """An instrumented compilation.

    Attributes:
        made: the compilation.
        buffers: per segment the name of the output that holds its clock readings (`codegen.plan.TimestampBuffer`).
    """

    compilation: Compilation
    timestamp_outputs: tuple[str, ...]


def instrument(compilation: Compilation, threads: int) -> InstrumentedCompilation:
    """A compilation that notes clock readings.

    Args:
        made: as it is; it stays so.
        threads: that a call may use at most.
    """
    taken = {spec.name for step in compilation.manifest.steps for spec in (*step.inputs, *step.outputs)}
    taken |= {spec.name for spec in (*compilation.manifest.inputs, *compilation.manifest.outputs)}
    steps = {p.step.prefix: p.step for p in compilation.segments}
    segments = list(compilation.segments)
    names: list[str] = []
    for k, planned in enumerate(segments):
        segment, step = planned.segment, planned.step
        name = f"stamps:{segment.name}"
        while name in taken:
            name = f"%{name}"
        stamps = TimestampBuffer(len(step.outputs), threads)
        words = stamps.total_words(len(segment.symbols), len(segment.calls))
        noted = replace(segment, output_shapes=(*segment.output_shapes, (const(words),)), timestamps=stamps)
        steps[step.prefix] = replace(step, outputs=(*step.outputs, TensorSpec(name, "int64", (words,))))
        segments[k] = replace(planned, segment=noted, step=steps[step.prefix])
        names.append(name)
    manifest = replace(
        compilation.manifest,
        steps=tuple(steps[s.prefix] if isinstance(s, NativeStep) else s for s in compilation.manifest.steps),
        outputs=(*compilation.manifest.outputs, *(p.step.outputs[-1] for p in segments)),
    )
    return InstrumentedCompilation(replace(compilation, segments=tuple(segments), manifest=manifest), tuple(names))
