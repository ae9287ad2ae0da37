"""Report of program construction: sketches, the walk or greedy growth, and the best programs with predicted times.

Construction is deterministic for a seed and measures nothing, so the report repeats it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from tilewright.cost.analytical import program_times
from tilewright.cost.rowwise import rowwise_time
from tilewright.driver.compilation import Compilation
from tilewright.driver.kernel_build.kernels import BoundKernel, CompiledKernel
from tilewright.errors import OptionError
from tilewright.expr.nodes import Var
from tilewright.graph.fusion import FusionPattern
from tilewright.graph.ir import Graph
from tilewright.machine.model import Machine
from tilewright.optimize.construct.lower_programs import lower_first_legal
from tilewright.optimize.construct.optimizer import ConstructionResult, Gensor, Roller
from tilewright.optimize.construct.program_tree import KernelProgram
from tilewright.optimize.construct.roller import GrowthPath
from tilewright.optimize.construct.trajectory import Trajectory
from tilewright.optimize.task import Task
from tilewright.optimize.vortex.optimizer import Vortex
from tilewright.report.state_graph import graph_of_growth, graph_of_trajectory
from tilewright.report.state_graph_svg import draw
from tilewright.tile.problem import Problem
from tilewright.tile.program import LEVELS, Sketch
from tilewright.tile.rowwise import RowwiseProgram
from tilewright.tile.shape_samples import MIN_UNDECLARED_BOUND

MAX_LISTED_NAMES = 5
"""Limit of the node names in an error message."""


@dataclass(frozen=True, slots=True)
class ScoredProgram:
    """A program with its predicted time in nanoseconds, split by the terms of the cost model.

    Attributes:
        program: the tile program, or the row-wise program with its steps.
        compute: time of instructions on the last thread.
        memory: (level, time) of the traffic from each memory level.
        parallel: time of starting and joining threads.
        total: the predicted time; terms overlap in part, so it is less than their sum.
        is_lowered: whether this program was lowered to loops.
        rejection: why it could not be lowered; None if it was, or if a better one was.
    """

    program: KernelProgram
    compute: float
    memory: tuple[tuple[str, float], ...]
    parallel: float
    total: float
    is_lowered: bool
    rejection: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Construction:
    """One kernel.

    Attributes:
        kernel: name of the function.
        nodes: the user's nodes that it computes; several where equal kernels share it.
        task: what was constructed.
        optimizer: name of the optimizer.
        machine: the machine that it constructs programs for.
        constructed: the result of construction; None if the optimizer leaves the kernel to the rule.
        programs: the best programs, best first.
        recorded: number of distinct states that the walks recorded; for greedy growth one per sketch.
        undeclared: symbols without a declared range, with the sizes that were assumed.
        symbol_names: the user's names of the task's symbols.
    """

    kernel: str
    nodes: tuple[str, ...]
    task: Task
    optimizer: str
    machine: Machine
    constructed: ConstructionResult | None
    programs: tuple[ScoredProgram, ...]
    recorded: int
    undeclared: tuple[str, ...] = ()
    symbol_names: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def problem(self) -> Problem | None:
        """The problem of the best program; None without a program."""
        return self.programs[0].program.problem if self.programs else None

    @property
    def sketches(self) -> tuple[tuple[Problem, Sketch], ...]:
        """A problem and a sketch per searched space: the best program may be row-wise, with other axes. Loop orders of
        one space share their states."""
        return (
            () if self.constructed is None else tuple((p.space.problem, p.space.sketch) for p in self.constructed.paths)
        )

    @property
    def trajectory(self) -> Trajectory | None:
        """The trajectory to the best program: a walk or greedy growth, then local search; None if the optimizer has
        none."""
        return None if self.constructed is None else self.constructed.trajectory()

    @property
    def growth_path(self) -> GrowthPath | None:
        """The greedy growth of the best program's sketch."""
        if self.constructed is None or not self.programs:
            return None
        program = self.programs[0].program
        if isinstance(program, RowwiseProgram):
            return None
        best = program.sketch
        same = [
            p
            for p in self.constructed.paths
            if (p.space.sketch.lane, p.space.sketch.packed) == (best.lane, best.packed)
        ]
        return same[0] if same else None


