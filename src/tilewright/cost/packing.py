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
from tilewright.tile.transposed_columns import can_transpose


def packing_time(problem: Problem, sketch: Sketch, machine: Machine, is_parallel: bool = False) -> float:
    """Nanoseconds of packing the operands of a tile program, on one thread or shared by all cores; constants are packed
    at compile time."""
    total = 0.0
    for k, axis in sketch.packed:
        o = problem.operands[k]
        if not o.constant:
            time = copy_time(float(prod(o.shape)), problem, o, axis, machine)
            total += float(shared_copy_time(time, o.bytes, machine)) if is_parallel else time
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


def copy_time(elements: float, problem: Problem, operand: Operand, axis: int, machine: Machine) -> float:
    """Nanoseconds of packing elements of an operand, on one thread.

    Args:
        elements: their number.
        problem: whose axes index the operand.
        operand: the operand.
        axis: along which the points of a panel lie.
        machine: the machine.
    """
    cost = machine.cost
    if operand.strides[axis] == 1:
        cycles = cost.copy_cycles if problem.axes[axis].is_static else cost.masked_copy_cycles
    elif _is_transposed_in_registers(problem, operand, axis):
        lanes = machine.vector_bits // (8 * operand.element_bytes)
        cycles = float(np.log2(lanes)) * cost.transpose_shuffle_cycles / lanes
    else:
        cycles = cost.transpose_cycles
    return elements * cycles / machine.ghz + _copy_transfer_time(elements * operand.element_bytes, machine)


def _is_transposed_in_registers(problem: Problem, operand: Operand, axis: int) -> bool:
    """Whether `tile.packing` fills panels along an axis by transposing tiles in registers: their points are a constant
    distance apart, and rows are long enough."""
    dim = operand.dimension(axis)
    if dim is None:
        return False
    inner = [a for row in operand.index[dim + 1 :] for a, c in enumerate(row) if c]
    return can_transpose(operand.shape[-1], operand.element_bytes) and all(problem.axes[a].is_static for a in inner)


def copy_times(elements: Numbers, problem: Problem, operand: Operand, axis: int, machine: Machine) -> Numbers:
    """`copy_time` of every candidate's number of elements."""
    distinct, positions = np.unique(elements, return_inverse=True)
    return np.array([copy_time(float(x), problem, operand, axis, machine) for x in distinct])[positions]


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
