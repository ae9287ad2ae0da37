"""Estimates of programs that are evaluated at run time: the time of a program as a linear form of counts of its tiles.

The cost model takes milliseconds; a call has none to spare. At given sizes a program executes so many whole register
tiles, tiles of its remainder and single rows, which are integer arithmetic, and its time is close to linear in them.
The coefficients are fitted to a model's times on one thread at shapes of the kernel's range. Threads share the
tasks of a program, so its time on all of them is that of the tasks of the busiest one, with fork and join. So the lower
levels are estimated ahead of time and the upper ones from the actual sizes, as in Vortex' hybrid analyser (section
4.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.cost.footprint import Numbers
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import ceildiv, maximum, minimum
from tilewright.optimize.construct.time_model import TimeModel
from tilewright.tile.problem import Problem
from tilewright.tile.program import L2, REGISTER, TileProgram, remainder_tile_heights

COEFFICIENT_BITS = 14
"""Bits of the largest coefficient: products with counts of tiles stay far below the limits of int64 for all sizes whose
buffers fit an address space."""


@dataclass(frozen=True, slots=True)
class RunTimeCost:
    """The time of a program as a linear form on one thread, and from it the time on all.

    Attributes:
        program: the program.
        coefficients: nanoseconds of a call, then per count of `tile_counts`, at last those that a tile takes longer
            where rows alias (`aliased_rows.py`).
        cores: threads that share its tasks.
        fork_join: nanoseconds of fork and join.
    """

    program: TileProgram
    coefficients: tuple[float, ...]
    cores: int
    fork_join: float

    def values(self, extents: npt.NDArray[np.int64], aliased: Numbers | None = None) -> Numbers:
        """Nanoseconds at extents [axis, shape]; `aliased` is 1 at shapes where rows alias, else 0."""
        serial = _design(self.program, extents, aliased) @ np.array(self.coefficients)
        tasks = np.asarray(task_count(self.program, list(extents)), np.float64)
        parallel = serial / tasks * np.ceil(tasks / self.cores) + self.fork_join
        return np.minimum(serial, parallel) if self.cores > 1 else serial

    def expression(self, extents: Sequence[Expr], scale: float, aliased: Expr | None = None) -> Expr:
        """The time in units of 1 / `scale` nanoseconds over the kernel's symbols; `aliased` is 1 or 0."""
        counts = tile_counts(self.program, extents)
        slower = _whole_tiles(counts) * (const(0) if aliased is None else aliased)
        terms = zip((const(1), *counts, slower), self.coefficients, strict=True)
        serial = reduce(lambda a, b: a + b, [count * round(c * scale) for count, c in terms])
        if self.cores == 1:
            return serial
        # sizes of 0 have no tiles
        tasks = maximum(task_count(self.program, extents), 1)
        return minimum(serial, serial // tasks * ceildiv(tasks, self.cores) + round(self.fork_join * scale))


def run_time_cost(
    program: TileProgram,
    problems: Sequence[Problem],
    model: TimeModel,
    weights: Numbers | None = None,
    aliased: Numbers | None = None,
) -> RunTimeCost:
    """The linear form that is closest to a model, relative to its times.

    Args:
        program: the program.
        problems: its problem at the shapes to fit at.
        model: predicts times.
        weights: of the relative errors at these shapes; by default all are alike.
        aliased: 1 at those of the shapes where rows alias, else 0; by default at none.
    """
    at_shapes, machine = replace(problems[0], samples=tuple(problems)), model.machine
    times = model.on_one_core().sample_times(at_shapes, program.sketch, program.array[None])[:, 0]
    times = times + machine.cost.call_ns
    weights = np.ones(len(times)) if weights is None else weights
    design = _design(program, np.array([p.extents for p in problems]).T, aliased) * (weights / times)[:, None]
    kept = np.flatnonzero(design.any(axis=0))
    while True:
        fitted = np.linalg.lstsq(design[:, kept], weights, rcond=None)[0]
        if (fitted >= 0).all():
            break
        # a negative coefficient stands for another one that is too large
        kept = np.delete(kept, int(fitted.argmin()))
    coefficients = np.zeros(design.shape[1])
    coefficients[kept] = fitted
    return RunTimeCost(program, tuple(map(float, coefficients)), machine.cores, machine.sync_us * 1e3)


def select_cheapest(costs: Sequence[RunTimeCost], extents: Sequence[Expr], aliased: Expr | None = None) -> Expr:
    """The index of the cheapest program, an int64 expression.

    Args:
        costs: of the programs.
        extents: the axes' extents over the kernel's symbols.
        aliased: 1 where rows alias, else 0; None where they never do.
    """
    scale = (1 << COEFFICIENT_BITS) / max(c for x in costs for c in x.coefficients)
    # the position in the lowest digit: the minimum names the program
    ranked = [x.expression(extents, scale, aliased) * len(costs) + k for k, x in enumerate(costs)]
    return reduce(minimum, ranked) % len(costs)


def tile_counts(program: TileProgram, extents: Sequence[Any]) -> list[Any]:
    """Whole register tiles, tiles of the remainder and single rows that a program executes, and how often the loop over
    them starts, apart from factors that do not depend on the sizes.

    Args:
        program: the program.
        extents: per axis an expression, or an array over shapes.
    """
    outer: Any = 1
    rows: tuple[Any, int] | None = None
    register = program.sizes[REGISTER]
    for k, axis in enumerate(program.problem.axes):
        if axis.is_static:
            continue
        if axis.is_reduction or (register[k] == 1 and k != program.sketch.lane):
            outer = extents[k] * outer
        elif k == program.sketch.lane:
            outer = (extents[k] + (register[k] - 1)) // register[k] * outer
        else:
            rows = extents[k], register[k]
    if rows is None:
        return [outer]
    extent, height = rows
    below = remainder_tile_heights(height)[0]
    rest = extent % height
    counts = [extent // height, rest // below, rest % below] if below > 1 else [extent // height, rest]
    return [outer, *(count * outer for count in counts)]


def task_count(program: TileProgram, extents: Sequence[Any]) -> Any:
    """Tiles that threads share.

    Args:
        program: the program.
        extents: per axis an expression, or an array over shapes.
    """
    tiles = program.sizes[L2]
    spatial = program.problem.spatial
    return reduce(lambda a, b: a * b, [(extents[k] + (tiles[k] - 1)) // tiles[k] for k in spatial])


def _whole_tiles(counts: Sequence[Any]) -> Any:
    """Of the counts of a program that of whole register tiles."""
    return counts[min(1, len(counts) - 1)]


def _design(program: TileProgram, extents: npt.NDArray[np.int64], aliased: Numbers | None) -> Numbers:
    """1, the counts of a program at extents [axis, shape], and that of its whole tiles where rows alias, as [shape,
    count]."""
    counts = tile_counts(program, list(extents.astype(np.float64)))
    terms = (1.0, *counts, _whole_tiles(counts) * (0.0 if aliased is None else aliased))
    return np.stack([np.broadcast_to(np.asarray(c, np.float64), extents.shape[1:]) for c in terms], axis=1)
