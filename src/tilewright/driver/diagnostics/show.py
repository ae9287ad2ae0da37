"""Text of every level of a compilation, for `inspect`."""

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import add

import numpy as np

from tilewright.driver.compilation import Compilation
from tilewright.driver.kernel_build.kernels import BoundKernel, BoundUnit, CompiledKernel
from tilewright.errors import pluralize
from tilewright.expr.computation import View
from tilewright.expr.nodes import Expr, Var
from tilewright.expr.printer import show as show_expr
from tilewright.expr.printer import show_name
from tilewright.graph.alternatives import Evaluation
from tilewright.graph.buffer_location import (
    BufferLocation,
    ConstantLocation,
    InputLocation,
    OutputLocation,
    PointerLocation,
    WorkspaceLocation,
)
from tilewright.graph.program import Conditional, Loop, Program, RoutineStep, RuntimeStep, SizesStep, bodies_of
from tilewright.loops.printer import show, show_symbol
from tilewright.loops.private_memory import is_private, literal_bytes, slice_bytes
from tilewright.lower.kernel_variants import programs_of
from tilewright.lower.lower_kernel import lower_kernel

_MAX_VALUE_LENGTH = 60


def graph(compilation: Compilation) -> str:
    """Inputs, nodes with the types of their results, and outputs."""
    values = compilation.lowered.values
    lines = [f"input {v.name}: {v.type}" for v in compilation.graph.inputs]
    for n in compilation.graph.nodes:
        results = ", ".join(f"{o}: {_type_text(values[o])}" if o in values else o for o in n.outputs if o)
        attributes = ", ".join(f"{k}={_short_text(v)}" for k, v in n.attributes.items())
        arguments = ", ".join(i or "-" for i in n.inputs)
        lines.append(f"{results} = {n.op_type}({arguments}){f' {{{attributes}}}' if attributes else ''}  # {n.name}")
    return "\n".join([*lines, *(f"output {name}" for name in compilation.graph.outputs)])


def _type_text(buffer: object) -> str:
    return str(buffer).partition(": ")[2]


def _short_text(value: object) -> str:
    text = f"array{value.shape}" if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 3]}..."


def expressions(compilation: Compilation) -> str:
    """Every step of the program after inlining, bodies of control flow indented."""
    return "\n".join(_step_lines(compilation, compilation.program, ""))


def _step_lines(compilation: Compilation, program: Program, indent: str) -> Iterator[str]:
    for s in program.steps:
        if not isinstance(s, RuntimeStep):
            yield f"{indent}{s}"
            continue
        yield f"{indent}{_step_kind(s)} {s.label} -> {', '.join(map(str, s.outputs))}"
        for body in bodies_of(s):
            inner = compilation.bodies[body.program].partition.program
            given = ", ".join(map(str, inner.inputs))
            yield f"{indent}  ({given}) -> {', '.join(str(b) for _, b in inner.outputs)}:"
            yield from _step_lines(compilation, inner, f"{indent}    ")


def _step_kind(step: RuntimeStep) -> str:
    """What the runtime does in a step, in a word."""
    match step:
        case Conditional():
            return "if"
        case Loop():
            return "loop"
        case RoutineStep():
            return f"routine {step.routine.name}"
        case SizesStep():
            return f"sizes {', '.join(map(str, step.data_symbols))}"
        case _:
            return "fallback"


def layouts(compilation: Compilation) -> str:
    """The layout of every tensor with its reason, and the conversions between layouts."""
    return "every tensor is stored row-major" if compilation.laid_out is None else str(compilation.laid_out)


def alternatives(compilation: Compilation) -> str:
    """Every alternative that was considered, as a table, and how many kernels were constructed."""
    rows = [("node", "alternative", "before us", "after us", "", "why")]
    for d in _all_alternatives(compilation):
        times = (_time_text(d.before), _time_text(d.after))
        rows.append((d.alternative.label, d.alternative.name, *times, "chosen" if d.chosen else "-", d.reason))
    node, name, before, after, verdict, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [
        f"{r[0]:<{node}}  {r[1]:<{name}}  {r[2]:>{before}}  {r[3]:>{after}}  {r[4]:<{verdict}}  {r[5]}" for r in rows
    ]
    counts = compilation.constructions
    reused = pluralize(counts.reused, "function")
    what = f"constructed kernels: {counts.constructed}; {reused} of the model have programs that were estimated before"
    return "\n".join([*(lines if len(rows) > 1 else ["no alternatives were considered"]), what])


def _all_alternatives(compilation: Compilation) -> list[Evaluation]:
    """Those of the model's own steps, then those of bodies."""
    return [*compilation.alternatives, *(d for b in compilation.bodies.values() for d in b.alternatives)]


def _time_text(nanoseconds: float | None) -> str:
    return "unknown" if nanoseconds is None else f"{nanoseconds / 1e3:.1f}"


def alternatives_data(compilation: Compilation) -> list[dict[str, object]]:
    """Every alternative that was considered, for `--json`; times in nanoseconds."""
    return [
        {
            "node": d.alternative.label,
            "name": d.alternative.name,
            "replaces": list(d.alternative.replaces),
            "error_growth": d.alternative.error_growth,
            "before_ns": d.before,
            "after_ns": d.after,
            "chosen": d.chosen,
            "reason": d.reason,
        }
        for d in _all_alternatives(compilation)
    ]


def loops(compilation: Compilation, name: str | None = None) -> str:
    """The untransformed loops of every function, or of one."""
    return "\n".join(show(k.origin) for k in _select_kernels(compilation, name))


