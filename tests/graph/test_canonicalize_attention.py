"""Attention that is spelled in many ways becomes the same kernels, and computes what the model says."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import onnx
import pytest
from benchmarks.attention_spellings.spellings import SPELLINGS, Sizes, attention_model, reference
from tests.driver.unscheduled import unscheduled
from tests.graph.attention_net import Array, Net
from tests.graph.running import run_program

import tilewright
from tilewright.driver.options import CompileOptions
from tilewright.frontend.onnx import load_onnx
from tilewright.graph.canonicalize.attention import canonicalize_attention
from tilewright.graph.kernel import Kernel
from tilewright.graph.lower import lower_graph
from tilewright.graph.passes import simplify_graph
from tilewright.graph.program import Program
from tilewright.lower.abstract_sizes import implied_ranges
from tilewright.optimize.kernel_task import TaskContext, make_kernel_task

RNG = np.random.default_rng(7)
ROUNDOFF = 2.0**-24


def task_hashes(model: onnx.ModelProto) -> Counter[str]:
    """The tasks of a model's kernels, with the number of kernels of each."""
    program, units, target = unscheduled(model, CompileOptions(optimizer="rule"))
    context = TaskContext(program.symbols, target, implied_ranges(program))
    constants = frozenset(program.constants)
    return Counter(make_kernel_task(u, constants, context).key for u in units if isinstance(u, Kernel))


@cache
def eager_hashes(sizes: Sizes) -> Counter[str]:
    """The tasks of the spelling that others are compared with."""
    return task_hashes(attention_model("eager", sizes))


@pytest.mark.parametrize("spelling", list(SPELLINGS))
@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(1, 128, 12, 64),
        Sizes(2, 40, 3, 20),
        Sizes(3, 2, 2, 80),
        Sizes(1, 7, 1, 8),
        Sizes("batch", "length", 4, 16),
    ],
    ids=["base", "odd", "short", "one-head", "symbolic"],
)
def test_all_spellings_are_the_same_tasks(spelling: str, sizes: Sizes) -> None:
    if sizes.batch == "batch" and spelling == "contrib-grouped":
        pytest.skip("its lengths are an input where the batch is symbolic, so it computes more")
    assert task_hashes(attention_model(spelling, sizes)) == eager_hashes(sizes)


# equal tasks become equal kernels, so what differs between spellings is around them
@pytest.mark.usefixtures("reuse_code")
@pytest.mark.parametrize("spelling", list(SPELLINGS))
def test_results_of_all_spellings_against_float64(spelling: str) -> None:
    sizes = Sizes(2, 19, 3, 20)
    x = RNG.standard_normal((2, 19, 60)).astype(np.float32)
    keep = np.ones((2, 19), np.int64)
    keep[0, 11:] = 0
    y = tilewright.compile(attention_model(spelling, sizes))(x, keep)
    expected = reference(sizes, x, keep)
    # sums of 60 and 19 terms, scores of magnitude 10
    assert np.abs(y - expected).max() <= 20 * 60 * ROUNDOFF * np.abs(expected).max()


def lowered(model: onnx.ModelProto) -> Program:
    return lower_graph(simplify_graph(load_onnx(model)))


def is_canonical(model: onnx.ModelProto) -> bool:
    program = lowered(model)
    return canonicalize_attention(program) is not program


B, H, S, T, D = 2, 4, 5, 7, 8
MASK = (B, 1, S, T)


def operands(net: Net, kv_heads: int = H) -> tuple[str, str, str]:
    q = net.input("q", B, H, S, D)
    return q, net.input("k", B, kv_heads, T, D), net.input("v", B, kv_heads, T, D)


