"""Time of packing: copies of operands whose data is not known at compile time to panels."""

from math import prod

import numpy as np

from tilewright.cost.caches import caches, miss_ratio
from tilewright.cost.footprint import Numbers
from tilewright.cost.shape_family import FloatPerCandidate
from tilewright.machine.model import Machine
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sketch


def packing_time(problem: Problem, sketch: Sketch, machine: Machine, is_parallel: bool = False) -> float:
    """Nanoseconds of packing the operands of a tile program, on one thread or shared by all cores; constants are packed
    at compile time."""
    total = 0.0
    for k, axis in sketch.packed:
        o = problem.operands[k]
        if not o.constant:
            time = copy_time(float(prod(o.shape)), o, axis, problem.axes[axis].is_static, machine)
            total += float(shared_copy_time(time, prod(o.shape) * o.element_bytes, machine)) if is_parallel else time
    return total


def shared_copy_time(one_thread: FloatPerCandidate, bytes_: float, machine: Machine) -> FloatPerCandidate:
    """Nanoseconds of a copy that all cores make together before they read it: a stage of its own, after which every
    core finds the lines that the others have written in their caches.

    Args:
        one_thread: nanoseconds of the copy on one thread.
        bytes_: of the copy.
        machine: the machine.
    """
    remote_lines = bytes_ / caches(machine)[0].line * (machine.cores - 1) / machine.cores
    return one_thread / machine.cores + machine.sync_us * 1e3 + remote_lines * machine.cost.cache_to_cache_ns


def copy_time(elements: float, operand: Operand, axis: int, is_static: bool, machine: Machine) -> float:
    """Nanoseconds of packing elements of an operand, on one thread.

    Args:
        elements: their number.
        operand: the operand.
        axis: along which the points of a panel lie.
        is_static: whether the size of that axis is known at compile time.
        machine: the machine.
    """
    cost = machine.cost
    copy_cycles = cost.copy_cycles if is_static else cost.masked_copy_cycles
    cycles = copy_cycles if operand.strides[axis] == 1 else cost.transpose_cycles
    return elements * cycles / machine.ghz + _copy_transfer_time(elements * operand.element_bytes, machine)


def copy_times(elements: Numbers, operand: Operand, axis: int, is_static: bool, machine: Machine) -> Numbers:
    """`copy_time` of every candidate's number of elements."""
    distinct, positions = np.unique(elements, return_inverse=True)
    return np.array([copy_time(float(x), operand, axis, is_static, machine) for x in distinct])[positions]


def _copy_transfer_time(bytes_: float, machine: Machine) -> float:
    """Nanoseconds of moving an operand and its copy through the memory levels on one thread: from L2, and what both
    together do not fit into a cache from farther away."""
    total, share = 0.0, 1.0
    for level in machine.levels[1:]:
        # in memory, lines are read before they are written
        transfers = 2.0 if level.ways else 3.0
        # what is read from first to last has left a cache that is a little too small
        missed = share * min(1.0, 2.0 * miss_ratio(2.0 * bytes_, level.share, machine.cost)) if level.ways else 0.0
        total += (share - missed) * transfers * bytes_ / level.gbs(1)
        share = missed
    return total
