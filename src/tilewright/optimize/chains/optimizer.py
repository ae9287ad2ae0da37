"""The optimizer of fused chains: MCFuser's search proposes tilings, the cost model of trees ranks what they become.

The search's own model, bytes over bandwidth plus operations over peak rate, orders thousands of tilings. It knows
nothing of registers, and no other kernel is estimated by it; so the best of them become trees, which both models rank,
and the time of the first tree by the model of trees is what a chain is taken or refused by.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tilewright.cost.trees.tree_model import tree_times
from tilewright.errors import ScheduleError, VerifyError
from tilewright.machine.calibration_store import machine_for
from tilewright.machine.model import Machine
from tilewright.optimize.chains.chain_tree import chain_tree
from tilewright.optimize.chains.expression import ChainTiling
from tilewright.optimize.chains.extract_chain import extract_chain
from tilewright.optimize.chains.problem import Chain
from tilewright.optimize.chains.pruning import ChainSpace, PruningCounts, Variant
from tilewright.optimize.chains.refusal_text import with_result_axes
from tilewright.optimize.chains.search import MODEL_ALONE, SearchSettings, search
from tilewright.optimize.conv_chains.construct import rank_tilings
from tilewright.optimize.conv_chains.stages import has_windows
from tilewright.optimize.conv_chains.tiling import ConvolutionTiling
from tilewright.optimize.interface import ScheduledPrograms, scheduled
from tilewright.optimize.task import Task
from tilewright.schedule.schedule import Schedule
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.tree import TileTree, on_one_thread
from tilewright.verify.verifier import verify

MAX_TREES = 64
"""Tilings that become trees, the best by the search's model."""

MAX_LOWERINGS = 4
"""Trees that are lowered at most, the best by the model of trees, until one is legal."""


@dataclass(frozen=True, slots=True)
class ChainCandidate:
    """A tiling of a chain with its tree.

    Attributes:
        tiling: the loops over tiles and the sizes of these, or the tiles of a chain of convolutions.
        tree: the kernel's loops.
        estimate: nanoseconds by the search's model; of convolutions, which it does not describe, by that of trees.
        nanoseconds: by the model of trees.
    """

    tiling: ChainTiling | ConvolutionTiling
    tree: TileTree
    estimate: float
    nanoseconds: float


@dataclass(frozen=True, slots=True)
class ChainConstruction:
    """What was constructed for a chain.

    Attributes:
        chain: the chain as the search sees it; None where it can't be tiled.
        counts: what every pruning rule left of the space; None without a space.
        programs: the programs, best first; the first one can be lowered. Empty where there is none.
        estimated: number of candidates that the search estimated.
        refusal: why there is no program; empty where there is one.
        schedule: of the first program, which was lowered to see that it is legal; None where there is none.
    """

    chain: Chain | None = None
    counts: PruningCounts | None = None
    programs: tuple[ChainCandidate, ...] = ()
    estimated: int = 0
    refusal: str = ""
    schedule: Schedule | None = field(default=None, repr=False, compare=False)

    @property
    def nanoseconds(self) -> tuple[float, ...]:
        """Times of the programs by the model of trees, in their order."""
        return tuple(x.nanoseconds for x in self.programs)

    @property
    def estimate(self) -> float | None:
        """Nanoseconds of the best program; None where there is none."""
        return self.programs[0].nanoseconds if self.programs else None

    def without_search(self) -> "ChainConstruction":
        """The same; nothing of the search is kept."""
        return self


