"""Loop specialization: copies of loops compute what the loops compute, and are proved to."""

import re

import numpy as np
import pytest
from tests.codegen.programs import PADDED, SMALL, tile
from tests.codegen.test_peel_last_iteration import MOVED, WINDOW, source

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.bounds import NO_BOUNDS
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import const
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import NOTHING, For, Func, If, blocks, walk
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.lower.legalize_vectors import legalize_vectors
from tilewright.lower.lower_kernel import lower_kernel
from tilewright.machine import Target
from tilewright.schedule.schedule import Schedule
from tilewright.verify.verifier import verify

BORDER = """
func border(X: float32[6, N], Y: float32[8, N + 2]; N: 1..100):
    for i in parallel(8):
        for jo in serial((N + 17) // 16):
            for j in vectorized(16):
                block Y(a: 8 = i, b: N + 2 = jo * 16 + j) where jo * 16 + j < N + 2:
                    Y[a, b] = select(1 <= a and a < 7 and 1 <= b and b < N + 1, X[a - 1, b - 1] * 2.0, 0.5)
"""

ROWS = """
func rows(X: float32[N, 40], Y: float32[N]; N: 1..60):
    for io in parallel((N + 3) // 4):
        for i in unrolled(4):
            block start(a: N = io * 4 + i) where io * 4 + i < N:
                Y[a] = 0.0
        for ko in serial(3):
            for i1 in unrolled(4):
                for k in vectorized(16):
                    block Y(a1: N = io * 4 + i1, reduce r: 40 = ko * 16 + k) where io * 4 + i1 < N and ko * 16 + k < 40:
                        Y[a1] = Y[a1] + X[a1, r]
"""

PARALLEL = """
func tiles(X: float32[30, 70], Y: float32[30, 70]):
    for io in parallel(4):
        for jo in parallel(5):
            for i in unrolled(8):
                for j in vectorized(16):
                    block Y(a: 30 = io * 8 + i, b: 70 = jo * 16 + j) where io * 8 + i < 30 and jo * 16 + j < 70:
                        Y[a, b] = X[a, b] + 1.0
"""

_FEW_ROWS = PADDED.replace("(56)", "(6)").replace("56,", "6,").replace("56 =", "6 =").replace("58", "8")
SMALL_PADDED = _FEW_ROWS.replace("< 57", "< 7").replace("64", "3")

SUMS = """
func sums(X: float32[12, N], W: float32[12], Y: float32[N]; N: 1..100):
    alloc S: float32[32] in register
    for jo in parallel((N + 31) // 32):
        for j in vectorized(32):
            block start(a: N = jo * 32 + j) where jo * 32 + j < N:
                S[a - jo * 32] = 0.0
        for k in serial(12):
            for j1 in vectorized(32):
                block S(a1: N = jo * 32 + j1, reduce r: 12 = k) where jo * 32 + j1 < N:
                    S[a1 - jo * 32] = S[a1 - jo * 32] + X[r, a1] * W[r]
        for j2 in vectorized(32):
            block Y(a2: N = jo * 32 + j2) where jo * 32 + j2 < N:
                Y[a2] = S[a2 - jo * 32]
"""

ABOVE = """
func above(X: float32[13, 8], W: float32[8, 32], Y: float32[13, 32]):
    alloc S: float32[16] in register
    for io in parallel(4):
        for i in serial(4):
            for jo in serial(2):
                for j in vectorized(16):
                    block start(a: 13 = io * 4 + i - 3, b: 32 = jo * 16 + j) where 3 <= io * 4 + i:
                        S[b - jo * 16] = 0.0
                for k in serial(8):
                    for j1 in vectorized(16):
                        block S(a1: 13 = io * 4 + i - 3, b1: 32 = jo * 16 + j1, reduce r: 8 = k) where 3 <= io * 4 + i:
                            S[b1 - jo * 16] = S[b1 - jo * 16] + X[a1, r] * W[r, b1]
                for j2 in vectorized(16):
                    block Y(a2: 13 = io * 4 + i - 3, b2: 32 = jo * 16 + j2) where 3 <= io * 4 + i:
                        Y[a2, b2] = S[b2 - jo * 16]
"""
"""The first tile of rows begins three rows above the result."""

ONE_TILE_ABOVE = ABOVE.replace("parallel(4)", "serial(1)").replace("i in serial(4)", "i in serial(16)")

PROGRAMS = {
    "axpy": (SMALL, ()),
    "gemm": (tile(6, 32), ()),
    "padded": (SMALL_PADDED, ()),
    "window": (source(WINDOW, 40, False), ()),
    "symbolic window": (source(WINDOW, 40, True), (1, 16, 33)),
    "moved": (source(MOVED, 17, False), ()),
    "symbolic moved": (source(MOVED, 17, True), (7, 8, 30)),
    "border": (BORDER, (1, 15, 46)),
    "rows": (ROWS, (1, 4, 59)),
    "parallel": (PARALLEL, ()),
    "sums": (SUMS, (1, 31, 32, 33, 96, 100)),
    "above": (ABOVE, ()),
    "one tile above": (ONE_TILE_ABOVE, ()),
}

TARGETS = ("x86-64", "x86-64-v3", "x86-64-v4", "aarch64")


