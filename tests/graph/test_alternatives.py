"""Choice between equivalent stages by made-up times of kernels."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from onnx import helper
from tests.driver.models import array, model, value
from tests.graph.convolutions import convolution
from tests.graph.running import program_of, run_program

from tilewright.errors import InternalError
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Const
from tilewright.graph.alternatives import MAX_TIME_RATIO, Alternative, apply_alternatives, choose
from tilewright.graph.rewrites import REWRITES
from tilewright.graph.winograd.rewrite import winograd_forms


def padded():
    return program_of(convolution((1, 4, 8, 8), array(1, 4, 4, 3, 3), pads=[1, 1, 1, 1]))


def decide(times):
    """Evaluations where contractions take `times` by Winograd tile (0: the direct sum) and other kernels nothing."""

    def cost(kernel, constants):
        (stage, *_) = kernel.stages
        if not stage.is_reduction:
            return 0.0
        assert any(b.name in constants for b in kernel.arguments)
        points = stage.output.shape[0]
        assert isinstance(points, Const)
        return times[{16: 2, 36: 4}.get(int(points.value), 0)]

    program = padded()
    chosen, evaluations = choose(program, REWRITES, cost, float("inf"))
    assert (chosen is not program) == any(d.chosen for d in evaluations)
    return evaluations


def tile(evaluations):
    names = [d.alternative.name for d in evaluations if d.chosen]
    assert len(names) <= 1
    return {"winograd F(2x2, 3x3)": 2, "winograd F(4x4, 3x3)": 4}[names[0]] if names else None


def test_fastest_alternative_is_chosen():
    assert tile(decide({0: 100.0, 2: 50.0, 4: 30.0})) == 4
    assert tile(decide({0: 100.0, 2: 50.0, 4: 80.0})) == 2
    assert [d.reason for d in decide({0: 100.0, 2: 50.0, 4: 80.0})] == [
        "2.25 times fewer multiplications; rounding errors up to 7.11 times as large",
        "winograd F(2x2, 3x3) saves more",
    ]


def test_original_stays_unless_an_alternative_that_rounds_more_is_clearly_faster():
    assert tile(decide({0: 100.0, 2: 101.0, 4: 200.0})) is None
    assert tile(decide({0: 100.0, 2: 100.0 * MAX_TIME_RATIO, 4: 200.0})) is None
    assert tile(decide({0: 100.0, 2: 99.0 * MAX_TIME_RATIO, 4: 200.0})) == 2
    percent = f"{1 - MAX_TIME_RATIO:.0%}"
    assert [d.reason for d in decide({0: 100.0, 2: 99.5, 4: 200.0})] == [
        f"it gains less than {percent} and rounds more", "it is not faster",
    ]  # fmt: skip


def test_alternatives_without_estimate_are_not_chosen():
    assert tile(decide({0: 100.0, 2: None, 4: None})) is None
    assert tile(decide({0: None, 2: 1.0, 4: 1.0})) is None
    unknown, estimated = decide({0: 100.0, 2: None, 4: 10.0})
    assert (unknown.chosen, unknown.reason, unknown.after) == (False, "there is no estimate", None)
    assert estimated.chosen
    assert str(unknown) == "conv (Conv): winograd F(2x2, 3x3): 0.1 us -> unknown, not chosen: there is no estimate"


def test_alternatives_that_round_alike_need_no_margin():
    program = program_of(convolution((1, 8, 9, 9), array(1, 4, 8, 1, 1), strides=[2, 2]))

    def cost(kernel, constants):
        is_copy = not any(s.is_reduction for s in kernel.stages)
        return 1.0 if is_copy else costs[len(kernel.params[0].shape)]

    for dense, chosen in ((98.0, True), (99.0, False)):  # beside the copy
        costs = {3: 100.0, 2: dense}
        result, (evaluation,) = choose(program, REWRITES, cost, 1.0)
        assert (evaluation.chosen, evaluation.before, evaluation.after) == (chosen, 100.0, dense + 1.0)
        assert (result is not program) == chosen


def test_rewrites_propose_nothing_that_rounds_more_than_allowed():
    program = padded()
    assert choose(program, REWRITES, lambda *_: 1.0, 1.0) == (program, ())


def strided_sum():
    """relu(conv3x3(x) + conv1x1(v)), the second one with strides."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["v", "u", "c"], ["e"], name="short", strides=[2, 2]),
        helper.make_node("Add", ["a", "e"], ["s"], name="sum"),
        helper.make_node("Relu", ["s"], ["y"], name="relu"),
    ]
    constants = {"w": array(1, 4, 4, 3, 3), "b": array(2, 4), "u": array(3, 4, 5, 1, 1), "c": array(4, 4)}
    inputs = [value("x", [1, 4, 6, 6]), value("v", [1, 5, 12, 12])]
    return program_of(model(nodes, inputs, [value("y", [1, 4, 6, 6])], constants))


