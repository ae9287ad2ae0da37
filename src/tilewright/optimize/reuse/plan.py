"""Plans of reuse: in which order the operators of a model are tuned, each from whose program, and at which cost.

A plan is a tree below full searches and recorded programs. What is below two different of these is independent, and may
be tuned on different machines at once. Operators that are called often, and those that others start from, get more of a
budget. Costs are measured programs, or the seconds that measuring them takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from tilewright.optimize.reuse.loop_vector import LoopVector
from tilewright.optimize.reuse.reuse_graph import ROOT, BridgeChoice, ReuseGraph, SearchCosts, reuse_graph
from tilewright.optimize.reuse.search_cost import PROCESSOR_SEARCH, SearchSize
from tilewright.optimize.reuse.trial_cost import PROGRAMS, TrialCosts

FULL_TRIALS = 200
"""Programs that a full search on processors measures, where nothing else is said."""

PROCESSOR_COSTS = SearchCosts(full=FULL_TRIALS, sizes=(PROCESSOR_SEARCH,))
"""What searches on processors cost."""

MIN_SHARE, MAX_SHARE = 0.5, 2.0
"""By which factor the budget of an operator may differ from its cost, because of its share of the model's time."""

FLOOR_SHARE = 0.5
"""The part of a small budget that steps share equally, as far as they cost so much; none of one that is enough."""


class StepKind(StrEnum):
    """How an operator gets its program.

    Attributes:
        FULL: by a full search.
        REUSE: near the tuned program of another one.
        RECORDED: it has one already, from another model or machine.
    """

    FULL = "full search"
    REUSE = "reuse"
    RECORDED = "recorded"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that is to be tuned, or of which a program is recorded.

    Attributes:
        label: its name for people.
        vector: its loop vector; None for kernels that can't reuse programs.
        weight: its time per inference, in any unit.
        seconds: predicted time of a call; 0 if unknown.
    """

    label: str
    vector: LoopVector | None
    weight: float = 1.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One operator of a plan.

    Attributes:
        kind: how it gets its program.
        operator: position among the operators, or among the recorded ones; None for a bridge.
        label: its name for people.
        vector: its loop vector, None for kernels that can't reuse programs.
        source: the step whose program it starts from; None for full searches and recorded programs.
        programs: estimated number of programs that are measured.
        cost: what these cost, in the plan's unit.
        weight: its time per inference with that of all operators that start from it.
    """

    kind: StepKind
    operator: int | None
    label: str
    vector: LoopVector | None
    source: int | None
    programs: float
    cost: float
    weight: float

    @property
    def is_bridge(self) -> bool:
        """Whether it is tuned for others alone."""
        return self.operator is None


