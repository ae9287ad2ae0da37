"""Tilings of a workload as kernels of one thread, which are built and timed together."""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.one_thread import one_thread_machine
from benchmarks.paper_mcfuser.workloads import Workload, task_of
from tilewright.cost.trees.tree_model import tree_time
from tilewright.errors import TilewrightError
from tilewright.loops.ir import Func
from tilewright.machine.model import Machine
from tilewright.measure.function_timer import FunctionTimer, SharedOperands
from tilewright.optimize.chains.chain_tree import chain_tree
from tilewright.optimize.chains.expression import ChainTiling, axes_of, expression_text
from tilewright.optimize.chains.extract_chain import extract_chain
from tilewright.optimize.chains.model import ChainModel
from tilewright.optimize.chains.problem import Chain
from tilewright.optimize.chains.pruning import ChainSpace, Variant, fits
from tilewright.optimize.chains.search import tiling_of
from tilewright.optimize.task import Task
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.tree import TileTree, on_one_thread

ROUNDS, ROUND_SECONDS = 6, 0.004


class Candidates:
    """The chain of a workload and its candidates on one core of this machine.

    Args:
        workload: the workload.
        variant: the space of the candidates.
    """

    def __init__(self, workload: Workload, variant: Variant = Variant.MCFUSER) -> None:
        self.task: Task = task_of(workload, threads=1)
        self.machine: Machine = one_thread_machine()
        self.chain: Chain = extract_chain(self.task.func)
        self.space = ChainSpace.of(self.chain, self.machine, variant)
        self.data = SharedOperands()
        self.measured = 0

    def text(self, tiling: ChainTiling) -> str:
        """A tiling with the axes named as in the paper: `mn(k,h), m 64, n 32`; b is the batch."""
        labels = dict(zip((a.name for a in self.chain.axes), "bmnkh", strict=True))
        looped = axes_of(tiling.expression)
        sizes = [f"{labels[a]} {t}" for a, t in tiling.tiles if a in looped and labels[a] != "b"]
        return ", ".join((expression_text(tiling.expression, labels), *sizes))

    def lowered(self, tiling: ChainTiling) -> Func | None:
        """The loops of a tiling; None where there is no tree for it, or its buffers do not fit."""
        try:
            return lower_tree(self._tree(tiling), self.task.func).func
        except TilewrightError:
            return None

    def tree_time(self, tiling: ChainTiling) -> float | None:
        """Nanoseconds of a tiling by the cost model of trees; None where there is no tree."""
        try:
            tree = self._tree(tiling)
        except TilewrightError:
            return None
        return tree_time(tree, self.task.func, self.machine)

    def _tree(self, tiling: ChainTiling) -> TileTree:
        return on_one_thread(chain_tree(self.task, tiling, self.machine))

    def times(self, tilings: Sequence[ChainTiling]) -> list[float | None]:
        """Measured nanoseconds of tilings, which run in turns; the fastest call of each."""
        funcs = {f"f{k}": f for k, f in enumerate(map(self.lowered, tilings)) if f is not None}
        self.measured += len(funcs)
        times = fastest(funcs, self.data)
        return [times.get(f"f{k}") for k in range(len(tilings))]

    def sample(self, count: int, seed: int = 0) -> list[tuple[ChainTiling, ChainModel, float]]:
        """Distinct tilings of the pruned space drawn at random, with the model's times."""
        every: dict[ChainTiling, tuple[ChainTiling, ChainModel, float]] = {}
        for model, tiles in self.space.chunks():
            legal = tiles[fits(model, tiles)]
            for row, time in zip(legal, model.times(legal), strict=True):
                tiling = tiling_of(model, row)
                every.setdefault(tiling, (tiling, model, float(time)))
        order = np.random.default_rng(seed).permutation(len(every))[:count]
        listed = list(every.values())
        return [listed[k] for k in order]


def fastest(funcs: Mapping[str, Func], data: SharedOperands) -> dict[str, float]:
    """Nanoseconds of the fastest call of functions on one thread."""
    return FunctionTimer(funcs, data).fastest_calls(ROUNDS, ROUND_SECONDS) if funcs else {}
