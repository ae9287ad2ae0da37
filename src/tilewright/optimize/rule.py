"""The rule-based optimizer: parallel outer loops, vectorized inner loops, register tiles, fused epilogues.

It searches and measures nothing; strides and extents decide. It always applies, so every pipeline falls back to it.
"""

import logging

from tilewright.errors import ScheduleError
from tilewright.graph.fusion import FusionPattern
from tilewright.loops.ir import Block, blocks
from tilewright.optimize.contraction import contraction_tree
from tilewright.optimize.elementwise import elementwise_tree
from tilewright.optimize.lane_loops import with_outer_loops
from tilewright.optimize.plain_reduction import plain_reduction_tree
from tilewright.optimize.rowwise import rowwise_tree
from tilewright.optimize.strides import contraction_operands
from tilewright.optimize.task import Task
from tilewright.schedule.schedule import Schedule
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.tree import TileTree

_log = logging.getLogger("tilewright.construct")


class Rule:
    """The optimizer `rule`."""

    name = "rule"

    def optimize(self, task: Task) -> Schedule | None:
        """The rule's schedule; never None.

        The untransformed loops of row-wise kernels remain where the regions of a row are not known without data.
        """
        if task.fusion.pattern is not FusionPattern.ROWWISE:
            return lower_tree(rule_tree(task), task.func)
        try:
            return lower_tree(rule_tree(task), task.func)
        except ScheduleError as error:
            what = "%s: row-wise fusion is not legal, the loops stay untransformed: %s"
            _log.info(what, task.func.name, error)
            return Schedule(task.func)


def rule_tree(task: Task) -> TileTree:
    """The rule's tree for a kernel."""
    func_blocks = blocks(task.func.body)
    match task.fusion.pattern:
        case FusionPattern.SEQUENCE | FusionPattern.CHAIN:
            return TileTree(())
        case FusionPattern.ROWWISE:
            return rowwise_tree(task)
        case FusionPattern.ELEMENTWISE | FusionPattern.REDUCTION:
            reduction = next((b for b in func_blocks if b.init is not None), None)
            if reduction is None:
                tree = elementwise_tree(func_blocks, task)
            else:
                epilogue = next((b for b in func_blocks if b is not reduction), None)
                tree = _reduction_tree(reduction, epilogue, task)
    return with_outer_loops(tree, task.func)


def _reduction_tree(node: Block, epilogue: Block | None, task: Task) -> TileTree:
    """The tree of a contraction, or of another reduction."""
    tree = None if contraction_operands(node) is None else contraction_tree(node, epilogue, task)
    return tree or plain_reduction_tree(node, epilogue, task)