def check_node(graph: Graph, node: str) -> None:
    """Checks that a model has a node.

    Raises:
        OptionError: it has none of that name; lists similar names.
    """
    names = [name for n in graph.nodes for name in node_names(n.label)]
    if node not in names:
        near = get_close_matches(node, names, MAX_LISTED_NAMES) or names[:MAX_LISTED_NAMES]
        there = f"there are {', '.join(near)}{' and others' if len(near) < len(names) else ''}" if names else ""
        raise OptionError(f"the model has no node {node!r}", where="--node", hint=there)


def constructions(
    compilation: Compilation, node: str | None = None, kernel: str | None = None
) -> tuple[Construction, ...]:
    """The constructions of a compilation's kernels.

    Args:
        compilation: a compilation with `gensor`, `roller` or `vortex`.
        node: restricts the report to kernels that compute this node of the model.
        kernel: restricts the report to this function.

    Raises:
        OptionError: the optimizer constructs nothing, or no kernel computes the node.
    """
    optimizer = compilation.build.optimizer
    if not isinstance(optimizer, Gensor | Roller | Vortex) or optimizer.machine is None:
        what = f"the optimizer {optimizer.name!r} chooses by rule, there is no construction to show"
        raise OptionError(what, where="construction", hint="choose --optimizer gensor, roller or vortex")
    labels: dict[str, list[str]] = {}
    for unit in compilation.all_units:
        if isinstance(unit, BoundKernel):
            labels.setdefault(unit.compiled.name, []).append(unit.kernel.label)
    kernels = [k for k in compilation.kernels if kernel is None or k.name == kernel]
    if node is not None:
        kernels = [k for k in kernels if any(node in node_names(label) for label in labels[k.name])]
        if not kernels:
            nodes_computed = dict.fromkeys(
                n for k in compilation.kernels for label in labels[k.name] for n in node_names(label)
            )
            what = f"no kernel computes a node {node!r}; there are {', '.join(nodes_computed) or 'none'}"
            raise OptionError(what, where="--node")
    return tuple(_reconstruct(k, tuple(labels[k.name]), optimizer, optimizer.machine, compilation) for k in kernels)


def node_names(label: str) -> tuple[str, ...]:
    """The nodes of a kernel's label: "conv1", "relu1" of "conv1 (Conv) + relu1 (Relu)"."""
    return tuple(part.rpartition(" (")[0] or part for part in label.split(" + ") if part)


def _reconstruct(
    kernel: CompiledKernel, nodes: tuple[str, ...], optimizer: Gensor | Roller | Vortex, machine: Machine,
    compilation: Compilation,
) -> Construction:  # fmt: skip
    task = Task(kernel.origin, kernel.constants, compilation.target, kernel.fusion, kernel.samples)
    if kernel.fusion.pattern is FusionPattern.CHAIN:
        # an optimizer of its own constructs it, which report/fusion.py shows
        return Construction(kernel.name, nodes, task, kernel.optimizer, machine, None, (), 0)
    constructed = optimizer.construct(task)
    if constructed is None:
        return Construction(kernel.name, nodes, task, optimizer.name, machine, None, (), 0)
    refusals = lower_first_legal(constructed.programs, task, machine).refusals
    programs = tuple(
        replace(
            _score_program(p, machine, place == len(refusals)),
            rejection=refusals[place] if place < len(refusals) else None,
        )
        for place, p in enumerate(constructed.programs)
    )
    recorded = sum(len(h.recorded_sizes()) for h in constructed.walk_batches) or len(constructed.paths)
    undeclared = tuple(
        _assumed_sizes(v, kernel) for v in kernel.origin.symbols if v.hi is None or v.hi >= MIN_UNDECLARED_BOUND
    )
    head = kernel.name, nodes, task, optimizer.name, machine, constructed
    return Construction(*head, programs, recorded, undeclared, kernel.symbol_names)


