"""The best programs of a chain of convolutions, by the model of trees."""

from collections.abc import Sequence

import numpy as np

from tilewright.cost.tree import TreeModel
from tilewright.errors import ScheduleError
from tilewright.machine.model import Machine
from tilewright.optimize.conv_chains.stages import PLACE, ConvolutionChain
from tilewright.optimize.conv_chains.tiling import ConvolutionTiling, LaneAxis, RankedTiling, tilings_of
from tilewright.optimize.conv_chains.tree import convolution_tree
from tilewright.optimize.task import Task
from tilewright.tile.tree import TileTree
from tilewright.tile.tree_sizes import tree_sizes, with_sizes


def rank_tilings(task: Task, machine: Machine) -> list[RankedTiling]:
    """The tilings of a chain with their trees, best first.

    Args:
        task: the kernel.
        machine: the machine.

    Raises:
        ScheduleError: it is no chain of convolutions that trees can be built for, or has symbolic batches.
    """
    chain = ConvolutionChain.of(task.func)
    if task.func.symbols:
        shown = ", ".join(map(str, task.func.symbols))
        raise ScheduleError(f"its sizes depend on {shown}, expected literal ones", where=PLACE)
    vector = task.target.lanes(32)
    tilings = tilings_of(chain, vector, machine)
    trees = [convolution_tree(chain, x, vector, machine) for x in tilings]
    cost = machine.cost
    ratios = {
        LaneAxis.CHANNELS: cost.convolution_chain_time_ratio, LaneAxis.COLUMNS: cost.depthwise_chain_time_ratio,
    }  # fmt: skip
    ranked = [
        RankedTiling(tiling, tree, time * ratios[tiling.lanes])
        for tiling, tree, time in zip(tilings, trees, _model_times(trees, task, machine), strict=True)
    ]
    return sorted(ranked, key=lambda x: (x.nanoseconds, tilings.index(x.tiling)))


def tree_of(tiling: ConvolutionTiling, task: Task, machine: Machine, parallel: bool) -> TileTree:
    """The tree of a tiling of a task's chain."""
    return convolution_tree(ConvolutionChain.of(task.func), tiling, task.target.lanes(32), machine, parallel)


def _model_times(trees: Sequence[TileTree], task: Task, machine: Machine) -> list[float]:
    """Nanoseconds of trees; those that differ in their sizes alone share a model.

    Raises:
        ScheduleError: the model has no time for them.
    """
    sketches: dict[TileTree, list[int]] = {}
    for k, tree in enumerate(trees):
        sketches.setdefault(with_sizes(tree, [1] * len(tree_sizes(tree))), []).append(k)
    times = [0.0] * len(trees)
    for members in sketches.values():
        model = TreeModel.of(trees[members[0]], task.func, machine, task.constants)
        if model is None:
            raise ScheduleError("the cost model has no time for its trees", where=PLACE)
        for k, time in zip(members, model.times(np.array([tree_sizes(trees[k]) for k in members])), strict=True):
            times[k] = float(time)
    return times
