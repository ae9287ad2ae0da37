"""Constructed programs as native code: bit for bit what the interpreter says, on one thread and on three."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import TARGETS, Native
from tests.optimize import programs
from tests.optimize.programs import Program, data_for, scheduled, shape_of
from tests.optimize.test_construct import optimizers
from tests.optimize.test_rule import product, relu

from tilewright.driver.offline import split_offline
from tilewright.loops.interpret import interpret
from tilewright.optimize.interface import Optimizer


def same(program: Program, target: str, optimizer: Optimizer) -> None:
    """Native code against the interpreter, on the same schedule."""
    kernel, _, schedule = scheduled(program, target, optimizer)
    func = split_offline(schedule.func, frozenset()).func
    rng = np.random.default_rng(7)
    inputs = set(kernel.params[:-1])
    arrays: dict[str, np.ndarray] = {}
    for b in func.params:
        shape = shape_of(b, program.sizes)
        arrays[b.name] = data_for(b, program.sizes, rng) if b in inputs else np.full(shape, 99, b.dtype.numpy)
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret(func, expected, program.sizes)
    native = Native(func, target=target)
    out = kernel.params[-1].name
    for threads in (1, 3):
        found = native(arrays, {v.name: n for v, n in program.sizes.items()}, threads)
        np.testing.assert_array_equal(found[out], expected[out])


@pytest.mark.parametrize("kind", ["reduction", "gemm", "conv", "pool"])
def test_native_code_computes_what_the_schedule_says(kind: str) -> None:
    @settings(max_examples=5)
    @given(getattr(programs, kind)(), st.sampled_from(TARGETS), st.integers(0, 9))
    def run(program: Program, target: str, seed: int) -> None:
        same(program, target, optimizers(target, seed)[1])

    run()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [(37, 53, 61), (45, 96, 300)])
def test_products_with_tails_at_every_level(size: tuple[int, int, int], target: str) -> None:
    m, n, k = size
    program = Program([product(m, n, k), relu(product(m, n, k))], {}, frozenset({"w"}))
    for optimizer in optimizers(target):
        same(program, target, optimizer)
