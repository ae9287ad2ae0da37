"""How the programs of kernels were constructed: forms, the walk or the growth, the best programs with what the cost
model says of each, and which one became loops.

Construction draws from a seed and measures nothing, so it is simply done again here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from tilewright.cost.analytical import times
from tilewright.cost.chain import chain_time
from tilewright.driver.compilation import Compilation
from tilewright.driver.kernels import BoundKernel, CompiledKernel
from tilewright.errors import OptionError
from tilewright.expr.nodes import Var
from tilewright.graph.ir import Graph
from tilewright.machine.model import Machine
from tilewright.optimize.construct.lowering import Program, lowering
from tilewright.optimize.construct.optimizer import Constructed, Gensor, Roller
from tilewright.optimize.construct.roller import Path
from tilewright.optimize.construct.walk import Walk
from tilewright.optimize.interface import Task
from tilewright.report.drawing import draw
from tilewright.report.states import of_path, of_walk
from tilewright.tile.chain import ChainProgram
from tilewright.tile.problem import Problem
from tilewright.tile.program import LEVELS, Form
from tilewright.tile.samples import UNKNOWN, Samples

MOST_NAMES = 5
"""Names of nodes that an error lists."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A program with its time in nanoseconds, split as the cost model does.

    Attributes:
        program: tile sizes and form, per step where it is a chain's.
        compute: instructions on the thread that is done last.
        memory: (level, time) of the bytes that come from each level of memory.
        parallel: starting and joining threads.
        total: the whole; kinds of work overlap in part, so it is less than the sum.
        lowered: whether this one became loops.
        refused: why it could not become loops; None where it did, or where a better one did.
    """

    program: Program
    compute: float
    memory: tuple[tuple[str, float], ...]
    parallel: float
    total: float
    lowered: bool
    refused: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Construction:
    """One kernel.

    Attributes:
        kernel: name of the function.
        nodes: the user's nodes that it computes; several where equal kernels share it.
        optimizer: the constructing one.
        machine: for which.
        found: what construction found; None where the optimizer leaves the kernel to the rule.
        programs: the best ones, best first.
        recorded: how many different states the walks recorded; for greedy growth one per form.
        undeclared: symbols of whose sizes nobody has said how large they get, with the sizes that were assumed.
    """

    kernel: str
    nodes: tuple[str, ...]
    optimizer: str
    machine: Machine
    found: Constructed | None
    programs: tuple[Scored, ...]
    recorded: int
    undeclared: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem | None:
        """What was constructed; None without a program."""
        return self.programs[0].program.problem if self.programs else None

    @property
    def forms(self) -> tuple[tuple[Problem, Form], ...]:
        """One form per space that was looked at, and of what: the best program may be a chain's, with other axes. Loop
        orders of one space share their states."""
        return () if self.found is None else tuple((p.space.problem, p.space.form) for p in self.found.paths)

    @property
    def walk(self) -> Walk | None:
        """The way to the best program: a walk, or greedy growth, and the descent behind it, where the optimizer has
        one."""
        return None if self.found is None else self.found.walk()

    @property
    def path(self) -> Path | None:
        """The greedy growth of the best program's form."""
        if self.found is None or not self.programs:
            return None
        program = self.programs[0].program
        if isinstance(program, ChainProgram):
            return None
        best = program.form
        same = [p for p in self.found.paths if (p.space.form.lane, p.space.form.packed) == (best.lane, best.packed)]
        return same[0] if same else None


def check_node(graph: Graph, node: str) -> None:
    """Whether a model has a node.

    Raises:
        OptionError: it has none of that name; names the ones most like it.
    """
    names = [name for n in graph.nodes for name in node_names(n.label)]
    if node not in names:
        near = get_close_matches(node, names, MOST_NAMES) or names[:MOST_NAMES]
        there = f"there are {', '.join(near)}{' and others' if len(near) < len(names) else ''}" if names else ""
        raise OptionError(f"the model has no node {node!r}", where="--node", hint=there)


