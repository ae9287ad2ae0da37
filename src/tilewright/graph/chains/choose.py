"""The chains of a program that become one kernel, by the estimated times of the kernels before and after.

The times are those that alternatives are chosen by (`graph/alternatives.py`). What a fused kernel replaces is what
would run without it: kernels that are sliced (`graph/slice_kernels.py`) count with the times of their slices.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.graph.alternatives import PrepareCosts, times_text
from tilewright.graph.chains.find import Dataflow, KernelChain, find_chains, find_links, read_by, written_by
from tilewright.graph.chains.find_depthwise import find_depthwise_chains
from tilewright.graph.chains.find_stored_operands import find_stored_operands
from tilewright.graph.chains.fuse import fused_kernel, with_fused
from tilewright.graph.chains.intensity import LinkIntensity, link_intensity, machine_balance
from tilewright.graph.chains.node_names import with_node_names
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import Partition, Unit
from tilewright.machine.model import Machine

MIN_GAIN = 0.03
"""The least share of the time that fusion is estimated to save. Of the 21 chains of MCFuser's paper, on two cores of
Sapphire Rapids, those that are estimated to gain as much take 0.81 to 1.00 of the unfused time; two that are estimated
to gain 2.2 and 2.6 % take 1.19 and 1.16."""

MIN_LINK_GAIN = 0.15
"""Links of which fusion saves at most this share of the time, by their intensity, are no candidates."""

_log = logging.getLogger("tilewright.chains")


@dataclass(frozen=True, slots=True)
class KernelEstimate:
    """The estimated time of a kernel.

    Attributes:
        nanoseconds: on all cores; None where there is no estimate.
        reason: why there is none; empty where there is one.
        min_gain: the least share of the time of other kernels that it is estimated to save where it replaces them.
    """

    nanoseconds: float | None
    reason: str = ""
    min_gain: float = MIN_GAIN


EstimateKernel = Callable[[Kernel, frozenset[str]], KernelEstimate]
"""Estimates a kernel, given the names of the program's constants."""

SliceUnits = Callable[[Sequence[Unit]], tuple[Unit, ...]]
"""Slices the kernels of a program where that pays (`graph/slice_kernels.py`); units keep their number and order."""


@dataclass(frozen=True, slots=True, eq=False)
class ChainEvaluation:
    """A chain that was considered.

    Attributes:
        kernels: labels of the kernels that it replaces, in order of execution.
        contractions: labels of those with contractions.
        intensities: of its links.
        fused: the kernel that it becomes; None where there is none, or was none to be made.
        before: nanoseconds of the kernels that it replaces; None where there is no estimate.
        after: nanoseconds of the fused kernel; None where there is no estimate.
        chosen: whether the program has it.
        reason: why, or why not.
    """

    kernels: tuple[str, ...]
    contractions: tuple[str, ...]
    intensities: tuple[LinkIntensity, ...]
    fused: Kernel | None
    before: float | None
    after: float | None
    chosen: bool
    reason: str

    def __str__(self) -> str:
        verb = "fused" if self.chosen else "not fused"
        return f"{' -> '.join(self.contractions)}: {times_text(self.before, self.after)}, {verb}: {self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class _Rated:
    """A chain with its times, and an objection; empty where there is none."""

    chain: KernelChain
    intensities: tuple[LinkIntensity, ...]
    fused: Kernel | None
    before: float | None
    after: float | None
    objection: str

    @property
    def gain(self) -> float:
        return 0.0 if self.before is None or self.after is None else self.before - self.after


