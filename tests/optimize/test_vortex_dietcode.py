"""The sample-driven baseline: a decision tree that agrees with its samples, and results at every size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.optimize.programs import Program, axes, buffer, check
from tests.optimize.tasks import task_of

from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Symbol, Var
from tilewright.machine.shipped import machine_named
from tilewright.optimize.vortex.dietcode import DietCode, decision_tree
from tilewright.tile.shape_samples import ShapeSamples, value_of

MACHINE = machine_named("zen5").with_cores(1)
A, B = Symbol("a", 1, 1000), Symbol("b", 1, 1000)


@given(st.dictionaries(st.tuples(st.integers(1, 999), st.integers(1, 999)), st.integers(0, 7), min_size=1, max_size=12))
def test_the_tree_gives_every_sample_its_label(samples: dict[tuple[int, int], int]) -> None:
    shapes: list[dict[Var, int]] = [{A: a, B: b} for a, b in samples]
    labels = list(samples.values())
    tree = decision_tree(shapes, labels)
    assert [value_of(tree, s) for s in shapes] == labels
    assert value_of(tree, {A: 1000, B: 1000}) in labels


def product() -> Program:
    """A product of rows with constant weights."""
    m, n, k = axes("mnk", [A, 96, 64])
    body = buffer("x", [A, 64])[m.var, k.var] * buffer("w", [64, 96])[k.var, n.var]
    stage = Computation(buffer("y", [A, 96]), (m, n), (k,), body, Reducer.SUM)
    return Program([stage], {A: int(np.random.default_rng().integers(1, 60))}, frozenset({"w"}))


@pytest.mark.parametrize("samples", [(3, 17, 200), (40,)])
def test_programs_are_those_of_the_samples(samples: tuple[int, ...]) -> None:
    task = task_of(product())
    (rows,) = task.func.symbols
    shapes = tuple({rows: m} for m in samples)
    result = DietCode(MACHINE).construct(task.with_samples(ShapeSamples(shapes[0], shapes, shapes)))
    assert result is not None
    assert len(result.programs) <= len(samples)
    if result.variants is not None:
        chosen = [value_of(result.variants.selector, s) for s in shapes]
        assert tuple(chosen) == result.variants.choices


def test_results_are_right() -> None:
    check(product(), "x86-64-v4", DietCode(MACHINE))
