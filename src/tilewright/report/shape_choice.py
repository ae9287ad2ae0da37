"""Report of what the sizes of a call select: the program of every kernel that has several, and estimated times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import pluralize
from tilewright.expr.define import MAX_SIZE
from tilewright.expr.nodes import Expr, Symbol, Var
from tilewright.expr.parser import parse_expr
from tilewright.lower.kernel_variants import selected_program
from tilewright.report.profile import printable
from tilewright.runtime.manifest import Manifest, NativeStep, all_steps
from tilewright.runtime.manifest_meta import VariantsSpec
from tilewright.tile.shape_samples import value_of


@dataclass(frozen=True, slots=True)
class ShapeChoice:
    """What one kernel does at the sizes of a call.

    Attributes:
        variants: the kernel and its programs.
        sizes: of the symbolic dimensions that decide, by name.
        program: the index of the program that runs; None where a size is known only during the call.
        microseconds: estimated times of all programs; empty where there are none.
    """

    variants: VariantsSpec
    sizes: Mapping[str, int]
    program: int | None
    microseconds: tuple[float, ...]


def shape_choices(kernels: Sequence[VariantsSpec], sizes: Mapping[str, int]) -> tuple[ShapeChoice, ...]:
    """What kernels do at sizes.

    Args:
        kernels: those of a manifest that have several programs.
        sizes: of the model's symbolic dimensions, by name.

    Raises:
        ParseError: an expression in the manifest is damaged.
    """
    return tuple(_choice(k, sizes) for k in kernels)


def _choice(kernel: VariantsSpec, sizes: Mapping[str, int]) -> ShapeChoice:
    named = {s: sizes[s] for s in kernel.symbols if s in sizes}
    if len(named) < len(kernel.symbols):
        return ShapeChoice(kernel, named, None, ())
    symbols: list[Var] = [Symbol(f"s{k}", 0, MAX_SIZE) for k in range(len(kernel.symbols))]
    by_name = {v.name: v for v in symbols}
    values = {v: named[name] for v, name in zip(symbols, kernel.symbols, strict=True)}

    def parsed(expression: str) -> Expr:
        return parse_expr(expression, by_name, {})

    times = tuple(value_of(parsed(x), values) / 1e6 for x in kernel.picoseconds)
    program = selected_program(parsed(kernel.selector), values, len(kernel.programs))
    return ShapeChoice(kernel, named, program, times)


def nodes_with_one_program(manifest: Manifest) -> tuple[str, ...]:
    """The nodes of a model that native code computes with the same program at all sizes, in order of execution."""
    several = {node for kernel in manifest.variants for node in kernel.nodes}
    native = (step.nodes for step in all_steps(manifest.steps) if isinstance(step, NativeStep))
    return tuple(dict.fromkeys(node for nodes in native for node in nodes if node not in several))


MAX_SHOWN_NODES = 8
"""Nodes that a line names."""

PROGRAM_LEGEND = "per axis NAME EXTENT: tile sizes for L2 > L1 > registers (| vector lanes, + summed over); loop order"
"""What the lines of programs mean."""

LEGEND = f"""kernels of dynamic sizes: their programs with predicted times at these sizes; the one marked > runs
{PROGRAM_LEGEND}"""
"""What the lines of `text` mean."""


def text(choices: Sequence[ShapeChoice], others: Sequence[str] = ()) -> str:
    """The choices for people.

    Args:
        choices: those of kernels with several programs.
        others: nodes that have one program.
    """
    if not choices:
        return "no kernel has several programs: one program for all shapes"
    lines = [LEGEND, *(_text(c) for c in choices)]
    if others:
        more = f" and {pluralize(len(others) - MAX_SHOWN_NODES, 'other')}" if len(others) > MAX_SHOWN_NODES else ""
        lines.append(f"one program for all shapes: {', '.join(map(printable, others[:MAX_SHOWN_NODES]))}{more}")
    return "\n".join(lines)


def _text(choice: ShapeChoice) -> str:
    kernel = choice.variants
    sizes = ", ".join(f"{name} {n}" for name, n in choice.sizes.items())
    head = f"{kernel.kernel}: {', '.join(kernel.nodes)}"
    if choice.program is None:
        missing = ", ".join(name for name in kernel.symbols if name not in choice.sizes)
        return f"{head}\n  {missing} is known only during the call"
    lines = [head, f"  {sizes}: program {choice.program} of {len(kernel.programs)}"]
    for k, program in enumerate(kernel.programs):
        time = f"{choice.microseconds[k]:10.1f} us  " if choice.microseconds else ""
        lines.append(f"  {'>' if k == choice.program else ' '} {k} {time}{program}")
    return "\n".join(lines)


def data(choice: ShapeChoice) -> dict[str, Any]:
    """A choice as JSON values; times are estimates in microseconds."""
    return {
        "kernel": choice.variants.kernel,
        "nodes": list(choice.variants.nodes),
        "sizes": dict(choice.sizes),
        "program": choice.program,
        "programs": list(choice.variants.programs),
        "predicted_us": list(choice.microseconds),
    }