def arrays_of(func: Func, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Random arrays for the parameters."""
    rng = np.random.default_rng(1)
    values = {s: const(sizes[s.name]) for s in func.symbols}
    shapes = {p.name: [int(str(simplify(substitute(n, values), NO_BOUNDS))) for n in p.shape] for p in func.params}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_copies_compute_what_the_loops_compute(name: str, target: str) -> None:
    text, samples = PROGRAMS[name]
    func = parse(text)
    lowered = lower_kernel(func, Target.parse(target)).func
    for size in samples or (10,):
        sizes = {s.name: size for s in func.symbols}
        expected = arrays_of(func, sizes)
        copied = {k: v.copy() for k, v in expected.items()}
        interpret(func, expected, sizes)
        interpret(lowered, copied, sizes, seed=3)
        for p in func.params:
            np.testing.assert_allclose(copied[p.name], expected[p.name], rtol=1e-5, atol=1e-5, err_msg=f"{size}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "name",
    ["padded", "window", "symbolic window", "border", "rows", "parallel", "sums", "above", "one tile above"],
)
def test_copies_are_verified_and_printed(name: str, target: str) -> None:
    lowered = lower_kernel(parse(PROGRAMS[name][0]), Target.parse(target)).func
    verify(lowered)
    assert show(parse(show(lowered))) == show(lowered)


def test_unneeded_copies_are_not_made() -> None:
    func = parse(tile(6, 32))
    lowered = lower_kernel(func, Target.parse("x86-64-v4")).func
    assert show(lowered) == show(legalize_vectors(func, Target.parse("x86-64-v4")))


def branches(func: Func) -> list[str]:
    """The conditions of all branches."""
    return [str(s.condition) for s, _ in walk(func.body) if isinstance(s, If)]


def test_invariant_selects_are_unswitched_out_of_the_nest() -> None:
    lowered = lower_kernel(parse(PADDED), Target.parse("x86-64-v4")).func
    (condition,) = branches(lowered)
    assert set(re.findall(r"[a-z]\w*", condition)) - {"and"} == {"h", "p"}


@pytest.mark.parametrize("text", [ABOVE, ONE_TILE_ABOVE])
def test_rows_that_nothing_computes_are_skipped_before_their_sums(text: str) -> None:
    """One branch is around all that computes a row, without a second arm; nothing inside tests again."""
    lowered = lower_kernel(parse(text), Target.parse("x86-64-v4")).func
    assert branches(lowered) == ["3 <= i + io * 4"]
    (branch,) = [s for s, _ in walk(lowered.body) if isinstance(s, If)]
    assert branch.otherwise == NOTHING
    assert [str(b.predicate) for b in blocks(lowered.body)] == ["True"] * 3 == [
        str(b.predicate) for b in blocks(branch.then)
    ]  # fmt: skip
    assert "else" not in show(lowered)


def test_last_iterations_of_parallel_loops_are_branches() -> None:
    lowered = lower_kernel(parse(PARALLEL), Target.parse("x86-64-v3")).func
    assert branches(lowered)[0] == "jo < 4"
    assert [s.var.name for s, _ in walk(lowered.body) if isinstance(s, For)][:2] == ["io", "jo"]


def test_whole_tiles_of_sums_have_no_masks_whatever_their_number() -> None:
    lowered = lower_kernel(parse(SUMS), Target.parse("x86-64-v4")).func
    assert branches(lowered) == ["jo < (N + 31) // 32 - 1"]
    (branch,) = [s for s, _ in walk(lowered.body) if isinstance(s, If)]
    assert [str(b.predicate) == "True" for b in blocks(branch.then)] == [True] * 3
    assert [str(b.predicate) == "True" for b in blocks(branch.otherwise)] == [False] * 3


def test_last_iterations_of_serial_loops_follow_them() -> None:
    lowered = lower_kernel(parse(source(MOVED, 17, False)), Target.parse("x86-64-v4")).func
    loops = {s.var.name: str(s.extent) for s, _ in walk(lowered.body) if isinstance(s, For)}
    assert loops["o"] == "2"
    assert loops["o.last"] == "1"
    assert branches(lowered) == []


def test_a_symbolic_number_of_iterations_may_be_zero() -> None:
    text = source(MOVED, 17, True).replace("N: 1..500", "N: 0..500")
    lowered = lower_kernel(parse(text), Target.parse("x86-64-v4")).func
    verify(lower_kernel(parse(BORDER.replace("N: 1..100", "N: 0..100")), Target.parse("x86-64-v4")).func)
    extents = [str(s.extent) for s, _ in walk(lowered.body) if isinstance(s, For) and s.var.name.endswith(".last")]
    assert all("min(" in e for e in extents)
    interpret(lowered, {"X": np.zeros((4, 3, 0), np.float32), "Y": np.zeros((3, 4, 0), np.float32)}, {"N": 0})


def test_branches_are_not_scheduled() -> None:
    lowered = lower_kernel(parse(PARALLEL), Target.parse("x86-64-v3")).func
    with pytest.raises(ScheduleError, match="the loops have branches, which are made after scheduling"):
        Schedule(lowered).do("unroll", "i")
