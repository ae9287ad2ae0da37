"""Attention against ONNX's reference."""

import numpy as np
import pytest
from tests.ops.harness import LATEST, NodeCase, Tolerance, check, define, reference_outputs

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.dtype import float32, float64

RNG = np.random.default_rng(29)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def compare(inputs, attributes=None, opset=LATEST, outputs=1, **options):
    case = NodeCase("Attention", inputs, attributes or {}, opset=opset, outputs=outputs)
    check(case, constants=(), tolerance=Tolerance(1e-4, 1e-5), **options)


def qkv(heads=4, kv_heads=4, queries=5, keys=7, size=8, value_size=6, batch=2):
    return [
        normal(batch, heads, queries, size),
        normal(batch, kv_heads, keys, size),
        normal(batch, kv_heads, keys, value_size),
    ]


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(
    "attributes",
    [{}, {"scale": 0.3}, {"softcap": 2.0}, {"is_causal": 1}, {"is_causal": 1, "softcap": 1.5, "scale": 2.0}],
)
def test_variants(attributes, kv_heads, opset):
    compare(qkv(kv_heads=kv_heads), attributes, opset=opset)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(("left", "right"), [(2, -1), (-1, 1), (0, 0), (1, 2), (2**62, 2**63 - 1)])
@pytest.mark.parametrize("past", [False, True])
def test_windows(left, right, causal, past):
    attributes = {"left_window_size": left, "right_window_size": right, "is_causal": causal}
    if past:
        inputs = [*qkv(queries=3, keys=3), None, normal(2, 4, 6, 8), normal(2, 4, 6, 6)]
        compare(inputs, attributes, opset=25, outputs=3)
    else:
        compare(qkv(), attributes, opset=25)
        compare([*qkv(), RNG.random((5, 7)) > 0.3], attributes, opset=25)


def test_window_sizes_below_minus_one_are_rejected():
    with pytest.raises(ShapeError, match="right_window_size: expected -1 or more, got -2"):
        define(NodeCase("Attention", qkv(), {"right_window_size": -2}, opset=25))


@pytest.mark.parametrize(("precision", "dtype"), [(1, np.float32), (11, np.float32), (1, np.float16), (10, np.float16)])
def test_softmax_precision(precision, dtype):
    inputs = [x.astype(dtype) for x in qkv()]
    expected = _attention_in_float64(inputs)
    step = 1e-5 if dtype == np.float32 else 2e-3
    attributes = {"softmax_precision": precision}
    check(
        NodeCase("Attention", inputs, attributes),
        constants=(),
        reference=lambda *_: expected,
        tolerance=Tolerance(step, step),
    )
    d, _ = define(NodeCase("Attention", inputs, attributes), constants=())
    assert {s.output.dtype for s in d.stages[1:-1]} == {float64 if precision == 11 else float32}


def test_softmax_precision_below_the_inputs_falls_back():
    for precision in (10, 16):
        with pytest.raises(UnsupportedError, match=f"softmax_precision {precision} is less precise than float32"):
            define(NodeCase("Attention", qkv(), {"softmax_precision": precision}))


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (2, 1, 5, 7), (2, 4, 5, 7), (1, 4, 1, 7)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(shape, kind):
    mask = RNG.random(shape) > 0.3 if kind == "bool" else normal(*shape)
    compare([*qkv(), mask])
    # The reference builds the causal mask with the mask's own number of rows, so it is given all of them.
    inputs = [*qkv(), mask]
    full = np.broadcast_to(mask, (2, 4, 5, 7)).copy()
    expected = reference_outputs("onnx", NodeCase("Attention", [*inputs[:3], full], {"is_causal": 1}, opset=24))
    compare(inputs, {"is_causal": 1}, reference=lambda *_: expected)


def test_short_mask_masks_the_remaining_positions():
    for mask in (normal(5, 4), RNG.random((5, 4)) > 0.3):
        compare([*qkv(), mask], symbolic=False)


def test_completely_masked_row_gives_zeros():
    mask = np.ones((5, 7), bool)
    mask[2] = False
    y = check(NodeCase("Attention", [*qkv(), mask]), constants=(), tolerance=Tolerance(1e-4, 1e-5))[0]
    assert (y[:, :, 2] == 0).all()
    assert np.isfinite(y).all()


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [0, 1])
def test_three_dimensional_inputs(kv_heads, causal):
    inputs = [normal(2, 5, 4 * 8), normal(2, 7, kv_heads * 8), normal(2, 7, kv_heads * 6)]
    attributes = {"q_num_heads": 4, "kv_num_heads": kv_heads, "is_causal": causal}
    # symbolic hidden sizes would have to be multiples of the heads; models state them
    compare(inputs, attributes, symbolic=False)
    _, (y,) = define(NodeCase("Attention", inputs, attributes))
    assert [str(n) for n in y.shape] == ["2", "5", "24"]


