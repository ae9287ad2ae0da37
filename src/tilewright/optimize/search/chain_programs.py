"""Programs of fused chains of contractions, drawn at random or changed a little.

A sketch is the tiling expression, the loops over tiles; annotations are the tile sizes of the axes. Both are those that
the pruning rules of MCFuser leave (`optimize/chains/pruning.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.cost.learned.part_features import FeatureRows
from tilewright.errors import ScheduleError
from tilewright.graph.fusion import FusionPattern
from tilewright.machine.model import Machine
from tilewright.optimize.chains.chain_tree import chain_tree
from tilewright.optimize.chains.expression import ChainTiling, expression_text
from tilewright.optimize.chains.extract_chain import extract_chain
from tilewright.optimize.chains.model import Tiles
from tilewright.optimize.chains.pruning import ChainSpace, fits
from tilewright.optimize.chains.search import tiling_of
from tilewright.optimize.construct.program_tree import KernelProgram
from tilewright.optimize.conv_chains.stages import has_windows
from tilewright.optimize.search.batching import evaluate_by_group, rows_by_group
from tilewright.optimize.search.program_family import Genes
from tilewright.optimize.task import Task
from tilewright.tile.tree import TileTree, on_one_thread

MAX_DRAWS = 16
"""Draws per program that is asked for, as tiles of others do not fit the fast memory."""

EXPRESSION_RATE = 0.1
"""How often a changed program has other loops over its tiles."""


@dataclass(frozen=True, slots=True, eq=False)
class ChainPrograms:
    """All programs of a chain; genes are the position of the expression, and per axis that of the tile size.

    Attributes:
        task: the kernel.
        machine: with the cores that the task has.
        space: expressions and tile sizes.
    """

    task: Task
    machine: Machine
    space: ChainSpace

    @staticmethod
    def of(task: Task, machine: Machine) -> "ChainPrograms | None":
        """The programs of a chain of contractions in float32, None where a task is none, or can't be tiled."""
        computed = (*task.func.allocs, *task.func.outputs)
        if task.fusion.pattern is not FusionPattern.CHAIN or any(b.dtype.name != "float32" for b in computed):
            return None
        try:
            if has_windows(task.func):
                return None
            space = ChainSpace.of(extract_chain(task.func, task.samples), machine)
        except ScheduleError:
            return None
        return ChainPrograms(task, machine, space) if space.models else None

    def random(self, count: int, rng: np.random.Generator) -> list[Genes]:
        """Programs with expression and sizes drawn independently, that fit the fast memory."""
        many = MAX_DRAWS * count
        expressions = rng.integers(len(self.space.models), size=many)
        positions = np.stack([rng.integers(n, size=many) for n in self.space.shape], axis=1)
        drawn = np.concatenate([expressions[:, None], positions], axis=1)
        return [tuple(g) for g in drawn[self._fits(drawn)][:count].tolist()]

    def mutate(self, parents: Sequence[Genes], rng: np.random.Generator) -> list[Genes]:
        """Programs with the next larger or smaller tile along one or two axes, some with other loops."""
        drawn = np.array(parents, np.int64)
        rows, limits = np.arange(len(drawn)), np.array(self.space.shape)
        for _ in range(2):
            axes = rng.integers(len(limits), size=len(drawn))
            steps = rng.choice([-1, 0, 1], len(drawn))
            drawn[rows, axes + 1] = np.clip(drawn[rows, axes + 1] + steps, 0, limits[axes] - 1)
        is_other = rng.random(len(drawn)) < EXPRESSION_RATE
        drawn[:, 0] = np.where(is_other, rng.integers(len(self.space.models), size=len(drawn)), drawn[:, 0])
        allowed = self._fits(drawn)
        return [tuple(g) if ok else p for p, g, ok in zip(parents, drawn.tolist(), allowed, strict=True)]

    def _fits(self, genes: Tiles) -> "np.ndarray":
        result = np.zeros(len(genes), np.bool_)
        for k, model in enumerate(self.space.models):
            own = genes[:, 0] == k
            if own.any():
                result[own] = fits(model, self.space.tiles(genes[own, 1:]))
        return result

    def tiling(self, genes: Genes) -> ChainTiling:
        """The tiling of a program."""
        tiles = self.space.tiles(np.array([genes[1:]], np.int64))
        return tiling_of(self.space.models[genes[0]], tiles[0])

    def sketch_name(self, genes: Genes) -> str:
        """The loops over tiles."""
        return f"chain {genes[0]}"

    def describe(self, genes: Genes) -> str:
        """The loops over tiles with the sizes of these."""
        tiling = self.tiling(genes)
        return f"{expression_text(tiling.expression)}: {', '.join(f'{a} {n}' for a, n in tiling.tiles)}"

    def predicted_times(self, genes: Sequence[Genes], parallel: bool) -> list[float]:
        """Nanoseconds by the model of chains (bytes and operations), which ranks tilings of one kernel."""
        slowdown = 1 if parallel else self.machine.cores
        return evaluate_by_group(genes, lambda g: g[0], lambda k, alike: slowdown * self._model_times(k, alike))

    def _model_times(self, expression: int, genes: Sequence[Genes]) -> Numbers:
        return self.space.models[expression].times(self._tiles(genes))

    def _tiles(self, genes: Sequence[Genes]) -> Tiles:
        return self.space.tiles(np.array([g[1:] for g in genes], np.int64))

    def features(self, genes: Sequence[Genes], parallel: bool) -> FeatureRows:
        """What a learned model knows of programs: a row of sizes, tiles per axis, footprints and predicted time."""
        slowdown = 1 if parallel else self.machine.cores
        extents = np.array([a.extent for a in self.space.chain.axes], np.float64)

        def rows(expression: int, alike: list[Genes]) -> FeatureRows:
            model, tiles = self.space.models[expression], self._tiles(alike)
            times, one = slowdown * self._model_times(expression, alike), np.ones(len(alike))
            parts = [np.log2(tiles), np.log2(np.ceil(extents / tiles))]
            columns = [np.log2(1.0 + model.footprint(tiles)), np.log2(1.0 + model.result_footprint(tiles)),
                       np.log2(times), expression * one, float(parallel) * one]  # fmt: skip
            every = np.concatenate([*parts, np.stack(columns, axis=1)], axis=1)
            return FeatureRows.of(every, np.arange(len(alike)), one, times)

        return rows_by_group(genes, lambda g: g[0], rows)

    def tree(self, genes: Genes, parallel: bool) -> TileTree:
        """The loops of a program; raises ScheduleError where they are not legal."""
        tree = chain_tree(self.task, self.tiling(genes), self.machine)
        return tree if parallel else on_one_thread(tree)

    def genes_of(self, program: KernelProgram) -> Genes | None:
        """None: constructed tile programs and row-wise programs are no chains."""
        return None

    def genes_of_tiling(self, tiling: ChainTiling) -> Genes | None:
        """The genes of a tiling of the space."""
        sizes = [tiling.tile(a.name) for a in self.space.chain.axes]
        if any(n not in o for n, o in zip(sizes, self.space.options, strict=True)):
            return None
        positions = tuple(o.index(n) for n, o in zip(sizes, self.space.options, strict=True))
        every = ((k, *positions) for k in range(len(self.space.models)))
        return next((g for g in every if self.tiling(g).expression == tiling.expression), None)