def test_kernels_are_judged_with_what_is_fused_and_in_the_program_of_earlier_choices():
    """The sum goes with the last of two contractions; where one becomes Winograd's stages, it goes with their end."""
    costed = []

    def cost(kernel, constants):
        costed.append(kernel)
        return prod(p.rank for p in kernel.params[:2]) if any(s.is_reduction for s in kernel.stages) else 0.0

    program = strided_sum()
    result, evaluations = choose(program, REWRITES, cost, float("inf"))
    assert [(d.alternative.label, d.chosen) for d in evaluations] == [
        ("conv (Conv)", True), ("conv (Conv)", False), ("short (Conv)", True),
    ]  # fmt: skip
    contractions = [k for k in costed if any(s.is_reduction for s in k.stages)]
    assert {k.label for k in contractions} >= {"conv (Conv)", "short (Conv) + relu (Relu)"}
    feeds = {"x": array(5, 1, 4, 6, 6), "v": array(6, 1, 5, 12, 12)}
    for actual, expected in zip(run_program(result, feeds), run_program(program, feeds), strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-4)


def test_kernels_that_stay_are_not_estimated():
    """Of a chain of convolutions only what the alternative changes is costed for."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["ra"], name="relu"),
        helper.make_node("Conv", ["ra", "u"], ["y"], name="second", pads=[1, 1, 1, 1]),
    ]
    constants = {"w": array(1, 4, 4, 3, 3), "u": array(2, 4, 4, 3, 3)}
    program = program_of(model(nodes, [value("x", [1, 4, 17, 17])], [value("y", [1, 4, 8, 8])], constants))
    labels = set()
    choose(program, [winograd_forms], lambda kernel, _: labels.add(kernel.label), 8.0)
    assert labels == {"second (Conv)"}


def test_alternatives_that_clash_are_refused():
    program = padded()
    two, four = winograd_forms(program, float("inf"))
    with pytest.raises(InternalError, match="alternatives clash at "):
        apply_alternatives(program, [two, four])
    missing = replace(two, before=(*two.before[:-1], replace(two.before[-1], output=two.after[0].output)))
    with pytest.raises(InternalError, match=f"alternatives clash at {two.after[0].output.name}"):
        apply_alternatives(program, [missing])
    applied = apply_alternatives(program, [two])
    taken = Alternative("again", (applied.steps[0],), two.after, "")
    with pytest.raises(InternalError, match="alternatives clash at "):
        apply_alternatives(applied, [taken])


def test_constants_and_values_that_nothing_reads_are_dropped():
    program = padded()
    (form,) = winograd_forms(program, 8.0)
    result = apply_alternatives(program, [form])
    (weights,) = form.constants
    assert weights.name in result.constants
    assert len(result.constants) == len(program.constants)
    read = {b.name for s in result.steps for b in s.inputs}
    assert result.constants.keys() <= read
    written = {s.output.name for s in result.steps if isinstance(s, Computation)}
    assert {b.name for b in result.values.values()} <= read | written | {"x"} | {b.name for _, b in result.outputs}
