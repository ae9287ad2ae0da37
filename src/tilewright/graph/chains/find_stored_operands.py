"""Contractions of an operand that is stored as well: attention over keys and values of a cache.

A model that generates text returns `present = Concat(past, new)` and sums products of it. In two kernels the cache is
written and then read again, from memory where it is long. In one, each row of it is still close when it is summed up:
keys position by position, values head by head.
"""

from collections.abc import Iterator

from tilewright.expr.computation import View
from tilewright.expr.pattern import is_sum_of_products
from tilewright.expr.traversal import loads
from tilewright.graph.chains.find import Dataflow, KernelChain, Link
from tilewright.graph.fuse_rowwise import MAX_STAGES
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import Unit


def find_stored_operands(flow: Dataflow) -> Iterator[KernelChain]:
    """Pairs of a kernel of one computation without a reduction, whose result something else reads as well, and the
    kernel that sums products of this result, directly or through views."""
    for consumer, unit in enumerate(flow.units):
        for name in _summed_operands(unit):
            path = _path_to_writer(flow, name)
            members = frozenset((*path, consumer))
            if path and _is_stored_value(flow, path[-1], members) and not flow.leaves_and_returns(members):
                yield KernelChain((Link(path[-1], consumer, frozenset(path[:-1])),), tuple(sorted(members)))


def _summed_operands(unit: Unit) -> tuple[str, ...]:
    """The names of the program's buffers that the only sum of products of a kernel multiplies; none for other units."""
    if not isinstance(unit, Kernel) or len(unit.stages) >= MAX_STAGES:
        return ()
    sums = [s for s in unit.stages if is_sum_of_products(s)]
    if len(sums) != 1:
        return ()
    names = dict(zip((p.name for p in unit.params), (b.name for b in unit.arguments), strict=True))
    return tuple(dict.fromkeys(names[x.buffer.name] for x in loads(sums[0].body) if x.buffer.name in names))


def _path_to_writer(flow: Dataflow, name: str) -> tuple[int, ...]:
    """The views that lead to a buffer, then the unit that writes what they show; () where no unit does."""
    path: list[int] = []
    while (k := flow.writer_named(name)) is not None:
        path.append(k)
        unit = flow.units[k]
        if not isinstance(unit, View):
            return tuple(path)
        name = unit.source.name
    return ()


def _is_stored_value(flow: Dataflow, k: int, members: frozenset[int]) -> bool:
    """Whether a unit is a kernel of one computation that reduces nothing, and others than some members read it."""
    unit = flow.units[k]
    if not isinstance(unit, Kernel) or len(unit.stages) != 1 or unit.stages[0].is_reduction:
        return False
    return flow.is_read_outside(unit.writes[0], members)
