"""The analyser and the cost model together, for the choice among the programs of the library.

Both are estimates of one time and err differently: the recurrence knows measured register tiles and nothing of
prefetchers, TLBs and conflicts, the cost model knows those and takes register tiles from ports and latencies. Their
geometric mean ranks programs better than either. The cost model takes four to six times as long per candidate, so it
sees what the analyser has left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.machine.model import Machine
from tilewright.optimize.construct.time_model import CostModel
from tilewright.optimize.construct.variants import States
from tilewright.optimize.vortex.analyser import Analyser
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER, Sizes, Sketch

SHORTLIST_PER_SHAPE = 96
"""Programs of a sketch that the analyser leaves at one shape."""

SHORTLIST_PER_TILE = 4
"""Of these with one register tile: the analyser hardly distinguishes cache buffers, and others would have no place."""


@dataclass(frozen=True, slots=True)
class CombinedModel:
    """The geometric mean of two estimates.

    Attributes:
        analyser: the hybrid analyser.
        cost_model: the cost model of the same machine.
    """

    analyser: Analyser
    cost_model: CostModel

    @property
    def machine(self) -> Machine:
        """The machine."""
        return self.analyser.machine

    def sample_times(self, problem: Problem, sketch: Sketch, sizes: Sizes) -> Numbers:
        """Nanoseconds of candidates [candidate, level, axis] at a problem's samples [sample, candidate]."""
        return np.sqrt(
            self.analyser.sample_times(problem, sketch, sizes) * self.cost_model.sample_times(problem, sketch, sizes)
        )

    def on_one_core(self) -> "CombinedModel":
        """The same for a single thread."""
        return CombinedModel(self.analyser.on_one_core(), self.cost_model.on_one_core())


def shortlist(states: Sequence[States], problems: Sequence[Problem], analyser: Analyser) -> list[States]:
    """The programs of every sketch that the analyser prefers at some of the shapes, of several register tiles.

    Args:
        states: sketches with the sizes of their programs.
        problems: the kernel's problem at shapes.
        analyser: ranks them.
    """
    at_shapes = replace(problems[0], samples=tuple(problems))
    kept: list[States] = []
    for sketch, sizes in states:
        tile = np.unique(sizes[:, REGISTER], axis=0, return_inverse=True)[1].reshape(-1)
        times = analyser.sample_times(at_shapes, sketch, sizes)
        best = np.unique(np.concatenate([_first_of_tiles(np.argsort(t, kind="stable"), tile) for t in times]))
        kept.append((sketch, sizes[best]))
    return kept


def _first_of_tiles(ranked: Sizes, tile: Sizes) -> Sizes:
    """The first of some ranked positions, at most so many of each register tile."""
    seen: dict[int, int] = {}
    first: list[int] = []
    for k in ranked.tolist():
        count = seen[int(tile[k])] = seen.get(int(tile[k]), 0) + 1
        if count <= SHORTLIST_PER_TILE:
            first.append(k)
        if len(first) == SHORTLIST_PER_SHAPE:
            break
    return np.array(first, np.int64)
