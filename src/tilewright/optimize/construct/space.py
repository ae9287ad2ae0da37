"""The graph of tile programs: where construction starts, and the edges out of every state.

A state is a program and the level being scheduled; an edge makes the tile of one axis at that level larger or smaller.
Which sizes there are says `ladder.py`.
"""

from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

from tilewright.machine.model import Machine
from tilewright.optimize.chunk import longest_chain
from tilewright.optimize.construct.ladder import NONE, Indices, Kind, Ladder, balanced, chunk_lengths
from tilewright.tile.footprint import Numbers, elements, moved_bytes
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, LEVELS, REGISTER, Form, Sizes
from tilewright.tile.traffic import USABLE

MAX_ROWS = 16
"""Rows of a register tile along one axis."""

UNKNOWN_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
"""Rows of a register tile where their number is a symbol."""

ENOUGH_ROWS = 4
"""Rows of known number that make tiles of rows of unknown number needless."""

MAX_VECTORS = 8
"""Vectors of a register tile along the lane axis."""

UNROLLED = (1, 2, 4)
"""Points of a long reduction that may be written out."""

STRANDS = (1, 2, 4, 8)
"""Vectors of a register tile where lanes lie along the reduction: each has sums of its own."""

WINDOW = 9
"""A reduction axis of at most this extent may be written out as a whole."""

TOTALS_BYTES = 64 << 10
"""What the totals of an L1 tile may take of a thread's stack."""

MIN_CHAIN = 16
"""Terms of a sum below which a cut would cost more than it gains; and many short chunks make a long total."""

STREAMED = 64
"""Terms beyond which a sum that uses nothing again is cut into chunks of twice the root, so that it errs less still."""

MAX_WRITTEN_OUT = 128
"""Vector operations of one step: more would only bloat the code."""


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """The states of one form of a problem on a machine.

    Attributes:
        problem, form, machine: what is constructed.
        ladders: per axis its chains.
    """

    problem: Problem
    form: Form
    machine: Machine
    ladders: tuple[Ladder, ...]

    @staticmethod
    def of(problem: Problem, form: Form, machine: Machine) -> "Space":
        """The space of a form."""
        return Space(problem, form, machine, tuple(_ladder(problem, form, k) for k in range(len(problem.axes))))

    def start(self) -> Indices:
        """The unscheduled state: one vector, one row."""
        found: list[int] = []
        for k, (axis, ladder) in enumerate(zip(self.problem.axes, self.ladders, strict=True)):
            size = ladder.options[0]
            if axis.reduce and k != self.form.lane:
                found.append(ladder.number((size, self._chain(k), axis.extent)))
            else:
                found.append(ladder.fitted(size, size, size))
        return np.array(found, np.int64)

    def _chain(self, axis: int) -> int:
        """The points of a reduction axis that an L1 tile starts with: as many as may be added one after the other."""
        return self.ladders[axis].most or self.problem.axes[axis].extent

    def cut_shorter(self, states: Indices, times: int) -> Indices:
        """The states [state, axis] after so many steps to a shorter cut of the reduction; only those that have one and
        are possible."""
        axis = self.form.chunked
        if axis is None:
            return states[:0]
        found = states.copy()
        for _ in range(times):
            shorter = self.ladders[axis].step_from(found[:, axis], np.full(len(found), Kind.INV_TILE + L1))
            found[:, axis] = np.where(shorter == NONE, found[:, axis], shorter)
        found = found[found[:, axis] != states[:, axis]]
        return found[self.possible(self.sizes(found))] if len(found) else found

    def sizes(self, states: Indices) -> Sizes:
        """Tile sizes [state, level, axis] of states [state, axis]."""
        found = np.empty((len(states), len(LEVELS), len(self.ladders)), np.int64)
        for k, ladder in enumerate(self.ladders):
            found[:, :, k] = ladder.sizes[states[:, k]]
        return found

    def moved(self, box: list[Numbers]) -> Numbers:
        """S: bytes that the points of tiles read, in whole lines."""
        return sum_bytes(self.problem, self.form, box, self.machine.levels[0].line)

    def footprint(self, box: list[Numbers], level: Indices) -> Numbers:
        """F: what tiles take of their levels, as a part of what they may take."""
        registers = self._registers(box) / self.machine.vector_registers
        if (level == REGISTER).all():
            return registers
        budget = np.array([1.0, *(x.share * USABLE for x in self.machine.levels[:2])])
        return np.where(level == REGISTER, registers, self.moved(box) / budget[level])

    def _registers(self, box: list[Numbers]) -> Numbers:
        held = np.ones_like(box[0]) / self.form.lanes
        for a in self.problem.spatial:
            held = held * box[a]
        row = box[self.form.lane] / self.form.lanes
        if self.problem.axes[self.form.lane].reduce:
            held = held * box[self.form.lane]
        return held + np.where(held > row, row, 0.0) + 1

    def traffic(self, box: list[Numbers], level: Indices) -> Numbers:
        """Q: bytes that move into tiles of a level per result, each tile loaded anew over the whole reduction."""
        results: Numbers = np.ones_like(box[0])
        for a in self.problem.spatial:
            results = results * box[a]
        full = list(box)
        for k in self.problem.reduce:
            full[k] = np.full_like(box[k], self.problem.axes[k].extent)
        exact = sum_bytes(self.problem, self.form, full, 1) / results
        if (level == REGISTER).all():
            return exact
        return np.where(level == REGISTER, exact, self.moved(full) / results)

    def possible(self, sizes: Sizes) -> npt.NDArray[np.bool_]:
        """Which candidates can be lowered at a bearable size: of the code, and of a thread's stack."""
        # one row per axis: what is combined lies side by side
        register, near = (np.ascontiguousarray(sizes[:, level].T) for level in (REGISTER, L1))
        extents = [a.extent for a in self.problem.axes]
        spatial, reduce = list(self.problem.spatial), list(self.problem.reduce)
        written = register[spatial].prod(axis=0) * register[reduce].prod(axis=0) / self.form.lanes
        totals = near[spatial].prod(axis=0) * self.problem.bits / 8
        rows = [k for k in spatial if k != self.form.lane]
        # any tile of an unknown number of rows may leave some
        rest = [extents[k] % register[k] > 0 if self.problem.axes[k].literal else register[k] > 1 for k in rows]
        left = np.sum(rest, axis=0) if rest else np.zeros(len(sizes))
        chunked = self.form.chunked
        cut = np.zeros(len(sizes), np.bool_) if chunked is None else near[chunked] < extents[chunked]
        return (written <= MAX_WRITTEN_OUT) & (~cut | (totals <= TOTALS_BYTES)) & (left <= 1)


