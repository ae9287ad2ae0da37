"""Footprints of a program at every depth of its tile loops."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilewright.cost.candidate_batch import CandidateBatch, is_packed
from tilewright.cost.footprint import Numbers, moved_bytes, sum_arrays
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Mask, Sketch


@dataclass(frozen=True, slots=True)
class TileLoop:
    """A loop of a program: along an axis, over the tiles of a level."""

    axis: int
    level: int


@lru_cache(maxsize=256)
def tile_loops(order: tuple[int, ...], reduce: tuple[int, ...]) -> tuple[TileLoop, ...]:
    """A program's loops, outermost first (see `tile.program`), for the order of its spatial axes and its reduction
    axes."""
    loops = [TileLoop(a, L2) for a in order] + [TileLoop(a, L1) for a in order] + [TileLoop(k, L1) for k in reduce]
    return (*loops, *(TileLoop(a, REGISTER) for a in order), *(TileLoop(k, REGISTER) for k in reduce))


@dataclass(frozen=True, slots=True)
class LoopFootprints:
    """What the candidates of a batch touch at every depth of their loops; loops that no candidate has are left out.

    Attributes:
        loops: outermost first.
        counts: iterations of each loop.
        present: which candidates have it; the others make one iteration [loop, candidate].
        boxes: sizes per axis [depth, candidate]: inside no loop, inside the outermost one, ..., of one register tile.
        operand_bytes: bytes of cache lines of every access [access, depth, candidate].
        beside: bytes that other statements in the same loops touch [depth, candidate], or 0.
        loaded: the part of `operand_bytes` that an earlier statement in the same iteration has loaded; None for none.
    """

    loops: tuple[TileLoop, ...]
    counts: tuple[Numbers, ...]
    present: Mask
    boxes: tuple[Numbers, ...]
    operand_bytes: Numbers
    beside: Numbers | float = 0.0
    loaded: Numbers | None = None

    def touched_bytes(self, depths: int) -> Numbers:
        """Bytes that everything in the loops touches at so many of the outermost depths [depth, candidate]."""
        beside = self.beside[:depths] if isinstance(self.beside, np.ndarray) else self.beside
        return sum_arrays(self.operand_bytes[:, :depths]) + beside

    @staticmethod
    def of(problem: Problem, sketch: Sketch, batch: CandidateBatch, line: int) -> "LoopFootprints":
        """The footprints of candidates; `line` in bytes."""
        loops = tile_loops(sketch.order, problem.reduce)
        sizes, covered_level = batch.sizes, len(batch.tiles)
        axes, levels = [loop.axis for loop in loops], np.array([loop.level for loop in loops])
        # fractional where the last tile is partial
        iterations = sizes[levels + 1, axes] / sizes[levels, axes]
        present = iterations > 1
        used = np.flatnonzero(present.any(axis=1))
        # all depths in one array: formulas cost as much for few numbers as for many
        level = np.full((len(problem.axes), len(used) + 1), covered_level)
        for depth, k in enumerate(used, 1):
            level[axes[k], depth:] = levels[k]
        boxes = tuple(sizes[level, np.arange(len(level))[:, None]])
        operand_bytes = [moved_bytes(o, boxes, line, is_packed(sketch, k)) for k, o in enumerate(batch.family.accesses)]
        return LoopFootprints(
            tuple([loops[k] for k in used]), tuple(iterations[used]), present[used], boxes, np.array(operand_bytes)
        )


def innermost_depths(present: Mask) -> Mask:
    """Which depths [depth, candidate] have no loop inside, given which loops candidates have [loop, candidate]."""
    has_inner = np.logical_or.accumulate(present[::-1], axis=0)[::-1]
    return np.concatenate((~has_inner, np.ones((1, present.shape[1]), np.bool_)))
