"""Fitted parameters: kernels compute what they say, formulas invert the cost model, noise changes nothing."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.machine import Target
from tilewright.machine.cost_parameters import DEFAULT_COST
from tilewright.machine.model import parse_machine, to_json
from tilewright.machine.shipped import machine_named
from tilewright.measure.fit_parameters import (
    PAGE,
    SHORT_SEGMENT,
    STREAM_SEGMENT,
    UNROLLED_TERMS,
    fit,
    fit_parameters,
    fitted_names,
    load_fma_contention,
    packing_cycles,
    page_ramp_bytes,
    stream_ramp_bytes,
)
from tilewright.measure.native_functions import NativeFunctions
from tilewright.measure.parameter_kernels import (
    SIDE,
    STREAMS,
    TILE_TERMS,
    RegisterTile,
    panel_copy,
    register_tile,
    segment_read,
    tile_rows,
    turned_copy,
)
from tilewright.verify.verifier import verify

MACHINE = machine_named("sapphire-rapids")
TARGETS = [t for t in map(Target.parse, ("x86-64-v4", "x86-64-v3", "x86-64", "aarch64")) if t.runs_here]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_kernels_compute_their_definition(target: Target) -> None:
    rng, lanes = np.random.default_rng(0), target.lanes(32)
    funcs = [
        register_tile(target, RegisterTile(tile_rows(target))), segment_read("read", target, 32, 40),
        turned_copy("rows", target, True),
        turned_copy("columns", target, False), panel_copy("straight", target, 2, 48, True),
        panel_copy("turned", target, 2, 48, False),
    ]  # fmt: skip
    for func in funcs:
        verify(func)
    native = NativeFunctions(funcs, target)
    rows = tile_rows(target)
    a, b = rng.random((TILE_TERMS, rows), np.float32), rng.random((TILE_TERMS, 2 * lanes), np.float32)
    out = np.zeros((rows, 2 * lanes), np.float32)
    native.call("register_tile", [a, b, out], [3])
    np.testing.assert_allclose(out, 3 * (a.T.astype(np.float64) @ b), rtol=1e-5)
    x, sums = rng.random((5, STREAMS, 40), np.float32), np.zeros((STREAMS, lanes), np.float32)
    native.call("read", [x, sums], [5, 2])
    expected = 2 * x[..., :32].astype(np.float64).reshape(5, STREAMS, -1, lanes).sum((0, 2))
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    for name in ("rows", "columns"):
        x, y = rng.random((SIDE, SIDE), np.float32), np.zeros((SIDE, SIDE), np.float32)
        native.call(name, [x, y], [2])
        np.testing.assert_array_equal(y, x.T)
    for name, shape, axes in (("straight", (48, 2, 2 * lanes), (1, 0, 2)), ("turned", (2, 2 * lanes, 48), (0, 2, 1))):
        x, panels = rng.random(shape, np.float32), np.zeros((2, 48, 2 * lanes), np.float32)
        native.call(name, [x, panels], [2])
        np.testing.assert_array_equal(panels, x.transpose(axes))


def test_formulas_invert_the_model() -> None:
    cost, ghz, rows = MACHINE.cost, MACHINE.ghz, 12
    cycles = 2 * rows * UNROLLED_TERMS / MACHINE.fma_pipes + (rows + 2) * UNROLLED_TERMS * 0.2 + cost.step_cycles
    assert load_fma_contention(cycles / ghz, rows, MACHINE) == pytest.approx(0.2)
    short, whole = 1 + 300 / (4 * SHORT_SEGMENT), 1 + 300 / (4 * PAGE)
    assert page_ramp_bytes(short, whole) == pytest.approx(300)
    slow = (1 + (180 / (4 * STREAM_SEGMENT)) ** 4) ** 0.25
    assert stream_ramp_bytes(slow, 1.0) == pytest.approx(180)
    assert stream_ramp_bytes(0.9, 1.0) == 0.0
    assert packing_cycles(2.0 / ghz + 8.0 / MACHINE.levels[1].gbs(1), MACHINE) == pytest.approx(2.0)


def test_the_median_of_consistent_estimates_counts() -> None:
    fitted = fit("scatter_cycles", [1.2, 1.25, 1.3, 1.31, 9.0], DEFAULT_COST)
    assert fitted.value == 1.3
    assert str(fitted) == "scatter_cycles: 1.5 -> 1.3"


def test_contradicting_estimates_determine_nothing() -> None:
    fitted = fit("scatter_cycles", [0.5, 1.0, 1.5, 2.5, 3.0], DEFAULT_COST)
    assert fitted.value is None
    assert str(fitted) == "scatter_cycles: 1.5 stays, estimates spread from 1 to 2.5"


@pytest.mark.parametrize("value", [0.0, -3.0, 0.3, 7.0, 1e9])
def test_values_far_from_the_default_determine_nothing(value: float) -> None:
    fitted = fit("scatter_cycles", [value] * 5, replace(DEFAULT_COST, scatter_cycles=1.4))
    assert fitted.value is None
    assert str(fitted) == f"scatter_cycles: 1.4 stays, the estimate {value:.3g} is not between 0.375 and 6"


def test_fitting_changes_only_what_it_says() -> None:
    """On a busy machine any value may come out, but each is one that a description may have."""
    lines: list[str] = []
    fitted = fit_parameters(MACHINE, Target.host(), lines.append)
    assert [line.split(":")[0] for line in lines] == list(fitted_names())
    assert replace(fitted, cost=MACHINE.cost) == MACHINE
    unchanged = {name: getattr(MACHINE.cost, name) for name in fitted_names()}
    assert replace(fitted.cost, **unchanged) == MACHINE.cost
    for name, line in zip(fitted_names(), lines, strict=True):
        value = getattr(fitted.cost, name)
        if "stays" in line:
            assert value == getattr(MACHINE.cost, name)
        else:
            assert line == f"{name}: {getattr(MACHINE.cost, name):g} -> {value:.3g}"
    assert parse_machine(to_json(fitted), "here") == fitted
