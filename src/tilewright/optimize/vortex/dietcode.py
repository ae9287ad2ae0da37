"""A sample-driven baseline in the style of DietCode: the best program at every sampled shape, and a decision tree.

DietCode (MLSys 2022) tunes micro-kernels for a list of shapes and trains a decision tree on which one is best at which
of them; a shape between or beyond the samples gets what the tree says. Here the programs are those of Vortex' library
that the cost model, instead of a tuner, finds best at each sample, so that only the way of choosing differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tilewright.cost.analytical import geomean_over_samples
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.operations import select
from tilewright.machine.model import Machine
from tilewright.optimize.construct.lock_step import SteppedSearch
from tilewright.optimize.construct.optimizer import ConstructionResult, Gensor, ProgramConstructor, rank_programs
from tilewright.optimize.construct.time_model import CostModel
from tilewright.optimize.construct.variants import ProgramVariants, States
from tilewright.optimize.task import Task
from tilewright.optimize.vortex.candidates import is_contraction
from tilewright.optimize.vortex.optimizer import Vortex
from tilewright.tile.problem import Problem
from tilewright.tile.program import TileProgram

Shape = Mapping[Var, int]


@dataclass(frozen=True, slots=True)
class DietCode(ProgramConstructor):
    """The optimizer `dietcode`: programs at samples, a decision tree between them.

    Attributes:
        name: of the optimizer.
    """

    name: str = "dietcode"

    def explore(self, problem: Problem, task: Task, machine: Machine) -> SteppedSearch[ConstructionResult | None]:
        """The best program at every sample; of kernels without samples, and others than contractions, as `gensor`."""
        is_sampled = task.samples is not None and problem.samples and is_contraction(problem)
        states = Vortex(machine).states(problem, task, machine) if is_sampled else []
        if task.samples is None or not states:
            return (yield from Gensor(machine).explore(problem, task, machine))
        shapes, model = task.samples.shapes, CostModel(machine)
        best = _best_programs(problem, states, model)
        distinct = list(dict.fromkeys(best))
        # [sample, program]
        times = np.concatenate([model.sample_times(problem, p.sketch, p.array[None]) for p in distinct], axis=1)
        means = geomean_over_samples(times, machine.cost)
        order = np.argsort(means, kind="stable")
        programs, nanoseconds = tuple(distinct[k] for k in order), tuple(float(means[k]) for k in order)
        if len(programs) < 2 or len(best) < len(shapes):
            return ConstructionResult(programs[:1], nanoseconds[:1], ())
        choices = tuple(map(programs.index, best))
        single = tuple(map(float, times[:, order[0]] / times.min(axis=1)))
        tree = decision_tree(shapes, choices)
        variants = ProgramVariants(programs, tree, shapes, choices, (1.0,) * len(shapes), single)
        return ConstructionResult(programs, nanoseconds, (), variants=variants)


def _best_programs(problem: Problem, states: Sequence[States], model: CostModel) -> list[TileProgram]:
    """The best program of the library at every sample of a problem."""
    scored = [(sketch, sizes, model.sample_times(problem, sketch, sizes)) for sketch, sizes in states]
    return [
        rank_programs([(sketch, sizes, times[k]) for sketch, sizes, times in scored], problem, 1)[0][1]
        for k in range(len(problem.samples))
    ]


def decision_tree(shapes: Sequence[Shape], labels: Sequence[int]) -> Expr:
    """A tree of comparisons of sizes that gives every shape its label, as an int64 expression over the symbols.

    Splits lie in the middle between samples, in the place where the labels of both sides differ most (Gini impurity).

    Args:
        shapes: distinct sizes of the same symbols.
        labels: one per shape.
    """
    if len(set(labels)) == 1:
        return const(labels[0])
    splits = [(v, (low + high + 1) // 2) for v in shapes[0] for low, high in pairwise(sorted({s[v] for s in shapes}))]
    if not splits:
        return const(labels[0])

    def sides(split: tuple[Var, int]) -> tuple[list[int], list[int]]:
        """The samples below a threshold, and the others."""
        v, threshold = split
        every = range(len(shapes))
        return [k for k in every if shapes[k][v] < threshold], [k for k in every if shapes[k][v] >= threshold]

    best = min(splits, key=lambda x: sum(len(side) * _gini([labels[k] for k in side]) for side in sides(x)))
    below, above = (decision_tree([shapes[k] for k in side], [labels[k] for k in side]) for side in sides(best))
    v, threshold = best
    return select(v < threshold, below, above)


def _gini(labels: Sequence[int]) -> float:
    counts = np.unique(labels, return_counts=True)[1] / max(1, len(labels))
    return float(1.0 - (counts**2).sum())
