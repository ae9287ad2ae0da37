"""Choice of variants: regrets over the grid, what the selector chooses, layouts of constants."""

from dataclasses import replace

import numpy as np
import pytest
from tests.driver.test_variants import dense, pointwise, product_of_inputs

from tilewright.cost.analytical import sample_times
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import ConstructionResult, Gensor
from tilewright.optimize.construct.variants import DEFAULT_MAX_VARIANTS, ProgramVariants
from tilewright.optimize.task import Task
from tilewright.tile.packing import panel_width
from tilewright.tile.problem import extract_problem, problems_at
from tilewright.tile.shape_samples import value_of

MODELS = {"dense": dense, "pointwise": pointwise, "inputs": product_of_inputs}
MACHINE = machine_named("zen5")


def constructed(name: str, count: int = DEFAULT_MAX_VARIANTS) -> tuple[Task, ConstructionResult]:
    compilation = make_compilation(MODELS[name](), CompileOptions(machine="zen5", target="x86-64-v4"))
    kernel = next(k for k in compilation.kernels if len(k.programs) > 1)
    task = Task(kernel.origin, kernel.constants, Target.parse("x86-64-v4"), kernel.fusion, kernel.samples)
    result = Gensor(MACHINE, max_variants=count).construct(task)
    assert result is not None
    return task, result


def variants_of(result: ConstructionResult) -> ProgramVariants:
    assert result.variants is not None
    return result.variants


@pytest.mark.parametrize("name", MODELS)
def test_choices_are_those_of_the_selector_and_no_worse_together_than_one_program(name: str) -> None:
    task, result = constructed(name)
    variants = variants_of(result)
    assert variants.choices == tuple(value_of(variants.selector, s) for s in variants.shapes)
    assert set(variants.choices) == set(range(len(variants.programs)))
    assert min(variants.regrets) >= 1.0
    assert variants.gain > 1.02
    single = Gensor(MACHINE, max_variants=1).construct(task)
    assert single is not None
    assert single.estimate == pytest.approx(result.estimate * variants.gain)
    assert task.samples is not None
    assert set(map(str, variants.shapes)) <= set(map(str, task.samples.grid))


@pytest.mark.parametrize("name", MODELS)
def test_regrets_are_ratios_of_predicted_times(name: str) -> None:
    """Between two shapes of one program the ratio of times is that of regrets times the best times, so times of two
    programs at one shape compare as their regrets do."""
    task, result = constructed(name)
    variants = variants_of(result)
    problems = problems_at(task.func, task.constants, variants.shapes)
    problem = extract_problem(task.func, task.constants, task.samples)
    assert problem is not None
    on_grid = replace(problem, samples=tuple(p for p in problems if p is not None))
    times = np.concatenate(
        [sample_times(on_grid, p.sketch, p.array[None], MACHINE) + MACHINE.cost.call_ns for p in variants.programs],
        axis=1,
    )
    chosen = times[np.arange(len(times)), list(variants.choices)]
    # the best program of every shape takes the chosen one's time over its regret, and no variant takes less
    best = chosen / np.array(variants.regrets)
    assert (times.min(axis=1) >= best * (1 - 1e-9)).all()


@pytest.mark.parametrize("name", MODELS)
def test_variants_read_constants_in_one_layout(name: str) -> None:
    _, result = constructed(name)
    layouts = {
        tuple((o, a, panel_width(p, o, a)) for o, a in p.sketch.packed if p.problem.operands[o].constant)
        for p in variants_of(result).programs
    }
    assert len(layouts) == 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_there_are_at_most_as_many_as_allowed(count: int) -> None:
    _, result = constructed("inputs", count)
    assert (1 if result.variants is None else len(result.variants.programs)) <= count


def test_construction_is_deterministic() -> None:
    first, second = (variants_of(constructed("dense")[1]) for _ in range(2))
    assert first == second
