"""Finding chains of contractions in a partitioned program, by their dataflow alone.

A chain is a sequence of kernels with a contraction each, every one of which sums up results of the one before:
directly, or through views and kernels without a contraction (masks, softmax, normalisations, transposes). Two
successive ones with what lies between them are a *link*. Every sub-sequence is a candidate. No operator's name or
exporter's pattern is asked for.

Intermediates that something outside reads as well would be further results of the fused kernel, which its optimizer
refuses so far. Transposes that only the chain reads, or that alone read its result, belong to it: fused, nothing has to
be moved. Operands that the model returns as well have kernels of their own (`find_stored_operands.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.expr.computation import View
from tilewright.expr.nodes import Buffer
from tilewright.expr.pattern import Pattern, pattern_of
from tilewright.graph.chains.fold_transposes import is_transpose
from tilewright.graph.fuse_rowwise import MAX_STAGES
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import Partition, Unit
from tilewright.graph.program import step_outputs

MAX_LINKS = 3
"""Links of a chain, one less than its contractions: every sub-sequence is constructed, and the space of tilings grows
with the factorial of the axes."""


@dataclass(frozen=True, slots=True)
class Link:
    """Two contractions, one after the other in a chain.

    Attributes:
        producer: position of the first one among the units of the partition.
        consumer: position of the second one.
        between: positions of the kernels and views between them.
    """

    producer: int
    consumer: int
    between: frozenset[int]

    @property
    def members(self) -> frozenset[int]:
        """The positions of all its units."""
        return self.between | {self.producer, self.consumer}


@dataclass(frozen=True, slots=True)
class KernelChain:
    """Units of a partition that may become one kernel.

    Attributes:
        links: in order; the consumer of each is the producer of the next.
        members: positions of all units, ascending.
        moved: those of `members` that only transpose operands or results.
    """

    links: tuple[Link, ...]
    members: tuple[int, ...]
    moved: frozenset[int] = frozenset()

    @property
    def contractions(self) -> tuple[int, ...]:
        """The positions of the kernels with contractions, in order; in front of a contraction of a stored operand that
        of the kernel which stores it."""
        return (self.links[0].producer, *(x.consumer for x in self.links))

    def without_moved(self) -> "KernelChain":
        """The chain beside the transposes around it."""
        return KernelChain(self.links, tuple(k for k in self.members if k not in self.moved))


class Dataflow:
    """What the units of a partition read and write.

    Attributes:
        units: in order of execution.
    """

    def __init__(self, partition: Partition) -> None:
        self.units = partition.units
        self._outputs = {b.name for _, b in partition.program.outputs}
        self._writer = {b.name: k for k, u in enumerate(self.units) for b in written_by(u)}
        self._reading_units: dict[str, list[int]] = {}
        for k, u in enumerate(self.units):
            for name in dict.fromkeys(b.name for b in read_by(u)):
                self._reading_units.setdefault(name, []).append(k)

    def readers(self, k: int) -> list[int]:
        """The positions of the units that read results of a unit."""
        return sorted({r for b in written_by(self.units[k]) for r in self._reading_units.get(b.name, ())})

    def readers_of(self, b: Buffer) -> list[int]:
        """The positions of the units that read a buffer."""
        return self._reading_units.get(b.name, [])

    def writer_of(self, b: Buffer) -> int:
        """The position of the unit that writes a buffer."""
        return self._writer[b.name]

    def writer_named(self, name: str) -> int | None:
        """The position of the unit that writes the buffer of a name; None for inputs and constants."""
        return self._writer.get(name)

    def writers(self, k: int) -> list[int]:
        """The positions of the units whose results a unit reads."""
        return sorted({self._writer[b.name] for b in read_by(self.units[k]) if b.name in self._writer})

    def is_output(self, b: Buffer) -> bool:
        """Whether a buffer is an output of the program."""
        return b.name in self._outputs

    def is_read_outside(self, b: Buffer, members: frozenset[int]) -> bool:
        """Whether the program or a unit outside of some reads a buffer, itself or through views among them."""
        if self.is_output(b):
            return True
        for r in self._reading_units.get(b.name, ()):
            view = self.units[r]
            if r not in members or (isinstance(view, View) and self.is_read_outside(view.output, members)):
                return True
        return False

    def leaves_and_returns(self, members: frozenset[int]) -> bool:
        """Whether a path leads from members through other units back to members, so that they can't run at once."""
        last = max(members)
        pending = [r for k in members for r in self.readers(k) if r not in members and r < last]
        seen = set(pending)
        while pending:
            for r in self.readers(pending.pop()):
                if r in members:
                    return True
                if r < last and r not in seen:
                    seen.add(r)
                    pending.append(r)
        return False


def find_links(flow: Dataflow) -> tuple[Link, ...]:
    """All pairs of contractions of which the second one sums up results of the first one, not through another one."""
    contractions = [k for k, u in enumerate(flow.units) if is_contraction(u)]
    links: list[Link] = []
    for producer in contractions:
        reached, consumers = _link_units_after(flow, producer)
        for consumer in consumers:
            between = _link_units_before(flow, consumer, reached)
            links.append(Link(producer, consumer, between))
    return tuple(links)


