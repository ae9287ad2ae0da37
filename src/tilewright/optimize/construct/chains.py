"""Construction of chains of blocks that work row by row: how many rows a group has, and a register tile for every step.

A group of rows lies in the caches, so a step has no tiles above its register tile, and its states are few: all of them
are scored. Steps do not depend on each other beside the number of rows, so each takes the best one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright.cost.analytical import fitted, over_samples
from tilewright.cost.chain import chain_time, group_cycles, time_of
from tilewright.loops.ir import Block, Func, Seq, Stmt, blocks
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.optimize.construct.ladder import balanced, divisors
from tilewright.optimize.inside import Tile, along_axis
from tilewright.optimize.interface import Task
from tilewright.optimize.rows import BESIDE, Plan, chain, epilogue, fit_stacks, is_chain, shared_axes
from tilewright.schedule.trace import Schedule
from tilewright.schedule.tree import spatial_vars
from tilewright.tile.chain import ChainProgram, Rows, Step, of_group, rows_of
from tilewright.tile.family import Family
from tilewright.tile.footprint import Numbers
from tilewright.tile.problem import Problem, problem_of
from tilewright.tile.program import Form, TileProgram

VECTORS = (1, 2, 4, 8)
"""Vectors of a register tile of windows along its lanes; LLVM widens other numbers."""

REDUCING_VECTORS = (2, 4)
"""Vectors over which a reduction to one value runs at once, where a row has them: one would wait for itself, and to
combine many takes time in every row."""

MOST_LINES = 16
"""Lines of a register tile of windows."""

MOST_TAPS = 64
"""Points of a window up to which it may be written out."""

WRITTEN_OUT = 512
"""Vector operations of one register tile that may be written out."""

ENOUGH_GROUPS = 16
"""Groups of rows that are left for threads."""


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """A chain as construction sees it.

    Attributes:
        func: its untransformed loops.
        rank: leading axes that are rows.
        blocks: of every step the one that does its work.
        problems: theirs, in the whole kernel.
        private: buffers that steps hand on.
    """

    func: Func
    rank: int
    blocks: tuple[Block, ...]
    problems: tuple[Problem, ...]
    private: frozenset[str]

    @property
    def samples(self) -> tuple[tuple[Problem, ...], ...]:
        """The steps' problems at every sample of sizes that are symbols; none where all sizes are known, or a step has
        nothing to do at a sample."""
        count = len(self.problems[0].samples)
        alike = all(len(p.samples) == count for p in self.problems)
        return tuple(zip(*(p.samples for p in self.problems), strict=True)) if alike else ()

    @property
    def windows(self) -> bool:
        """Whether the last step has many results in a row, each a reduction."""
        last = self.blocks[-1]
        return last.init is not None and len(spatial_vars(last)) > self.rank


def chain_problem(task: Task) -> ChainProblem | None:
    """The chain that a kernel is; None where it is none whose rows fit stacks, or a step is not affine."""
    func = task.func
    found = blocks(func.body)
    rank = shared_axes(func)
    if not fit_stacks(func, rank):
        return None
    if not is_chain(func) and all(along_axis(b) is None for b in found):
        return None
    steps: list[Block] = []
    problems: list[Problem] = []
    taken: set[str] = set()
    for b in found:
        if b.name in taken or not b.iters:
            continue
        results = b.init is not None and (len(spatial_vars(b)) > rank or b.body.buffer not in func.allocs)
        after = epilogue(b, found) if results else None
        if results and b is not found[-1] and after != found[-1].name:
            return None
        names = {b.name} | ({after} if after else set())
        taken |= names
        nests = [x for x in _nests(func.body) if blocks(x)[0].name in names]
        alone = replace(func, body=nests[0] if len(nests) == 1 else Seq(tuple(nests)))
        problem = problem_of(alone, task.constants, task.samples)
        if problem is None:
            return None
        steps.append(b)
        problems.append(problem)
    if found[-1].name not in taken:
        return None
    return ChainProblem(func, rank, tuple(steps), tuple(problems), frozenset(b.name for b in func.allocs))


def _nests(body: Stmt) -> tuple[Stmt, ...]:
    return body.stmts if isinstance(body, Seq) else (body,)


def together_of(c: ChainProblem) -> tuple[int, ...]:
    """Rows that a group may have: divisors of the last rows that leave groups for threads; windows gain from several
    short rows, other steps have nothing to share between rows, but one may wait beside another."""
    axis = c.problems[-1].axes[c.rank - 1]
    if c.rank == 0 or not axis.literal:
        return (1,)
    outer = prod(a.extent for a in c.problems[-1].axes[: c.rank - 1])
    most = max(1, axis.extent * outer // ENOUGH_GROUPS)
    most = most if c.windows else min(most, BESIDE)
    return tuple(k for k in divisors(axis.extent) if k <= most)


def steps_of(c: ChainProblem, target: Target, machine: Machine, together: int) -> list[list[Step]]:
    """Per step its forms with all states of each."""
    return [_forms(c, k, of_group(p, c.rank, together, c.private), target, machine)
            for k, p in enumerate(c.problems)]  # fmt: skip


def _forms(c: ChainProblem, k: int, problem: Problem, target: Target, machine: Machine) -> list[Step]:
    block, lanes = c.blocks[k], target.lanes(32)
    inner = [a for a in problem.spatial if a >= c.rank]
    if problem.reduce and not inner:
        lane = along_axis(block)
        return [_step(problem, lanes, lane, [(v, 1, False) for v in _vectors(problem, lane, lanes, REDUCING_VECTORS)])]
    if not inner:
        return [_step(problem, lanes, None, [(1, 1, False)])]
    store = problem.results[-1] if problem.reduce else problem.operands[-1]
    along = [a for a in inner if store.strides[a] == 1]
    if problem.reduce:
        return [_windows(problem, a, target.lanes(problem.bits), machine) for a in along]
    moving = [a for a in inner if any(o.strides[a] == 1 for o in problem.operands)]
    # what iterations have in common is little, and LLVM writes several out by itself
    return [_step(problem, lanes, a, [(1, 1, False)]) for a in along or moving]


def _vectors(problem: Problem, lane: int | None, lanes: int, counts: Sequence[int] = VECTORS) -> list[int]:
    most = 1 if lane is None else -(-problem.axes[lane].extent // lanes)
    return [v for v in counts if v < 2 * most] or [1]


def _windows(problem: Problem, lane: int, lanes: int, machine: Machine) -> Step:
    """States of windows: vectors by lines, taps written out while they are few (LLVM does it if we do not)."""
    line = _line_axis(problem, lane)
    heights = (1,) if line is None else _heights(problem, line)
    taps = prod(problem.axes[k].extent for k in problem.reduce)
    out = taps <= MOST_TAPS
    most = min(machine.vector_registers - 1, WRITTEN_OUT // taps if out else WRITTEN_OUT)
    states = [(v, h, out) for v in _vectors(problem, lane, lanes) for h in heights if v * h <= max(1, most)]
    return _step(problem, lanes, lane, states)


def _heights(problem: Problem, line: int) -> tuple[int, ...]:
    axis = problem.axes[line]
    return balanced(axis.extent, MOST_LINES) if axis.literal else (1, 2, 4)


def _line_axis(problem: Problem, lane: int) -> int | None:
    """The axis of lines: the last of the results' others."""
    return next((a for a in reversed(problem.spatial) if a != lane), None)


