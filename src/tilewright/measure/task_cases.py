"""What candidates of a task are run on: sizes, random operands, and reference elements of the outputs."""

from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilewright.measure.build import Sizes, shape_at
from tilewright.measure.case_operands import CaseData, OutputSample
from tilewright.measure.operand_data import random_array, reordering_tolerance
from tilewright.measure.point_oracle import PointOracle
from tilewright.optimize.task import Task
from tilewright.tile.shape_samples import ShapeSamples

MAX_CHECKED_ELEMENTS = 1024
"""Elements of an output that are compared with the oracle; of larger outputs corners and a random sample."""

Array = np.ndarray[Any, Any]


def case_sizes(task: Task) -> tuple[Sizes, ...]:
    """Sizes of the symbols: those of the smallest sample, on which results are checked first, and the representative
    ones, on which candidates are timed; one case where all sizes are literal."""
    samples = task.samples or ShapeSamples.of(task.func.symbols)
    shapes = sorted((dict(s) for s in samples.shapes), key=lambda s: prod(s.values()))
    by_name = [{v.name: s[v] for v in task.func.symbols} for s in (*shapes[:1], samples.representative)]
    return tuple(by_name if by_name[0] != by_name[-1] else by_name[-1:])


def case_data(task: Task, sizes: Sizes) -> CaseData:
    """Random operands for sizes, always the same, and what the untransformed loops give."""
    rng = np.random.default_rng(0)
    inputs = {p.name: random_array(p, shape_at(p, task.func, sizes), rng) for p in task.func.inputs}
    oracle = PointOracle(task.func, inputs, sizes)
    samples: dict[str, OutputSample] = {}
    for p in task.func.outputs:
        shape = shape_at(p, task.func, sizes)
        flat = _checked_elements(shape, rng)
        values = oracle.elements(p, np.unravel_index(flat, shape) if shape else ()) if flat.size else flat
        samples[p.name] = OutputSample(flat, np.asarray(values), reordering_tolerance(task.func, p.dtype, sizes))
    return CaseData(inputs, samples)


def _checked_elements(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Positions of elements in row-major order: all of a small output, else its corners and random ones."""
    count = prod(shape)
    if count <= MAX_CHECKED_ELEMENTS:
        return np.arange(count)
    corners = [np.ravel_multi_index(c, shape) for c in product(*({0, n - 1} for n in shape))]
    chosen = rng.integers(0, count, MAX_CHECKED_ELEMENTS - min(len(corners), MAX_CHECKED_ELEMENTS // 2))
    return np.unique(np.concatenate([np.asarray(corners[: MAX_CHECKED_ELEMENTS // 2]), chosen]))