def is_contraction(unit: Unit) -> bool:
    """Whether a unit is a kernel with one contraction."""
    return isinstance(unit, Kernel) and sum(pattern_of(s) is Pattern.CONTRACTION for s in unit.stages) == 1


def _contracted_by(unit: Unit) -> frozenset[str]:
    """The names of the program's buffers that the contraction of a kernel reads, not its epilogue alone."""
    assert isinstance(unit, Kernel)
    contraction = next(s for s in unit.stages if pattern_of(s) is Pattern.CONTRACTION)
    inside = {s.output.name for s in unit.stages}
    names = dict(zip((p.name for p in unit.params), (b.name for b in unit.arguments), strict=True))
    return frozenset(names[b.name] for b in contraction.inputs if b.name not in inside)


def _is_link_unit(unit: Unit) -> bool:
    """Whether a unit may be between two contractions."""
    if isinstance(unit, View):
        return True
    return isinstance(unit, Kernel) and all(
        pattern_of(s) not in (Pattern.CONTRACTION, Pattern.WINDOW) for s in unit.stages
    )


def _link_units_after(flow: Dataflow, producer: int) -> tuple[frozenset[int], list[int]]:
    """The units that results of a contraction reach without another one, and the contractions that read these."""
    reached, consumers = set[int](), set[int]()
    pending = [producer]
    while pending:
        k = pending.pop()
        for r in flow.readers(k):
            if is_contraction(flow.units[r]):
                if not _contracted_by(flow.units[r]).isdisjoint(b.name for b in written_by(flow.units[k])):
                    consumers.add(r)
            elif _is_link_unit(flow.units[r]) and r not in reached:
                reached.add(r)
                pending.append(r)
    return frozenset(reached), sorted(consumers)


def _link_units_before(flow: Dataflow, consumer: int, reached: frozenset[int]) -> frozenset[int]:
    """Those of some units whose results a contraction reads, through others of them."""
    found = set[int]()
    pending = [consumer]
    while pending:
        for w in flow.writers(pending.pop()):
            if w in reached and w not in found:
                found.add(w)
                pending.append(w)
    return frozenset(found)


def find_chains(flow: Dataflow, links: Sequence[Link]) -> Iterator[KernelChain]:
    """All chains of these links whose units can run at once, of at most `MAX_LINKS` links and `MAX_STAGES`
    computations; shorter ones first of those that begin with the same link."""
    following: dict[int, list[Link]] = {}
    for link in links:
        following.setdefault(link.producer, []).append(link)
    for link in links:
        pending = [(link,)]
        while pending:
            sequence = pending.pop(0)
            members = frozenset(k for x in sequence for k in x.members)
            if len(sequence) > MAX_LINKS or _stage_count(flow, members) > MAX_STAGES:
                continue
            pending += [(*sequence, x) for x in following.get(sequence[-1].consumer, ())]
            if not flow.leaves_and_returns(members):
                yield _with_transposes(flow, sequence, members)


def _stage_count(flow: Dataflow, members: frozenset[int]) -> int:
    return sum(len(u.stages) for k in members if isinstance(u := flow.units[k], Kernel))


def _with_transposes(flow: Dataflow, links: tuple[Link, ...], members: frozenset[int]) -> KernelChain:
    """The chain with the transposes of operands that only it reads, and with that of its result if nothing else reads
    it."""
    moved = set[int]()
    for k in members:
        for w in flow.writers(k):
            moved |= _moved_operand(flow, w, members | moved) if w not in members else set()
    moved |= _moved_result(flow, links[-1].consumer)
    return KernelChain(links, tuple(sorted(members | moved)), frozenset(moved - members))


def _moved_operand(flow: Dataflow, k: int, members: frozenset[int]) -> set[int]:
    """A transpose that only members read, with the views between; empty where there is none."""
    path = {k}
    while isinstance(flow.units[k], View) and (writers := flow.writers(k)):
        k = writers[0]
        path.add(k)
    inside = members | path
    unread = all(not flow.is_read_outside(b, inside) for x in path for b in written_by(flow.units[x]))
    return path if is_transpose_kernel(flow.units[k]) and unread else set()


def _moved_result(flow: Dataflow, k: int) -> set[int]:
    """The transpose that alone reads the result of a unit, with the views between; empty where there is none."""
    path = set[int]()
    while len(readers := flow.readers(k)) == 1 and not any(map(flow.is_output, written_by(flow.units[k]))):
        (k,) = readers
        path.add(k)
        if is_transpose_kernel(flow.units[k]):
            return path
        if not isinstance(flow.units[k], View):
            break
    return set()


def is_transpose_kernel(unit: Unit) -> bool:
    """Whether a unit is a kernel that only stores a buffer in another order."""
    return isinstance(unit, Kernel) and len(unit.stages) == 1 and is_transpose(unit.stages[0])


def read_by(unit: Unit) -> tuple[Buffer, ...]:
    """The program's buffers that a unit reads."""
    return unit.reads if isinstance(unit, Kernel) else unit.inputs


def written_by(unit: Unit) -> tuple[Buffer, ...]:
    """The program's buffers that a unit writes."""
    return unit.writes if isinstance(unit, Kernel) else step_outputs(unit)