@dataclass(frozen=True, slots=True)
class ChainOptimizer:
    """The optimizer of kernels whose fusion pattern is a chain.

    Attributes:
        name: of the variant, the space that is searched.
        machine: the machine to construct for; by default the description that fits the task's target.
        settings: of the search.
    """

    name: str = Variant.MCFUSER.value
    machine: Machine | None = None
    settings: SearchSettings = MODEL_ALONE

    def construct(self, task: Task) -> ChainConstruction:
        """The best programs; none, with the reason, where the chain can't be tiled."""
        construction = self._construct(task, self.machine or machine_for(task.target))
        if not construction.refusal:
            return construction
        return replace(construction, refusal=with_result_axes(construction.refusal, task.func))

    def _construct(self, task: Task, machine: Machine) -> ChainConstruction:
        """The same, with a reason in terms of the loops' axes."""
        construction = ChainConstruction()
        try:
            _check_types(task)
            if has_windows(task.func):
                return _construct_convolutions(task, machine)
            chain = extract_chain(task.func, task.samples)
            construction = replace(construction, chain=chain)
            space = ChainSpace.of(chain, machine, Variant(self.name))
            construction = replace(construction, counts=space.counts())
            if not space.models:
                raise ScheduleError("no tiling expression computes its statements in order", where="fused chain")
            found = search(space, self.settings)
        except ScheduleError as error:
            return replace(construction, refusal=error.what)
        tilings = [(x.tiling, x.estimate) for x in found.ranked[:MAX_TREES]]
        programs, refusals = _programs(tilings, task, machine)
        programs, schedule, more = _from_first_legal(programs, task)
        none = "no tiling fits the fast memory" if not found.ranked else ""
        refusal = "" if programs else next(iter((*refusals, *more)), none)
        return replace(
            construction, programs=programs, estimated=found.estimated, refusal=refusal, schedule=schedule
        )  # fmt: skip

    def schedule_programs(self, construction: ChainConstruction | None, task: Task) -> ScheduledPrograms | None:
        """The schedule of the best program; None where there is none."""
        return scheduled(self._best_schedule(construction, task))

    def _best_schedule(self, construction: ChainConstruction | None, task: Task) -> Schedule | None:
        if construction is None or not construction.programs:
            return None
        tree, known = construction.programs[0].tree, construction.schedule
        if task.threads != 1 and known is not None and known.origin == task.func:
            return known.copy()
        return lower_tree(on_one_thread(tree) if task.threads == 1 else tree, task.func)

    def optimize(self, task: Task) -> Schedule | None:
        """The schedule of the best program; None where there is none."""
        return self._best_schedule(self.construct(task), task)


def _construct_convolutions(task: Task, machine: Machine) -> ChainConstruction:
    """The best programs of a chain of convolutions.

    Raises:
        ScheduleError: it is none that trees can be built for.
    """
    ranked = rank_tilings(task, machine)
    found = [ChainCandidate(x.tiling, x.tree, x.nanoseconds, x.nanoseconds) for x in ranked]
    programs, schedule, refusals = _from_first_legal(found, task)
    refusal = "" if programs else refusals[0]
    return ChainConstruction(programs=programs, estimated=len(ranked), refusal=refusal, schedule=schedule)


def _check_types(task: Task) -> None:
    """Refuses chains that compute in other types than float32, for which the trees are made.

    Raises:
        ScheduleError: one does.
    """
    others = [b for b in (*task.func.allocs, *task.func.outputs) if b.dtype.name != "float32"]
    if others:
        raise ScheduleError(f"{others[0].name!r} is {others[0].dtype.name}, expected float32", where="fused chain")


def _programs(
    tilings: Sequence[tuple[ChainTiling, float]], task: Task, machine: Machine
) -> tuple[list[ChainCandidate], list[str]]:
    """The trees of tilings with their times, best first, and why there is none for others."""
    found: list[tuple[ChainTiling, float, TileTree]] = []
    refusals: list[str] = []
    for tiling, estimate in tilings:
        try:
            found.append((tiling, estimate, chain_tree(task, tiling, machine)))
        except ScheduleError as error:
            refusals.append(error.what)
    times = tree_times([tree for _, _, tree in found], task.func, machine, task.constants, task.samples)
    programs: list[ChainCandidate] = []
    for (tiling, estimate, tree), time in zip(found, times, strict=True):
        if time is None:
            refusals.append("the cost model has no time for its tree")
        else:
            programs.append(ChainCandidate(tiling, tree, estimate, time * machine.cost.chain_time_ratio))
    return _by_both_models(programs), refusals


def _by_both_models(programs: Sequence[ChainCandidate]) -> list[ChainCandidate]:
    """The programs in the order of the sum of their ranks by both models.

    Each misses what the other sees: the search's model knows no registers, the model of trees underestimates small
    tiles of keys. Of 24 drawn attentions on one thread of a Zen 4, the program that the model of trees alone puts first
    takes 1.006 of the time of this one (geometric mean, 0.96 to 1.09).
    """
    ranks = [0] * len(programs)
    for times in ([x.estimate for x in programs], [x.nanoseconds for x in programs]):
        for rank, k in enumerate(sorted(range(len(programs)), key=times.__getitem__)):
            ranks[k] += rank
    return [programs[k] for k in sorted(range(len(programs)), key=lambda k: (ranks[k], k))]


def _from_first_legal(
    programs: list[ChainCandidate], task: Task
) -> tuple[tuple[ChainCandidate, ...], Schedule | None, list[str]]:
    """The programs from the first one that can be lowered and verified on, its schedule, and why the ones before
    can't."""
    refusals: list[str] = []
    for k, program in enumerate(programs[:MAX_LOWERINGS]):
        try:
            schedule = lower_tree(program.tree, task.func)
            verify(schedule.func)
        except (ScheduleError, VerifyError) as error:
            refusals.append(error.what if isinstance(error, ScheduleError) else str(error))
            continue
        return tuple(programs[k:]), schedule, refusals
    return (), None, refusals