def _assumed_sizes(symbol: Var, kernel: CompiledKernel) -> str:
    name, samples = kernel.symbol_names[symbol.name], kernel.samples
    if samples is None:
        return name
    sizes = sorted({s[symbol] for s in (samples.representative, *samples.shapes)})
    return f"{name} = {' '.join(map(str, sizes))}"


def _score_program(program: KernelProgram, machine: Machine, is_lowered: bool) -> ScoredProgram:
    if isinstance(program, RowwiseProgram):
        time = rowwise_time(program, machine)
    else:
        time = program_times(program.problem, program.sketch, program.array[None], machine)
    memory = tuple((x.name, float(t[0])) for x, t in zip(machine.levels[1:], time.memory, strict=True))
    return ScoredProgram(
        program, _scalar(time.compute), memory, _scalar(time.parallel), _scalar(time.total), is_lowered
    )


def _scalar(values: Any) -> float:
    return float(np.ravel(values)[0])


def text(kernels: Sequence[Construction]) -> str:
    """All constructions for people."""
    return "\n\n".join(_text(c) for c in kernels)


def without_program(task: Task) -> str:
    """Why a kernel has no program to show."""
    is_fused = task.fusion.pattern is FusionPattern.CHAIN
    return "a fused chain: --fusion shows it" if is_fused else "not constructed: scheduled by rule"


def _text(construction: Construction) -> str:
    lines = [
        f"{construction.kernel} by {construction.optimizer} for {construction.machine.name}: "
        f"{', '.join(dict.fromkeys(construction.nodes))}"
    ]
    problem = construction.problem
    if problem is None:
        return "\n".join([*lines, without_program(construction.task)])
    lines.append(f"axes      {', '.join(_axis(problem, k) for k in range(len(problem.axes)))}")
    lines += [f"sketch    {sketch_text(*sketch)}" for sketch in construction.sketches]
    if construction.undeclared:
        lines.append(
            f"assumed   {', '.join(construction.undeclared)}, as no range is declared; --shape NAME:LO..HI declares one"
        )
    if construction.trajectory is not None:
        lines.append(f"states    {construction.recorded} recorded")
    lines.append("programs")
    for k, p in enumerate(construction.programs, 1):
        split = [f"compute {_us(p.compute)}", *(f"{name} {_us(t)}" for name, t in p.memory)]
        split += [f"threads {_us(p.parallel)}", f"total {_us(p.total)}"]
        lines += [f"{k:3d}{'*' if p.is_lowered else ' '} {p.program}", f"     {', '.join(split)}"]
        lines += [] if p.rejection is None else [f"     can't be lowered: {p.rejection}"]
    lines.append("(* was lowered; sizes are L2 > L1 > register tile, | lanes, + reduced)")
    if not any(p.is_lowered for p in construction.programs):
        lines.append("not lowered: scheduled by rule")
    if construction.trajectory is not None:
        lines += ["trajectory", _indented(str(construction.trajectory))]
    elif construction.growth_path is not None:
        lines += ["greedy growth", _indented(str(construction.growth_path))]
    return "\n".join(lines)


def _axis(problem: Problem, axis: int) -> str:
    a = problem.axes[axis]
    return f"{a.name} {a.extent}{'' if a.is_static else ' (symbol)'}{' reduced' if a.is_reduction else ''}"


def sketch_text(problem: Problem, sketch: Sketch) -> str:
    """A sketch in a line."""
    packed = ", ".join(problem.operands[k].buffer for k, _ in sketch.packed)
    cut = "" if sketch.k_block_axis is None else f", {problem.axes[sketch.k_block_axis].name} may be K-blocked"
    return f"{sketch.lanes} lanes along {problem.axes[sketch.lane].name}{cut}" + (
        f", packed {packed}" if packed else ""
    )