def choose_chains(
    partition: Partition,
    machine: Machine,
    estimate: EstimateKernel,
    slice_units: SliceUnits,
    prepare: PrepareCosts | None = None,
) -> tuple[Partition, tuple[ChainEvaluation, ...]]:
    """The partition with the chains fused that are estimated to be faster, and all chains that were considered.

    Of chains that share kernels the one that saves most time is chosen. The partition is the same object where none
    is. Evaluations go to the logger `tilewright.chains`, too, at level info.

    Args:
        partition: as the program was partitioned; no kernel is sliced.
        machine: the machine; its balance of operations and traffic excludes links without a possible gain.
        estimate: estimates a kernel.
        slice_units: slices kernels.
        prepare: is told the kernels of all chains before `estimate` is asked for them.
    """
    rating = _Rating(partition, machine, estimate, slice_units)
    candidates = rating.candidates()
    if prepare is not None:
        prepare(rating.kernels(candidates))
    rated = [rating.rate(x) for x in candidates]
    fused: list[_Rated] = []
    result = partition
    rivals: dict[int, str] = {}
    for k, x in sorted(enumerate(rated), key=lambda x: -x[1].gain):
        if x.objection:
            continue
        rival = next((y for y in fused if not set(x.chain.members).isdisjoint(y.chain.members)), None)
        if rival is not None:
            rivals[k] = f"{rating.name_of(rival.chain)} saves more"
            continue
        merged = with_fused(partition, [(y.chain, y.fused) for y in (*fused, x) if y.fused is not None])
        if merged is None:
            rivals[k] = "with the chains that save more it could not be ordered"
            continue
        fused.append(x)
        result = merged
    evaluations = tuple(rating.evaluation(x, x in fused, rivals.get(k, "")) for k, x in enumerate(rated))
    for evaluation in evaluations:
        _log.info("%s", evaluation)
    return result, evaluations


