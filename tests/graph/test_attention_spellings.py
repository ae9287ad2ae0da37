"""Random spellings of attention, the factors that they have, and the masks that cannot exclude whole rows."""

import numpy as np
import onnx
import pytest
from tests.graph.attention_net import Net
from tests.graph.running import run_program
from tests.graph.test_canonicalize_attention import ROUNDOFF, B, D, H, T, feeds_of, lowered

from tilewright.expr.dtype import float32
from tilewright.expr.nodes import const
from tilewright.graph.canonicalize.attention import canonicalize_attention
from tilewright.graph.canonicalize.literal_factors import ONE
from tilewright.graph.finite_values import has_finite_elements

RNG = np.random.default_rng(11)

LAYOUTS = ("heads first", "heads last", "three dimensions", "packed", "parts of a split")
SCALES = ("queries", "keys", "both", "scores", "divided scores", "after the mask")
MASKS = ("none", "added", "added first", "selected")


def split_operands(net: Net, layout: str) -> list[str]:
    """Queries, keys and values as [batch, heads, length, size] in the way of a layout."""
    shape = np.array([B, T, H, D])
    if layout == "heads first":
        return [net.input(n, B, H, T, D) for n in "qkv"]
    if layout == "heads last":
        return [net("Transpose", net.input(n, B, T, H, D), perm=(0, 2, 1, 3)) for n in "qkv"]
    if layout == "three dimensions":
        wide = [net("Reshape", net.input(n, B, T, H * D), shape) for n in "qkv"]
        return [net("Transpose", x, perm=(0, 2, 1, 3)) for x in wide]
    x = net(
        "Add",
        net("MatMul", net.input("x", B, T, 6), RNG.standard_normal((6, 3 * H * D))),
        RNG.standard_normal(3 * H * D),
    )
    if layout == "packed":
        moved = net("Transpose", net("Reshape", x, np.array([B, T, 3, H, D])), perm=(2, 0, 3, 1, 4))
        return [net("Gather", moved, np.array(k), axis=0) for k in range(3)]
    first = net("Split", x, outputs=3, axis=2, num_outputs=3)
    parts = [first.replace("_0", f"_{k}") for k in range(3)]
    return [net("Transpose", net("Reshape", p, shape), perm=(0, 2, 1, 3)) for p in parts]


def random_spelling(rng: np.random.Generator) -> Net:
    """A model of one attention, whose result is the last value."""
    net = Net()
    layout, scale, mask = (str(rng.choice(options)) for options in (LAYOUTS, SCALES, MASKS))
    q, k, v = split_operands(net, layout)
    root = np.float32(D**-0.25)
    if scale in ("queries", "both"):
        q = net("Mul", q, root if scale == "both" else np.float32(D**-0.5))
    k = net("Transpose", k, perm=(0, 1, 3, 2))
    if scale in ("keys", "both"):
        k = net("Div", k, np.float32(1 / root if scale == "both" else D**0.5))
    s = net("MatMul", q, k)
    s = net("Mul", s, np.float32(D**-0.5)) if scale == "scores" else s
    s = net("Div", s, np.float32(D**0.5)) if scale == "divided scores" else s
    if mask == "selected":
        s = net("Where", net.input("m", B, 1, T, T, dtype=np.bool_), s, np.float32(-np.inf))
    elif mask != "none":
        added = net.input("m", *((B, 1, 1, T) if rng.random() < 0.5 else (1, H, T, T)))
        s = net("Add", *((added, s) if mask == "added first" else (s, added)))
    s = net("Mul", s, np.float32(D**-0.5)) if scale == "after the mask" else s
    if rng.random() < 0.5:
        w = net("Softmax", s)
    else:
        e = net("Exp", net("Sub", s, net("ReduceMax", s, [-1])))
        w = net("Div", e, net("ReduceSum", e, [-1]))
    y = net("MatMul", w, v)
    if rng.random() < 0.5:
        net("Reshape", net("Transpose", y, perm=(0, 2, 1, 3)), np.array([B, T, H * D]))
    return net


@pytest.mark.parametrize("seed", range(60))
def test_random_spellings_compute_what_the_model_says(seed: int) -> None:
    net = random_spelling(np.random.default_rng(seed))
    program = lowered(net.model(net.nodes[-1].output[0]))
    canonical = canonicalize_attention(program)
    assert canonical is not program
    feeds = feeds_of(net)
    with np.errstate(all="ignore"):
        (expected,) = run_program(program, feeds)
        (actual,) = run_program(canonical, feeds)
    # scores of magnitude 30 are sums of 8 terms
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2 * 30 * 12 * ROUNDOFF * np.nanmax(np.abs(expected)))


def test_masks_computed_of_integers_are_finite() -> None:
    net = Net()
    x, keep = net.input("x", 2, 3), net.input("keep", 2, 3, dtype=np.int64)
    kept = net("Cast", keep, to=onnx.TensorProto.FLOAT)
    finite = net("Mul", net("Unsqueeze", net("Sub", np.float32(1), kept), [0]), np.float32(-1e4))
    huge = net("Mul", kept, np.float32(1e30))
    infinite = net("Where", net("Cast", keep, to=onnx.TensorProto.BOOL), np.float32(0), np.float32(-np.inf))
    results = (finite, huge, infinite, net("Add", finite, x), net("Min", finite, np.float32(3)))
    program = lowered(net.model(*results))
    buffers = dict(program.outputs)
    assert [has_finite_elements(buffers[r], program.steps, program.constants) for r in results] == [
        True, False, False, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize("size", [8, 20, 64, 80, 96, 128, 1000])
def test_factors_of_all_spellings_round_to_one_value(size: int) -> None:
    def literal(x: float) -> float:
        return float(const(x, float32).value)

    expected = literal(size**-0.5)
    spelled = [
        ONE.times(literal(size**-0.5)),
        ONE.over(literal(size**0.5)),
        ONE.times(literal(size**-0.25)).times(literal(size**-0.25)),
        ONE.over(literal(size**0.25)).over(literal(size**0.25)),
        ONE.times(literal(size**0.25)).times(literal(size**-0.75)),
    ]
    assert {literal(f.rounded(float32)) for f in spelled} == {expected}


def test_single_factors_stay_as_they_are() -> None:
    for x in (0.3, -0.7, 1e-3, 12345.678, 0.1767767):
        value = float(const(x, float32).value)
        assert ONE.times(value).rounded(float32) == value
    assert ONE.times(0.3).times(0.7).rounded(float32) == pytest.approx(0.21, abs=1e-9)
