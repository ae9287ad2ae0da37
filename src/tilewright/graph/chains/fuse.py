"""A chain as one kernel, and a partition with some of its units fused to such kernels."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilewright.expr.computation import Computation, Stage, View
from tilewright.expr.nodes import Buffer
from tilewright.graph.chains.find import Dataflow, KernelChain, written_by
from tilewright.graph.chains.fold_transposes import fold_transposes
from tilewright.graph.chains.split_dims import remove_views
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import Partition, Unit, in_order_of_execution
from tilewright.graph.program import Program


def fused_kernel(chain: KernelChain, flow: Dataflow, program: Program) -> Kernel | None:
    """The kernel that a chain becomes; None where a view inside of it can't be removed.

    Args:
        chain: a chain of the program's partition.
        flow: the dataflow of that partition.
        program: the program of the partition.
    """
    members = frozenset(chain.members)
    inside = {b for k in chain.members for b in _computed_by(flow.units[k], program)}
    steps: list[Stage] = [s for s in program.steps if isinstance(s, Computation | View) and s.output in inside]
    outputs = [s.output for s in steps if isinstance(s, Computation) and flow.is_read_outside(s.output, members)]
    computations = remove_views(steps)
    if computations is None:
        return None
    names = {b.name for b in outputs}
    stored = [s.output for s in computations if s.output.name in names]
    kernel = make_kernel(fold_transposes(computations, stored), stored)
    return replace(kernel, arguments=_with_own_shapes(kernel.arguments, steps))


def _computed_by(unit: Unit, program: Program) -> set[Buffer]:
    """The results of the steps that a unit consists of."""
    if not isinstance(unit, Kernel):
        return set(written_by(unit))
    writers: Mapping[Buffer, Computation] = {s.output: s for s in program.steps if isinstance(s, Computation)}
    found, pending = set[Buffer](), list(unit.writes)
    while pending:
        b = pending.pop()
        if b in writers and b not in found and b not in unit.reads:
            found.add(b)
            pending += writers[b].inputs
    return found


def _with_own_shapes(arguments: Sequence[Buffer], steps: Sequence[Stage]) -> tuple[Buffer, ...]:
    """Arguments as the program has them; those whose dimensions were split have other shapes."""
    own = {b.name: b for s in steps for b in (*s.inputs, s.output)}
    return tuple(own[b.name] for b in arguments)


def with_fused(partition: Partition, fused: Collection[tuple[KernelChain, Kernel]]) -> Partition | None:
    """A partition with chains fused; None where these would need each other's results.

    Args:
        partition: the partition.
        fused: chains without a common unit, with their kernels.
    """
    units = list(partition.units)
    flow = Dataflow(partition)
    removed = set[int]()
    added: dict[int, Kernel] = {}
    for chain, kernel in fused:
        members = frozenset(chain.members)
        views = (k for k in members if isinstance(units[k], View))
        kept = {k for k in views if any(flow.is_read_outside(b, members) for b in written_by(units[k]))}
        removed |= members - kept
        added[max(members - kept)] = kernel
    result = [added.get(k, u) for k, u in enumerate(units) if k not in removed or k in added]
    ordered, waiting = in_order_of_execution(result)
    return None if waiting else replace(partition, units=ordered)