class _Rating:
    """Times of the chains of a partition.

    Attributes:
        partition: the partition.
        flow: its dataflow.
    """

    def __init__(
        self, partition: Partition, machine: Machine, estimate: EstimateKernel, slice_units: SliceUnits
    ) -> None:
        self.partition, self.flow = partition, Dataflow(partition)
        self._described_machine, self._slice_units = machine, slice_units
        self._constants = frozenset(partition.program.constants)
        self._estimate = _Estimates(estimate, self._constants)
        self._as_sliced = slice_units(partition.units)
        self._known: dict[Hashable, KernelEstimate] = {}
        self._fused_kernels: dict[KernelChain, Kernel | None] = {}
        self._stored_operands = tuple(find_stored_operands(self.flow))

    def candidates(self) -> list[tuple[KernelChain, tuple[LinkIntensity, ...]]]:
        """Chains whose links may all gain, and single links of two contractions that may not, which are not fused."""
        links = find_links(self.flow)
        around_windows = [*find_depthwise_chains(self.flow)]
        every = (*links, *(x for chain in (*around_windows, *self._stored_operands) for x in chain.links))
        intensities = {link: link_intensity(link, self.flow) for link in every}
        is_bound = {x: intensities[x].max_gain(self._described_machine) <= MIN_LINK_GAIN for x in every}
        may_gain = [x for x in links if not is_bound[x]]
        stored = [x for x in self._stored_operands if not is_bound[x.links[0]]]
        found = [*find_chains(self.flow, may_gain), *around_windows, *stored]
        found += [KernelChain((x,), tuple(sorted(x.members))) for x in links if x not in may_gain]
        return [(x, tuple(intensities[link] for link in x.links)) for x in sorted(found, key=lambda x: x.members)]

    def kernels(
        self, candidates: Sequence[tuple[KernelChain, tuple[LinkIntensity, ...]]]
    ) -> list[tuple[Kernel, frozenset[str]]]:
        """The kernels whose estimates most candidates need, equal ones once, with the names of constants: those that
        candidates which may gain become, transposes included, and those that they replace."""
        may_gain = [
            chain
            for chain, intensities in candidates
            if min(x.max_gain(self._described_machine) for x in intensities) > MIN_LINK_GAIN
        ]
        first = {self._signature(chain): chain for chain in reversed(may_gain)}
        units: list[Unit | None] = [self._fused_kernel(chain) for chain in reversed(first.values())]
        for chain in may_gain:
            changed, rest = self._changed_units(chain)
            units += [*(self._as_sliced[p] for p in changed), *rest]
        return self._estimate.distinct([k for k in units if isinstance(k, Kernel)])

    def _fused_kernel(self, chain: KernelChain) -> Kernel | None:
        if chain not in self._fused_kernels:
            self._fused_kernels[chain] = fused_kernel(chain, self.flow, self.partition.program)
        return self._fused_kernels[chain]

    def rate(self, candidate: tuple[KernelChain, tuple[LinkIntensity, ...]]) -> _Rated:
        """The times of a chain: with the transposes around it, or beside them where those make it slow."""
        chain, intensities = candidate
        least = min(intensities, key=lambda x: x.max_gain(self._described_machine))
        if least.max_gain(self._described_machine) <= MIN_LINK_GAIN:
            return _Rated(chain, intensities, None, None, None, self._compute_bound(least))
        whole = self._rate_form(chain, intensities)
        if not whole.objection or not chain.moved:
            return whole
        core = self._rate_form(chain.without_moved(), intensities)
        return core if not core.objection or whole.after is None else whole

    def _compute_bound(self, intensity: LinkIntensity) -> str:
        balance, gain = machine_balance(self._described_machine), intensity.max_gain(self._described_machine)
        work = f"{intensity.flops_per_byte:.0f} FLOPs per byte of intermediates where the machine has {balance:.1f}"
        return f"compute-bound: {work}, so fusion saves at most {gain:.1%}" if intensity.flops else "it has no work"

    def _rate_form(self, chain: KernelChain, intensities: tuple[LinkIntensity, ...]) -> _Rated:
        key = self._signature(chain)
        known = self._known.get(key)
        if known is not None and known.nanoseconds is None:
            reason = self._in_user_words(known.reason, chain)
            return _Rated(chain, intensities, None, self._time_before(chain)[0], None, reason)
        fused = self._fused_kernel(chain)
        if fused is None:
            self._known[key] = KernelEstimate(None, "a view between its kernels can't be removed")
            return _Rated(chain, intensities, None, None, None, self._known[key].reason)
        estimate = self._known[key] = known or self._estimate.of(fused)
        before, beside, reason = self._time_before(chain)
        after = None if estimate.nanoseconds is None else estimate.nanoseconds + beside
        refusal = with_node_names(estimate.reason, fused)
        objection = refusal or reason or _objection(before, after, estimate.min_gain)
        return _Rated(chain, intensities, fused, before, after, objection)

    def _in_user_words(self, reason: str, chain: KernelChain) -> str:
        """Why an equal chain was refused, with the names of this one's nodes."""
        fused = self._fused_kernel(chain) if "'" in reason else None
        return reason if fused is None else with_node_names(reason, fused)

    def _time_before(self, chain: KernelChain) -> tuple[float | None, float, str]:
        """Nanoseconds of the units that a chain changes as they are now; of those among them that stay; and why there
        is no estimate."""
        changed, rest = self._changed_units(chain)
        before = [self._estimate.of_unit(self._as_sliced[p]) for p in changed]
        beside = [self._estimate.of_unit(u) for u in rest]
        unknown = next((x for x in (*before, *beside) if x.nanoseconds is None), None)
        if unknown is not None:
            return None, 0.0, f"a kernel that it replaces has no estimate{unknown.reason and f': {unknown.reason}'}"
        return sum(x.nanoseconds or 0.0 for x in before), sum(x.nanoseconds or 0.0 for x in beside), ""

    def _changed_units(self, chain: KernelChain) -> tuple[list[int], tuple[Unit, ...]]:
        """The positions of the units that a chain changes, and those of them that stay, as they are sliced then: its
        kernels, and others that are sliced together with them."""
        names = {k.slices.group_name for p in chain.members if isinstance(k := self._as_sliced[p], Kernel) and k.slices}
        together = [p for p, k in enumerate(self._as_sliced) if isinstance(k, Kernel) and k.slices
                    and k.slices.group_name in names]  # fmt: skip
        changed = sorted({*chain.members, *together})
        return changed, self._slice_units([self.partition.units[p] for p in changed if p not in chain.members])

    def _signature(self, chain: KernelChain) -> Hashable:
        """Equal for chains that become equal kernels: their units without names, and how these are connected."""
        members = frozenset(chain.members)
        numbers: dict[str, int] = {}
        parts: list[Hashable] = []
        for k in chain.members:
            unit = self.flow.units[k]
            buffers = (*read_by(unit), *written_by(unit))
            wiring = tuple((numbers.setdefault(b.name, len(numbers)), b.name in self._constants) for b in buffers)
            stored = tuple(self.flow.is_read_outside(b, members) for b in written_by(unit))
            what = _anonymous(unit) if isinstance(unit, Kernel) else tuple((b.shape, b.dtype) for b in buffers)
            parts.append((what, wiring, stored))
        return tuple(parts)

    def name_of(self, chain: KernelChain) -> str:
        """The labels of the contractions of a chain."""
        return " -> ".join(self._labels(chain.contractions))

    def _labels(self, positions: Sequence[int]) -> tuple[str, ...]:
        kernels = (self.flow.units[k] for k in positions)
        return tuple(k.label for k in kernels if isinstance(k, Kernel))

    def evaluation(self, x: _Rated, chosen: bool, rival: str) -> ChainEvaluation:
        """The outcome for a chain."""
        is_stored = x.chain in self._stored_operands
        gain = "its stored operand is read once" if is_stored else "the intermediates stay in fast memory"
        reason = x.objection or rival or gain
        return ChainEvaluation(
            self._labels(x.chain.members), self._labels(x.chain.contractions), x.intensities, x.fused, x.before,
            x.after, chosen, reason,
        )  # fmt: skip