def schedules(compilation: Compilation, name: str | None = None) -> str:
    """The trace of every function, or of one, and its scheduled loops."""
    parts: list[str] = []
    for k in _select_kernels(compilation, name):
        for number, program in enumerate(k.programs, 1):
            which = f", program {number} of {len(k.programs)}" if len(k.programs) > 1 else ""
            steps = "".join(f"#   {step}\n" for step in program.trace)
            parts.append(f"# {k.name} by {k.optimizer}{which}:\n{steps}{show(program.scheduled)}")
    return "\n".join(parts)


def lowered_loops(compilation: Compilation, name: str | None = None) -> str:
    """The loops that code is generated from, of every function, or of one."""
    kernels = _select_kernels(compilation, name)
    return "\n".join(show(lower_kernel(f, compilation.target).func) for k in kernels for f in programs_of(k.func))


def _select_kernels(compilation: Compilation, name: str | None) -> Iterable[CompiledKernel]:
    return [k for k in compilation.kernels if name is None or k.name == name]


def memory(compilation: Compilation) -> str:
    """Slots of the workspace, the location of every buffer, and what kernels keep per thread."""
    lines: list[str] = []
    for planned in compilation.all_segments:
        plan = planned.memory
        lines.append(
            f"{planned.segment.name}"
            f": workspace {_bytes_text(plan.total)}, without reuse {_bytes_text(plan.size_without_reuse)}"
        )
        for k, slot in enumerate(plan.slots):
            lines.append(f"  slot {k}: {_bytes_text(slot.size)}: {', '.join(slot.buffers)}")
        for b, place in plan.locations.items():
            lines.append(f"  {b}: {_place_text(place)}")
        lines += [f"  copy of {c.source.name} to output {c.index}" for c in plan.copies]
    lines += _private_lines(compilation)
    return "\n".join(lines)


def _private_lines(compilation: Compilation) -> Iterator[str]:
    """What kernels keep per thread: on the stack, and in slices of the workspace."""
    for k in compilation.kernels:
        for number, (func, scratch) in enumerate(zip(programs_of(k.func), k.scratch, strict=True), 1):
            name = f"{k.name}, program {number}" if len(k.programs) > 1 else k.name
            on_stack = literal_bytes(func)
            if on_stack:
                yield f"{name}: {sum(on_stack.values())} bytes per thread on the stack: {', '.join(on_stack)}"
            slices = [b for b in scratch if is_private(b)]
            if slices:
                total = reduce(add, map(slice_bytes, slices))
                names = ", ".join(b.name for b in slices)
                yield f"{name}: {_bytes_text(total)} per thread in the workspace: {names}"


def _bytes_text(e: Expr) -> str:
    return f"{show_expr(e)} bytes"


def _place_text(place: BufferLocation) -> str:
    match place:
        case InputLocation(index):
            return f"input {index}"
        case OutputLocation(index):
            return f"output {index}"
        case ConstantLocation(name):
            return f"constant {name}"
        case WorkspaceLocation(_, slot):
            return f"slot {slot}"
        case PointerLocation(name):
            return f"pointer {name}"


def _build_text(compilation: Compilation) -> str:
    machine = compilation.build.machine
    of = "" if machine is None else f" for {machine.machine.name} ({machine.origin})"
    return f"optimizer {compilation.build.optimizer.name}{of}"


def summary(compilation: Compilation) -> str:
    """Counts, sizes, and the units in order of execution with the functions that compute them."""
    program = compilation.program
    kernels = [u for u in compilation.all_units if isinstance(u, BoundKernel)]
    weights = sum(int(w.nbytes) for w in compilation.weights.values())
    lines = [
        f"model     {program.name}, {pluralize(len(compilation.graph.nodes), 'node')}",
        f"target    {compilation.target}",
        _build_text(compilation),
    ]
    lines += [f"input     {name}: {_type_text(b)}" for name, b in zip(program.input_names, program.inputs, strict=True)]
    lines += [f"output    {name}: {_type_text(b)}" for name, b in program.outputs]
    lines += [f"symbol    {show_symbol(v)}{_dimension_text(v, program)}" for v in program.symbols]
    lines += [f"requires  {show_expr(c.condition)}  # {c.message}" for c in program.constraints]
    lines.append(f"kernels   {len(kernels)}, of which {len(compilation.kernels)} are distinct")
    lines.append(f"weights   {weights} bytes in {pluralize(len(compilation.weights), 'array')}")
    lines += [f"workspace {_bytes_text(p.memory.total)}" for p in compilation.all_segments]
    return "\n".join([*lines, *_unit_lines(compilation, compilation.units, "")])


def _dimension_text(symbol: Var, program: Program) -> str:
    """The dimension that a symbol is, where users name it otherwise."""
    name = program.symbol_names.get(symbol.name, symbol.name)
    return "" if name == symbol.name else f", the dimension {name}"


def _unit_lines(compilation: Compilation, units: Iterable[BoundUnit], indent: str) -> Iterator[str]:
    """The units with the functions that compute them, those of bodies indented."""
    for unit in units:
        if isinstance(unit, BoundKernel):
            results = ", ".join(map(str, unit.kernel.writes))
            yield f"{indent}{unit.compiled.name:24s} -> {results}  # {unit.kernel.label}"
        elif isinstance(unit, View):
            yield f"{indent}{'view':24s} -> {show_name(unit.output.name)} of {show_name(unit.source.name)}"
        else:
            yield f"{indent}{_step_kind(unit):24s} -> {', '.join(b.name for b in unit.outputs)}  # {unit.label}"
            for k, body in enumerate(bodies_of(unit)):
                yield f"{indent}  {('then', 'else')[k] if isinstance(unit, Conditional) else 'body'}:"
                yield from _unit_lines(compilation, compilation.bodies[body.program].units, f"{indent}    ")
