"""The optimizer `vortex`: variants of a product, its levels and models, and results of compiled models."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from tests.optimize.programs import Program, axes, buffer, check, conv, gemm
from tests.optimize.tasks import task_of
from tests.optimize.vortex_checks import dense_model

import tilewright
from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Symbol
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import ConstructionResult, Gensor
from tilewright.optimize.interface import optimizer_named
from tilewright.optimize.task import Task
from tilewright.optimize.vortex.optimizer import Estimator, Levels, Vortex, worst_regret
from tilewright.tile.program import L1, REGISTER, TileProgram, check_program
from tilewright.tile.shape_samples import ShapeSamples

MACHINE = machine_named("zen5").with_cores(2)


def product_task(columns: int = 768, terms: int = 768) -> Task:
    """A product of m rows, 1 to 512, with constant weights."""
    rows = Symbol("rows", 1, 512)
    m, n, k = axes("mnk", [rows, columns, terms])
    body = buffer("x", [rows, terms])[m.var, k.var] * buffer("w", [terms, columns])[k.var, n.var]
    stage = Computation(buffer("y", [rows, columns]), (m, n), (k,), body, Reducer.SUM)
    task = task_of(Program([stage], {rows: 7}, frozenset({"w"})))
    return task.with_samples(ShapeSamples.of(task.func.symbols))


@cache
def constructed(optimizer: Vortex, task: Task | None = None) -> ConstructionResult:
    """What an optimizer makes of the product, or of another task."""
    result = optimizer.for_machine(MACHINE).construct(task or product_task())
    assert result is not None
    return result


def programs_of(result: ConstructionResult) -> Sequence[TileProgram]:
    """The variants, or the best program."""
    if result.variants is not None:
        return result.variants.programs
    return [p for p in result.programs[:1] if isinstance(p, TileProgram)]


@pytest.mark.parametrize("estimator", Estimator)
def test_a_product_of_any_rows_has_several_programs(estimator: Estimator) -> None:
    result = constructed(Vortex(estimator=estimator))
    assert result.variants is not None
    assert 2 <= len(result.variants.programs) <= 8
    assert result.variants.gain > 1
    for program in result.variants.programs:
        check_program(program)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_there_are_at_most_as_many_variants_as_allowed(count: int) -> None:
    assert len(programs_of(constructed(Vortex(max_variants=count)))) <= count


def test_fixed_levels_have_one_tile() -> None:
    tiles = {
        levels: {p.sizes[REGISTER] for p in programs_of(constructed(Vortex(levels=levels)))}
        for levels in (Levels.STATIC1, Levels.STATIC2)
    }
    assert len(tiles[Levels.STATIC1]) == 1
    assert tiles[Levels.STATIC1] == tiles[Levels.STATIC2]
    buffers = {p.sizes[L1] for p in programs_of(constructed(Vortex(levels=Levels.STATIC2)))}
    # a task that is smaller cuts the library's one off
    largest = max(buffers)
    assert all(n % k == 0 for x in buffers for n, k in zip(largest, x, strict=True))


def test_equal_tasks_get_equal_programs() -> None:
    first, second = (constructed.__wrapped__(Vortex()) for _ in range(2))
    assert first.programs == second.programs
    assert first.variants == second.variants


def test_other_kernels_are_constructed_as_gensor_does() -> None:
    (a, b) = axes("ab", [64, 512])
    stage = Computation(buffer("y", [64]), (a,), (b,), buffer("x", [64, 512])[a.var, b.var], Reducer.SUM)
    task = task_of(Program([stage]))
    result, expected = constructed(Vortex(), task), Gensor(MACHINE).construct(task)
    assert expected is not None
    assert result.programs == expected.programs


def test_large_regrets_count_most_and_all_of_them_count() -> None:
    regrets = np.array([[2.0, 1.0, 1.0, 1.0], [1.6, 1.6, 1.6, 1.6], [2.0, 2.0, 1.0, 1.0]])
    means = worst_regret(regrets)
    assert means.argmin() == 1
    assert means[0] < means[2]
    assert (means <= regrets.max(axis=1)).all()


@settings(max_examples=8, deadline=None)
@given(st.one_of(gemm(), conv()), st.sampled_from(["vortex", "vortex-static1", "vortex-static2"]))
def test_programs_compute_what_their_kernel_means(program: Program, name: str) -> None:
    optimizer = optimizer_named(name)
    assert isinstance(optimizer, Vortex)
    assert optimizer.name == name
    check(program, "x86-64-v4", optimizer.for_machine(MACHINE), any_kind=True)


def test_a_compiled_model_is_right_at_every_number_of_rows() -> None:
    model = dense_model(80, 96)
    executable = tilewright.compile(model, {"rows": "1..200"}, optimizer="vortex", cache=False)
    weights = numpy_helper.to_array(model.graph.initializer[0])
    rng = np.random.default_rng()
    for rows in (1, 2, 7, 13, 64, 200, *rng.integers(1, 200, 4)):
        x = rng.standard_normal((int(rows), 96)).astype(np.float32)
        first, second = (np.asarray(executable.run({"x": x})["y"]) for _ in range(2))
        np.testing.assert_allclose(first, np.maximum(x.astype(np.float64) @ weights, 0), atol=1e-4)
        np.testing.assert_array_equal(first, second)
