"""Report of predicted times: what each resource takes in the program of every kernel, by the cost model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.cost.analytical import cover_reductions
from tilewright.cost.breakdown import CostBreakdown, CostPart, LevelTerms, Terms, cost_breakdown
from tilewright.cost.rowwise_breakdown import rowwise_breakdown
from tilewright.cost.shape_family import ShapeFamily
from tilewright.machine.model import Machine
from tilewright.optimize.chains.pruning import Variant
from tilewright.optimize.construct.program_tree import KernelProgram
from tilewright.optimize.construct.rowwise_programs import programs_at_samples, rowwise_problem
from tilewright.optimize.task import Task
from tilewright.report.construction import Construction
from tilewright.tile.problem import Problem
from tilewright.tile.rowwise import RowBlocking, RowwiseProgram

WIDTH = 34
"""Columns of the names of terms."""


@dataclass(frozen=True, slots=True)
class ShapeCost:
    """The terms of a program at one shape.

    Attributes:
        sizes: (axis, extent) of the problem; of a row-wise program the number of blocks and the rows of one.
        breakdown: arrays of one number.
    """

    sizes: tuple[tuple[str, int], ...]
    breakdown: CostBreakdown


@dataclass(frozen=True, slots=True)
class KernelCost:
    """The predicted time of one kernel's program.

    Attributes:
        kernel, nodes, optimizer, machine: as in `report.construction.Construction`.
        program: that became loops; None where the rule took the kernel, or the optimizer of fused chains.
        total: nanoseconds by which construction ranked it: of the one shape, or the geometric mean over the shapes.
        call_ns: what construction adds at every shape before the mean is taken, and takes off it; 0 for one shape.
        shapes: the terms, one per shape sample.
    """

    kernel: str
    nodes: tuple[str, ...]
    optimizer: str
    machine: Machine
    program: KernelProgram | None
    total: float
    call_ns: float
    shapes: tuple[ShapeCost, ...]


def kernel_cost(constructed: Construction) -> KernelCost:
    """The cost of the program that became loops."""
    chosen = next((k for k, p in enumerate(constructed.programs) if p.is_lowered), None)
    head = constructed.kernel, constructed.nodes, constructed.optimizer, constructed.machine
    if chosen is None or constructed.constructed is None:
        return KernelCost(*head, None, 0.0, 0.0, ())
    program, machine = constructed.programs[chosen].program, constructed.machine
    shapes = _shape_costs(program, constructed.task, machine)
    call_ns = machine.cost.call_ns if len(shapes) > 1 else 0.0
    return KernelCost(*head, program, constructed.constructed.nanoseconds[chosen], call_ns, shapes)


def _shape_costs(program: KernelProgram, task: Task, machine: Machine) -> tuple[ShapeCost, ...]:
    """The terms at every shape sample, or at the one shape."""
    if isinstance(program, RowwiseProgram):
        kernel = rowwise_problem(task)
        samples = kernel.samples if kernel is not None else ()
        programs = programs_at_samples(kernel, program, samples) if kernel is not None and samples else [program]
        return tuple(ShapeCost(_row_sizes(p.blocking), rowwise_breakdown(p, machine)) for p in programs)
    result: list[ShapeCost] = []
    for problem in program.problem.samples or (program.problem,):
        sizes = program.array[None]
        if program.problem.samples:
            sizes = cover_reductions(ShapeFamily.of(problem), sizes)
        result.append(ShapeCost(_sizes(problem), cost_breakdown(problem, program.sketch, sizes, machine)))
    return tuple(result)


def _row_sizes(blocking: RowBlocking) -> tuple[tuple[str, int], ...]:
    return ("row blocks", blocking.block_count), ("rows of one", blocking.rows_per_block)


def _sizes(problem: Problem) -> tuple[tuple[str, int], ...]:
    return tuple((a.name, a.extent) for a in problem.axes)


def text(kernels: Sequence[KernelCost]) -> str:
    """All kernels for people: a table of terms each, without terms that are 0."""
    return "\n\n".join(_kernel_text(k) for k in kernels)


def _kernel_text(kernel: KernelCost) -> str:
    title = f"{kernel.kernel} by {kernel.optimizer} for {kernel.machine.name}: {', '.join(dict.fromkeys(kernel.nodes))}"
    if kernel.program is None:
        is_fused = kernel.optimizer in tuple(v.value for v in Variant)
        return f"{title}\n{'a fused chain: --fusion shows it' if is_fused else 'not constructed: the rule took it'}"
    mean = ""
    if len(kernel.shapes) > 1:
        mean = f", the geometric mean over {len(kernel.shapes)} shapes with {_us(kernel.call_ns)} for a call"
    lines = [title, f"program   {kernel.program}", f"total     {_us(kernel.total)}{mean}"]
    for shape in kernel.shapes:
        sizes = " ".join(f"{name} {extent}" for name, extent in shape.sizes)
        lines.append(f"{sizes if len(kernel.shapes) > 1 else '':<{WIDTH}}{'time':>12}{'bytes':>12}")
        for part in shape.breakdown.parts:
            if _number(part.total):
                lines += _part_text(part)
        lines += _row("packing", _number(shape.breakdown.packing))
        lines += _row("total", _number(shape.breakdown.total))
    lines.append("(core terms marked | overlap, the slowest counts; those marked . are parts of these)")
    return "\n".join(lines)


def _part_text(part: CostPart) -> list[str]:
    threads, tasks = _number(part.threads), _number(part.counts["tasks"])
    tiles = _number(part.counts["register_tiles"])
    note = f"  threads: {threads:.0f}, tasks: {tasks:.6g}, register tiles: {tiles:.6g}"
    (first,) = _row(part.name, _number(part.total)) or [part.name]
    lines = [first + note, *_row("  core", _number(part.compute))]
    for terms, mark in ((part.overlapping, "|"), (part.contained, "."), (part.exposed, " ")):
        lines += [line for name, x in terms.items() for line in _row(f"  {mark} {_words(name)}", _number(x))]
    for level in part.levels:
        lines += _level_text(level)
    hidden = _number(part.total) - _number(part.fork_join)
    overlap = sum(_number(phase.total) for phase in part.phases)
    lines += _row("  size of the code", hidden - overlap)
    return lines + _row("  fork and join", _number(part.fork_join))


def _level_text(level: LevelTerms) -> list[str]:
    total = sum(map(_number, level.time.values()))
    bytes_ = sum(map(_number, level.bytes.values()))
    lines = _row(f"  {level.name}", total, bytes_)
    for name, x in level.time.items():
        lines += _row(f"    {_words(name)}", _number(x), _number(level.bytes[name]) if name in level.bytes else None)
    return lines if total else []


def _row(name: str, nanoseconds: float, bytes_: float | None = None) -> list[str]:
    """A line of the table; none for what takes no time."""
    if abs(nanoseconds) < 1e-6:
        return []
    return [f"{name:<{WIDTH}}{_us(nanoseconds):>12}{'' if bytes_ is None else f'{bytes_:>12.4g}'}"]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _us(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e3:.4g} us"


def _number(values: np.ndarray) -> float:
    return float(values[0])


def data(kernel: KernelCost) -> dict[str, Any]:
    """A kernel as JSON values, with all terms."""
    head: dict[str, Any] = {
        "kernel": kernel.kernel, "nodes": list(kernel.nodes), "optimizer": kernel.optimizer,
        "machine": kernel.machine.name,
    }  # fmt: skip
    if kernel.program is None:
        return head | {"constructed": False}
    return head | {
        "constructed": True,
        "program": str(kernel.program),
        "total_ns": kernel.total,
        "call_ns": kernel.call_ns,
        "shapes": [
            {
                "sizes": dict(shape.sizes),
                "total_ns": _number(shape.breakdown.total),
                "packing_ns": _number(shape.breakdown.packing),
                "parts": [_part_data(part) for part in shape.breakdown.parts],
            }
            for shape in kernel.shapes
        ],
    }


def _part_data(part: CostPart) -> dict[str, Any]:
    return {
        "name": part.name,
        "total_ns": _number(part.total),
        "threads": _number(part.threads),
        "fork_join_ns": _number(part.fork_join),
        "slowdown": _number(part.slowdown),
        "counts": _terms_data(part.counts),
        "core_ns": {
            "overlapping": _terms_data(part.overlapping),
            "exposed": _terms_data(part.exposed),
            "contained": _terms_data(part.contained),
        },
        "levels": [
            {"name": x.name, "bytes": _terms_data(x.bytes), "ns": _terms_data(x.time)} for x in part.levels
        ],
        "levels_in_turn": part.levels_in_turn,
        "phases": [
            {"core_ns": _number(x.compute), "memory_ns": [_number(m) for m in x.memory], "total_ns": _number(x.total)}
            for x in part.phases
        ],
    }  # fmt: skip


def _terms_data(terms: Terms) -> dict[str, float]:
    return {name: _number(x) for name, x in terms.items()}
