"""Lowered programs against the untransformed loops, by interpretation."""

import numpy as np
from tests.optimize.programs import Program, data_for, shape_of

from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func


def check_same_results(naive: Func, lowered: Func, program: Program, rng: np.random.Generator) -> None:
    """Both functions give equal results on random data."""
    feeds = {p.name: data_for(p, program.sizes, rng) for p in naive.params[:-1]}
    out = naive.params[-1]
    results: list[np.ndarray] = []
    for f in (naive, lowered):
        result = np.full(shape_of(out, program.sizes), 99, out.dtype.numpy)
        interpret(f, {**feeds, out.name: result}, program.sizes, seed=3)
        results.append(result)
    np.testing.assert_array_equal(results[1], results[0])
