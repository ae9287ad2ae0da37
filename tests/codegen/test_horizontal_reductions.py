"""Horizontal reductions: NaN in maxima, masks in the last iteration only, rows of any length."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.codegen.native import TARGETS, Native, check, compare

from tilewright.codegen import emit_llvm, function_emitter
from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.horizontal_reduction import HorizontalReduction, match_horizontal_reduction
from tilewright.loops.ir import For, Func, Stmt
from tilewright.loops.parser import parse
from tilewright.machine import Target

RNG = np.random.default_rng(20)


def rows(op: str, lanes: int, length: str, dtype: str = "float32", sizes: str = "") -> Func:
    """Row-wise `op` over all elements, in vectors of `lanes`."""
    first = {"add": "0.0", "max": "'-inf'", "min": "'inf'"}[op]
    update = "Y[a] + X[a, r]" if op == "add" else f"{op}(Y[a], X[a, r])"
    return parse(f"""
func rows(X: {dtype}[4, {length}], Y: {dtype}[4]{sizes}):
    for i in serial(4):
        block Y_init(b: 4 = i):
            Y[b] = {dtype}({first})
        for o in serial(({length} + {lanes - 1}) // {lanes}):
            for l in vectorized({lanes}):
                block Y(a: 4 = i, reduce r: {length} = o * {lanes} + l) where o * {lanes} + l < {length}:
                    Y[a] = {update}
""")


def values(length: int, dtype: str) -> np.ndarray:
    """Rows of numbers; the last but one has a NaN somewhere, the last one at its end and infinities."""
    x = RNG.standard_normal((4, length)).astype(dtype)
    if length:
        x[2, RNG.integers(length)] = np.nan
        x[3, :2], x[3, length // 2] = np.inf, -np.inf
        x[3, -1] = -np.nan
    return x


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("lanes", [2, 13, 16, 48, 128])
@pytest.mark.parametrize("op", ["max", "min"])
def test_extremum_is_nan_if_any_element_is(target: str, dtype: str, lanes: int, op: str) -> None:
    func = rows(op, lanes, "K", dtype, "; K: 0..1000")
    native = Native(func, target=target)
    for length in (0, 1, lanes, 3 * lanes + 1):
        arrays = {"X": values(length, dtype), "Y": np.zeros(4, dtype)}
        compare(native, arrays, {"K": length})
        if length:
            actual = native(arrays, {"K": length})["Y"]
            assert np.isnan(actual[2:]).all()
            assert not np.isnan(actual[:2]).any()


@pytest.mark.parametrize("target", TARGETS)
def test_nan_propagates_from_every_lane(target: str) -> None:
    native = Native(rows("max", 32, "131"), target=target)
    x = RNG.standard_normal((4, 131)).astype(np.float32)
    for column in range(131):
        holed = x.copy()
        holed[column % 4, column] = np.nan
        actual = native({"X": holed, "Y": np.zeros(4, np.float32)})["Y"]
        np.testing.assert_array_equal(actual, holed.max(1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["add", "max"])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 100])
def test_rows_of_constant_length(target: str, op: str, length: int) -> None:
    x = RNG.standard_normal((4, length)).astype(np.float32)
    check(rows(op, 32, str(length)), {"X": x, "Y": np.zeros(4, np.float32)}, target=target)


@pytest.mark.parametrize(("length", "sizes", "masked"), [("1000", "", 0), ("1004", "", 1), ("K", "; K: 1..4000", 2)])
def test_only_the_last_iteration_is_masked(length: str, sizes: str, masked: int) -> None:
    text = emit_llvm([rows("add", 32, length, sizes=sizes)], [], Target.parse("x86-64-v4"))
    loads = [line for line in text.splitlines() if "load <32 x float>" in line or "masked.load" in line]
    plain = [line for line in loads if "masked" not in line and "align 4" in line]
    assert len(plain) == 1, loads
    # one per register of which some lanes may be active and others not
    assert sum("call" in line for line in loads) == masked


def test_condition_that_fails_before_the_last_iteration_stays_a_mask() -> None:
    text = emit_llvm([parse("""
func part(X: float32[4, 100], Y: float32[4]):
    for i in serial(4):
        for o in serial(4):
            for l in vectorized(25):
                block Y(a: 4 = i, reduce r: 100 = o * 25 + l) where o * 25 + l < 60:
                    init Y[a] = 0.0
                    Y[a] = Y[a] + X[a, r]
""")], [], Target.parse("x86-64-v4"))  # fmt: skip
    assert "masked.load" in text
    assert not [line for line in text.splitlines() if "load <25 x float>" in line and "align 4" in line]


SKIPPED_ROWS = """
func f(X: float32[10, 4, 16], Y: float32[8]):
    for i in parallel(8):
        block start(a: 8 = i):
            Y[a] = 0.0
        for h in serial(3):
            for w in serial(4):
                for c in vectorized(16):
                    block Y(a1: 8 = i, reduce r: 2 = h - 1, reduce s: 4 = w, reduce t: 16 = c) where 1 <= h:
                        Y[a1] = Y[a1] + X[a1 + r, s, t]
"""


@pytest.mark.parametrize("target", TARGETS)
def test_lanes_are_combined_once_where_rows_are_skipped(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch around what is inside of the loop over rows does not end the reduction with every row."""
    func, matched = parse(SKIPPED_ROWS), list[str]()

    def match(stmts: Sequence[Stmt], scope: EmitScope) -> HorizontalReduction | None:
        reduction = match_horizontal_reduction(stmts, scope)
        matched.extend(s.var.name for s in stmts[:1] if reduction is not None and isinstance(s, For))
        return reduction

    monkeypatch.setattr(function_emitter, "match_horizontal_reduction", match)
    arrays = {"X": RNG.standard_normal((10, 4, 16)).astype(np.float32), "Y": np.zeros(8, np.float32)}
    check(func, arrays, target=target)
    assert "h" in matched
