"""The sample-driven baseline: a decision tree that agrees with its samples, estimates, and results at every size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from tests.optimize.programs import Program, axes, buffer, check
from tests.optimize.tasks import task_of
from tests.optimize.vortex_checks import dense_model

import tilewright
from tilewright.cost.analytical import mean_time
from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Symbol, Var
from tilewright.machine.shipped import machine_named
from tilewright.optimize.vortex.dietcode import DietCode, decision_tree
from tilewright.tile.program import TileProgram
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


def test_estimates_are_means_over_the_samples() -> None:
    task = task_of(product())
    (rows,) = task.func.symbols
    shapes = tuple({rows: m} for m in (1, 3, 17, 200))
    result = DietCode(MACHINE).construct(task.with_samples(ShapeSamples(shapes[0], shapes, shapes)))
    assert result is not None
    assert result.variants is not None
    best = result.programs[0]
    assert isinstance(best, TileProgram)
    means = [float(mean_time(best.problem, p.sketch, p.array[None], MACHINE)[0]) for p in result.variants.programs]
    assert result.nanoseconds == pytest.approx(means)
    assert means == sorted(means)
    # the programs of the samples together are faster than the best single one
    assert result.variants.gain > 1
    assert result.estimate < means[0]


def test_a_compiled_model_chooses_by_its_tree() -> None:
    model = dense_model(768, 768)
    executable = tilewright.compile(model, {"rows": "1..512"}, optimizer="dietcode", cache=False)
    (spec,) = executable.manifest.variants
    assert len(spec.programs) > 1
    # sizes decide, not times
    assert not spec.picoseconds
    weights = numpy_helper.to_array(model.graph.initializer[0])
    rng = np.random.default_rng()
    for rows in (1, 7, 512, int(rng.integers(1, 512))):
        x = rng.standard_normal((rows, 768)).astype(np.float32)
        expected = np.maximum(x.astype(np.float64) @ weights, 0)
        np.testing.assert_allclose(executable.run({"x": x})["y"], expected, atol=1e-3)


def test_results_are_right() -> None:
    check(product(), "x86-64-v4", DietCode(MACHINE))