@pytest.mark.parametrize("causal", [0, 1])
def test_kv_cache(causal):
    inputs = [*qkv(queries=3, keys=3), None, normal(2, 4, 6, 8), normal(2, 4, 6, 6)]
    compare(inputs, {"is_causal": causal}, outputs=3)
    compare([*inputs[:3], normal(3, 9), *inputs[4:]], {"is_causal": causal}, outputs=3)


def test_half_precision_is_computed_in_float32():
    inputs = [x.astype(np.float16) for x in qkv()]
    expected = _attention_in_float64(inputs)
    check(NodeCase("Attention", inputs), constants=(), reference=lambda *_: expected, tolerance=Tolerance(1e-3, 1e-3))


def _attention_in_float64(inputs):
    """The results of exact products and sums, rounded to the inputs' type once; the reference multiplies in theirs."""
    wide = [x.astype(np.float64) for x in inputs]
    return [y.astype(inputs[0].dtype) for y in reference_outputs("onnx", NodeCase("Attention", wide, opset=24))]


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([(2, 4, 5, 8), (2, 4, 7, 9), (2, 4, 7, 6)], {}, "head size of K: expected 8, got 9"),
        ([(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 6, 6)], {}, "positions of V: expected 7, got 6"),
        ([(2, 4, 5, 8), (3, 4, 7, 8), (3, 4, 7, 6)], {}, "batch of K: expected 2, got 3"),
        ([(2, 4, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)], {}, "heads of Q: expected a multiple of 3, got 4"),
        ([(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6), (5, 8)], {}, "attn_mask: expected 7, got 8"),
        ([(2, 5, 8), (2, 7, 8), (2, 7, 8)], {}, "3-dimensional inputs need q_num_heads and kv_num_heads"),
        (
            [(2, 5, 8), (2, 7, 8), (2, 7, 8)],
            {"q_num_heads": 3, "kv_num_heads": 3},
            "Q: expected a multiple of 3 heads, got 8",
        ),
        ([(5, 8), (7, 8), (7, 8)], {}, "Q: expected 3 dimensions, got 2"),
    ],
)
def test_attention_rejects(shapes, attributes, message):
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("Attention", [normal(*s) for s in shapes], attributes))


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_output(mode):
    mask = np.where(RNG.random((5, 7)) > 0.4, normal(5, 7), -np.inf).astype(np.float32)
    mask[3] = -np.inf
    for attributes in ({}, {"softcap": 1.5, "scale": 0.7}, {"is_causal": 1}):
        attributes = attributes | {"qk_matmul_output_mode": mode}
        # with a soft cap, the reference's mode 0 is its mode 1
        expected = attributes if mode or "softcap" not in attributes else attributes | {"softcap": 0.0}
        for mask_of_case in (None, mask):
            inputs = [*qkv(kv_heads=2), mask_of_case]
            compare(inputs, attributes, outputs=4, reference=lambda *_, a=attributes, e=expected, i=inputs: [
                *reference_outputs("onnx", NodeCase("Attention", i, a, outputs=4))[:3],
                reference_outputs("onnx", NodeCase("Attention", i, e, outputs=4))[3],
            ])  # fmt: skip


def test_scores_output_beside_a_cache():
    inputs = [*qkv(queries=3, keys=3), None, normal(2, 4, 6, 8), normal(2, 4, 6, 6)]
    for mode in range(4):
        compare(inputs, {"qk_matmul_output_mode": mode, "is_causal": 1}, outputs=4)


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"left_window_size": 2}, {"right_window_size": 1}])
@pytest.mark.parametrize("lengths", [(7, 5), (0, 7), (3, 1)])
def test_numbers_of_keys_that_count(attributes, lengths):
    """Padding at the end of keys; a query that comes before the first key attends to nothing, and gives 0."""
    valid = np.array(lengths, np.int64)
    mask = RNG.random((2, 1, 5, 7)) > 0.2
    compare([*qkv(kv_heads=2), None, None, None, valid], attributes, opset=25)
    compare([*qkv(), mask, None, None, valid], attributes, opset=25)


def test_numbers_of_keys_are_checked():
    valid = np.array([3, 4])
    past = [normal(2, 4, 6, 8), normal(2, 4, 6, 6)]
    with pytest.raises(ShapeError, match="nonpad_kv_seqlen: expected none beside a past"):
        define(NodeCase("Attention", [*qkv(), None, *past, valid]), constants=())
    with pytest.raises(ShapeError, match="nonpad_kv_seqlen: expected shape"):
        define(NodeCase("Attention", [*qkv(), None, None, None, valid[:1]]), constants=())
    with pytest.raises(ShapeError, match="qk_matmul_output_mode: expected 0 to 3, got 4"):
        define(NodeCase("Attention", qkv(), {"qk_matmul_output_mode": 4}, outputs=4))
