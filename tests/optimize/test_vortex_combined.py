"""The analyser and the cost model together: their geometric mean, and what the analyser leaves for it."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.optimize.test_vortex_optimizer import product_task

from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import problem_for
from tilewright.optimize.construct.time_model import CostModel
from tilewright.optimize.construct.variants import States
from tilewright.optimize.vortex.analyser import Analyser
from tilewright.optimize.vortex.combined_model import (
    SHORTLIST_PER_SHAPE,
    SHORTLIST_PER_TILE,
    CombinedModel,
    shortlist,
)
from tilewright.optimize.vortex.optimizer import Estimator, Vortex
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER

MACHINE = machine_named("zen5").with_cores(2)
MODEL = CombinedModel(Analyser(MACHINE), CostModel(MACHINE))


def product_states(columns: int, terms: int) -> tuple[Problem, list[States]]:
    """The library's programs for a product of any number of rows, a few hundred of each sketch."""
    task = product_task(columns, terms)
    problem = problem_for(task)
    assert problem is not None
    states = Vortex(MACHINE).states(problem, task, MACHINE)
    return problem, [(sketch, sizes[:: max(1, len(sizes) // 300)]) for sketch, sizes in states]


@settings(max_examples=4)
@given(st.integers(1, 20).map(lambda n: 16 * n), st.integers(8, 300))
def test_an_estimate_is_between_those_of_both_models(columns: int, terms: int) -> None:
    problem, states = product_states(columns, terms)
    for sketch, sizes in states:
        both = [m.sample_times(problem, sketch, sizes) for m in (MODEL.analyser, MODEL.cost_model)]
        combined = MODEL.sample_times(problem, sketch, sizes)
        np.testing.assert_allclose(combined**2, both[0] * both[1])
        assert (combined >= np.minimum(*both) * (1 - 1e-9)).all()
        assert (combined <= np.maximum(*both) * (1 + 1e-9)).all()
    assert MODEL.on_one_core().machine.cores == 1


@settings(max_examples=4)
@given(st.integers(1, 40).map(lambda n: 16 * n), st.integers(8, 300))
def test_a_shortlist_has_the_best_of_every_shape_and_several_register_tiles(columns: int, terms: int) -> None:
    problem, states = product_states(columns, terms)
    kept = shortlist(states, problem.samples, MODEL.analyser)
    assert [sketch for sketch, _ in kept] == [sketch for sketch, _ in states]
    for (sketch, sizes), (_, some) in zip(states, kept, strict=True):
        every, left = (MODEL.analyser.sample_times(problem, sketch, x).min(axis=1) for x in (sizes, some))
        np.testing.assert_array_equal(every, left)
        assert len(some) <= SHORTLIST_PER_SHAPE * len(problem.samples)
        at_one_shape = replace(problem, samples=problem.samples[:1])
        (_, alone), *_ = shortlist([(sketch, sizes)], at_one_shape.samples, MODEL.analyser)
        assert max(Counter(map(tuple, alone[:, REGISTER].tolist())).values()) <= SHORTLIST_PER_TILE


def test_it_is_what_vortex_chooses_by() -> None:
    assert Vortex().estimator is Estimator.COMBINED
    assert isinstance(Vortex().time_model(MACHINE), CombinedModel)
    assert isinstance(Vortex(estimator=Estimator.HYBRID).time_model(MACHINE), Analyser)
