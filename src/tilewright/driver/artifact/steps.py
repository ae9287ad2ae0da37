"""The steps of an artifact: native entries, fallbacks, and control flow with the blocks of its bodies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.driver.artifact.bodies import CompiledBody
from tilewright.driver.artifact.fallbacks import fallback_step
from tilewright.driver.artifact.native_control_flow import with_native_control_flow
from tilewright.driver.artifact.regions import NativeRegion, make_regions
from tilewright.driver.artifact.segments import PlannedSegment, plan_segment
from tilewright.driver.artifact.weight_pool import WeightPool
from tilewright.driver.artifact_names import ArtifactNames, make_body_names, tensor_spec
from tilewright.driver.kernel_build.kernels import BoundUnit
from tilewright.errors import InternalError
from tilewright.expr.nodes import Buffer, Var
from tilewright.graph.program import Body, Conditional, ControlFlow, Fallback, Loop, Program, RuntimeStep, SizesStep
from tilewright.runtime import manifest as m


@dataclass(slots=True)
class StepPlanner:
    """Plans the steps of a model's programs.

    Attributes:
        bodies: compiled bodies by the program that control flow holds.
        pool: receives the weights.
        segments: native entries so far.
    """

    bodies: Mapping[Program, CompiledBody]
    pool: WeightPool
    segments: list[PlannedSegment] = field(default_factory=list[PlannedSegment])

    def plan_model(
        self, program: Program, units: Sequence[BoundUnit], names: ArtifactNames
    ) -> tuple[tuple[m.ManifestStep, ...], tuple[m.ConstantSpec, ...]]:
        """The steps of a model in order of execution, and the constants that control flow reads."""
        symbols = frozenset(all_symbols(program))
        native = with_native_control_flow(program, units, self.bodies, symbols)
        regions = make_regions(program, native, names)
        return self._plan_regions(regions, program, names, symbols), self._constants(program, native, (), names)

    def _plan_regions(
        self,
        regions: Sequence[NativeRegion | RuntimeStep],
        program: Program,
        names: ArtifactNames,
        visible: frozenset[Var],
    ) -> tuple[m.ManifestStep, ...]:
        steps: list[m.ManifestStep] = []
        for k, region in enumerate(regions):
            match region:
                case NativeRegion():
                    prefix = f"tw{len(self.segments) or ''}"
                    self.segments.append(plan_segment(region, prefix, program, names, self.pool))
                    steps.append(self.segments[-1].step)
                case Fallback():
                    steps.append(fallback_step(region, k, names, self.pool))
                case SizesStep():
                    steps.append(_sizes_step(region, names))
                case Conditional():
                    steps.append(self._plan_conditional(region, names, visible))
                case Loop():
                    steps.append(self._plan_loop(region, names, visible))
                case _:
                    raise InternalError(f"step {region.label} is of an unknown kind", where="artifact")
        return tuple(steps)

    def _plan_conditional(self, step: Conditional, names: ArtifactNames, visible: frozenset[Var]) -> m.IfStep:
        return m.IfStep(
            condition=names.of(step.condition),
            then_block=self._plan_body(step.then_branch, names, visible),
            else_block=self._plan_body(step.else_branch, names, visible),
            inputs=_specs(step.inputs, names),
            outputs=_result_specs(step, names),
            nodes=tuple(n.label for n in step.nodes),
        )

    def _plan_loop(self, step: Loop, names: ArtifactNames, visible: frozenset[Var]) -> m.LoopStep:
        return m.LoopStep(
            trip_count=None if step.trip_count is None else names.of(step.trip_count),
            condition=None if step.condition is None else names.of(step.condition),
            initial=tuple(names.of(b) for b in step.initial),
            is_counted=step.is_counted,
            body=self._plan_body(step.body, names, visible),
            inputs=_specs(step.inputs, names),
            outputs=_result_specs(step, names),
            nodes=tuple(n.label for n in step.nodes),
        )

    def _plan_body(self, body: Body, outside: ArtifactNames, visible: frozenset[Var]) -> m.StepBlock:
        """The block of a body, whose values have names of their own."""
        compiled = self.bodies[body.program]
        program = compiled.partition.program
        names = make_body_names(program)
        buffers = tuple(dict.fromkeys(b for _, b in program.outputs))
        inner = replace(program, outputs=tuple((names.of(b), b) for b in buffers))
        own = [v for v in all_symbols(program) if v.name not in {x.name for x in visible}]
        units = with_native_control_flow(program, compiled.units, self.bodies, visible | set(own))
        regions = make_regions(inner, units, names, visible)
        return m.StepBlock(
            inputs=_specs(program.inputs, names),
            captures=tuple(outside.of(b) for b in body.captures),
            constants=self._constants(program, units, buffers, names),
            symbols=tuple(m.SymbolSpec(names.symbol_name(v), v.lo or 0, v.hi) for v in own),
            steps=self._plan_regions(regions, inner, names, visible | set(own)),
            outputs=_specs([b for _, b in program.outputs], names),
        )

    def _constants(
        self, program: Program, units: Sequence[object], results: Sequence[Buffer], names: ArtifactNames
    ) -> tuple[m.ConstantSpec, ...]:
        """The constants of a program that control flow reads or that are results."""
        read = [b for u in units if isinstance(u, ControlFlow | SizesStep) for b in u.inputs]
        constants = [b for b in dict.fromkeys((*read, *results)) if b.name in program.constants]
        return tuple(
            m.ConstantSpec(spec, self.pool.add(b.name, program.constants[b.name]))
            for b, spec in zip(constants, _specs(constants, names), strict=True)
        )


def _sizes_step(step: SizesStep, names: ArtifactNames) -> m.SizesStep:
    return m.SizesStep(
        symbols=tuple(names.symbol_name(v) for v in step.data_symbols),
        positions=step.positions,
        inputs=_specs(step.inputs, names),
        nodes=tuple(n.label for n in step.nodes),
    )


def all_symbols(program: Program) -> tuple[Var, ...]:
    """The program's symbols, then the data-dependent sizes of results of the runtime's steps."""
    data_symbols = [v for s in program.steps if isinstance(s, RuntimeStep) for v in s.data_symbols]
    return tuple(dict.fromkeys((*program.symbols, *data_symbols)))


def _specs(buffers: Iterable[Buffer], names: ArtifactNames) -> tuple[m.TensorSpec, ...]:
    return tuple(tensor_spec(names.of(b), b, names, printed=False) for b in buffers)


def _result_specs(step: RuntimeStep, names: ArtifactNames) -> tuple[m.TensorSpec, ...]:
    reported = [replace(b, shape=sizes) for b, sizes in zip(step.outputs, step.runtime_shapes, strict=True)]
    return tuple(tensor_spec(names.of(b), x, names, printed=False) for b, x in zip(step.outputs, reported, strict=True))