def softmax64(scores: Array, v: Array) -> Array:
    """The attention in float64; rows of -inf give NaN."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ v


Variant = Callable[[Net], str]


def scaled_queries(net: Net) -> str:
    q, k, v = operands(net)
    s = net("MatMul", net("Mul", q, np.float32(D**-0.5)), net("Transpose", k, perm=(0, 1, 3, 2)))
    return net("MatMul", net("Softmax", net("Add", s, net.input("m", *MASK))), v)


def divided_keys(net: Net) -> str:
    q, k, v = operands(net)
    s = net("MatMul", q, net("Transpose", net("Div", k, np.float32(D**0.5)), perm=(0, 1, 3, 2)))
    return net("MatMul", net("Softmax", net("Add", net.input("m", *MASK), s)), v)


def both_by_roots(net: Net) -> str:
    q, k, v = operands(net)
    root = np.float32(D**-0.25)
    s = net("MatMul", net("Mul", q, root), net("Mul", root, net("Transpose", k, perm=(0, 1, 3, 2))))
    return net("MatMul", net("Softmax", net("Add", s, net.input("m", *MASK))), v)


def einsum(net: Net) -> str:
    q, k, v = operands(net)
    s = net("Div", net("Einsum", q, k, equation="bhsd,bhtd->bhst"), np.float32(D**0.5))
    return net("Einsum", net("Softmax", net("Add", s, net.input("m", *MASK))), v, equation="bhst,bhtd->bhsd")


def spelled_out_softmax(net: Net) -> str:
    q, k, v = operands(net)
    s = net("Mul", net("MatMul", q, net("Transpose", k, perm=(0, 1, 3, 2))), np.float32(D**-0.5))
    s = net("Add", s, net.input("m", *MASK))
    e = net("Exp", net("Sub", s, net("ReduceMax", s, [-1])))
    return net("MatMul", net("Div", e, net("ReduceSum", e, [-1])), v)


def multiplied_inverse(net: Net) -> str:
    q, k, v = operands(net)
    s = net("Mul", net("MatMul", q, net("Transpose", k, perm=(0, 1, 3, 2))), np.float32(D**-0.5))
    s = net("Add", s, net.input("m", *MASK))
    e = net("Exp", net("Sub", s, net("ReduceMax", s, [-1])))
    return net("MatMul", net("Mul", e, net("Div", np.float32(1), net("ReduceSum", e, [-1]))), v)


SAME_FUNCTION: Mapping[str, Variant] = {
    f.__name__: f
    for f in (scaled_queries, divided_keys, both_by_roots, einsum, spelled_out_softmax, multiplied_inverse)
}


def feeds_of(net: Net, sizes: Mapping[str, int] | None = None, scale: float = 1.0) -> dict[str, Array]:
    result: dict[str, Array] = {}
    for name, (dtype, shape) in net.inputs.items():
        actual = [n if isinstance(n, int) else (sizes or {})[n] for n in shape]
        values = RNG.standard_normal(actual) * scale
        result[name] = values > -0.5 if dtype is np.bool_ else values.astype(dtype)
    return result


def bound(scores: Array, v: Array) -> float:
    """Of the error of an attention with D features: its scores' errors are relative errors of its weights."""
    finite = np.abs(scores[np.isfinite(scores)]).max(initial=1.0)
    return float((2 * (D + 4) * finite + scores.shape[-1] + 16) * ROUNDOFF * np.abs(v).max())


@pytest.mark.parametrize("name", list(SAME_FUNCTION))
def test_scales_of_operands_are_the_same_tasks(name: str) -> None:
    net, other = Net(), Net()
    model = net.model(SAME_FUNCTION[name](net))
    assert task_hashes(model) == task_hashes(other.model(scaled_queries(other)))
    feeds = feeds_of(net)
    q, k, v, m = (feeds[n].astype(float) for n in "qkvm")
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(D) + m
    y = tilewright.compile(model).run(feeds)
    (actual,) = y.values()
    assert np.abs(actual - softmax64(scores, v)).max() <= bound(scores, v)


def random_mask(net: Net) -> str:
    return net.input("m", *MASK)


