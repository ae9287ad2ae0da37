"""Whether a call of a kernel pays for starting threads: its time on one core against what starting them costs.

A rough estimate over symbolic sizes, so that generated code can decide for each call: vector instructions at the rate
of the units, or bytes at the rate of the second cache, whichever takes longer. Where the answer is close, the data of
a kernel lies in that cache.

Starting n threads costs `sync_us` for all cores of a machine, and less for fewer (`Machine.sync_of`); n threads save
n - 1 of n parts of the time. Together that asks for a time of `1 + log2(n)` times what starting two threads costs, in
which `grains` counts.
"""

from functools import reduce
from operator import add, mul

from tilewright.expr.nodes import Binary, Expr, Load, const
from tilewright.expr.operations import maximum
from tilewright.loops.ir import Block, Func, IterKind, blocks
from tilewright.machine.model import Machine
from tilewright.tile.operation_cost import computed_nodes, operation_cost

FORK_COST_MARGIN = 2.0
"""How many times the cost of starting threads is asked for. `sync_us` holds while threads are still awake from the loop
before; they sleep after a while, and then it takes longer until they help."""

INSTRUCTIONS_PER_CYCLE = 2
"""Vector instructions that start per cycle, where some are loads and stores."""


def grain_ns(machine: Machine) -> float:
    """The time on one core that counts as one grain."""
    return FORK_COST_MARGIN * machine.sync_of(2) * 1e3


def parallel_grains(func: Func, machine: Machine, vectorized: bool) -> Expr:
    """The estimated time of a kernel on one core, in grains; an int64 expression over its symbols. It pays to start n
    threads where it is at least `1 + ceil(log2(n))`.

    Args:
        func: the untransformed loops.
        machine: what runs the kernel.
        vectorized: whether its loops run along the lanes of vectors.
    """
    lanes = max(1, machine.vector_bits // 32)
    work = reduce(
        add, (_point_count(b) * _instruction_count(b, 1 if vectorized else lanes) for b in blocks(func.body)), const(0)
    )
    written = {b.body.buffer.name for b in blocks(func.body)}
    # a line that is written is read first
    moved = reduce(add, (p.size * (p.dtype.bytes * (2 if p.name in written else 1)) for p in func.params), const(0))
    grain = grain_ns(machine)
    instructions = max(1, int(grain * machine.ghz * INSTRUCTIONS_PER_CYCLE * lanes))
    bytes_ = max(1, int(grain * machine.levels[min(1, len(machine.levels) - 1)].core_gbs))
    return maximum(work // instructions, moved // bytes_)


def _point_count(block: Block) -> Expr:
    return reduce(mul, (i.extent for i in block.iters), const(1))


def _instruction_count(block: Block, lanes: int) -> int:
    """Vector instructions per vector of points, for 32-bit elements; for each point of it where there are no vectors.

    What a sum of products reads stays in registers for several of its terms, and products are part of the additions.
    """
    target, nodes = block.body.buffer, computed_nodes(block.body.value, conditions=True)
    reduces = any(i.kind is IterKind.REDUCE for i in block.iters)
    total = {e for e in nodes if reduces and isinstance(e, Load) and e.buffer == target}
    product = reduces and sum(isinstance(e, Load) for e in nodes) - len(total) > 1
    count = sum(_instruction_cost(e, product) for e in nodes if e not in total)
    return (count if reduces else count + 1) * lanes * max(1, target.dtype.bytes // 4)


def _instruction_cost(e: Expr, product: bool) -> int:
    free = isinstance(e, Load) or (isinstance(e, Binary) and e.op == "mul")
    return 0 if product and free else operation_cost(e).latency
