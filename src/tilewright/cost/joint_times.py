"""Times of the candidates of several searches in one batch, those of kernels that differ only in their sizes included.

Formulas cost as much for few candidates as for many, and a candidate of a kernel of literal sizes has the same time, to
the last bit, in every batch.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.cost.analytical import family_times, mean_time
from tilewright.cost.footprint import Numbers
from tilewright.cost.regimes import program_regime
from tilewright.cost.shape_family import ShapeFamily
from tilewright.machine.model import Machine
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sizes, Sketch
from tilewright.tile.transposed_columns import column_axis


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Candidates of a sketch, whose times are asked for.

    Attributes:
        problem, sketch, machine: what they are programs for.
        sizes: [candidate, level, axis]
    """

    problem: Problem
    sketch: Sketch
    sizes: Sizes
    machine: Machine

    @property
    def structure(self) -> Hashable:
        """All that formulas take from the problem except its sizes, which they find in a `ShapeFamily`."""
        problem, sketch = self.problem, self.sketch
        if problem.samples:
            # they are a batch of many shapes already
            return id(self)
        columns = tuple([column_axis(problem, sketch, k) for k in range(len(problem.operands))])
        return id(self.machine), sketch, problem.structure, columns, program_regime(problem, sketch, self.machine)

    def answer(self, alike: Sequence["Candidates"]) -> list[Numbers]:
        """`mean_time` of the candidates of every batch; all are of one structure."""
        sizes, ends = np.concatenate([x.sizes for x in alike]), np.cumsum([len(x.sizes) for x in alike])
        family = ShapeFamily.joint([x.problem for x in alike], [len(x.sizes) for x in alike])
        if len(family.problems) == 1:
            times = mean_time(self.problem, self.sketch, sizes, self.machine)
        else:
            times = family_times(family, self.sketch, sizes, self.machine).total
        return np.split(times, ends[:-1])
