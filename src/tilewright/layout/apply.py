"""A program whose tensors are stored as decided: conversions written out, constants transformed, accesses rewritten."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.buffer import Buffer
from tilewright.expr.computation import Axis, Computation
from tilewright.expr.nodes import Expr, Load, Var
from tilewright.expr.rewrite import replace_loads
from tilewright.graph.program import Fallback, Program, Step, written
from tilewright.layout.dataflow import Dataflow, Reason
from tilewright.layout.decide import Need, same_layout
from tilewright.layout.layout import Layout
from tilewright.layout.plan import Wanted, title
from tilewright.layout.primitive import Array
from tilewright.layout.rewrite import stored, with_layouts


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
    offline: bool = False


def with_own_results(
    program: Program, wanted: Sequence[Wanted]
) -> tuple[Program, tuple[Wanted, ...], tuple[Conversion, ...]]:
    """The program in which operators whose result somebody outside sees write a tensor of their own.

    The user's tensor becomes a copy of it; computations read the operator's own.

    Returns:
        The program, the choices for its operators, and the copies.
    """
    pinned = Dataflow.of(program).pinned
    names = _Names(program)
    own: dict[str, Buffer] = {}
    conversions: list[Conversion] = []
    for w in wanted:
        old = w.operator.output
        if old.name in pinned and w.output is not None and not w.output.is_plain:
            own[old.name] = old.renamed(names.fresh(f"{old.name}_own"))
            conversions.append(Conversion(own[old.name], old, w.output, None, pinned[old.name], ()))
    steps: list[Step] = []
    operators: dict[str, Computation] = {}
    for step in program.steps:
        changed = _redirected(step, own)
        if isinstance(changed, Computation):
            operators[changed.output.name] = changed
            if changed.output.name in own:
                mine = own[changed.output.name]
                operators[changed.output.name] = replace(changed, output=mine)
                steps += [operators[changed.output.name], copy_step(mine, changed.output)]
                continue
        steps.append(changed)
    adapted = [
        replace(
            w,
            operator=operators[w.operator.output.name],
            operands=tuple((own.get(b.name, b), layout) for b, layout in w.operands),
        )
        for w in wanted
    ]
    return replace(program, steps=tuple(steps)), tuple(adapted), tuple(conversions)


def with_conversions(
    flow: Dataflow, needs: Sequence[Need], layouts: Mapping[str, Layout], known: Sequence[Conversion]
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
    names = _Names(flow.program)
    made: dict[str, Conversion] = {}
    reads: dict[str, dict[str, Buffer]] = {}
    constants = dict(flow.program.constants)
    for need in needs:
        b, reader = need.operand, title(need.operator)
        same = [c for c in (*known, *made.values()) if c.source == b and _gives(c, need.layout)]
        if same:
            found = same[0]
        else:
            result = b.renamed(names.fresh(f"{b.name}_converted"))
            data = flow.data(b)
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
            if b.name in made and b.name not in done and not made[b.name].offline:
                done.add(b.name)
                steps.append(copy_step(made[b.name].source, b, made[b.name].readers))
        steps.append(_redirected(step, replaced))
    program = replace(flow.program, steps=tuple(steps), constants=constants)
    every = {**layouts, **{c.result.name: c.after for c in made.values() if c.after is not None}}
    return program, every, tuple(made.values())


def stored_program(program: Program, layouts: Mapping[str, Layout]) -> Program:
    """The program over stored tensors: every step rewritten, constants transformed, what nobody needs dropped."""
    steps = [s if isinstance(s, Fallback) else with_layouts(s, layouts) for s in program.steps]
    kept = _needed(steps, {b.name for _, b in program.outputs})
    used = {b.name for s in kept for b in s.inputs} | {b.name for _, b in program.outputs}
    constants = {name: _transformed(name, program.constants, layouts) for name in program.constants if name in used}
    values = {name: stored(b, layouts) for name, b in program.values.items()}
    return replace(program, steps=tuple(kept), constants=constants, values=values)


def copy_step(source: Buffer, result: Buffer, readers: Sequence[str] = ()) -> Computation:
    """result[i] = source[i]; the layouts of both make it a conversion."""
    axes = tuple(Axis(Var(f"i{k}"), n) for k, n in enumerate(result.shape))
    label = f"layout of {result.name if not readers else ', '.join(readers)} (Layout)"
    return Computation(result, axes, (), Load(source, tuple(a.var for a in axes)), label=label)


def _gives(c: Conversion, layout: Layout) -> bool:
    return same_layout(c.after or Layout(c.result.shape), layout)


def _redirected(step: Step, buffers: Mapping[str, Buffer]) -> Step:
    """A computation that reads other buffers; views and fallbacks keep theirs, which the user's layout is for."""
    if not isinstance(step, Computation) or not any(b.name in buffers for b in step.inputs):
        return step

    def load(x: Load) -> Expr:
        return Load(buffers.get(x.buffer.name, x.buffer), x.indices)

    return replace(step, body=replace_loads(step.body, load))


def _transformed(name: str, constants: Mapping[str, Array], layouts: Mapping[str, Layout]) -> Array:
    return layouts[name].transform(constants[name], constants) if name in layouts else constants[name]


def _needed(steps: Sequence[Step], wanted: set[str]) -> list[Step]:
    """The steps whose results reach `wanted`, in order."""
    wanted = set(wanted)
    result: list[Step] = []
    for step in reversed(steps):
        if any(b.name in wanted for b in written(step)):
            result.append(step)
            wanted |= {b.name for b in step.inputs}
    return result[::-1]


class _Names:
    """Names of buffers that are not taken."""

    def __init__(self, program: Program) -> None:
        self._taken = {b.name for b in program.inputs} | set(program.constants)
        self._taken |= {b.name for s in program.steps for b in (*s.inputs, *written(s))}

    def fresh(self, hint: str) -> str:
        """The hint, with a number where it is taken."""
        name, number = hint, 1
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._taken.add(name)
        return name
