"""K-blocking of long sums: which sums are blocked, the block sizes, and the rounding error."""

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
from tilewright.optimize import contraction, lane_loops
from tilewright.optimize.reduction_blocking import KBlockLimits, choose_k_block, even_k_block, max_accumulation_length


def total(*steps: Expr | int, dtype: DType = float32, reducer: Reducer = Reducer.SUM) -> Computation:
    """y[a] = sum of x[a, ...] over axes of the given lengths."""
    names = "ijk"[: len(steps)]
    x, out = buffer("x", (4, *steps), dtype), buffer("y", (4,), dtype)
    body = x[(Var("a"), *(Var(n) for n in names))]
    return Computation(out, axes("a", (4,)), axes(names, steps), body, reducer)


def k_block_of(c: Computation, limits: KBlockLimits, lanes: int = 1) -> tuple[int, int] | None:
    """`choose_k_block` for the only block of a computation."""
    symbols = tuple(n for n in c.inputs[0].shape if isinstance(n, Var))
    return choose_k_block(blocks(lower_to_loops("f", [c], (*c.inputs, c.output), symbols).body)[0], limits, lanes)


@pytest.mark.parametrize(
    ("steps", "k_block"),
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
def test_contraction_k_blocks_are_twice_the_root(steps: tuple[int, ...], k_block: tuple[int, int] | None) -> None:
    assert k_block_of(total(*steps), contraction.K_BLOCK_LIMITS) == k_block


@pytest.mark.parametrize(
    ("steps", "lanes", "k_block"),
    [((64,), 1, None), ((100,), 1, (0, 10)), ((3136,), 1, (0, 56)), ((3136,), 64, None), ((65536,), 64, (0, 2048))],
)
def test_other_k_blocks_are_the_root(steps: tuple[int, ...], lanes: int, k_block: tuple[int, int] | None) -> None:
    assert k_block_of(total(*steps), lane_loops.K_BLOCK_LIMITS, lanes) == k_block


@pytest.mark.parametrize(
    ("terms", "longest"), [(1, 256), (256, 256), (4096, 256), (5000, 292), (32768, 1024), (262144, 4096)]
)
def test_accumulation_length_is_bounded(terms: int, longest: int) -> None:
    assert max_accumulation_length(terms) == longest


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_even_k_blocks_are_fewest_with_the_longest_last_block(terms: int, limit: int) -> None:
    size = even_k_block(terms, limit)
    count = -(-terms // size)
    assert 1 <= size <= limit
    assert count <= -(-terms // limit)
    assert count == 1 or -(-terms // count) == size


def test_only_float_sums_of_literal_length_are_blocked() -> None:
    limits = contraction.K_BLOCK_LIMITS
    assert k_block_of(total(200, dtype=int32), limits) is None
    assert k_block_of(total(200, reducer=Reducer.MAX), limits) is None
    assert k_block_of(total(Symbol("S", 1, 512)), limits) is None


@pytest.mark.parametrize("steps", [88, 104, 200, 576])
def test_blocked_matmul_has_less_error_than_sequential_addition(steps: int) -> None:
    """The rounding error of x @ w relative to sequential fused multiply-adds, over 64 x 48 sums of one sign."""
    x, w, out = buffer("x", (64, steps)), buffer("w", (steps, 48)), buffer("y", (64, 48))
    a, b, i = Var("a"), Var("b"), Var("i")
    product = Computation(out, axes("ab", (64, 48)), axes("i", (steps,)), x[a, i] * w[i, b], Reducer.SUM)
    kernel, _, schedule = scheduled(Program([product]), "host")
    func = prepack_constants(schedule.func, frozenset()).func
    rng = np.random.default_rng(steps)
    arrays = {p.name: rng.random(shape_of(p, {}), np.float32) for p in func.params}
    blocked = Native(func)(arrays)[kernel.outputs[-1].name]
    left, right = (arrays[p.name].astype(np.float64) for p in kernel.params[:2])
    sequential = np.zeros((64, 48), np.float32)
    for k in range(steps):
        sequential = (sequential + left[:, k, None] * right[k]).astype(np.float32)
    exact = left @ right
    ours, plain = (np.sqrt(np.mean((y.reshape(exact.shape) - exact) ** 2)) for y in (blocked, sequential))
    assert ours < 0.65 * plain
