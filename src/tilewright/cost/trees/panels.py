"""Copies of operands to panels in a tile tree: every element is loaded and stored once per execution."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.cost.footprint import Numbers, touched_elements
from tilewright.cost.packing import copy_times, shared_copy_time
from tilewright.cost.trees.boxes import StatementNest, TreeBoxes, is_tile_loop
from tilewright.cost.trees.statements import common_depth
from tilewright.machine.model import Machine
from tilewright.tile.program import Mask
from tilewright.tile.tree_sizes import StatementPath


@dataclass(frozen=True, eq=False)
class PanelCopy:
    """An operand that is copied to panels while the kernel runs.

    Attributes:
        reader: the nest that reads them.
        operand: position of its operand.
        axis: the axis of the problem along which panels lie.
        depth: number of the reader's loops in which the copy is filled.
    """

    reader: StatementNest
    operand: int
    axis: int
    depth: int

    def time(self, boxes: TreeBoxes, machine: Machine, is_parallel: Mask) -> Numbers:
        """Nanoseconds of all executions for a batch of candidates; all cores share those that run in parallel."""
        statement = self.reader.statement
        o, one = statement.problem.operands[self.operand], np.ones(boxes.sizes.shape[1])
        if not self.depth:
            elements, executions = one * float(prod(o.shape)), one
        else:
            box = [boxes.points(self.reader, a, self.depth) for a in statement.axes]
            elements, executions = touched_elements(o, box) * one, one
            for k in range(self.depth):
                if is_tile_loop(self.reader.path.nodes[k]):
                    executions = executions * np.ceil(boxes.iterations(self.reader, k))
        one_thread = executions * copy_times(elements, statement.problem, o, self.axis, machine)
        if self.depth:
            return one_thread / np.where(is_parallel, machine.cores, 1)
        bytes_ = float(o.bytes)
        return np.where(is_parallel, shared_copy_time(one_thread, bytes_, machine), one_thread)


def panel_copies(nests: Sequence[StatementNest], paths: Sequence[StatementPath]) -> tuple[PanelCopy, ...]:
    """The copies that a tree fills when it runs: those of constants outside of all loops are filled at compile time."""
    found: list[PanelCopy] = []
    for path in paths:
        readers = [x for x in nests if path.compute.statement in (x.statement.panels or {})]
        if readers:
            reader = readers[0]
            operand = (reader.statement.panels or {})[path.compute.statement]
            axis, depth = dict(reader.statement.packed)[operand], common_depth(path, reader.path)
            if depth or not reader.statement.problem.operands[operand].constant:
                found.append(PanelCopy(reader, operand, axis, depth))
    return tuple(found)
