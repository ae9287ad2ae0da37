"""Materialization of assigned layouts: conversions inserted, constants transformed, accesses rewritten."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.computation import Axis, Computation
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.expr.traversal import replace_loads
from tilewright.graph.layouts.assign import ConversionRequest, is_same_layout
from tilewright.graph.layouts.dataflow import Dataflow, Reason
from tilewright.graph.layouts.plan import LayoutRequest, step_title
from tilewright.graph.program import Program, RuntimeStep, Step, eliminate_dead_steps
from tilewright.layout.layout import Layout
from tilewright.layout.primitive import Array
from tilewright.layout.rewrite_stage import rewrite_stage, stored_buffer
from tilewright.names import UniqueNames


@dataclass(frozen=True, slots=True)
class Conversion:
    """A copy of a tensor in another layout.

    Attributes:
        source: the original, over logical sizes.
        result: the copy, over logical sizes.
        before: layout of the source; None for row-major.
        after: layout of the result; None for row-major.
        reason: why it is needed.
        readers: the operators that read it; empty for a model's output.
        precomputed: whether the copy is data of the compiled model, computed at compile time.
    """

    source: Buffer
    result: Buffer
    before: Layout | None
    after: Layout | None
    reason: Reason
    readers: tuple[str, ...]
    precomputed: bool = False


def separate_pinned_outputs(
    program: Program, requests: Sequence[LayoutRequest]
) -> tuple[Program, tuple[LayoutRequest, ...], tuple[Conversion, ...]]:
    """The program in which operators with a pinned result write a tensor of their own, of which the pinned one is a
    copy.

    Computations read the operator's own tensor; views and fallbacks read the copy.

    Returns:
        The program, the requests for its operators, and the copies.
    """
    pinned = Dataflow.of(program).pinned
    names = UniqueNames(set(program.buffer_names), first=2)
    separated: dict[str, Buffer] = {}
    conversions: list[Conversion] = []
    for r in requests:
        pinned_output = r.operator.output
        if pinned_output.name in pinned and r.output is not None and not r.output.is_plain:
            separated[pinned_output.name] = pinned_output.renamed(names.fresh(f"{pinned_output.name}_own"))
            conversions.append(
                Conversion(separated[pinned_output.name], pinned_output, r.output, None, pinned[pinned_output.name], ())
            )
    steps: list[Step] = []
    operators: dict[str, Computation] = {}
    for step in program.steps:
        redirected = _redirect_loads(step, separated)
        if isinstance(redirected, Computation):
            operators[redirected.output.name] = redirected
            if redirected.output.name in separated:
                result = separated[redirected.output.name]
                operators[redirected.output.name] = replace(redirected, output=result)
                steps += [operators[redirected.output.name], make_copy(result, redirected.output)]
                continue
        steps.append(redirected)
    adapted = [
        replace(
            r,
            operator=operators[r.operator.output.name],
            operands=tuple((separated.get(b.name, b), layout) for b, layout in r.operands),
        )
        for r in requests
    ]
    return replace(program, steps=tuple(steps)), tuple(adapted), tuple(conversions)


def insert_conversions(
    flow: Dataflow, requests: Sequence[ConversionRequest], layouts: Mapping[str, Layout], existing: Sequence[Conversion]
) -> tuple[Program, dict[str, Layout], tuple[Conversion, ...]]:
    """The program whose operators read copies in the requested layouts; one copy serves all readers of one layout.

    Args:
        flow: the program.
        requests: operands to be converted.
        layouts: of the buffers that have one.
        existing: conversions that the program has already.

    Returns:
        The program over logical tensors, the layouts of all its buffers, and the conversions that were added.
    """
    names = UniqueNames(set(flow.program.buffer_names), first=2)
    added: dict[str, Conversion] = {}
    reads: dict[str, dict[str, Buffer]] = {}
    constants = dict(flow.program.constants)
    for request in requests:
        b, reader = request.operand, step_title(request.operator)
        matching = [c for c in (*existing, *added.values()) if c.source == b and _has_layout(c, request.layout)]
        if matching:
            conversion = matching[0]
        else:
            result = b.renamed(names.fresh(f"{b.name}_converted"))
            data = flow.constant_data(b)
            before = layouts.get(b.name)
            conversion = Conversion(b, result, before, request.layout, request.reason, (), data is not None)
            if data is not None:
                constants[result.name] = data
        if conversion.result.name in added or not matching:
            added[conversion.result.name] = replace(conversion, readers=(*conversion.readers, reader))
        reads.setdefault(request.operator.output.name, {})[b.name] = conversion.result
    steps: list[Step] = []
    written: set[str] = set()
    for step in flow.program.steps:
        copies = reads.get(step.output.name, {}) if isinstance(step, Computation) else {}
        for b in copies.values():
            if b.name in added and b.name not in written and not added[b.name].precomputed:
                written.add(b.name)
                steps.append(make_copy(added[b.name].source, b, added[b.name].readers))
        steps.append(_redirect_loads(step, copies))
    program = replace(flow.program, steps=tuple(steps), constants=constants)
    all_layouts = {**layouts, **{c.result.name: c.after for c in added.values() if c.after is not None}}
    return program, all_layouts, tuple(added.values())


def materialize_layouts(program: Program, layouts: Mapping[str, Layout]) -> Program:
    """The program over stored tensors: every step rewritten, constants transformed, dead steps dropped."""
    steps = [s if isinstance(s, RuntimeStep) else rewrite_stage(s, layouts) for s in program.steps]
    live = eliminate_dead_steps(steps, {b.name for _, b in program.outputs})
    used = {b.name for s in live for b in s.inputs} | {b.name for _, b in program.outputs}
    constants = {
        name: _transform_constant(name, program.constants, layouts) for name in program.constants if name in used
    }
    values = {name: stored_buffer(b, layouts) for name, b in program.values.items()}
    return replace(program, steps=tuple(live), constants=constants, values=values)


def make_copy(source: Buffer, result: Buffer, readers: Sequence[str] = ()) -> Computation:
    """result[i] = source[i]; a conversion if the layouts of the two differ."""
    axes = tuple(Axis(Var(f"i{k}"), n) for k, n in enumerate(result.shape))
    label = f"layout of {result.name if not readers else ', '.join(readers)} (Layout)"
    return Computation(result, axes, (), Load(source, tuple(a.var for a in axes)), label=label)


def _has_layout(c: Conversion, layout: Layout) -> bool:
    return is_same_layout(c.after or Layout(c.result.shape), layout)


def _redirect_loads(step: Step, buffers: Mapping[str, Buffer]) -> Step:
    """A computation that loads from other buffers; views and fallbacks keep theirs, which have the user's layout."""
    if not isinstance(step, Computation) or not any(b.name in buffers for b in step.inputs):
        return step

    def load(x: Load) -> Expr:
        return Load(buffers.get(x.buffer.name, x.buffer), x.indices)

    return replace(step, body=replace_loads(step.body, load))


def _transform_constant(name: str, constants: Mapping[str, Array], layouts: Mapping[str, Layout]) -> Array:
    return layouts[name].transform(constants[name], constants) if name in layouts else constants[name]
