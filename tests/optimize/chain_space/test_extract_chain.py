"""Chains of kernels: axes, statements, online sums, axes that have to be one tile, and kernels that are no chain."""

import pytest
from tests.optimize.chains import task_of
from tests.tile.trees import attention, func_of, inverted_residual, product, two_products

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Expr
from tilewright.machine.shipped import machine_named
from tilewright.optimize.chains.expression import expression_text
from tilewright.optimize.chains.extract_chain import extract_chain
from tilewright.optimize.chains.optimizer import ChainOptimizer
from tilewright.optimize.chains.problem import Chain, ChainWork
from tilewright.optimize.chains.pruning import ChainSpace
from tilewright.optimize.chains.refusal_text import with_result_axes
from tilewright.optimize.chains.search import search
from tilewright.tile.shape_samples import ShapeSamples


def chain_of(result: tw.Tensor) -> Chain:
    return extract_chain(func_of(result))


def test_two_products_with_a_rectifier() -> None:
    chain = chain_of(two_products(128, 96, 48, 64))
    assert [(a.name, a.extent) for a in chain.axes] == [("v_i", 128), ("v_j", 96), ("v_k", 48), ("v_j_2", 64)]
    c, r, e = chain.statements
    assert (c.reductions, e.reductions) == ({"v_k"}, {"v_j"})
    assert [s.is_contraction for s in chain.statements] == [True, False, True]
    assert [s.reads for s in chain.statements] == [(), ("C",), ("R",)]
    assert [x.name for s in chain.statements for x in s.loads] == ["A", "B", "D"]
    assert c.work == (ChainWork(frozenset(("v_i", "v_j", "v_k")), 2.0),)
    assert r.work == (ChainWork(frozenset(("v_i", "v_j")), 2.0),)
    assert [s.is_output for s in chain.statements] == [False, False, True]
    assert chain.grid_axes == {"v_i", "v_j_2"}


def test_attention_uses_the_running_maximum_and_sum() -> None:
    chain = chain_of(attention(64, 128, 32))
    s, m, total, o = chain.statements
    assert (s.online, m.online) == (frozenset(), frozenset())
    assert total.online == {"m"}
    assert o.online == {"m", "L"}
    assert not any(a.is_whole for a in chain.axes)
    exponentials = next(w for w in o.work if w.axes == {"v_i", "v_j"})
    assert exponentials.flops > 16
    assert next(w for w in o.work if w.axes == {"v_i", "v_j", "v_h"}).flops == 2


def softmax_in_steps(*, normalised: bool) -> tw.Tensor:
    """softmax(Q K^T + M) V, with probabilities in a block of their own."""
    q, k, v = (tw.placeholder((64, 32), name=name) for name in "QKV")
    mask = tw.placeholder((64, 64), name="M")
    e, c, d, f = tw.reduce_axis(32, "e"), tw.reduce_axis(64, "c"), tw.reduce_axis(64, "d"), tw.reduce_axis(64, "f")
    score = tw.compute((64, 64), lambda i, j: tw.sum(q[i, e] * k[j, e], e), "S")
    masked = tw.compute((64, 64), lambda i, j: score[i, j] * 0.125 + mask[i, j], "T")
    largest = tw.compute((64,), lambda i: tw.max(masked[i, c], c), "m")
    power = tw.compute((64, 64), lambda i, j: tw.exp(masked[i, j] - largest[i]), "P")
    total = tw.compute((64,), lambda i: tw.sum(power[i, d], d), "L")
    if normalised:
        weight = tw.compute((64, 64), lambda i, j: power[i, j] / total[i], "W")
        return tw.compute((64, 32), lambda i, h: tw.sum(weight[i, f] * v[f, h], f), "O")
    return tw.compute((64, 32), lambda i, h: tw.sum(power[i, f] / total[i] * v[f, h], f), "O")


@pytest.mark.parametrize("normalised", [True, False])
def test_probabilities_in_a_block_of_their_own_are_rescaled_with_their_readers(normalised: bool) -> None:
    chain = chain_of(softmax_in_steps(normalised=normalised))
    assert not any(a.is_whole for a in chain.axes)
    assert chain.statement("P").online == {"m"}
    assert chain.statement("O").online == (frozenset() if normalised else {"L"})
    assert [x.name for x in chain.statement("T").loads] == ["M"]