def constructions(made: Compilation, node: str | None = None, kernel: str | None = None) -> tuple[Construction, ...]:
    """How the kernels of a compilation were constructed.

    Args:
        made: compiled with `gensor` or `roller`.
        node: only kernels that compute this node of the model.
        kernel: only this function.

    Raises:
        OptionError: the optimizer constructs nothing, or no kernel computes the node.
    """
    optimizer = made.build.optimizer
    if not isinstance(optimizer, Gensor | Roller) or optimizer.machine is None:
        what = f"the optimizer {optimizer.name!r} chooses by rule, there is no construction to show"
        raise OptionError(what, where="construction", hint="choose --optimizer gensor or roller")
    labels: dict[str, list[str]] = {}
    for unit in made.units:
        if isinstance(unit, BoundKernel):
            labels.setdefault(unit.compiled.name, []).append(unit.kernel.label)
    wanted = [k for k in made.kernels if kernel is None or k.name == kernel]
    if node is not None:
        wanted = [k for k in wanted if any(node in node_names(label) for label in labels[k.name])]
        if not wanted:
            known = dict.fromkeys(n for k in made.kernels for label in labels[k.name] for n in node_names(label))
            what = f"no kernel computes a node {node!r}; there are {', '.join(known) or 'none'}"
            raise OptionError(what, where="--node")
    return tuple(_construction(k, tuple(labels[k.name]), optimizer, optimizer.machine, made) for k in wanted)


def node_names(label: str) -> tuple[str, ...]:
    """The nodes of a kernel's label: "conv1", "relu1" of "conv1 (Conv) + relu1 (Relu)"."""
    return tuple(part.rpartition(" (")[0] or part for part in label.split(" + ") if part)


def _construction(
    k: CompiledKernel, nodes: tuple[str, ...], optimizer: Gensor | Roller, machine: Machine, made: Compilation
) -> Construction:
    task = Task(k.origin, k.constants, made.target, k.samples)
    found = optimizer.construct(task)
    if found is None:
        return Construction(k.name, nodes, optimizer.name, machine, None, (), 0)
    refused = lowering(found.programs, task, machine).refused
    programs = tuple(
        replace(_scored(p, machine, place == len(refused)), refused=refused[place] if place < len(refused) else None)
        for place, p in enumerate(found.programs)
    )
    recorded = sum(len(h.found()) for h in found.histories) or len(found.paths)
    undeclared = tuple(_assumed(v, k.samples) for v in k.origin.symbols if v.hi is None or v.hi >= UNKNOWN)
    return Construction(k.name, nodes, optimizer.name, machine, found, programs, recorded, undeclared)


def _assumed(symbol: Var, samples: Samples | None) -> str:
    if samples is None:
        return symbol.name
    sizes = sorted({s[symbol] for s in (samples.usual, *samples.others)})
    return f"{symbol.name} = {' '.join(map(str, sizes))}"


def _scored(program: Program, machine: Machine, chosen: bool) -> Scored:
    if isinstance(program, ChainProgram):
        time = chain_time(program, machine)
    else:
        time = times(program.problem, program.form, program.array[None], machine)
    memory = tuple((x.name, float(t[0])) for x, t in zip(machine.levels[1:], time.memory, strict=True))
    return Scored(program, _one(time.compute), memory, _one(time.parallel), _one(time.total), chosen)


def _one(values: Any) -> float:
    return float(np.ravel(values)[0])


def text(found: Sequence[Construction]) -> str:
    """All constructions for people."""
    return "\n\n".join(_text(c) for c in found)


def _text(c: Construction) -> str:
    lines = [f"{c.kernel} by {c.optimizer} for {c.machine.name}: {', '.join(dict.fromkeys(c.nodes))}"]
    problem = c.problem
    if problem is None:
        return "\n".join([*lines, "not constructed: the rule took it"])
    lines.append(f"axes      {', '.join(_axis(problem, k) for k in range(len(problem.axes)))}")
    lines += [f"form      {form_text(*form)}" for form in c.forms]
    if c.undeclared:
        lines.append(f"assumed   {', '.join(c.undeclared)}, as no range is declared; --shape NAME:LO..HI declares one")
    if c.walk is not None:
        lines.append(f"states    {c.recorded} recorded")
    lines.append("programs")
    for k, p in enumerate(c.programs, 1):
        split = [f"compute {_us(p.compute)}", *(f"{name} {_us(t)}" for name, t in p.memory)]
        split += [f"threads {_us(p.parallel)}", f"total {_us(p.total)}"]
        lines += [f"{k:3d}{'*' if p.lowered else ' '} {p.program}", f"     {', '.join(split)}"]
        lines += [] if p.refused is None else [f"     can't be lowered: {p.refused}"]
    lines.append("(* became loops; sizes are L2 > L1 > register tile, | lanes, + reduced)")
    if not any(p.lowered for p in c.programs):
        lines.append("not lowered: the rule took it")
    if c.walk is not None:
        lines += ["walk", _indented(str(c.walk))]
    elif c.path is not None:
        lines += ["growth", _indented(str(c.path))]
    return "\n".join(lines)


