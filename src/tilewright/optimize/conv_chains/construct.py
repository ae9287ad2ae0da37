"""The best programs of a chain of convolutions, by the model of trees."""

from tilewright.cost.trees.tree_model import tree_times
from tilewright.errors import ScheduleError
from tilewright.machine.model import Machine
from tilewright.optimize.conv_chains.stages import PLACE, ConvolutionChain
from tilewright.optimize.conv_chains.tiling import LaneAxis, RankedTiling, tilings_of
from tilewright.optimize.conv_chains.tree import convolution_tree
from tilewright.optimize.task import Task


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
        raise ScheduleError("its batches are of symbolic size, expected literal ones", where=PLACE)
    vector = task.target.lanes(32)
    tilings = tilings_of(chain, vector, machine)
    trees = [convolution_tree(chain, x, vector, machine) for x in tilings]
    cost = machine.cost
    ratios = {
        LaneAxis.CHANNELS: cost.convolution_chain_time_ratio, LaneAxis.COLUMNS: cost.depthwise_chain_time_ratio,
    }  # fmt: skip
    times = tree_times(trees, task.func, machine, task.constants)
    ranked = [
        RankedTiling(tiling, tree, time * ratios[tiling.lanes])
        for tiling, tree, time in zip(tilings, trees, times, strict=True)
        if time is not None
    ]
    if not ranked:
        raise ScheduleError("the cost model has no time for its trees", where=PLACE)
    return sorted(ranked, key=lambda x: (x.nanoseconds, tilings.index(x.tiling)))
