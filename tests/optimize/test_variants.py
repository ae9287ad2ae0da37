"""Choice of variants: regrets over the grid, what the selector chooses, layouts of constants."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.driver.test_variants import dense, pointwise, product_of_inputs

from tilewright.cost.analytical import sample_times
from tilewright.cost.footprint import Numbers
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct import variants as variants_module
from tilewright.optimize.construct.optimizer import ConstructionResult, Gensor
from tilewright.optimize.construct.time_model import CostModel
from tilewright.optimize.construct.variants import DEFAULT_MAX_VARIANTS, MIN_GAIN, ProgramVariants, choose_variants
from tilewright.optimize.task import Task
from tilewright.tile.packing import panel_width
from tilewright.tile.problem import Problem, extract_problem, problems_at
from tilewright.tile.program import Sizes, Sketch, TileProgram
from tilewright.tile.shape_samples import SMALLEST_SIZES, value_of

MODELS = {"dense": dense, "pointwise": pointwise, "inputs": product_of_inputs}
MACHINE = machine_named("zen5")


@cache
def task_of_model(name: str) -> Task:
    """The task of a model's kernel of several programs."""
    compilation = make_compilation(MODELS[name](), CompileOptions(machine="zen5", target="x86-64-v4"))
    kernel = next(k for k in compilation.kernels if len(k.programs) > 1)
    return Task(kernel.origin, kernel.constants, Target.parse("x86-64-v4"), kernel.fusion, kernel.samples)


@cache
def constructed(name: str, count: int = DEFAULT_MAX_VARIANTS) -> tuple[Task, ConstructionResult]:
    task = task_of_model(name)
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
    assert variants.gain > 1 + MIN_GAIN
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
    first, second = (variants_of(constructed.__wrapped__("dense")[1]) for _ in range(2))
    assert first == second


def _times_on_grid(task: Task, variants: ProgramVariants) -> Numbers:
    """Nanoseconds of the chosen program at every shape of the grid, by the cost model."""
    problems = problems_at(task.func, task.constants, variants.shapes)
    times = [
        sample_times(replace(p, samples=(p,)), program.sketch, program.array[None], MACHINE)[0, 0]
        for p, k in zip(problems, variants.choices, strict=True)
        if p is not None and (program := variants.programs[k])
    ]
    return np.array(times)


def test_states_that_are_left_out_are_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few states of walks are compared at all shapes and in all loop orders; more would choose no faster programs."""
    task, result = constructed("pointwise")
    asked: list[int] = []
    score = CostModel.sample_times

    def counted(self: CostModel, problem: Problem, sketch: Sketch, sizes: Sizes) -> Numbers:
        asked.append(len(sizes))
        return score(self, problem, sketch, sizes)

    monkeypatch.setattr(CostModel, "sample_times", counted)
    few = Gensor(MACHINE).construct(task)
    count = sum(asked)
    monkeypatch.setattr(variants_module, "MAX_WALK_STATES", 10**6)
    monkeypatch.setattr(variants_module, "REORDERED_PER_SHAPE", 10**6)
    every = Gensor(MACHINE).construct(task)
    assert few is not None
    assert every is not None
    assert variants_of(few) == variants_of(result)
    assert count < 0.8 * (sum(asked) - count)
    ratios = _times_on_grid(task, variants_of(few)) / _times_on_grid(task, variants_of(every))
    assert np.exp(np.log(ratios).mean()) < 1.02


class _OneBadShape:
    """A cost model to which all programs of one lane axis are far slower at the largest shape."""

    def __init__(self, model: CostModel, lane: int) -> None:
        self.machine, self._model, self._lane = model.machine, model, lane

    def sample_times(self, problem: Problem, sketch: Sketch, sizes: Sizes) -> Numbers:
        times = self._model.sample_times(problem, sketch, sizes)
        if sketch.lane == self._lane:
            times[np.argmax([p.points for p in problem.samples])] *= 1e5
        return times

    def on_one_core(self) -> "_OneBadShape":
        return _OneBadShape(self._model.on_one_core(), self._lane)


def test_a_shape_that_is_bad_whatever_runs_does_not_hide_the_others() -> None:
    """The layout's programs lose much at one shape, all alike: they are chosen by what they differ in."""
    task, result = constructed("dense")
    single = result.programs[0]
    assert isinstance(single, TileProgram)
    problem = extract_problem(task.func, task.constants, task.samples)
    assert problem is not None
    rows = 1 - single.sketch.lane
    states: list[tuple[Sketch, Sizes]] = []
    for height in (1, 4, 12):
        sizes = single.array.copy()
        sizes[:, rows] = height
        states.append((single.sketch, sizes[None]))
    # a program without packed constants is spared, so the others' regret at that shape is large
    spared = replace(single.sketch, lane=rows, packed=())
    states.append((spared, np.array([[[16, 1, 1], [16, 512, 512], [16, 512, 512]]])))
    model = _OneBadShape(CostModel(MACHINE), single.sketch.lane)
    variants = choose_variants(single, states, task, model, 4)
    assert variants is not None
    assert len(variants.programs) > 1
    assert {p.sketch.lane for p in variants.programs} == {single.sketch.lane}


def test_programs_of_few_rows_leave_no_costly_remainder() -> None:
    """A remainder of single rows costs a pass over all weights each; some program of the set fits any few rows."""
    _, result = constructed("dense")
    variants = variants_of(result)
    few = [r for s, r in zip(variants.shapes, variants.regrets, strict=True) if max(s.values()) <= SMALLEST_SIZES]
    assert len(few) == SMALLEST_SIZES
    assert max(few) < 1.3