def _axis(problem: Problem, k: int) -> str:
    a = problem.axes[k]
    return f"{a.name} {a.extent}{'' if a.literal else ' (symbol)'}{' reduced' if a.reduce else ''}"


def form_text(problem: Problem, form: Form) -> str:
    """A form in a line."""
    packed = ", ".join(problem.operands[k].buffer for k, _ in form.packed)
    cut = "" if form.chunked is None else f", {problem.axes[form.chunked].name} may be cut"
    return f"{form.lanes} lanes along {problem.axes[form.lane].name}{cut}" + (f", packed {packed}" if packed else "")


def _us(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e3:.3g} us"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def data(c: Construction) -> dict[str, Any]:
    """A construction as JSON values; times in nanoseconds, sizes per level of `levels` and axis."""
    problem = c.problem
    head: dict[str, Any] = {
        "kernel": c.kernel, "nodes": list(c.nodes), "optimizer": c.optimizer, "machine": c.machine.name,
    }  # fmt: skip
    if problem is None:
        return head | {"constructed": False}
    return head | {
        "constructed": True,
        "levels": list(LEVELS),
        "axes": [{"name": a.name, "extent": a.extent, "literal": a.literal, "reduced": a.reduce} for a in problem.axes],
        "forms": [_form_data(*form) for form in c.forms],
        "recorded": c.recorded,
        "undeclared": list(c.undeclared),
        "walk": None if c.walk is None else _walk_data(c.walk),
        "growth": None if c.walk is not None or c.path is None else _path_data(c.path),
        "programs": [
            {
                **_program_data(p.program),
                "compute_ns": p.compute,
                "memory_ns": dict(p.memory),
                "threads_ns": p.parallel,
                "total_ns": p.total,
                "lowered": p.lowered,
                "refused": p.refused,
            }
            for p in c.programs
        ],
    }


def _program_data(program: Program) -> dict[str, Any]:
    if isinstance(program, ChainProgram):
        rows = {"together": program.rows.together, "groups": program.rows.groups}
        return {"rows": rows, "steps": [{"block": p.problem.block, **_program_data(p)} for p in program.steps]}
    return {"form": _form_data(program.problem, program.form), "sizes": [list(level) for level in program.sizes]}


def picture(found: Sequence[Construction]) -> str:
    """The states of the one construction, as an SVG document.

    Raises:
        OptionError: there are several, or none.
    """
    drawn = [c for c in found if c.programs]
    if len(drawn) != 1:
        listed = ", ".join(c.kernel for c in drawn) or "none"
        what = f"a picture shows one kernel, {len(drawn)} were constructed ({listed})"
        raise OptionError(what, where="--svg", hint="choose one by --kernel NAME")
    (c,) = drawn
    best, walk, path = c.programs[0].program, c.walk, c.path
    if isinstance(best, ChainProgram):
        what = "the steps of a chain have few states, and all were scored: there is no walk to draw"
        raise OptionError(what, where=f"kernel {c.kernel!r}", hint="--construction without --svg prints the programs")
    title = f"{c.kernel} by {c.optimizer} for {c.machine.name}: {', '.join(dict.fromkeys(c.nodes))}"
    if walk is not None:
        return draw(of_walk(walk, best), title)
    if path is not None:
        return draw(of_path(path, best), title)
    raise OptionError("its states are not known", where=f"kernel {c.kernel!r}")


def _form_data(problem: Problem, form: Form) -> dict[str, Any]:
    return {
        "lane": problem.axes[form.lane].name,
        "lanes": form.lanes,
        "order": [problem.axes[k].name for k in form.order],
        "cut": None if form.chunked is None else problem.axes[form.chunked].name,
        "packed": [problem.operands[k].buffer for k, _ in form.packed],
    }


def _walk_data(walk: Walk) -> dict[str, Any]:
    return {
        "moves": [
            {
                "level": m.level,
                "sizes": [list(level) for level in m.sizes],
                "action": m.action,
                "probabilities": dict(m.probabilities),
                "recorded": m.recorded,
            }
            for m in walk.moves
        ],
        "final": [list(level) for level in walk.final],
    }


def _path_data(path: Path) -> list[dict[str, Any]]:
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
