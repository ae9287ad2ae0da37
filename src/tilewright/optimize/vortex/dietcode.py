"""A sample-driven baseline in the style of DietCode: the best program at every sampled shape, and a decision tree.

DietCode (MLSys 2022) tunes micro-kernels for a list of shapes and trains a decision tree on which one is best at which
of them; a shape between or beyond the samples gets what the tree says. Here the programs are those of Vortex' library
that the cost model, instead of a tuner, finds best at each sample, so that only the way of choosing differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.operations import select
from tilewright.machine.model import Machine
from tilewright.optimize.construct.optimizer import ConstructionResult, Gensor, ProgramConstructor
from tilewright.optimize.construct.time_model import CostModel
from tilewright.optimize.construct.variants import ProgramVariants
from tilewright.optimize.task import Task
from tilewright.optimize.vortex.candidates import is_contraction
from tilewright.optimize.vortex.optimizer import Vortex
from tilewright.tile.problem import Problem, problems_at
from tilewright.tile.program import TileProgram

Shape = Mapping[Var, int]


@dataclass(frozen=True, slots=True)
class DietCode(ProgramConstructor):
    """The optimizer `dietcode`: programs at samples, a decision tree between them.

    Attributes:
        name: of the optimizer.
    """

    name: str = "dietcode"

    def explore(self, problem: Problem, task: Task, machine: Machine) -> ConstructionResult | None:
        """The best program at every sample; of kernels without samples, and others than contractions, as `gensor`."""
        if task.samples is None or not problem.samples or not is_contraction(problem):
            return Gensor(machine).explore(problem, task, machine)
        shapes = task.samples.shapes
        at_shapes = [p for p in problems_at(task.func, task.constants, shapes) if p is not None]
        best = _best_programs(replace(problem, samples=tuple(at_shapes)), task, machine)
        programs = tuple(dict.fromkeys(p for p, _ in best))
        times = tuple(min(t for p, t in best if p == program) for program in programs)
        if len(programs) < 2 or len(at_shapes) < len(shapes):
            return ConstructionResult(programs[:1], times[:1], ())
        choices = tuple(programs.index(p) for p, _ in best)
        ones = (1.0,) * len(shapes)
        tree = decision_tree(shapes, choices)
        return ConstructionResult(
            programs, times, (), variants=ProgramVariants(programs, tree, shapes, choices, ones, ones)
        )


def _best_programs(problem: Problem, task: Task, machine: Machine) -> list[tuple[TileProgram, float]]:
    """The best program of the library at every sample, with its nanoseconds."""
    model, best = CostModel(machine), list[tuple[TileProgram, float]]()
    for sketch, sizes in Vortex(machine).states(problem, task, machine):
        times = model.sample_times(problem, sketch, sizes)
        for k, row in enumerate(times):
            first = int(row.argmin())
            found = TileProgram.of(problem, sketch, sizes[first]), float(row[first])
            if k == len(best):
                best.append(found)
            elif found[1] < best[k][1]:
                best[k] = found
    return best


def decision_tree(shapes: Sequence[Shape], labels: Sequence[int]) -> Expr:
    """A tree of comparisons of sizes that gives every shape its label, as an int64 expression over the symbols.

    Splits lie in the middle between samples, in the place where the labels of both sides differ most (Gini impurity).

    Args:
        shapes: distinct sizes of the same symbols.
        labels: one per shape.
    """
    if len(set(labels)) == 1:
        return const(labels[0])
    best: tuple[float, Var, int] | None = None
    for v in shapes[0]:
        values = sorted({s[v] for s in shapes})
        for low, high in pairwise(values):
            threshold = (low + high + 1) // 2
            sides = [[x for s, x in zip(shapes, labels, strict=True) if (s[v] < threshold) is x_low]
                     for x_low in (True, False)]  # fmt: skip
            impurity = sum(len(side) * _gini(side) for side in sides)
            if best is None or impurity < best[0]:
                best = impurity, v, threshold
    if best is None:
        return const(labels[0])
    _, v, threshold = best
    parts = [
        [(s, x) for s, x in zip(shapes, labels, strict=True) if (s[v] < threshold) is is_low]
        for is_low in (True, False)
    ]
    low_tree, high_tree = (decision_tree([s for s, _ in part], [x for _, x in part]) for part in parts)
    return select(v < threshold, low_tree, high_tree)


def _gini(labels: Sequence[int]) -> float:
    counts = np.unique(labels, return_counts=True)[1] / max(1, len(labels))
    return float(1.0 - (counts**2).sum())
