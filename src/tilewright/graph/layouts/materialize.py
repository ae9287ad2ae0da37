"""A program whose tensors are stored as decided: conversions written out, constants transformed, accesses rewritten."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.computation import Axis, Computation
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.expr.traversal import replace_loads
from tilewright.graph.layouts.assign import ConversionRequest, is_same_layout
from tilewright.graph.layouts.dataflow import Dataflow, Reason
from tilewright.graph.layouts.plan import LayoutRequest, step_title
from tilewright.graph.program import Fallback, Program, Step, step_outputs
from tilewright.layout.layout import Layout
from tilewright.layout.primitive import Array
from tilewright.layout.rewrite_stage import rewrite_stage, stored_buffer


@dataclass(frozen=True, slots=True)
class Conversion:
    """A copy of a tensor in another layout.

    Attributes:
        source: what is converted, over logical sizes.
        result: the copy, over logical sizes.
        before: layout of the source; None for row by row.
        after: layout of the result; None for row by row.
        reason: why it is needed.
        readers: the operators that read it; empty for a model's output.
        offline: whether it is data of the compiled model, with nothing left to do in a call.
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
    """The program in which operators whose result somebody outside sees write a tensor of their own.

    The user's tensor becomes a copy of it; computations read the operator's own.

    Returns:
        The program, the choices for its operators, and the copies.
    """
    pinned = Dataflow.of(program).pinned
    names = _UniqueNames(program)
    own: dict[str, Buffer] = {}
    conversions: list[Conversion] = []
    for w in requests:
        old = w.operator.output
        if old.name in pinned and w.output is not None and not w.output.is_plain:
            own[old.name] = old.renamed(names.make(f"{old.name}_own"))
            conversions.append(Conversion(own[old.name], old, w.output, None, pinned[old.name], ()))
    steps: list[Step] = []
    operators: dict[str, Computation] = {}
    for step in program.steps:
        changed = _redirect_loads(step, own)
        if isinstance(changed, Computation):
            operators[changed.output.name] = changed
            if changed.output.name in own:
                mine = own[changed.output.name]
                operators[changed.output.name] = replace(changed, output=mine)
                steps += [operators[changed.output.name], make_copy(mine, changed.output)]
                continue
        steps.append(changed)
    adapted = [
        replace(
            w,
            operator=operators[w.operator.output.name],
            operands=tuple((own.get(b.name, b), layout) for b, layout in w.operands),
        )
        for w in requests
    ]
    return replace(program, steps=tuple(steps)), tuple(adapted), tuple(conversions)


def insert_conversions(
    flow: Dataflow, requests: Sequence[ConversionRequest], layouts: Mapping[str, Layout], existing: Sequence[Conversion]
) -> tuple[Program, dict[str, Layout], tuple[Conversion, ...]]:
    """The program whose operators read copies in the layouts that they need; one copy serves all that need the same.

    Args:
        flow: the program.
        needs: operands to be converted.
        layouts: of the buffers that have one.
        known: copies that exist already.

    Returns:
        The program over logical tensors, the layouts of all its buffers, and the conversions that were added.
    """
    names = _UniqueNames(flow.program)
    made: dict[str, Conversion] = {}
    reads: dict[str, dict[str, Buffer]] = {}
    constants = dict(flow.program.constants)
    for need in requests:
        b, reader = need.operand, step_title(need.operator)
        same = [c for c in (*existing, *made.values()) if c.source == b and _has_layout(c, need.layout)]
        if same:
            found = same[0]
        else:
            result = b.renamed(names.make(f"{b.name}_converted"))
            data = flow.constant_data(b)
            before = layouts.get(b.name)
            found = Conversion(b, result, before, need.layout, need.reason, (), data is not None)
            if data is not None:
                constants[result.name] = data
        if found.result.name in made or not same:
            made[found.result.name] = replace(found, readers=(*found.readers, reader))
        reads.setdefault(need.operator.output.name, {})[b.name] = found.result
    steps: list[Step] = []
    done: set[str] = set()
    for step in flow.program.steps:
        replaced = reads.get(step.output.name, {}) if isinstance(step, Computation) else {}
        for b in replaced.values():
            if b.name in made and b.name not in done and not made[b.name].precomputed:
                done.add(b.name)
                steps.append(make_copy(made[b.name].source, b, made[b.name].readers))
        steps.append(_redirect_loads(step, replaced))
    program = replace(flow.program, steps=tuple(steps), constants=constants)
    every = {**layouts, **{c.result.name: c.after for c in made.values() if c.after is not None}}
    return program, every, tuple(made.values())


def materialize_layouts(program: Program, layouts: Mapping[str, Layout]) -> Program:
    """The program over stored tensors: every step rewritten, constants transformed, what nobody needs dropped."""
    steps = [s if isinstance(s, Fallback) else rewrite_stage(s, layouts) for s in program.steps]
    kept = _eliminate_dead_steps(steps, {b.name for _, b in program.outputs})
    used = {b.name for s in kept for b in s.inputs} | {b.name for _, b in program.outputs}
    constants = {
        name: _transform_constant(name, program.constants, layouts) for name in program.constants if name in used
    }
    values = {name: stored_buffer(b, layouts) for name, b in program.values.items()}
    return replace(program, steps=tuple(kept), constants=constants, values=values)


def make_copy(source: Buffer, result: Buffer, readers: Sequence[str] = ()) -> Computation:
    """result[i] = source[i]; the layouts of both make it a conversion."""
    axes = tuple(Axis(Var(f"i{k}"), n) for k, n in enumerate(result.shape))
    label = f"layout of {result.name if not readers else ', '.join(readers)} (Layout)"
    return Computation(result, axes, (), Load(source, tuple(a.var for a in axes)), label=label)


def _has_layout(c: Conversion, layout: Layout) -> bool:
    return is_same_layout(c.after or Layout(c.result.shape), layout)


def _redirect_loads(step: Step, buffers: Mapping[str, Buffer]) -> Step:
    """A computation that reads other buffers; views and fallbacks keep theirs, which the user's layout is for."""
    if not isinstance(step, Computation) or not any(b.name in buffers for b in step.inputs):
        return step

    def load(x: Load) -> Expr:
        return Load(buffers.get(x.buffer.name, x.buffer), x.indices)

    return replace(step, body=replace_loads(step.body, load))


def _transform_constant(name: str, constants: Mapping[str, Array], layouts: Mapping[str, Layout]) -> Array:
    return layouts[name].transform(constants[name], constants) if name in layouts else constants[name]


def _eliminate_dead_steps(steps: Sequence[Step], live: set[str]) -> list[Step]:
    """The steps whose results reach `wanted`, in order."""
    live = set(live)
    result: list[Step] = []
    for step in reversed(steps):
        if any(b.name in live for b in step_outputs(step)):
            result.append(step)
            live |= {b.name for b in step.inputs}
    return result[::-1]


class _UniqueNames:
    """Names of buffers that are not taken."""

    def __init__(self, program: Program) -> None:
        self._taken = {b.name for b in program.inputs} | set(program.constants)
        self._taken |= {b.name for s in program.steps for b in (*s.inputs, *step_outputs(s))}

    def make(self, hint: str) -> str:
        """The hint, with a number where it is taken."""
        name, number = hint, 1
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._taken.add(name)
        return name