def normalised_product(rows: int, depth: Expr | int) -> tw.Tensor:
    """E = relu(norm(X) B) D, where norm divides by the sum of squares of a row."""
    x, b, d = (
        tw.placeholder(shape, name=name) for shape, name in (((rows, depth), "X"), ((depth, 64), "B"), ((64, 32), "D"))
    )
    p, k, n = tw.reduce_axis(depth, "p"), tw.reduce_axis(depth, "k"), tw.reduce_axis(64, "n")
    centred = tw.compute((rows, depth), lambda i, j: x[i, j] - 1.0, "X0")
    square = tw.compute((rows,), lambda i: tw.sum(centred[i, p] * centred[i, p], p), "S")
    scaled = tw.compute((rows, depth), lambda i, j: tw.tanh(centred[i, j] / square[i]), "X1")
    c = tw.compute((rows, 64), lambda i, j: tw.sum(scaled[i, k] * b[k, j], k), "C")
    return tw.compute((rows, 32), lambda i, j: tw.sum(tw.maximum(c[i, n], 0.0) * d[n, j], n), "E")


def test_an_axis_whose_sum_is_needed_finished_is_one_tile() -> None:
    chain = chain_of(normalised_product(64, 96))
    whole = [a.name for a in chain.axes if a.is_whole]
    assert [chain.axis(a).extent for a in whole] == [96]
    assert set(whole) == chain.statement("C").reductions
    best = search(ChainSpace.of(chain, machine_named("zen5"))).best
    assert best is not None
    assert best.tiling.tile(whole[0]) == 96


def test_a_symbolic_axis_cannot_be_one_tile() -> None:
    depth = tw.symbol("K", 1, 4096)
    with pytest.raises(ScheduleError, match="has to be one tile, but its size is symbolic"):
        chain_of(normalised_product(64, depth))


def heads(batch: int, count: int, keys_heads: int) -> tw.Tensor:
    """Attention scores times values for several heads, groups of which share keys and values, without a softmax."""
    group = count // keys_heads
    q = tw.placeholder((batch, count, 64, 16), name="Q")
    k, v = (tw.placeholder((batch, keys_heads, 48, 16), name=name) for name in "KV")
    e, c = tw.reduce_axis(16, "e"), tw.reduce_axis(48, "c")
    score = tw.compute(
        (batch, count, 64, 48), lambda b, h, i, j: tw.sum(q[b, h, i, e] * k[b, h // group, j, e], e), "S"
    )
    return tw.compute(
        (batch, count, 64, 16), lambda b, h, i, d: tw.sum(score[b, h, i, c] * v[b, h // group, c, d], c), "O"
    )


@pytest.mark.parametrize("keys_heads", [4, 2])
def test_heads_are_batches(keys_heads: int) -> None:
    chain = chain_of(heads(2, 4, keys_heads))
    assert [chain.axis(a).extent for a in chain.batch] == [2, 4]
    best = search(ChainSpace.of(chain, machine_named("zen5"))).best
    assert best is not None
    assert expression_text(best.tiling.expression).startswith("v_b v_h")


def test_symbolic_sizes_have_samples() -> None:
    n, t = tw.symbol("N", 1, 4096), tw.symbol("T", 1, 4096)
    func = func_of(attention(n, t, 16))
    samples = ShapeSamples.of(func.symbols)
    chain = extract_chain(func, samples)
    rows, keys = chain.axes[:2]
    assert (rows.is_symbolic, keys.is_symbolic) == (True, True)
    assert rows.extent == next(iter(samples.representative.values()))
    assert [tuple(a.extent for a in s.axes[:2]) for s in chain.samples] == [tuple(s.values()) for s in samples.shapes]
    assert rows.largest == max(s.axes[0].extent for s in chain.samples)
    best = search(ChainSpace.of(chain, machine_named("zen5"))).best
    assert best is not None
    assert {rows.name, keys.name} <= set(expression_text(best.tiling.expression).split())


def test_one_product_is_no_chain() -> None:
    with pytest.raises(ScheduleError, match="expected two or more contractions, got 1"):
        chain_of(product(64, 64, 64))


def test_windows_of_an_intermediate_are_no_chain() -> None:
    with pytest.raises(ScheduleError, match="reads 'A' other than element by element along its own axes"):
        chain_of(inverted_residual(10, 8, 32, 24))


def test_refusals_name_results_and_their_axes() -> None:
    func = func_of(normalised_product(64, tw.symbol("K", 1, 4096)))
    construction = ChainOptimizer(machine=machine_named("zen5")).construct(task_of(func))
    assert construction.refusal == "axis 1 of 'X0' has to be one tile, but its size is symbolic"
    places = with_result_axes("axis 'v_j_2' and 'v_n' and 'E' and 'v_q'", func_of(two_products(128, 96, 48, 64)))
    assert places == "axis 1 of 'E' and 'v_n' and 'E' and 'v_q'"
