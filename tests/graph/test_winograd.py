"""Minimal filtering: the transforms over the rationals, and programs against direct convolution."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.driver.models import array, model, value
from tests.graph.convolutions import convolution
from tests.graph.running import program_of, run_program

from tilewright.driver.diagnostics.float64_reference import evaluate_program
from tilewright.driver.diagnostics.verification import relative_error
from tilewright.expr.computation import Computation, View
from tilewright.graph.alternatives import apply_alternatives
from tilewright.graph.partition import partition
from tilewright.graph.program import Program
from tilewright.graph.winograd.rewrite import winograd_forms
from tilewright.graph.winograd.transforms import POINTS, toom_cook

EPSILON = float(np.finfo(np.float32).eps)

fractions = st.fractions(-9, 9, max_denominator=9)


def product(matrix, vector):
    return [sum((a * x for a, x in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


@given(st.integers(1, 6), st.integers(1, 5), st.data())
def test_transforms_are_exact_over_the_rationals(m, r, data):
    points = tuple(data.draw(st.lists(fractions, min_size=m + r - 2, max_size=m + r - 2, unique=True)))
    x = data.draw(st.lists(fractions, min_size=m + r - 1, max_size=m + r - 1))
    g = data.draw(st.lists(fractions, min_size=r, max_size=r))
    direct = [sum((x[i + j] * g[j] for j in range(r)), Fraction(0)) for i in range(m)]
    for chosen in (points, None) if m + r - 2 <= len(POINTS) else (points,):
        f = toom_cook(m, r, chosen)
        products = [a * b for a, b in zip(product(f.filter_transform, g), product(f.input_transform, x), strict=True)]
        assert product(f.output_transform, products) == direct
        assert f.multiplications == m + r - 1


def test_the_points_are_exact_in_binary():
    for m in (2, 3, 4, 6):
        f = toom_cook(m, 3)
        for x in (x for rows in (f.input_transform, f.output_transform) for row in rows for x in row):
            assert Fraction(float(np.float32(float(x)))) == x


def test_error_growth_increases_with_tile_size():
    assert toom_cook(2, 3).error_growth == pytest.approx(8 / 3)
    assert toom_cook(4, 3).error_growth == pytest.approx(148 / 15)
    assert toom_cook(6, 3).error_growth > 2 * toom_cook(4, 3).error_growth


def test_invalid_points_are_refused():
    with pytest.raises(ValueError, match=r"F\(2, 3\) needs 3 distinct points, got 2"):
        toom_cook(2, 3, (Fraction(0), Fraction(1), Fraction(1)))
    with pytest.raises(ValueError, match=r"F\(4, 3\) needs 5 distinct points, got 3"):
        toom_cook(4, 3, (Fraction(0), Fraction(1), Fraction(2)))
    with pytest.raises(ValueError, match="at least 1 output and 1 tap, got 0 and 3"):
        toom_cook(0, 3)


# programs


def winograd(program: Program, tile: int, untiled: int = 0) -> Program:
    """The program whose convolutions have the form of a tile size in all but the first `untiled` dimensions."""
    per_convolution = {}
    for form in winograd_forms(program, float("inf"), (tile,)):
        per_convolution.setdefault(form.before[-1].output, []).append(form)
    return apply_alternatives(program, [forms[-1 if untiled else 0] for forms in per_convolution.values()])


def fast_program(program: Program, tile: int) -> Program:
    result = winograd(program, tile)
    assert result is not program
    return result


@settings(max_examples=40, deadline=None)
@given(
    tile=st.sampled_from((1, 2, 3, 4)),
    batch=st.integers(1, 3),
    channels=st.integers(2, 5),
    outputs=st.integers(1, 5),
    size=st.tuples(st.integers(3, 12), st.integers(3, 12)),
    pads=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    taps=st.tuples(st.integers(2, 3), st.integers(2, 3)),
    seed=st.integers(0, 99),
)
def test_any_shape_is_within_the_bound_of_the_direct_sum(tile, batch, channels, outputs, size, pads, taps, seed):
    w = array(seed, outputs, channels, *taps)
    x = array(seed + 1, batch, channels, *size)
    direct = program_of(convolution(x.shape, w, pads=pads))
    result = fast_program(direct, tile)
    (exact,) = evaluate_program(direct, {"x": x}).values()
    (actual,) = run_program(result, {"x": x})
    assert actual.shape == exact.shape
    worst = toom_cook(tile, taps[0]).error_growth * toom_cook(tile, taps[1]).error_growth
    terms = channels * taps[0] * taps[1]
    scale = terms * float(np.abs(w).max() * np.abs(x).max()) + float(np.abs(actual).max())
    assert float(np.abs(actual - exact).max()) <= worst * scale * EPSILON * 8


def test_integer_results_are_exact():
    rng = np.random.default_rng(5)
    w = (rng.integers(-3, 4, (6, 4, 3, 3)) * 4).astype(np.float32)
    x = rng.integers(-5, 6, (2, 4, 9, 7)).astype(np.float32)
    direct = program_of(convolution(x.shape, w, pads=[1, 0, 2, 1], constants={"b": np.zeros(6, np.float32)}))
    for a, b in zip(run_program(fast_program(direct, 2), {"x": x}), run_program(direct, {"x": x}), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("tile", "limit"), [(2, 4e-7), (4, 4e-6)])
def test_dynamic_sizes(tile, limit):
    w = array(1, 5, 3, 3, 3, scale=0.3)
    source = convolution(("n", 3, "h", "w"), w, pads=[1, 1, 1, 1])
    direct = program_of(source, {"n": "1..4", "h": "1..40", "w": "1..40"})
    result = fast_program(direct, tile)
    for n, h, width in ((1, 1, 1), (2, 5, 7), (3, 8, 8), (1, 13, 2)):
        x = array(n + h, n, 3, h, width)
        (actual,) = run_program(result, {"x": x})
        (exact,) = evaluate_program(direct, {"x": x}).values()
        assert relative_error(actual, exact) < limit


@pytest.mark.parametrize(
    ("spatial", "taps"), [((11,), (3,)), ((5, 6, 7), (3, 3, 3)), ((9, 8), (3, 1)), ((9, 8), (1, 3))]
)
def test_other_numbers_of_dimensions(spatial, taps):
    w = array(1, 4, 3, *taps, scale=0.3)
    direct = program_of(convolution((2, 3, *spatial), w, pads=[t // 2 for t in taps] * 2))
    x = array(2, 2, 3, *spatial)
    (actual,) = run_program(fast_program(direct, 2), {"x": x})
    (exact,) = evaluate_program(direct, {"x": x}).values()
    assert relative_error(actual, exact) < 1e-6


@pytest.mark.parametrize(
    ("w", "attributes"),
    [
        ((4, 4, 3, 3), {"strides": [2, 2]}),
        ((4, 4, 3, 3), {"strides": [1, 2]}),
        ((4, 4, 3, 3), {"dilations": [2, 2]}),
        ((4, 2, 3, 3), {"group": 2}),
        ((4, 1, 3, 3), {"group": 4}),
        ((4, 4, 1, 1), {}),
    ],
)
def test_strided_dilated_and_grouped_convolutions_stay(w, attributes):
    program = program_of(convolution((1, 4, 9, 9), array(1, *w), **attributes))
    assert not list(winograd_forms(program, float("inf")))


def test_non_constant_filters_and_other_types_stay():
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"], name="conv")]
    proto = model(nodes, [value("x", [1, 4, 9, 9]), value("w", [4, 4, 3, 3])], [value("t", [1, 4, 7, 7])])
    program = program_of(proto)
    assert not list(winograd_forms(program, float("inf")))
    double = TensorProto.DOUBLE
    wide = model(
        nodes, [value("x", [1, 4, 9, 9], double)], [value("t", [1, 4, 7, 7], double)],
        {"w": array(1, 4, 4, 3, 3).astype(np.float64)},
    )  # fmt: skip
    program = program_of(wide)
    assert not list(winograd_forms(program, float("inf")))


def test_forms_replace_the_copy_that_pads():
    program = program_of(convolution((1, 4, 9, 9), array(1, 4, 4, 3, 3), pads=[1, 1, 1, 1]))
    forms = list(winograd_forms(program, float("inf")))
    assert [f.name for f in forms] == ["winograd F(2x2, 3x3)", "winograd F(4x4, 3x3)"]
    copy, stage = (s for s in program.steps[:2] if isinstance(s, Computation))
    assert all(f.before == (copy, stage) for f in forms)
    assert all(f.after[-1].output == stage.output for f in forms)
    assert forms[0].why == "2.25 times fewer multiplications; rounding errors up to 7.11 times as large"
    assert forms[0].label == "conv (Conv)"
    assert apply_alternatives(program, []) is program


@pytest.mark.parametrize(
    ("taps", "limit", "tiles"),
    [
        ((3, 3), 8.0, [(2, 2)]), ((3, 3), 100.0, [(2, 2), (4, 4)]), ((3,), 8.0, [(2,)]),
        ((3, 3, 3), 8.0, [(0, 2, 2)]), ((3, 3, 3), 100.0, [(2, 2, 2), (0, 2, 2), (0, 4, 4)]),
        ((1, 3, 3), 8.0, [(2, 2)]), ((3, 1, 1), 8.0, [(2,)]), ((3, 1, 3), 8.0, [(2, 2)]),
        ((5, 5), 8.0, []), ((3, 1), 8.0, [(2,)]), ((2, 2), 8.0, [(2, 2)]), ((9, 9), float("inf"), [(2, 2)]),
        ((12, 12), float("inf"), []), ((12, 9, 9), float("inf"), [(0, 2, 2)]),
    ],
)  # fmt: skip
def test_only_forms_within_the_error_limit_are_offered(taps, limit, tiles):
    """A filter too long for the points is never offered, even without a limit; of three dimensions one may stay."""
    shape = (1, 4, *(14 for _ in taps))
    program = program_of(convolution(shape, array(1, 3, 4, *taps)))
    forms = list(winograd_forms(program, limit))
    assert all(f.error_growth < limit for f in forms)
    tiled = [tuple(map(int, f.name.removeprefix("winograd F(").split(",")[0].split("x"))) for f in forms]
    filtered = sum(t > 1 for t in taps)
    assert [(0,) * (filtered - len(sizes)) + sizes for sizes in tiled] == tiles


@settings(max_examples=25, deadline=None)
@given(
    tile=st.sampled_from((2, 4)),
    batch=st.integers(1, 2),
    channels=st.integers(2, 4),
    outputs=st.integers(1, 4),
    size=st.tuples(st.integers(3, 6), st.integers(3, 8), st.integers(3, 8)),
    pads=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    taps=st.tuples(st.integers(2, 3), st.integers(2, 3), st.integers(2, 3)),
    seed=st.integers(0, 99),
)
def test_volumes_are_tiled_in_two_dimensions(tile, batch, channels, outputs, size, pads, taps, seed):
    """The bound is that of two dimensions: taps of the first add up as channels do."""
    w = array(seed, outputs, channels, *taps)
    x = array(seed + 1, batch, channels, *size)
    direct = program_of(convolution(x.shape, w, pads=pads))
    result = winograd(direct, tile, untiled=1)
    assert result is not direct
    (exact,) = evaluate_program(direct, {"x": x}).values()
    (actual,) = run_program(result, {"x": x})
    assert actual.shape == exact.shape
    worst = toom_cook(tile, taps[1]).error_growth * toom_cook(tile, taps[2]).error_growth
    terms = channels * taps[0] * taps[1] * taps[2]
    scale = terms * float(np.abs(w).max() * np.abs(x).max()) + float(np.abs(actual).max())
    assert float(np.abs(actual - exact).max()) <= worst * scale * EPSILON * 8


def test_untiled_dimension_may_be_symbolic():
    w = array(1, 5, 3, 3, 3, 3, scale=0.3)
    source = convolution(("n", 3, "t", "h", 7), w, pads=[1, 1, 1, 1, 1, 1])
    direct = program_of(source, {"n": "1..4", "t": "1..9", "h": "1..9"})
    result = winograd(direct, 2, untiled=1)
    for n, t, h in ((1, 1, 1), (2, 3, 5), (1, 6, 8)):
        x = array(n + h, n, 3, t, h, 7)
        (actual,) = run_program(result, {"x": x})
        (exact,) = evaluate_program(direct, {"x": x}).values()
        assert relative_error(actual, exact) < 4e-7


def residual(shape):
    tail = [
        helper.make_node("Relu", ["t"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "s"], ["y"], name="sum"),
    ]
    return convolution((2, 4, 9, 8), array(1, 4, 4, 3, 3), tail=tail, inputs=[value("s", shape)], pads=[1, 1, 1, 1])


def test_consumers_are_fused_into_the_last_stage():
    direct = program_of(residual([2, 4, 9, 8]))
    result = fast_program(direct, 2)
    kernels = [u for u in partition(result).units if not isinstance(u, View)]
    assert len(kernels) == 5  # source, data, product, tiles, results with bias, activation and sum
    assert [s.is_reduction for k in kernels for s in k.stages] == [False, False, True, False, False]
    assert kernels[-1].writes[-1] == result.outputs[0][1]
    feeds = {"x": array(5, 2, 4, 9, 8), "s": array(6, 2, 4, 9, 8)}
    for actual, expected in zip(run_program(result, feeds), run_program(direct, feeds), strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_padded_input_with_other_readers_stays():
    nodes = [
        helper.make_node("Pad", ["x", "p"], ["padded"], name="pad"),
        helper.make_node("Conv", ["padded", "w"], ["a"], name="conv1"),
        helper.make_node("Conv", ["padded", "v"], ["b"], name="conv2"),
        helper.make_node("Add", ["a", "b"], ["y"], name="sum"),
    ]
    constants = {"p": np.array([0, 0, 1, 2, 0, 0, 2, 1]), "w": array(1, 3, 4, 3, 3), "v": array(2, 3, 4, 3, 3)}
    direct = program_of(model(nodes, [value("x", [1, 4, 7, 6])], [value("y", [1, 3, 8, 7])], constants))
    result = fast_program(direct, 2)
    assert sum(isinstance(s, Computation) and s.is_reduction for s in result.steps) == 2
    x = array(3, 1, 4, 7, 6)
    (actual,), (plain,) = run_program(result, {"x": x}), run_program(direct, {"x": x})
    np.testing.assert_allclose(actual, plain, atol=5e-5)
    written = [s.output.name for s in result.steps if isinstance(s, Computation)]
    assert len(set(written)) == len(written)
    names = {b.name for s in result.steps for b in s.inputs}
    assert result.constants.keys() <= names  # the filters in their first form are gone
