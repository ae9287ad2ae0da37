"""Trees of fused chains: right for random chains and tilings, refusals with their reasons, what the trees look like."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.optimize.chains import Chain, axes_of, task_of

import tilewright as tw
from tilewright.errors import ScheduleError, TreeError
from tilewright.expr.nodes import Const, MemoryScope, const
from tilewright.loops.ir import Func, LoopKind
from tilewright.machine.shipped import machine_named
from tilewright.optimize.chains.chain_tree import chain_tree, row_heights
from tilewright.optimize.chains.choose_register_tiles import TileAxis, best_register_tile
from tilewright.optimize.chains.expression import ChainTiling, TiledLoop, TilingExpression, nested
from tilewright.optimize.chains.expression import axes_of as loop_axes
from tilewright.tile.tree import Loop, on_one_thread, walk_tree
from tilewright.tile.tree_text import show_tree

MACHINE = machine_named("x86-64-v4")
SIZES = st.sampled_from([1, 2, 3, 7, 8, 16, 17, 24, 33, 40, 64]) | st.integers(1, 90)


def expressions(row: str, n: str, k: str, h: str) -> list[TilingExpression]:
    """Deep and flat ones, by the axes of rows, of the first results, and of the first and the last sum."""
    return [
        nested((row,)),
        nested((row, n)),
        nested((row, n, k)),
        nested((row, h, n)),
        nested((row, n), TiledLoop(k), TiledLoop(h)),
        nested((row,), TiledLoop(k), TiledLoop(h)),
        nested((h, row, n, k)),
    ]


def chain_axes(func: Func, chain: Chain) -> tuple[str, str, str, str]:
    """The axes of rows, of the columns of the first contraction, of its sum, and of the columns of the last one."""
    batches = len(chain.batch)
    first, last = axes_of(func, "C0"), axes_of(func, f"C{len(chain.sizes) - 2}")
    others = [a for a in last if a not in first[: batches + 1]]
    return first[batches], first[batches + 1], first[-1], others[0]


@st.composite
def chains(draw: st.DrawFn) -> tuple[Chain, dict[str, int]]:
    """A chain with the sizes of its symbols."""
    rows, sizes = draw(SIZES), draw(st.lists(SIZES, min_size=3, max_size=4))
    softmax = draw(st.booleans())
    symbols: dict[str, int] = {}
    values: list[tw.Expr | int] = list(sizes)
    if softmax:
        sizes[1] = values[1] = draw(st.integers(1, 200))
    if draw(st.integers(0, 3)) == 0:
        symbols["T"], values[1] = sizes[1], tw.symbol("T", 1, 256)
    row_size: tw.Expr | int = rows
    if draw(st.integers(0, 3)) == 0:
        symbols["R"], row_size = rows, tw.symbol("R", 1, 256)
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    mask = draw(st.sampled_from(["none", "keys", "full", "boolean", "causal", "window"]))
    options = [draw(st.booleans()) for _ in range(5)]
    return Chain(batch, row_size, tuple(values), softmax, mask, *options), symbols


def random_tiling(func: Func, chain: Chain, draw: Callable[[st.SearchStrategy[int]], int]) -> ChainTiling:
    """One of the expressions with tiles of random sizes; symbolic results of the first contraction are tiled."""
    row, n, k, h = chain_axes(func, chain)
    shapes = expressions(row, n, k, h)
    number = draw(st.sampled_from([0, 0, 1, 1, 1, 2, 3, 4, 5, 6]))
    expression = shapes[number if isinstance(chain.sizes[1], int) else max(1, number % 3)]
    used = {row, *loop_axes(expression)}
    tiles = {row: (16, 32, 48), n: (16, 32, 64), k: (8, 16), h: (16, 32)}
    chosen = {a: draw(st.sampled_from(x)) for a, x in tiles.items() if a in used}
    return ChainTiling(expression, tuple(chosen.items()))


@pytest.mark.parametrize(("terms", "is_unrolled"), [(768, True), (756, False)])
def test_steps_of_a_sum_whose_last_tile_is_partial_are_not_unrolled(terms: int, is_unrolled: bool) -> None:
    """One branch before a step then decides for a whole register tile whether there is a product to add."""
    chain = Chain((11,), 87, (22, terms, 23))
    func = tw.create_schedule(chain.tensor()).func
    row, n, _, _ = chain_axes(func, chain)
    tree = chain_tree(task_of(func), ChainTiling(nested((row, n)), ((row, 96), (n, 256))), MACHINE)
    leaf = show_tree(tree).partition("v_i2_1 32:")[2].partition("C1.partial")[0]
    assert ("v_i2 1 unrolled" in leaf) is is_unrolled
    assert ("v_i2 1:" in leaf) is not is_unrolled


# `make fuzz-chains` draws thousands
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chains(), st.data(), st.sampled_from(["x86-64-v4", "x86-64-v3"]))
def test_random_chains(case: tuple[Chain, dict[str, int]], data: st.DataObject, target: str) -> None:
    chain, symbols = case
    s = tw.create_schedule(chain.tensor())
    tiling = random_tiling(s.func, chain, data.draw)
    try:
        tree = chain_tree(task_of(s.func, target), tiling, machine_named(target))
    except ScheduleError as error:
        # nothing else is refused than loops that do not fit the chain, and not before the tree is lowered
        if not str(error).startswith("[schedule] fused chain: "):
            raise
        return
    s.apply_tree(tree)
    s.check(symbols or None, target=target, threads=2)


# one tile, whole tiles, a tail behind whole tiles, and less than a tile
@pytest.mark.parametrize(("tile", "keys"), [(16, 64), (16, 75), (64, 64), (64, 128), (64, 200), (256, 75), (256, 200)])
def test_softmax_against_float64(tile: int, keys: int) -> None:
    chain = Chain((2,), 45, (24, keys, 40), softmax=True, mask="keys", transposed=True)
    s = tw.create_schedule(chain.tensor())
    row, n, *_ = chain_axes(s.func, chain)
    s.apply_tree(chain_tree(task_of(s.func), ChainTiling(nested((row, n)), ((row, 32), (n, tile)))))
    rng = np.random.default_rng(keys + tile)
    x, k, v = (rng.standard_normal(shape) for shape in ((2, 45, 24), (2, keys, 24), (2, 40, keys)))
    mask = np.where(rng.random(keys) < 0.3, -np.inf, rng.standard_normal(keys))
    mask[0] = 0.0
    score = np.einsum("zik,zjk->zij", x, k) * 0.25 + mask
    power = np.exp(score - score.max(axis=-1, keepdims=True))
    expected = np.einsum("zij,zhj->zih", power / power.sum(axis=-1, keepdims=True), v)
    feeds = {"X": x, "BC0": k, "mask": mask, "BC1": v}
    actual = s.build(threads=2)(**{name: a.astype(np.float32) for name, a in feeds.items()})
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * np.abs(v).max() * 4)


def test_rows_masked_whole_are_nan_as_in_the_unfused_program() -> None:
    chain = Chain((), 20, (16, 48, 24), softmax=True, mask="full")
    s = tw.create_schedule(chain.tensor())
    row, n, *_ = chain_axes(s.func, chain)
    s.apply_tree(chain_tree(task_of(s.func), ChainTiling(nested((row, n)), ((row, 16), (n, 16)))))
    rng = np.random.default_rng(0)
    shapes = {"X": (20, 16), "BC0": (16, 48), "BC1": (48, 24)}
    feeds = {"mask": np.zeros((20, 48)), **{name: rng.standard_normal(shape) for name, shape in shapes.items()}}
    feeds["mask"][3] = -np.inf
    feeds["mask"][4, :40] = -np.inf
    result = s.build()(**{name: a.astype(np.float32) for name, a in feeds.items()})
    assert np.isnan(result[3]).all()
    assert np.isfinite(np.delete(result, 3, axis=0)).all()


def refusal_of(chain: Chain, tiling: Callable[[str, str, str, str], ChainTiling]) -> str:
    s = tw.create_schedule(chain.tensor())
    with pytest.raises((ScheduleError, TreeError)) as error:
        s.apply_tree(chain_tree(task_of(s.func), tiling(*chain_axes(s.func, chain)), MACHINE))
    return str(error.value)


def test_refused_tilings() -> None:
    t = ChainTiling
    plain, softmax = Chain((), 64, (32, 64, 48)), Chain((), 64, (32, 64, 48), softmax=True)
    symbolic = Chain((), 64, (32, tw.symbol("T", 1, 99), 48))
    cases: list[tuple[Chain, Callable[[str, str, str, str], ChainTiling], str]] = [
        (plain, lambda m, n, k, h: t(nested((m, "q")), ((m, 16),)), "the chain has no axis 'q'"),
        (plain, lambda m, n, k, h: t(nested((m,)), ((m, 0),)),
         "a tile of at least one point of 'v_i0', got 0"),
        (plain, lambda m, n, k, h: t(nested((k, m, n)), ((m, 16), (n, 16), (k, 8))),
         "the loop over 'v_i1' does not enclose 'C1', which sums along it"),
        (softmax, lambda m, n, k, h: t(nested((m, h, n)), ((m, 16), (h, 16), (n, 16))),
         "'largest' would be computed in the loop over"),
        (symbolic, lambda m, n, k, h: t(nested((m,)), ((m, 16),)), "of an intermediate is symbolic"),
    ]  # fmt: skip
    for chain, tiling, reason in cases:
        assert reason in refusal_of(chain, tiling)


def test_a_kernel_that_is_no_chain_is_refused() -> None:
    s = tw.create_schedule(Chain((), 64, (32, 64)).tensor())
    with pytest.raises(ScheduleError, match="expected at least two contractions, got 1"):
        chain_tree(task_of(s.func), ChainTiling((), ()), MACHINE)


def test_products_accumulate_in_registers(golden: Callable[[str], None]) -> None:
    chain = Chain((8,), 165, (64, 864, 80), activation=True)
    func = tw.create_schedule(chain.tensor()).func
    row, *_ = chain_axes(func, chain)
    golden(show_tree(chain_tree(task_of(func, "x86-64-v4"), ChainTiling(nested((row,)), ((row, 48),)), MACHINE)))


def test_attention_is_online(golden: Callable[[str], None]) -> None:
    chain = Chain((12,), 512, (64, 512, 64), softmax=True, mask="keys", transposed=True)
    func = tw.create_schedule(chain.tensor()).func
    row, n, *_ = chain_axes(func, chain)
    tiling = ChainTiling(nested((row, n)), ((row, 64), (n, 128)))
    golden(show_tree(chain_tree(task_of(func, "x86-64-v4"), tiling, MACHINE)))


@pytest.mark.parametrize(
    ("chain", "tile"),
    [(Chain((6,), 95, (28, 395, 74)), 95), (Chain((3,), 41, (53, 712, 18), transposed=True), 41)],
    ids=["lanes along columns", "lanes along rows"],
)
def test_accumulators_are_whole_vectors(chain: Chain, tile: int) -> None:
    """Rows of a part of a vector are not kept in registers, and LLVM cuts vectors of 41 lanes into single elements."""
    s = tw.create_schedule(chain.tensor())
    row, *_ = chain_axes(s.func, chain)
    s.apply_tree(chain_tree(task_of(s.func, "x86-64-v4"), ChainTiling(nested((row,)), ((row, tile),)), MACHINE))
    widths = [b.shape[-1] for b in s.func.allocs if b.scope is MemoryScope.REGISTER]
    assert widths
    assert all(isinstance(n, Const) and n.value % 16 == 0 for n in widths), widths


def test_threads_share_batches_and_rows() -> None:
    chain = Chain((8,), 165, (64, 96, 80))
    func = tw.create_schedule(chain.tensor()).func
    row, *_ = chain_axes(func, chain)
    shared = chain_tree(task_of(func), ChainTiling(nested((row,)), ((row, 55),)), MACHINE)
    for tree, parallel in ((shared, True), (on_one_thread(shared), False)):
        kinds = [x.kind for x, _ in walk_tree(tree.body) if isinstance(x, Loop) and x.step in (1, 55)]
        assert kinds[:2] == [LoopKind.PARALLEL if parallel else LoopKind.SERIAL] * 2


@pytest.mark.parametrize(
    ("rows", "tile", "heights"),
    [(96, 48, (48,)), (165, 48, (48, 16, 5)), (29, 48, (24, 5)), (7, 48, (7,)), ((0, 4096), 48, (48, 8, 1)),
     ((1, 4096), 4, (4, 1)), ((1, 3), 48, (1,)), ((0, 8), 48, (8, 1)), ((0, 0), 48, (1,))],
)  # fmt: skip
def test_heights_of_tiles_cover_all_rows(rows: int | tuple[int, int], tile: int, heights: tuple[int, ...]) -> None:
    extent = const(rows) if isinstance(rows, int) else tw.symbol("N", *rows)
    assert row_heights(extent, tile) == heights


def test_register_tiles_fit_the_registers() -> None:
    for target, vector in (("x86-64-v4", 16), ("x86-64-v3", 8)):
        machine = machine_named(target)
        for rows, lanes in ((512, 512), (64, 48), (3, 500), (50, 7)):
            tile = best_register_tile(
                TileAxis(rows, False), TileAxis(lanes, False), TileAxis(64, False), vector, True, machine
            )
            vectors = -(-tile.lanes // vector)
            assert tile.rows == 1 or (tile.rows + 1) * vectors + 1 <= machine.vector_registers
            assert tile.rows * vectors >= (8 if rows >= 50 and lanes >= 48 else 1)
