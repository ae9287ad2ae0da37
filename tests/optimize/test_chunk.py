"""Long sums in chunks: which are cut, how long the chunks are, and what that does to the rounding error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.native import Native
from tests.optimize.programs import Program, axes, buffer, scheduled, shape_of

from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.dtype import DType, float32, int32
from tilewright.expr.nodes import Expr, Symbol, Var
from tilewright.loops.ir import blocks
from tilewright.loops.lowering import lower_to_loops
from tilewright.lower.prepack_constants import prepack_constants
from tilewright.optimize import contraction, rule
from tilewright.optimize.reduction_blocking import KBlockLimits, choose_k_block, even_k_block, max_accumulation_length


def total(*steps: Expr | int, dtype: DType = float32, reducer: Reducer = Reducer.SUM) -> Computation:
    """y[a] = sum of x[a, ...] over axes of the given lengths."""
    names = "ijk"[: len(steps)]
    x, out = buffer("x", (4, *steps), dtype), buffer("y", (4,), dtype)
    body = x[(Var("a"), *(Var(n) for n in names))]
    return Computation(out, axes("a", (4,)), axes(names, steps), body, reducer)


def chunk(c: Computation, limits: KBlockLimits, lanes: int = 1) -> tuple[int, int] | None:
    """`choose_k_block` for the only block of a computation."""
    symbols = tuple(n for n in c.inputs[0].shape if isinstance(n, Var))
    return choose_k_block(blocks(lower_to_loops("f", [c], (*c.inputs, c.output), symbols).body)[0], limits, lanes)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ((31,), None),
        ((32,), (0, 16)),
        ((37,), None),
        ((104,), (0, 26)),
        ((200,), (0, 25)),
        ((64, 3, 3), (0, 4)),
        ((512, 3, 3), (0, 16)),
        ((4096,), (0, 128)),
        ((1 << 20,), (0, 128)),
        ((127,), None),
        ((131,), None),
        ((1021,), (0, 61)),
        ((509, 3, 3), (0, 14)),
    ],
)
def test_chunks_of_contractions_are_twice_the_root(steps: tuple[int, ...], found: tuple[int, int] | None) -> None:
    assert chunk(total(*steps), contraction.K_BLOCK_LIMITS) == found


@pytest.mark.parametrize(
    ("steps", "lanes", "found"),
    [((64,), 1, None), ((100,), 1, (0, 10)), ((3136,), 1, (0, 56)), ((3136,), 64, None), ((65536,), 64, (0, 2048))],
)
def test_chunks_of_other_sums_are_the_root(steps: tuple[int, ...], lanes: int, found: tuple[int, int] | None) -> None:
    assert chunk(total(*steps), rule.K_BLOCK_LIMITS, lanes) == found


@pytest.mark.parametrize(
    ("terms", "longest"), [(1, 256), (256, 256), (4096, 256), (5000, 292), (32768, 1024), (262144, 4096)]
)
def test_chains_are_no_longer_than_errs_least(terms: int, longest: int) -> None:
    assert max_accumulation_length(terms) == longest


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_even_chunks_are_as_few_as_the_longest_and_the_last_is_long(terms: int, most: int) -> None:
    chunk = even_k_block(terms, most)
    count = -(-terms // chunk)
    assert 1 <= chunk <= most
    assert count <= -(-terms // most)
    assert count == 1 or -(-terms // count) == chunk


def test_only_float_sums_of_known_length_are_cut() -> None:
    limits = contraction.K_BLOCK_LIMITS
    assert chunk(total(200, dtype=int32), limits) is None
    assert chunk(total(200, reducer=Reducer.MAX), limits) is None
    assert chunk(total(Symbol("S", 1, 512)), limits) is None


@pytest.mark.parametrize("steps", [88, 104, 200, 576])
def test_a_product_errs_less_than_a_chain_of_additions(steps: int) -> None:
    """The rounding error of x @ w against one chain of fused multiply-adds, over 64 x 48 sums of the same sign."""
    x, w, out = buffer("x", (64, steps)), buffer("w", (steps, 48)), buffer("y", (64, 48))
    a, b, i = Var("a"), Var("b"), Var("i")
    product = Computation(out, axes("ab", (64, 48)), axes("i", (steps,)), x[a, i] * w[i, b], Reducer.SUM)
    kernel, _, schedule = scheduled(Program([product]), "host")
    func = prepack_constants(schedule.func, frozenset()).func
    rng = np.random.default_rng(steps)
    arrays = {p.name: rng.random(shape_of(p, {}), np.float32) for p in func.params}
    found = Native(func)(arrays)[kernel.params[-1].name]
    left, right = (arrays[p.name].astype(np.float64) for p in kernel.params[:2])
    chain = np.zeros((64, 48), np.float32)
    for k in range(steps):
        chain = (chain + left[:, k, None] * right[k]).astype(np.float32)
    exact = left @ right
    ours, plain = (np.sqrt(np.mean((y.reshape(exact.shape) - exact) ** 2)) for y in (found, chain))
    assert ours < 0.65 * plain