def sum_bytes(problem: Problem, form: Form, box: list[Numbers], line: int) -> Numbers:
    """Bytes that the points of a box read of the operands, without results: whole cache lines, or only the elements
    where a line is one byte."""
    packed = {k for k, _ in form.packed}
    total: Numbers = np.zeros_like(box[0])
    for k, o in enumerate(problem.operands):
        total = total + (elements(o, box) * o.bytes if line == 1 else moved_bytes(o, box, line, k in packed))
    return total


def _unknown_rows(problem: Problem, form: Form, k: int) -> tuple[int, ...]:
    """Rows of a register tile along an axis whose size is a symbol: a single one where an axis of known size lets as
    much be used again, as its rows leave no tails at run time."""
    moved = [o.uses(k) for o in problem.operands]
    known = [a for a in problem.spatial if a not in (k, form.lane) and problem.axes[a].literal]
    if any(problem.axes[a].extent >= ENOUGH_ROWS and [o.uses(a) for o in problem.operands] == moved for a in known):
        return (1,)
    return tuple(r for r in UNKNOWN_ROWS if r <= problem.axes[k].extent)


def _longest_chunk(problem: Problem, k: int, least: int) -> int | None:
    """The points of a reduction axis in one chunk of a long sum, at most; None for one that need not be cut.

    A sum whose operands all move along every axis, so that nothing is used again, waits for its loads. Chunks of twice
    the root of its terms, as the rule makes them, cost little there.

    Args:
        problem, k: the axis.
        least: points of a chunk that are worth it.
    """
    terms = problem.terms
    longest = longest_chain(terms) if problem.reuses or terms <= STREAMED else 2 * isqrt(terms)
    if terms <= longest:
        return None
    extent = problem.axes[k].extent
    long = [d for d in chunk_lengths(extent) if d >= least or d == extent]
    return max([d for d in long if d * terms <= longest * extent], default=long[0])


def _ladder(problem: Problem, form: Form, k: int) -> Ladder:
    axis = problem.axes[k]
    if axis.reduce and k == form.lane:
        most = -(-axis.extent // form.lanes)
        counts = tuple(c for c in STRANDS if c <= most or c == 1)
        longest = longest_chain(problem.terms)
        counts = tuple(c for c in counts if problem.terms <= form.lanes * c * longest) or counts[-1:]
        return Ladder(axis.extent, form.lanes, tuple(form.lanes * c for c in counts), whole=True, fixed=True)
    if axis.reduce:
        options = tuple(u for u in UNROLLED if axis.extent % u == 0) if axis.literal else (1,)
        if axis.literal and axis.extent <= WINDOW:
            options = tuple(sorted({1, axis.extent}))
        least = -(-max(MIN_CHAIN, isqrt(problem.terms)) // (problem.terms // axis.extent))
        most = _longest_chunk(problem, k, least) if k == form.chunked else None
        return Ladder(axis.extent, 1, options, whole=True, fixed=k != form.chunked, least=least, most=most)
    if k == form.lane:
        vectors = -(-axis.extent // form.lanes)
        counts = balanced(vectors, MAX_VECTORS) if axis.literal else (1, 2, 4)
        return Ladder(axis.extent, form.lanes, tuple(form.lanes * c for c in counts), between=axis.literal)
    if problem.axes[form.lane].reduce and any(problem.operands[o].uses(k) for o, _ in form.packed):
        return Ladder(axis.extent, 1, (axis.extent,))
    rows = balanced(axis.extent, MAX_ROWS) if axis.literal else _unknown_rows(problem, form, k)
    return Ladder(axis.extent, 1, rows, between=axis.literal)
