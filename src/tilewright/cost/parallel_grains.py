"""Estimated work of a kernel in units of the fork cost, which decides whether threads pay.

It is the one decision for all kernels: where the estimate is a literal, it decides when a kernel is compiled whether
its loops are parallel at all (`threads_may_pay`), whichever optimizer schedules it; otherwise generated code evaluates
it at every call (`codegen.emit_segment`). The cost model of programs ranks them with the same fork cost
(`parallel_time.py`), and leaves a program serial that has too few tasks or is bound by shared bandwidth.

A rough estimate over symbolic sizes, evaluated at every call: vector instructions at the rate of the execution units,
or bytes at the bandwidth of L2, whichever takes longer. Where the decision is close, the data of a kernel is in L2.

Fork and join of n threads cost `sync_us` for all cores of a machine, and less for fewer (`Machine.sync_of`); n threads
save n - 1 of n parts of the time. So n threads pay from `1 + log2(n)` times the cost of two threads on, which is one
grain.
"""

from functools import reduce
from operator import add

from tilewright.cost.block_work import is_contraction, iteration_count
from tilewright.expr.nodes import Binary, Const, Expr, Load, const
from tilewright.expr.operations import maximum
from tilewright.loops.ir import Block, Func, IterKind, blocks
from tilewright.machine.model import Machine
from tilewright.tile.operation_cost import computed_nodes, operation_cost

MIN_GRAINS = 2
"""Grains from which on two threads pay; n threads pay from `1 + log2(n)` on."""


def grain_ns(machine: Machine) -> float:
    """Nanoseconds of one grain, on one core."""
    return machine.cost.fork_cost_margin * machine.sync_of(2) * 1e3


def parallel_grains(func: Func, machine: Machine, vectorized: bool) -> Expr:
    """The estimated time of a kernel on one core, in grains: an int64 expression over its symbols.

    n threads pay where it is at least `1 + ceil(log2(n))`.

    Args:
        func: the untransformed loops.
        machine: the machine.
        vectorized: whether the kernel's loops are vectorised.
    """
    lanes = max(1, machine.vector_bits // 32)
    work = reduce(
        add,
        (iteration_count(b) * _instruction_count(b, 1 if vectorized else lanes) for b in blocks(func.body)),
        const(0),
    )
    written = {b.body.buffer.name for b in blocks(func.body)}
    # a line is read before it is written
    moved = reduce(add, (p.size * (p.dtype.bytes * (2 if p.name in written else 1)) for p in func.params), const(0))
    grain = grain_ns(machine)
    instructions = max(1, int(grain * machine.ghz * machine.cost.vector_instructions_per_cycle * lanes))
    bytes_ = max(1, int(grain * machine.levels[min(1, len(machine.levels) - 1)].core_gbs))
    return maximum(work // instructions, moved // bytes_)


def threads_may_pay(func: Func, machine: Machine, vectorized: bool) -> bool:
    """Whether several threads pay for a kernel at some sizes; arguments as for `parallel_grains`."""
    grains = parallel_grains(func, machine, vectorized)
    return not isinstance(grains, Const) or grains.value >= MIN_GRAINS


def _instruction_count(block: Block, lanes: int) -> int:
    """Instructions per vector of points, for 32-bit elements; `lanes` is 1, or the number of points of a vector where
    loops are scalar.

    The operands of a contraction stay in registers for several terms, and its products are part of multiply-adds.
    """
    target, nodes = block.body.buffer, computed_nodes(block.body.value, conditions=True)
    is_reduction = any(i.kind is IterKind.REDUCE for i in block.iters)
    accumulator = {e for e in nodes if is_reduction and isinstance(e, Load) and e.buffer == target}
    in_contraction = is_contraction(block, nodes)
    count = sum(_instruction_cost(e, in_contraction) for e in nodes if e not in accumulator)
    return (count if is_reduction else count + 1) * lanes * max(1, target.dtype.bytes // 4)


def _instruction_cost(e: Expr, in_contraction: bool) -> int:
    is_free = isinstance(e, Load) or (isinstance(e, Binary) and e.op == "mul")
    return 0 if in_contraction and is_free else operation_cost(e).latency
