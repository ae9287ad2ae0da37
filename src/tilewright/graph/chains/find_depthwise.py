"""Chains of convolutions around a depthwise one, by their dataflow.

A depthwise convolution and the contraction that sums its channels up, alone or with the contraction whose channels it
convolves: the inverted residual of MobileNets. Padding and element-wise work belong to the kernels of these, or are
kernels between them. Pairs of other convolutions are links of contractions (`find.py`).
"""

from collections.abc import Iterator

from tilewright.expr.computation import View
from tilewright.expr.pattern import Pattern, pattern_of
from tilewright.graph.chains.find import Dataflow, KernelChain, Link, is_contraction, written_by
from tilewright.graph.fuse_rowwise import MAX_STAGES
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import Unit


def find_depthwise_chains(flow: Dataflow) -> Iterator[KernelChain]:
    """All such chains whose intermediates nothing else reads; shorter ones first of those with one depthwise
    convolution."""
    for k, unit in enumerate(flow.units):
        if not is_window(unit):
            continue
        projection = _only_reader(flow, k)
        if projection is None:
            continue
        chain = (Link(k, projection[0], projection[1]),)
        yield _chain(chain)
        expansion = _only_source(flow, k)
        if expansion is not None:
            longer = (Link(expansion[0], k, expansion[1]), *chain)
            if _stage_count(flow, longer) <= MAX_STAGES:
                yield _chain(longer)


def is_window(unit: Unit) -> bool:
    """Whether a unit is a kernel with one depthwise convolution, and no contraction."""
    patterns = [pattern_of(s) for s in unit.stages] if isinstance(unit, Kernel) else []
    return patterns.count(Pattern.WINDOW) == 1 and Pattern.CONTRACTION not in patterns


def _chain(links: tuple[Link, ...]) -> KernelChain:
    return KernelChain(links, tuple(sorted({k for x in links for k in x.members})))


def _stage_count(flow: Dataflow, links: tuple[Link, ...]) -> int:
    members = {k for x in links for k in x.members}
    return sum(len(u.stages) for k in members if isinstance(u := flow.units[k], Kernel))


def _is_between(unit: Unit) -> bool:
    """Whether a unit may be between two convolutions: it reduces nothing."""
    return isinstance(unit, View) or (isinstance(unit, Kernel) and not any(s.is_reduction for s in unit.stages))


def _single_reader(flow: Dataflow, k: int) -> int | None:
    """The unit that alone reads the results of another one; None where there are more, or they are outputs."""
    readers = flow.readers(k)
    if len(readers) != 1 or any(map(flow.is_output, written_by(flow.units[k]))):
        return None
    return readers[0]


def _only_reader(flow: Dataflow, k: int) -> tuple[int, frozenset[int]] | None:
    """The contraction that alone reads results of a unit, and what is between."""
    between = set[int]()
    while (reader := _single_reader(flow, k)) is not None:
        if is_contraction(flow.units[reader]):
            return reader, frozenset(between)
        if not _is_between(flow.units[reader]):
            return None
        between.add(reader)
        k = reader
    return None


def _only_source(flow: Dataflow, k: int) -> tuple[int, frozenset[int]] | None:
    """The contraction whose results a unit alone reads, and what is between; None where it reads those of several
    kernels."""
    between = set[int]()
    while len(writers := flow.writers(k)) == 1 and _single_reader(flow, writers[0]) == k:
        (k,) = writers
        if is_contraction(flow.units[k]):
            return k, frozenset(between)
        if not _is_between(flow.units[k]):
            return None
        between.add(k)
    return None
