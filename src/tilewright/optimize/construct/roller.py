"""Roller: greedy growth of aligned tiles by data reuse, level by level from the farthest cache to the registers.

At each level the axis with the largest saving of traffic per memory paid, (Q - Q') / (F' - F), is enlarged until the
tile is compute-bound or nothing larger fits; then the next nearer level is scheduled. Growth never backtracks: the
states form one path of a tree.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.optimize.construct.lock_step import SteppedSearch, run
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import NO_EDGE, EdgeKind, Indices
from tilewright.tile.program import L1, L2, REGISTER, Sizes, size_tuples


@dataclass(frozen=True, slots=True)
class GrowthStep:
    """One step of growth.

    Attributes:
        level: the level being scheduled.
        axis: the enlarged axis.
        score: its reuse score.
        sizes: the state after the step.
    """

    level: int
    axis: int
    score: float
    sizes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class TileCosts:
    """Tiles of a level, whose costs are asked for.

    Attributes:
        space: the search space.
        sizes: of states [state, level, axis].
        level: the level.
    """

    space: SearchSpace
    sizes: Sizes
    level: int

    @property
    def structure(self) -> Hashable:
        """All that costs depend on except sizes."""
        return self.level, self.space.structure

    def answer(self, alike: Sequence["TileCosts"]) -> list[Numbers]:
        """Per state the footprint F and the traffic Q of the tile, and whether it can be lowered (1, else 0)."""
        counts, sizes = [len(x.sizes) for x in alike], np.concatenate([x.sizes for x in alike])
        costs, levels = self.space.costs_with([x.space for x in alike], counts), np.full(len(sizes), self.level)
        box = [sizes[:, self.level, k].astype(np.float64) for k in range(sizes.shape[2])]
        lowerable = costs.are_lowerable(sizes).astype(np.float64)
        terms = np.stack([costs.footprint(box, levels), costs.traffic(box, levels), lowerable])
        return np.split(terms, np.cumsum(counts)[:-1], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class GrowthPath:
    """The growth of one sketch: its steps and the states at the end of every level, the final one last."""

    space: SearchSpace
    steps: tuple[GrowthStep, ...]
    states: Indices

    def final_sizes(self) -> Sizes:
        """Sizes of the final state."""
        return self.space.sizes(self.states[-1:])

    def __str__(self) -> str:
        names = [a.name for a in self.space.problem.axes]
        lines = [f"axes {' '.join(names)}"]
        lines += [f"level {g.level}: tile({names[g.axis]}) score {g.score:.3g} -> {g.sizes}" for g in self.steps]
        return "\n".join(lines)


def grow(space: SearchSpace) -> GrowthPath:
    """The growth of tiles through a search space."""
    return run(growth(space))


def growth(space: SearchSpace) -> SteppedSearch[GrowthPath]:
    """Grows tiles through a search space."""
    state = space.initial_state()
    steps: list[GrowthStep] = []
    level_ends: list[Indices] = [state]
    for level in (L2, L1, REGISTER):
        while True:
            best = yield from _best_growth(space, state, level)
            if best is None:
                break
            axis, score, state = best
            sizes = space.sizes(state[None])[0]
            steps.append(GrowthStep(level, axis, score, size_tuples(sizes)))
        level_ends.append(state)
    return GrowthPath(space, tuple(steps), np.stack(level_ends))


def _best_growth(space: SearchSpace, state: Indices, level: int) -> SteppedSearch[tuple[int, float, Indices] | None]:
    """The axis to enlarge, its score and the state after it; None where nothing larger fits, or where a tile in a cache
    is compute-bound."""
    candidates: list[tuple[int, Indices]] = []
    for axis, lattice in enumerate(space.lattices):
        target = lattice.successor(state[axis : axis + 1], np.array([EdgeKind.TILE + level]))[0]
        if target != NO_EDGE:
            successor = state.copy()
            successor[axis] = target
            candidates.append((axis, successor))
    if not candidates:
        return None
    states = np.stack([state, *(s for _, s in candidates)])
    ((F, Q, lowerable),) = yield [TileCosts(space, space.sizes(states), level)]
    if level != REGISTER and _is_compute_bound(space, Q[0], level):
        return None
    fits = (F <= 1.0) & (lowerable > 0)
    paid, saved = F[1:] - F[0], Q[0] - Q[1:]
    score = np.where(fits[1:] & (saved > 0), saved / np.maximum(paid, 1e-12), 0.0)
    pick = int(score.argmax())
    return (candidates[pick][0], float(score[pick]), candidates[pick][1]) if score[pick] > 0 else None


def _is_compute_bound(space: SearchSpace, bytes_per_result: float, level: int) -> bool:
    """Whether loading a tile into its level, so many bytes per result, takes less time than its arithmetic."""
    machine, problem = space.machine, space.problem
    steps = float(np.prod([problem.axes[k].extent for k in problem.reduce] or [1]))
    arithmetic = 2.0 * steps * problem.operations / machine.gflops(1, problem.bits)
    source = machine.levels[min(level, len(machine.levels) - 1)]
    return arithmetic > bytes_per_result / source.core_gbs
