"""Lowered programs against the untransformed loops, by interpretation."""

import numpy as np
from tests.optimize.programs import Program, data_for, shape_of

from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func


def check_same_results(naive: Func, lowered: Func, program: Program, rng: np.random.Generator) -> None:
    """Both functions give equal results on random data."""
    feeds = {p.name: data_for(p, program.sizes, rng) for p in naive.inputs}
    results: list[dict[str, np.ndarray]] = []
    for f in (naive, lowered):
        results.append({p.name: np.full(shape_of(p, program.sizes), 99, p.dtype.numpy) for p in naive.outputs})
        interpret(f, {**feeds, **results[-1]}, program.sizes, seed=3)
    for name, expected in results[0].items():
        np.testing.assert_array_equal(results[1][name], expected)