def _objection(before: float | None, after: float | None, min_gain: float) -> str:
    """What keeps a chain from being chosen, apart from better ones; empty where nothing does."""
    if before is None or after is None:
        return "there is no estimate"
    if after >= before:
        return "it is not faster"
    return f"it gains less than {min_gain:.1%}" if after > (1 - min_gain) * before else ""


@dataclass(frozen=True, slots=True)
class _Estimates:
    """Estimates of kernels; equal ones are estimated once."""

    estimate: EstimateKernel
    constants: frozenset[str]
    known: dict[Hashable, KernelEstimate] = field(default_factory=dict[Hashable, KernelEstimate])

    def distinct(self, kernels: Iterable[Kernel]) -> list[tuple[Kernel, frozenset[str]]]:
        """The kernels without those that are estimated alike, with the names of constants."""
        first: dict[Hashable, Kernel] = {}
        for k in kernels:
            first.setdefault(self._key(k), k)
        return [(k, self.constants) for k in first.values()]

    def _key(self, kernel: Kernel) -> Hashable:
        return _anonymous(kernel), tuple(b.name in self.constants for b in kernel.arguments)

    def of(self, kernel: Kernel) -> KernelEstimate:
        """The estimate of a kernel; of a sliced one, that of all its slices."""
        key = self._key(kernel)
        if key not in self.known:
            self.known[key] = self.estimate(kernel, self.constants)
        estimate = self.known[key]
        if estimate.nanoseconds is None or kernel.slices is None:
            return estimate
        return replace(estimate, nanoseconds=estimate.nanoseconds * kernel.slices.count)

    def of_unit(self, unit: Unit) -> KernelEstimate:
        """The estimate of a unit; views take no time."""
        return self.of(unit) if isinstance(unit, Kernel) else KernelEstimate(0.0)


def _anonymous(kernel: Kernel) -> Hashable:
    """What a kernel computes, without the user's names."""
    return tuple(replace(s, label="") for s in kernel.stages), kernel.params, kernel.fusion
