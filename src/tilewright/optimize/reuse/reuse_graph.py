"""The graph of reuse: which operators may start from which others' programs, and what each of these costs.

Node 0 is the root: an arc from it stands for a full search, or for what is recorded already. The operators follow, then
operators of which programs are recorded, then bridges. An arc between two of them stands for the reuse of the tail's
program, and costs the estimated number of programs that are measured for the head (ETO, Section 6), each at the cost of
a trial of the head (`trial_cost.py`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tilewright.errors import OptionError
from tilewright.optimize.reuse.arborescence import Tree, cheapest_tree, minimum_arborescence
from tilewright.optimize.reuse.bridges import all_bridges, one_hop_bridges, reuse_pairs
from tilewright.optimize.reuse.greedy_flac import Arc
from tilewright.optimize.reuse.loop_vector import LoopVector, OperatorKind
from tilewright.optimize.reuse.search_cost import GPU_SEARCH, SearchSize, estimated_search_cost
from tilewright.optimize.reuse.trial_cost import PROGRAMS, TrialCosts

ROOT = 0
"""The node of full searches."""

FULL_SEARCH_TRIALS = 1000
"""Programs that a full search measures, where nothing else is said."""


class BridgeChoice(StrEnum):
    """Which bridges a graph has.

    Attributes:
        NONE: none; the tree is optimal.
        ONE_HOP: those between operators.
        ALL: those between bridges as well.
    """

    NONE = "none"
    ONE_HOP = "one hop"
    ALL = "all"


_BRIDGES: Mapping[BridgeChoice, Callable[[Sequence[LoopVector]], tuple[LoopVector, ...]]] = {
    BridgeChoice.NONE: lambda operators: (),
    BridgeChoice.ONE_HOP: one_hop_bridges,
    BridgeChoice.ALL: all_bridges,
}


@dataclass(frozen=True, slots=True)
class SearchCosts:
    """What searches cost.

    Attributes:
        full: programs that a search from nothing measures.
        recorded: what it costs to take a recorded program of another machine as it is, in the unit of `trial`.
        sizes: of the hierarchical searches, one for each sketch that may turn out to be chosen.
        known: of kinds whose sketch is known, because one of their operators is tuned, the size of its search.
        trial: what the measurement of a program costs; by default 1, so that costs are numbers of programs.
    """

    full: float = FULL_SEARCH_TRIALS
    recorded: float = 0.0
    sizes: tuple[SearchSize, ...] = (GPU_SEARCH,)
    known: Mapping[OperatorKind, SearchSize] = field(default_factory=dict[OperatorKind, SearchSize])
    trial: TrialCosts = PROGRAMS

    def programs_of_reuse(self, target: LoopVector, source: LoopVector) -> float:
        """The estimated number of programs that the reuse of a source's program for a target measures."""
        size = self.known.get(target.kind)
        return estimated_search_cost(target, source, self.sizes if size is None else (size,))


@dataclass(frozen=True, slots=True)
class ReuseGraph:
    """Operators and their bridges with the costs of reuse.

    Attributes:
        operators: those that are to be tuned.
        recorded: operators of which programs are recorded, of other models or machines.
        bridges: operators that may be tuned where it makes others cheaper.
        programs: estimated number of programs that are measured along every arc between nodes.
        costs: cost of every arc.
    """

    operators: tuple[LoopVector, ...]
    recorded: tuple[LoopVector, ...]
    bridges: tuple[LoopVector, ...]
    programs: Mapping[Arc, float]
    costs: Mapping[Arc, float]

    @property
    def nodes(self) -> tuple[LoopVector, ...]:
        """The loop vectors of nodes 1 and up."""
        return (*self.operators, *self.recorded, *self.bridges)

    @property
    def terminals(self) -> tuple[int, ...]:
        """The nodes of the operators that are to be tuned."""
        return tuple(range(1, len(self.operators) + 1))

    def is_recorded(self, node: int) -> bool:
        """Whether programs of a node's operator are recorded."""
        return len(self.operators) < node <= len(self.operators) + len(self.recorded)

    def is_bridge(self, node: int) -> bool:
        """Whether a node is a bridge."""
        return node > len(self.operators) + len(self.recorded)

    def tree(self) -> Tree:
        """The arcs that are tuned along, sources first: of all operators, and of what makes them cheaper.

        Raises:
            OptionError: networkx is not installed.
        """
        if self.bridges or self.recorded:
            return cheapest_tree(self.costs, ROOT, self.terminals)
        return minimum_arborescence(self.costs, ROOT)


def reuse_graph(
    operators: Sequence[LoopVector],
    bridges: BridgeChoice = BridgeChoice.ONE_HOP,
    costs: SearchCosts | None = None,
    recorded: Collection[LoopVector] = (),
) -> ReuseGraph:
    """The graph of reuse of operators.

    Args:
        operators: those that are to be tuned.
        bridges: which bridges are added.
        costs: what searches cost.
        recorded: operators of which programs are recorded.

    Raises:
        OptionError: a cost is negative.
    """
    costs = costs or SearchCosts()
    if min(costs.full, costs.recorded) < 0:
        raise OptionError("expected costs of at least 0", where="costs", hint="give numbers of measured programs")
    operators, sources = tuple(operators), tuple(dict.fromkeys(recorded))
    added = _BRIDGES[bridges](operators)
    nodes = (*operators, *sources, *added)
    programs: dict[Arc, float] = {}
    arcs: dict[Arc, float] = {}
    for k, node in enumerate(nodes):
        is_recorded = len(operators) <= k < len(operators) + len(sources)
        programs[ROOT, k + 1] = 0.0 if is_recorded else costs.full
        arcs[ROOT, k + 1] = costs.recorded if is_recorded else costs.full * costs.trial.of_full_search(node)
    for s, t in reuse_pairs(nodes):
        programs[s + 1, t + 1] = costs.programs_of_reuse(nodes[t], nodes[s])
        arcs[s + 1, t + 1] = programs[s + 1, t + 1] * costs.trial.of_reuse(nodes[t])
    return ReuseGraph(operators, sources, added, programs, arcs)