@dataclass(frozen=True, slots=True)
class ReusePlan:
    """The steps of a plan, sources before what starts from them, and what it would cost without reuse.

    Attributes:
        steps: the steps.
        full_programs: estimated number of programs that full searches of all operators measure.
        full_cost: what these cost.
        unit: of costs, in words.
    """

    steps: tuple[PlanStep, ...]
    full_programs: float
    full_cost: float
    unit: str = PROGRAMS.unit

    @property
    def programs(self) -> float:
        """Estimated number of programs that are measured."""
        return sum(s.programs for s in self.steps)

    @property
    def cost(self) -> float:
        """What these cost."""
        return sum(s.cost for s in self.steps)

    def subtrees(self) -> tuple[tuple[int, ...], ...]:
        """The positions of steps that depend on each other, in order; those of different ones are independent."""
        root_of: list[int] = []
        trees: dict[int, list[int]] = {}
        for k, step in enumerate(self.steps):
            root_of.append(k if step.source is None else root_of[step.source])
            trees.setdefault(root_of[k], []).append(k)
        return tuple(tuple(tree) for tree in trees.values())

    def budgets(self, trials: float) -> tuple[int, ...]:
        """How many programs each step may measure, of so many in all, at most those of the plan: a part in equal
        shares, so that a small budget reaches every step, the rest by the steps' programs, more where the weight is
        above the mean; at least one each except recorded ones."""
        costs = np.array([s.programs for s in self.steps])
        weights = np.array([max(s.weight, 0.0) for s in self.steps])
        mean = float(weights.mean()) if len(weights) else 0.0
        factors = np.clip(np.sqrt(weights / mean), MIN_SHARE, MAX_SHARE) if mean > 0 else np.ones(len(costs))
        shares = costs * factors
        total = float(shares.sum())
        if total == 0:
            return tuple(0 for _ in self.steps)
        spent = min(trials, float(costs.sum()))
        equal = FLOOR_SHARE * (1 - spent / float(costs.sum())) * spent
        floors = np.minimum(costs, equal / max(1, int((costs > 0).sum())))
        scaled = floors + shares * ((spent - float(floors.sum())) / total)
        pairs = zip(scaled, self.steps, strict=True)
        return tuple(0 if s.kind is StepKind.RECORDED else max(1, round(float(n))) for n, s in pairs)

    def depth(self, step: int) -> int:
        """Number of reuses on the way to a step."""
        source = self.steps[step].source
        return 0 if source is None else 1 + self.depth(source)

    def text(self, outcomes: Sequence[str] = ()) -> str:
        """The tree, one step a line, for people.

        Args:
            outcomes: what came of each step, empty for those of which nothing is to be said; none before the tuning.
        """
        lines: list[str] = []
        for k, s in enumerate(self.steps):
            how = s.kind if s.source is None else f"from {self.steps[s.source].label}"
            loops = "" if s.vector is None else f" [{s.vector}]"
            cost = "" if s.kind is StepKind.RECORDED else f", {self._amount(s.programs, s.cost)}"
            outcome = f"; {outcomes[k]}" if outcomes and outcomes[k] else ""
            lines.append(f"{'  ' * self.depth(k)}{s.label}{loops}: {how}{cost}{outcome}")
        ratio = self.full_cost / self.cost if self.cost else 1.0
        lines.append(
            f"{self._amount(self.programs, self.cost)} estimated;"
            f" {self._amount(self.full_programs, self.full_cost)} by full searches ({ratio:.1f} times as many"
            f"{'' if self.unit == PROGRAMS.unit else f' {self.unit}'})"
        )
        return "\n".join(lines)

    def _amount(self, programs: float, cost: float) -> str:
        """A number of programs, with what they cost where that is something else."""
        text = f"{programs:.0f} programs"
        return text if self.unit == PROGRAMS.unit else f"{text}, {cost:.0f} {self.unit}"

    def data(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return {
            "unit": self.unit,
            "programs": round(self.programs, 1),
            "cost": round(self.cost, 1),
            "full_programs": round(self.full_programs, 1),
            "full_cost": round(self.full_cost, 1),
            "steps": [
                {
                    "kind": s.kind.value, "operator": s.operator, "label": s.label, "bridge": s.is_bridge,
                    "loops": None if s.vector is None else list(s.vector.extents), "source": s.source,
                    "programs": round(s.programs, 1), "cost": round(s.cost, 1), "weight": s.weight,
                }
                for s in self.steps
            ],
        }  # fmt: skip


def plan_reuse(
    operators: Sequence[Operator],
    recorded: Sequence[Operator] = (),
    bridges: BridgeChoice = BridgeChoice.ONE_HOP,
    costs: SearchCosts = PROCESSOR_COSTS,
) -> ReusePlan:
    """The cheapest plan that is known for operators.

    Args:
        operators: those that are to be tuned.
        recorded: those of which programs are recorded, with loop vectors.
        bridges: which bridges may be tuned.
        costs: what searches cost.

    Raises:
        OptionError: networkx is not installed, or a cost is negative.
    """
    reusable = [k for k, o in enumerate(operators) if o.vector is not None]
    sources = [k for k, o in enumerate(recorded) if o.vector is not None]
    graph = reuse_graph(_loop_vectors(operators), bridges, costs, _loop_vectors(recorded))
    tree = graph.tree() if reusable else ()
    parents = {head: tail for tail, head in tree}
    weights = _subtree_weights(graph, parents, [operators[k].weight for k in reusable])
    first_recorded = {v: k for k in reversed(sources) if (v := recorded[k].vector) is not None}
    steps: list[PlanStep] = []
    position: dict[int, int] = {}
    for node in _by_weight(parents, weights):
        tail, vector = parents[node], graph.nodes[node - 1]
        if graph.is_recorded(node):
            number, kind = first_recorded[vector], StepKind.RECORDED
            label = recorded[number].label
        elif graph.is_bridge(node):
            number, kind, label = None, StepKind.FULL, "bridge"
        else:
            number, kind = reusable[node - 1], StepKind.FULL
            label = operators[number].label
        source = None if tail == ROOT else position[tail]
        position[node] = len(steps)
        kind = kind if source is None else StepKind.REUSE
        programs, cost = graph.programs[tail, node], graph.costs[tail, node]
        steps.append(PlanStep(kind, number, label, vector, source, programs, cost, weights[node]))
    full_costs = [costs.full * costs.trial.of_full_search(o.vector or o.seconds) for o in operators]
    for k, o in enumerate(operators):
        if o.vector is None:
            steps.append(PlanStep(StepKind.FULL, k, o.label, None, None, costs.full, full_costs[k], o.weight))
    return ReusePlan(tuple(steps), costs.full * len(operators), sum(full_costs), costs.trial.unit)


def costs_in_seconds(operators: Sequence[Operator], costs: SearchCosts = PROCESSOR_COSTS) -> SearchCosts:
    """Costs in seconds instead of programs, with the operators' predicted times.

    Args:
        operators: those that are to be tuned.
        costs: what searches measure.
    """
    return replace(costs, trial=TrialCosts.in_seconds((o.vector, o.seconds) for o in operators))


def replan(
    operators: Sequence[Operator],
    tuned: Mapping[int, SearchSize],
    recorded: Sequence[Operator] = (),
    bridges: BridgeChoice = BridgeChoice.ONE_HOP,
    costs: SearchCosts = PROCESSOR_COSTS,
) -> ReusePlan:
    """The plan for the operators that are left, once sketches are known: those that are tuned are sources, and the
    searches of their kinds are estimated anew (ETO, Section 6.1).

    Args:
        operators: all of them.
        tuned: positions of those that are tuned, with the sizes of the searches near their programs.
        recorded: those of which programs are recorded.
        bridges: which bridges may be tuned.
        costs: what searches cost.

    Returns:
        Steps whose `operator` is a position among all operators; of recorded ones, among the recorded and then the
        tuned operators, in ascending order.

    Raises:
        OptionError: as for `plan_reuse`.
    """
    left = [k for k in range(len(operators)) if k not in tuned]
    sources = [*recorded, *(operators[k] for k in sorted(tuned))]
    known = {v.kind: size for k, size in sorted(tuned.items()) if (v := operators[k].vector) is not None}
    plan = plan_reuse([operators[k] for k in left], sources, bridges, replace(costs, known={**costs.known, **known}))
    steps = [
        s if s.operator is None or s.kind is StepKind.RECORDED else replace(s, operator=left[s.operator])
        for s in plan.steps
    ]
    return replace(plan, steps=tuple(steps))


def _loop_vectors(operators: Sequence[Operator]) -> list[LoopVector]:
    return [o.vector for o in operators if o.vector is not None]


def _subtree_weights(graph: ReuseGraph, parents: Mapping[int, int], weights: Sequence[float]) -> dict[int, float]:
    """The weight of every node of the tree, with that of all nodes below it."""
    total = dict.fromkeys(parents, 0.0)
    for terminal, weight in zip(graph.terminals, weights, strict=True):
        node = terminal
        while node != ROOT:
            total[node] += weight
            node = parents[node]
    return total


def _by_weight(parents: Mapping[int, int], weights: Mapping[int, float]) -> list[int]:
    """The nodes of the tree, parents first, the heaviest branches first."""
    children: dict[int, list[int]] = {}
    for head, tail in parents.items():
        children.setdefault(tail, []).append(head)
    order: list[int] = []
    stack = [ROOT]
    while stack:
        node = stack.pop()
        order += [node] if node != ROOT else []
        stack += sorted(children.get(node, []), key=lambda h: (weights[h], -h))
    return order
