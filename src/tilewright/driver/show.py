"""The levels of a compilation as text, for `inspect`."""

from collections.abc import Iterable

import numpy as np

from tilewright.driver.compilation import Compilation
from tilewright.driver.kernels import BoundKernel, CompiledKernel
from tilewright.expr.computation import View
from tilewright.expr.nodes import Expr
from tilewright.expr.printer import show as show_expr
from tilewright.expr.printer import show_name
from tilewright.graph.memory import InConstant, InInput, InOutput, InWorkspace, Place
from tilewright.graph.program import Fallback
from tilewright.loops.printer import show, show_symbol

_LONGEST_VALUE = 60


def graph(made: Compilation) -> str:
    """Inputs, nodes with the types of their results, and outputs."""
    values = made.lowered.values
    lines = [f"input {v.name}: {v.type}" for v in made.graph.inputs]
    for n in made.graph.nodes:
        results = ", ".join(f"{o}: {_type(values[o])}" if o in values else o for o in n.outputs if o)
        attributes = ", ".join(f"{k}={_short(v)}" for k, v in n.attributes.items())
        arguments = ", ".join(i or "-" for i in n.inputs)
        lines.append(f"{results} = {n.op_type}({arguments}){f' {{{attributes}}}' if attributes else ''}  # {n.name}")
    return "\n".join([*lines, *(f"output {name}" for name in made.graph.outputs)])


def _type(buffer: object) -> str:
    return str(buffer).partition(": ")[2]


def _short(value: object) -> str:
    text = f"array{value.shape}" if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def expressions(made: Compilation) -> str:
    """Every step of the program after inlining."""
    return "\n".join(f"fallback {s.label}" if isinstance(s, Fallback) else str(s) for s in made.program.steps)


def layouts(made: Compilation) -> str:
    """Which tensors have which layout and why, and the conversions between them."""
    return "every tensor is stored row by row" if made.placed is None else str(made.placed)


def loops(made: Compilation, name: str | None = None) -> str:
    """The untransformed loops of every function, or of one."""
    return "\n".join(show(k.origin) for k in _chosen(made, name))


def schedules(made: Compilation, name: str | None = None) -> str:
    """The trace of every function, or of one, and its loops afterwards."""
    parts: list[str] = []
    for k in _chosen(made, name):
        steps = "".join(f"#   {step}\n" for step in k.trace)
        parts.append(f"# {k.name} by {k.optimizer}:\n{steps}{show(k.scheduled)}")
    return "\n".join(parts)


def _chosen(made: Compilation, name: str | None) -> Iterable[CompiledKernel]:
    return [k for k in made.kernels if name is None or k.name == name]


def memory(made: Compilation) -> str:
    """Slots of the workspace, and what every kernel reads and writes where."""
    lines: list[str] = []
    for planned in made.segments:
        plan = planned.memory
        lines.append(f"{planned.segment.name}: workspace {_size(plan.total)}, without reuse {_size(plan.unshared)}")
        for k, slot in enumerate(plan.slots):
            lines.append(f"  slot {k}: {_size(slot.size)}: {', '.join(slot.buffers)}")
        for b, place in plan.places.items():
            lines.append(f"  {b}: {_place(place)}")
        lines += [f"  copy of {c.source.name} to output {c.index}" for c in plan.copies]
    return "\n".join(lines)


def _size(e: Expr) -> str:
    return f"{show_expr(e)} bytes"


def _place(place: Place) -> str:
    match place:
        case InInput(index):
            return f"input {index}"
        case InOutput(index):
            return f"output {index}"
        case InConstant(name):
            return f"constant {name}"
        case InWorkspace(slot, _):
            return f"slot {slot}"


def _build(made: Compilation) -> str:
    machine = made.build.machine
    of = "" if machine is None else f" for {machine.machine.name} ({machine.origin})"
    return f"optimizer {made.build.optimizer.name}{of}"


def summary(made: Compilation) -> str:
    """Counts, sizes, and the units in order of execution with the functions that compute them."""
    program = made.program
    kernels = [u for u in made.units if isinstance(u, BoundKernel)]
    weights = sum(int(w.nbytes) for w in made.weights.values())
    lines = [f"model     {program.name}, {len(made.graph.nodes)} nodes", f"target    {made.target}", _build(made)]
    lines += [f"input     {name}: {_type(b)}" for name, b in zip(program.input_names, program.inputs, strict=True)]
    lines += [f"output    {name}: {_type(b)}" for name, b in program.outputs]
    lines += [f"symbol    {show_symbol(v)}" for v in program.symbols]
    lines += [f"requires  {show_expr(c.condition)}  # {c.message}" for c in program.constraints]
    lines.append(f"kernels   {len(kernels)}, of which {len(made.kernels)} are distinct")
    lines.append(f"weights   {weights} bytes in {len(made.weights)} arrays")
    lines += [f"workspace {_size(p.memory.total)}" for p in made.segments]
    for unit in made.units:
        if isinstance(unit, BoundKernel):
            lines.append(f"{unit.compiled.name:24s} -> {unit.kernel.arguments[-1]}  # {unit.kernel.label}")
        elif isinstance(unit, View):
            lines.append(f"{'view':24s} -> {show_name(unit.output.name)} of {show_name(unit.source.name)}")
        else:
            lines.append(f"{'fallback':24s} -> {', '.join(b.name for b in unit.outputs)}  # {unit.label}")
    return "\n".join(lines)
