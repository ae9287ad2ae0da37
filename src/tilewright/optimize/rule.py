"""The rule-based optimizer: parallel outer loops, vectorized inner loops, register tiles, fused epilogues.

It searches and measures nothing; strides and extents decide. It always applies, so every pipeline falls back to it.
"""

from tilewright.graph.fusion import FusionPattern
from tilewright.loops.ir import blocks
from tilewright.optimize.contraction import contraction_tree
from tilewright.optimize.elementwise import elementwise_tree
from tilewright.optimize.interface import Task
from tilewright.optimize.plain_reduction import plain_reduction_tree
from tilewright.optimize.rowwise import schedule_rowwise
from tilewright.optimize.strides import contraction_operands
from tilewright.schedule.schedule import Schedule
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.tree import TileTree


class Rule:
    """The optimizer `rule`."""

    name = "rule"

    def optimize(self, task: Task) -> Schedule | None:
        """The rule's schedule; never None."""
        if task.fusion.pattern is FusionPattern.ROWWISE:
            return schedule_rowwise(task)
        return lower_tree(rule_tree(task), task.func)


def rule_tree(task: Task) -> TileTree:
    """The rule's tree for a kernel that is not row-wise."""
    func_blocks = blocks(task.func.body)
    if task.fusion.pattern is FusionPattern.SEQUENCE:
        return TileTree(())
    reduction = next((b for b in func_blocks if b.init is not None), None)
    if reduction is None:
        return elementwise_tree(func_blocks[-1], task)
    epilogue = next((b for b in func_blocks if b is not reduction), None)
    tree = None if contraction_operands(reduction) is None else contraction_tree(reduction, epilogue, task)
    return tree or plain_reduction_tree(reduction, epilogue, task)