def repeated_heads(net: Net, mask: Variant = random_mask) -> str:
    """Grouped-query attention as exporters write it: keys and values are repeated."""
    q, k, v = operands(net, kv_heads=2)

    def repeat(x: str) -> str:
        wide = net("Expand", net("Unsqueeze", x, [2]), np.array([B, 2, H // 2, T, D]))
        return net("Reshape", wide, np.array([B, H, T, D]))

    s = net("MatMul", q, net("Transpose", repeat(k), perm=(0, 1, 3, 2)))
    s = net("Add", net("Mul", s, np.float32(D**-0.5)), mask(net))
    return net("MatMul", net("Softmax", s), repeat(v))


def soft_cap(net: Net) -> str:
    q, k, v = operands(net)
    s = net("Mul", net("MatMul", q, net("Transpose", k, perm=(0, 1, 3, 2))), np.float32(D**-0.5))
    s = net("Mul", net("Tanh", net("Div", s, np.float32(2.0))), np.float32(2.0))
    return net("MatMul", net("Softmax", net("Add", s, net.input("m", *MASK))), v)


def boolean_mask(net: Net) -> str:
    q, k, v = operands(net)
    s = net("MatMul", q, net("Transpose", k, perm=(0, 1, 3, 2)))
    s = net("Where", net.input("m", *MASK, dtype=np.bool_), s, np.float32(-np.inf))
    return net("MatMul", net("Softmax", net("Mul", s, np.float32(D**-0.5))), v)


def relative_bias(net: Net) -> str:
    q, k, v = operands(net)
    s = net("MatMul", q, net("Transpose", k, perm=(0, 1, 3, 2)))
    s = net("Mul", net("Add", s, net.input("m", 1, H, S, T)), np.float32(D**-0.5))
    return net("MatMul", net("Softmax", s), v)


VARIANTS = {f.__name__: f for f in (repeated_heads, soft_cap, boolean_mask, relative_bias)}


def expected_of(name: str, feeds: Mapping[str, Array]) -> tuple[Array, Array]:
    """The scores and the result of a variant in float64."""
    q, k, v = (feeds[n].astype(float) for n in "qkv")
    m = feeds["m"]
    if name == "repeated_heads":
        k, v = np.repeat(k, 2, 1), np.repeat(v, 2, 1)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(D)
    if name == "boolean_mask":
        scores = np.where(m, scores, -np.inf)
    elif name == "relative_bias":
        scores = scores + m / np.sqrt(D)
    else:
        scores = (2 * np.tanh(scores / 2) if name == "soft_cap" else scores) + m
    return scores, softmax64(scores, v)


@pytest.mark.parametrize("name", list(VARIANTS))
def test_variants_against_float64(name: str) -> None:
    net = Net()
    model = net.model(VARIANTS[name](net))
    assert is_canonical(model)
    feeds = feeds_of(net)
    if name == "boolean_mask":
        feeds["m"][1, 0, 2] = False
    scores, expected = expected_of(name, feeds)
    (actual,) = tilewright.compile(model).run(feeds).values()
    assert (np.isnan(actual) == np.isnan(expected)).all()
    assert np.nanmax(np.abs(actual - expected)) <= bound(scores, feeds["v"])
    if name == "boolean_mask":
        assert np.isnan(actual[1, :, 2]).all()


def finite_mask(net: Net) -> str:
    keep = net("Cast", net.input("keep", *MASK, dtype=np.int64), to=onnx.TensorProto.FLOAT)
    return net("Mul", net("Sub", np.float32(1), keep), np.float32(-1e4))


def test_repeated_heads_and_grouped_heads_are_the_same_tasks() -> None:
    net, other = Net(), Net()
    q, k, v = operands(net, kv_heads=2)
    grouped = net.model(net("Attention", q, k, v, finite_mask(net)))
    assert task_hashes(other.model(repeated_heads(other, finite_mask))) == task_hashes(grouped)


def cached(net: Net) -> tuple[str, str, str]:
    """Attention of new positions and a past of any length, causal, as one operator."""
    new = [net.input(n, B, H, "new", D) for n in ("q", "k", "v")]
    past = [net.input(n, B, H, "past", D) for n in ("pk", "pv")]
    y = net("Attention", *new, "", *past, outputs=3, is_causal=1)
    return y, y.replace("_0", "_1"), y.replace("_0", "_2")


@pytest.mark.parametrize(("new", "past"), [(1, 0), (1, 1), (1, 13), (4, 0), (4, 9), (0, 3)])
def test_a_cache_of_any_length(new: int, past: int) -> None:
    net = Net()
    model = net.model(*cached(net))
    assert is_canonical(model)
    feeds = feeds_of(net, {"new": new, "past": past})
    q, k, v, pk, pv = (feeds[n].astype(float) for n in ("q", "k", "v", "pk", "pv"))
    k, v = np.concatenate([pk, k], 2), np.concatenate([pv, v], 2)
    allowed = np.arange(past + new) <= np.arange(new)[:, None] + past
    scores = np.where(allowed, q @ k.swapaxes(-1, -2) / np.sqrt(D), -np.inf)
    y = next(iter(tilewright.compile(model, shapes={"new": "0..64", "past": "0..512"}).run(feeds).values()))
    assert y.shape == q.shape
    assert new == 0 or np.abs(y - softmax64(scores, v)).max() <= bound(scores, v)


def test_no_keys_at_all() -> None:
    net = Net()
    q, k, v = net.input("q", 1, 2, "new", D), net.input("k", 1, 2, "keys", D), net.input("v", 1, 2, "keys", D)
    s = net("MatMul", q, net("Transpose", k, perm=(0, 1, 3, 2)))
    model = net.model(net("MatMul", net("Softmax", s), v))
    assert is_canonical(model)
    compiled = tilewright.compile(model, shapes={"keys": "0..64"})
    (y,) = compiled.run(feeds_of(net, {"new": 3, "keys": 0})).values()
    assert (y == 0).all()


def guarded_weights(net: Net) -> str:
    """PyTorch's exporter replaces weights that are NaN, as those of a row that is masked whole, by 0."""
    q, k, v = operands(net)
    s = net("MatMul", q, net("Transpose", k, perm=(0, 1, 3, 2)))
    s = net("Where", net.input("m", *MASK, dtype=np.bool_), net("Mul", s, np.float32(D**-0.5)), np.float32(-np.inf))
    w = net("Softmax", s)
    return net("MatMul", net("Where", net("IsNaN", w), np.float32(0), w), v)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("variant", [boolean_mask, guarded_weights])
def test_nan_and_infinity_are_those_of_the_model(bad: float, where: str, variant: Variant) -> None:
    net = Net()
    program = lowered(net.model(variant(net)))
    assert canonicalize_attention(program) is not program
    feeds = feeds_of(net)
    feeds["m"][1, 0, 4] = False
    feeds["m"][:, :, :, 3] = False
    feeds[where][1, 2, 3] = bad
    with np.errstate(all="ignore"):
        (expected,) = run_program(program, feeds)
        (actual,) = run_program(canonicalize_attention(program), feeds)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_guards_against_nan_change_one_kernel() -> None:
    net, other = Net(), Net()
    guarded = task_hashes(net.model(guarded_weights(net)))
    plain = task_hashes(other.model(boolean_mask(other)))
    assert sum((guarded - plain).values()) == sum((plain - guarded).values()) == 1


def test_guarded_rows_that_are_masked_whole_are_zeros() -> None:
    net = Net()
    model = net.model(guarded_weights(net))
    feeds = feeds_of(net)
    feeds["m"][1, 0, 2] = False
    _, expected = expected_of("boolean_mask", feeds)
    (actual,) = tilewright.compile(model).run(feeds).values()
    assert (actual[1, :, 2] == 0).all()
    np.testing.assert_allclose(actual, np.nan_to_num(expected), rtol=1e-5, atol=1e-6)


def test_intermediates_that_the_model_returns_are_left() -> None:
    net = Net()
    q, k, v = operands(net)
    w = net("Softmax", net("MatMul", q, net("Transpose", k, perm=(0, 1, 3, 2))))
    assert not is_canonical(net.model(net("MatMul", w, v), w))


def test_a_product_of_two_softmaxes_is_not_attention() -> None:
    net = Net()
    x, y = net.input("x", 3, 4), net.input("y", 4, 3)
    assert not is_canonical(net.model(net("MatMul", net("Softmax", x), y)))


def test_products_with_weights_are_not_attention() -> None:
    net = Net()
    x = net.input("x", 3, 4)
    s = net("Softmax", net("MatMul", x, RNG.standard_normal((4, 5))))
    assert not is_canonical(net.model(net("MatMul", s, RNG.standard_normal((5, 6)))))