def _us(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e3:.3g} us"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def data(construction: Construction) -> dict[str, Any]:
    """A construction as JSON values; times in nanoseconds, sizes per level of `levels` and axis."""
    problem = construction.problem
    head: dict[str, Any] = {
        "kernel": construction.kernel, "nodes": list(construction.nodes), "optimizer": construction.optimizer,
        "machine": construction.machine.name,
    }  # fmt: skip
    if problem is None:
        return head | {"constructed": False}
    return head | {
        "constructed": True,
        "levels": list(LEVELS),
        "axes": [
            {"name": a.name, "extent": a.extent, "literal": a.is_static, "reduced": a.is_reduction}
            for a in problem.axes
        ],
        "forms": [_sketch_data(*sketch) for sketch in construction.sketches],
        "recorded": construction.recorded,
        "undeclared": list(construction.undeclared),
        "walk": None if construction.trajectory is None else _trajectory_data(construction.trajectory),
        "growth": None
        if construction.trajectory is not None or construction.growth_path is None
        else _growth_data(construction.growth_path),
        "programs": [
            {
                **_program_data(p.program),
                "compute_ns": p.compute,
                "memory_ns": dict(p.memory),
                "threads_ns": p.parallel,
                "total_ns": p.total,
                "lowered": p.is_lowered,
                "refused": p.rejection,
            }
            for p in construction.programs
        ],
    }


def _program_data(program: KernelProgram) -> dict[str, Any]:
    if isinstance(program, RowwiseProgram):
        rows = {"together": program.blocking.rows_per_block, "groups": program.blocking.block_count}
        return {"rows": rows, "steps": [{"block": p.problem.block, **_program_data(p)} for p in program.stages]}
    return {"form": _sketch_data(program.problem, program.sketch), "sizes": [list(level) for level in program.sizes]}


def picture(kernels: Sequence[Construction]) -> str:
    """The states of the one construction, as an SVG document.

    Raises:
        OptionError: there are several, or none.
    """
    constructed_kernels = [c for c in kernels if c.programs]
    if len(constructed_kernels) != 1:
        names = ", ".join(c.kernel for c in constructed_kernels) or "none"
        what = f"a picture shows one kernel, {len(constructed_kernels)} were constructed ({names})"
        raise OptionError(what, where="--svg", hint="choose one by --kernel NAME")
    (c,) = constructed_kernels
    best, walk, path = c.programs[0].program, c.trajectory, c.growth_path
    if isinstance(best, RowwiseProgram):
        what = "the stages of a row-wise program are scored exhaustively, without a state graph"
        raise OptionError(what, where=f"kernel {c.kernel!r}", hint="--construction without --svg prints the programs")
    title = f"{c.kernel} by {c.optimizer} for {c.machine.name}: {', '.join(dict.fromkeys(c.nodes))}"
    if walk is not None:
        return draw(graph_of_trajectory(walk, best), title)
    if path is not None:
        return draw(graph_of_growth(path, best), title)
    raise OptionError("the optimizer has recorded no states", where=f"kernel {c.kernel!r}")


def _sketch_data(problem: Problem, sketch: Sketch) -> dict[str, Any]:
    return {
        "lane": problem.axes[sketch.lane].name,
        "lanes": sketch.lanes,
        "order": [problem.axes[k].name for k in sketch.order],
        "cut": None if sketch.k_block_axis is None else problem.axes[sketch.k_block_axis].name,
        "packed": [problem.operands[k].buffer for k, _ in sketch.packed],
    }


def _trajectory_data(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "moves": [
            {
                "level": m.level,
                "sizes": [list(level) for level in m.sizes],
                "action": m.action,
                "probabilities": dict(m.probabilities),
                "recorded": m.recorded,
            }
            for m in trajectory.steps
        ],
        "final": [list(level) for level in trajectory.final],
    }


def _growth_data(path: GrowthPath) -> list[dict[str, Any]]:
    names = [a.name for a in path.space.problem.axes]
    return [
        {
            "level": LEVELS[g.level],
            "axis": names[g.axis],
            "score": g.score,
            "sizes": [list(level) for level in g.sizes],
        }
        for g in path.steps
    ]