def _step(problem: Problem, lanes: int, lane: int | None, states: Sequence[tuple[int, int, bool]]) -> Step:
    """A form with its states (vectors, lines, whether windows are written out)."""
    along = (*problem.reduce, *problem.spatial)[-1] if lane is None else lane
    width = 1 if lane is None else lanes
    line = _line_axis(problem, along)
    sizes = np.ones((len(states), 3, len(problem.axes)), np.int64)
    for k, a in enumerate(problem.axes):
        if a.reduce:
            sizes[:, 1:, k] = a.extent
    for n, (vectors, lines, out) in enumerate(states):
        sizes[n, 0, along] = vectors * width
        if line is not None:
            sizes[n, 0, line] = lines
        for k in problem.reduce if out else ():
            sizes[n, 0, k] = problem.axes[k].extent
    for k in problem.spatial:
        sizes[:, 1:, k] = sizes[:, :1, k]
    if lane in problem.reduce:
        cover = -(-problem.axes[along].extent // sizes[:, 0, along]) * sizes[:, 0, along]
        sizes[:, 1:, along] = cover[:, None]
    order = tuple(a for a in problem.spatial if a != along) + ((along,) if along in problem.spatial else ())
    return Step(problem, Form(along, width, order, None), sizes)


def best_chains(c: ChainProblem, target: Target, machine: Machine, most: int) -> list[tuple[float, ChainProgram]]:
    """The best programs with their nanoseconds, best first: per number of rows the best tile of every step."""
    found: list[tuple[float, ChainProgram]] = []
    samples = c.samples
    for together in together_of(c):
        rows, scored = scored_steps(c, target, machine, together)
        best = [min(s, key=lambda x: x[0]) for s in scored]
        program = ChainProgram(rows, tuple(p for _, p in best))
        if samples:
            total = _at_samples(c, program, samples, machine)
        else:
            total = time_of(rows, [p.problem for p in program.steps], [np.array([t]) for t, _ in best], machine).total
        found.append((float(total[0]), program))
    return sorted(found, key=lambda x: x[0])[:most]


def _at_samples(
    c: ChainProblem, program: ChainProgram, samples: Sequence[Sequence[Problem]], machine: Machine
) -> Numbers:
    """The mean time of a program over samples of its sizes, as that of the tile programs that it may be compared with;
    its register tiles are the same at all of them."""
    together, total = program.rows.together, list[Numbers]()
    for problems in samples:
        steps: list[TileProgram] = []
        for step, problem in zip(program.steps, problems, strict=True):
            group = of_group(problem, c.rank, together, c.private)
            steps.append(TileProgram.of(group, step.form, fitted(Family.of(group), step.array[None])[0]))
        total.append(chain_time(ChainProgram(_rows(c, problems, together), tuple(steps)), machine).total)
    return over_samples(np.array(total))


def _rows(c: ChainProblem, problems: Sequence[Problem], together: int) -> Rows:
    """How rows are cut where the steps have these problems."""
    return rows_of({b.name: p for b, p in zip(c.blocks, problems, strict=True)}, c.rank, together, c.private)


def scored_steps(
    c: ChainProblem, target: Target, machine: Machine, together: int
) -> tuple[Rows, list[list[tuple[float, TileProgram]]]]:
    """How rows are cut, and per step every program with its cycles for one group of rows."""
    rows = _rows(c, c.problems, together)
    scored: list[list[tuple[float, TileProgram]]] = []
    for forms in steps_of(c, target, machine, together):
        programs: list[tuple[float, TileProgram]] = []
        for step in forms:
            spent = group_cycles(step.problem, step.form, step.sizes, rows, machine)
            programs += [(float(t), TileProgram.of(step.problem, step.form, s))
                         for t, s in zip(spent, step.sizes, strict=True)]  # fmt: skip
        scored.append(programs)
    return rows, scored


def lower_chain(program: ChainProgram, task: Task, parallel: bool) -> Schedule:
    """The schedule of a chain's program.

    Raises:
        ScheduleError: a step of it is not legal for these loops.
    """
    tiles = {p.problem.block: _tile(p, program.rows.rank) for p in program.steps if p.form.lanes > 1}
    s = Schedule(task.func)
    chain(s, program.rows.rank, task, Plan(program.rows.together, tiles), parallel)
    return s


def _tile(p: TileProgram, rank: int) -> Tile:
    lane, (register, *_) = p.form.lane, p.sizes
    line = _line_axis(p.problem, lane)
    lines = 1 if line is None else register[line]
    out = bool(p.problem.reduce) and all(register[k] == p.problem.axes[k].extent for k in p.problem.reduce)
    return Tile(lane, register[lane] // p.form.lanes, lines, out)
