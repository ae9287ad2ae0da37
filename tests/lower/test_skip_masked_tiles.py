"""Tiles of keys that a mask excludes by indices are skipped; results are those of the loops without branches."""

from functools import cache

import numpy as np
import pytest
from tests.optimize.chains import Chain, axes_of, task_of

import tilewright as tw
from tilewright.driver.workbench import Workbench
from tilewright.errors import VerifyError
from tilewright.expr.nodes import Expr
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import For, Func, If, walk
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.lower.lower_kernel import lower_kernel
from tilewright.lower.skip_masked_tiles import skip_masked_tiles
from tilewright.machine import Target
from tilewright.optimize.chains.chain_tree import chain_tree
from tilewright.optimize.chains.expression import ChainTiling, nested
from tilewright.verify.merge_copies import merge_copies
from tilewright.verify.promoted_sums import with_sums_in_memory
from tilewright.verify.verifier import verify

Sizes = tuple[int, int]


def scheduled(mask: str, rows: Expr | int = 70, keys: Expr | int = 80, tile: Sizes = (16, 16)) -> Workbench:
    """The schedule of an attention of two heads with a mask, with online sums in tiles of rows and keys."""
    chain = Chain((2,), rows, (8, keys, 24), softmax=True, mask=mask)
    s = tw.create_schedule(chain.tensor())
    _, row, key, _ = axes_of(s.func, "C0")
    tiling = ChainTiling(nested((row, key)), ((row, tile[0]), (key, tile[1])))
    s.apply_tree(chain_tree(task_of(s.func), tiling))
    return s


def skipping(func: Func) -> list[Expr]:
    """The conditions of the branches around whole iterations."""
    return [s.body.condition for s, _ in walk(func.body) if isinstance(s, For) and isinstance(s.body, If)]


@pytest.mark.parametrize(("mask", "comparisons"), [("causal", 1), ("window", 2)])
def test_iterations_that_are_masked_are_branched_around(mask: str, comparisons: int) -> None:
    func = skip_masked_tiles(scheduled(mask).func)
    conditions = skipping(func)
    assert conditions
    assert all(str(c).count("<=") == comparisons for c in conditions)
    verify(func)
    assert show(parse(show(func))) == show(func)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("mask", ["causal", "window"])
def test_lowered_kernels_are_verified_and_merge_to_the_loops_they_are_made_of(mask: str, target: str) -> None:
    s = scheduled(mask)
    lowered = lower_kernel(s.func, Target.parse(target)).func
    verify(lowered)
    assert show(parse(show(lowered))) == show(lowered)
    assert not any(isinstance(x, If) for x, _ in walk(merge_copies(with_sums_in_memory(lowered)).body))


def feeds_of(func: Func, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Random inputs; values of keys that no row attends to are infinite or NaN, and so is a score."""
    rng = np.random.default_rng(0)
    shapes = {"X": (2, sizes["R"], 8), "BC0": (2, 8, sizes["T"]), "BC1": (2, sizes["T"], 24)}
    feeds = {p.name: rng.standard_normal(shapes[p.name]).astype(np.float32) for p in func.inputs}
    feeds["BC1"][0, -1, 3] = np.inf
    feeds["BC1"][0, -2, 4] = np.nan
    feeds["BC0"][1, 2, -3] = np.nan
    return feeds


@cache
def unfused(mask: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs of an attention, and what its untransformed loops compute of them."""
    func = tw.create_schedule(Chain((2,), 70, (8, 80, 24), softmax=True, mask=mask).tensor()).func
    feeds = feeds_of(func, {"R": 70, "T": 80})
    if mask == "causal":
        feeds["BC1"][1, 40, 23] = -np.inf
    expected = np.zeros((2, 70, 24), np.float32)
    interpret(func, {**feeds, "C1": expected}, {})
    return feeds, expected


@pytest.mark.parametrize("tile", [(16, 16), (16, 32), (32, 16), (48, 80)])
@pytest.mark.parametrize("mask", ["causal", "window"])
def test_results_are_those_of_the_unfused_program(mask: str, tile: Sizes) -> None:
    s = scheduled(mask, tile=tile)
    feeds, expected = unfused(mask)
    actual = np.zeros_like(expected)
    interpret(skip_masked_tiles(s.func), {**feeds, "C1": actual}, {})
    native = s.build(threads=2)(**feeds)
    assert np.isnan(expected).any()
    assert np.isfinite(expected).any()
    for result in (actual, native):
        np.testing.assert_allclose(result, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("sizes", [{"R": 1, "T": 6}, {"R": 33, "T": 64}, {"R": 100, "T": 130}])
def test_symbolic_sizes(sizes: dict[str, int]) -> None:
    s = scheduled("causal", tw.symbol("R", 1, 256), tw.symbol("T", 6, 256))
    assert skipping(skip_masked_tiles(s.func))
    verify(lower_kernel(s.func, Target.parse("x86-64-v4")).func)
    s.check(sizes, threads=2)


def test_rows_that_are_masked_whole_keep_their_tiles() -> None:
    # of 200 rows the last ones are behind all keys: their results are NaN, which skipped tiles would not give
    s = scheduled("window", rows=200)
    assert not skipping(skip_masked_tiles(s.func))
    s.check(threads=2)


@pytest.mark.parametrize("mask", ["none", "keys", "full", "boolean"])
def test_masks_that_indices_do_not_tell_are_left_alone(mask: str) -> None:
    func = scheduled(mask).func
    assert skip_masked_tiles(func) is func


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a_o * 16 + 20", "a_o * 16 + 4"),
        ("* 0.0", "* 1.0"),
        ("+ C1_local_masked[C1_masked_add_v_i2_4_v]", "+ 2.0 * C1_local_masked[C1_masked_add_v_i2_4_v]"),
        ("for C1_masked_total_v_rC1 in serial(16)", "for C1_masked_total_v_rC1 in serial(15)"),
        ("S[v_a - a_o * 16", "0.5 * S[v_a - a_o * 16"),
    ],
)  # fmt: skip
def test_other_branches_are_rejected(old: str, new: str) -> None:
    text = show(skip_masked_tiles(scheduled("causal").func))
    changed = text.replace(old, new)
    assert changed != text
    with pytest.raises(VerifyError, match="not proved to be copies"):
        verify(parse(changed))
