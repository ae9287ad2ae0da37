"""ONNX Runtime's attention operators against ONNX Runtime."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, Tolerance, check, define, reference_outputs

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.nodes import Symbol, const

RNG = np.random.default_rng(24)
CLOSE = Tolerance(2e-5, 2e-5)


def normal(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def compare(op, inputs, attributes, outputs=1, constants=(), symbolic=True, **options):
    case = NodeCase(op, inputs, attributes, opset=20, outputs=outputs, domain="com.microsoft")
    return check(case, constants=constants, reference="ort", tolerance=CLOSE, symbolic=symbolic, **options)


def ints(*values):
    return np.array(values, np.int32)


MASKS = {
    "none": None,
    "ends": ints(3, 6),
    "ranges": ints(5, 6, 1, 0),
    "keys": (RNG.random((2, 6)) > 0.3).astype(np.int32),
    "queries": (RNG.random((2, 6, 6)) > 0.3).astype(np.int32),
}


class TestAttention:
    """B = 2, S = 6, 3 heads of 4."""

    x, weights, bias = normal(2, 6, 10), normal(10, 36, scale=0.4), normal(36)

    @pytest.mark.parametrize("mask", list(MASKS))
    @pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}, {"scale": 0.7, "mask_filter_value": -5.0}])
    def test_masks(self, mask, attributes):
        compare(
            "Attention", [self.x, self.weights, self.bias, MASKS[mask]], {"num_heads": 3, **attributes}, symbolic=False
        )

    @pytest.mark.parametrize("shape", [(2, 3, 6, 6), (1, 3, 6, 6), (2, 1, 6, 6), (1, 1, 6, 6)])
    def test_attention_bias(self, shape):
        inputs = [self.x, self.weights, self.bias, MASKS["keys"], None, normal(*shape)]
        compare("Attention", inputs, {"num_heads": 3}, symbolic=False)

    def test_values_of_another_size(self):
        inputs = [self.x, normal(10, 12 + 12 + 6), normal(30)]
        compare("Attention", inputs, {"num_heads": 3, "qkv_hidden_sizes": [12, 12, 6]}, symbolic=False)

    @pytest.mark.parametrize("past", [0, 1, 5])
    @pytest.mark.parametrize("causal", [0, 1])
    @pytest.mark.parametrize("queries", [1, 4])
    def test_past(self, past, causal, queries):
        mask = (RNG.random((2, past + queries)) > 0.3).astype(np.int32)
        inputs = [normal(2, queries, 10), self.weights, self.bias, mask, normal(2, 2, 3, past, 4)]
        compare("Attention", inputs, {"num_heads": 3, "unidirectional": causal}, outputs=2, symbolic=False)

    def test_symbolic_sizes(self):
        inputs = [normal(2, 7, 10), self.weights, self.bias, None, normal(2, 2, 3, 5, 4)]
        sizes = {(1, 0): 10, (1, 1): 36, (2, 0): 36}
        batch, length, past = Symbol("b", 1, 9), Symbol("s", 1, 99), Symbol("p", 0, 99)
        fixed = {k: const(n) for k, n in sizes.items()}
        fixed |= {(0, 0): batch, (0, 1): length, (0, 2): const(10), (4, 0): const(2), (4, 1): batch, (4, 2): const(3)}
        fixed |= {(4, 3): past, (4, 4): const(4)}
        compare("Attention", inputs, {"num_heads": 3, "unidirectional": 1}, outputs=2, sizes=fixed)


class TestMultiHeadAttention:
    """B = 2, S = 6 (keys 5), 3 heads of 4; values of 2."""

    query, key, value = normal(2, 6, 12), normal(2, 5, 12), normal(2, 5, 6)

    @pytest.mark.parametrize("attributes", [{}, {"scale": 0.3}])
    @pytest.mark.parametrize("bias", [False, True])
    def test_cross_attention(self, attributes, bias):
        inputs = [self.query, self.key, self.value, normal(30) if bias else None]
        compare("MultiHeadAttention", inputs, {"num_heads": 3, **attributes}, symbolic=False)

    @pytest.mark.parametrize("mask", [ints(2, 5), "keys", "queries"])
    @pytest.mark.parametrize("filter_value", [-10000.0, -3.0])
    def test_padding_masks(self, mask, filter_value):
        shape = {"keys": (2, 5), "queries": (2, 6, 5)}.get(mask if isinstance(mask, str) else "")
        mask = mask if shape is None else (RNG.random(shape) > 0.3).astype(np.int32)
        inputs = [self.query, self.key, self.value, None, mask]
        compare("MultiHeadAttention", inputs, {"num_heads": 3, "mask_filter_value": filter_value}, symbolic=False)

    @pytest.mark.parametrize("shape", [(2, 3, 6, 5), (1, 3, 6, 5), (2, 1, 6, 5), (1, 1, 6, 5)])
    def test_attention_bias(self, shape):
        inputs = [self.query, self.key, self.value, None, None, normal(*shape)]
        compare("MultiHeadAttention", inputs, {"num_heads": 3}, symbolic=False)

    def test_causal(self):
        inputs = [normal(2, 6, 12) for _ in range(3)]
        compare("MultiHeadAttention", inputs, {"num_heads": 3, "unidirectional": 1}, symbolic=False)

    @pytest.mark.parametrize("past", [0, 1, 7])
    @pytest.mark.parametrize("causal", [0, 1])
    def test_past(self, past, causal):
        inputs = [normal(2, 3, 12) for _ in range(3)]
        inputs += [None, None, None, normal(2, 3, past, 4), normal(2, 3, past, 4)]
        compare("MultiHeadAttention", inputs, {"num_heads": 3, "unidirectional": causal}, outputs=3, symbolic=False)

    def test_keys_of_another_call(self):
        inputs = [self.query, normal(2, 3, 5, 4), normal(2, 3, 5, 4)]
        compare("MultiHeadAttention", inputs, {"num_heads": 3}, symbolic=False)

    def test_packed_inputs(self):
        # ONNX Runtime has them on GPUs only, so that the reference gets them unpacked
        def separate(*parts):
            *first, packed = parts
            parts = [*first, *(packed[:, :, :, k].reshape(2, 5, 12) for k in range(packed.shape[3]))]
            case = NodeCase("MultiHeadAttention", parts, {"num_heads": 3}, opset=20, domain="com.microsoft")
            return reference_outputs("ort", case)

        for inputs in ([self.query, normal(2, 5, 3, 2, 4)], [normal(2, 5, 3, 3, 4)]):
            case = NodeCase("MultiHeadAttention", inputs, {"num_heads": 3}, opset=20, domain="com.microsoft")
            check(case, constants=(), reference=separate, tolerance=CLOSE, symbolic=False)


class TestGroupQueryAttention:
    """4 heads in groups of 2, of size 16."""

    @staticmethod
    def inputs(batch, new, past, lengths, room=None, packed=False):
        q, k, v = normal(batch, new, 64), normal(batch, new, 32), normal(batch, new, 32)
        total = max(lengths)
        cache = [None, None] if past is None else [normal(batch, 2, room or past, 16) for _ in range(2)]
        first = [np.concatenate([q, k, v], -1), None, None] if packed else [q, k, v]
        return [*first, *cache, ints(*(n - 1 for n in lengths)), np.array(total, np.int32)]

    def compare(self, inputs, attributes=None, outputs=3, rows=None):
        heads = {"num_heads": 4, "kv_num_heads": 2, **(attributes or {})}
        compare("GroupQueryAttention", inputs, heads, outputs, constants=(6,), symbolic=False)

    @pytest.mark.parametrize("packed", [False, True])
    @pytest.mark.parametrize(
        "attributes",
        [{}, {"softcap": 3.0}, {"scale": 0.4}, {"local_window_size": 2}, {"smooth_softmax": 1}, {"causal": 0}],
    )
    def test_first_prompt(self, attributes, packed):
        self.compare(self.inputs(2, 7, None, [7, 7], packed=packed), attributes)

    @pytest.mark.parametrize("attributes", [{}, {"softcap": 3.0}, {"local_window_size": 3}, {"causal": 0}])
    def test_one_new_position(self, attributes):
        self.compare(self.inputs(2, 1, 8, [9, 9]), attributes)
        self.compare(self.inputs(2, 1, 8, [9, 6]), attributes)

    @pytest.mark.parametrize("attributes", [{}, {"local_window_size": 3}])
    def test_several_new_positions(self, attributes):
        self.compare(self.inputs(1, 3, 5, [8]), attributes)

    @pytest.mark.parametrize("interleaved", [0, 1])
    @pytest.mark.parametrize("pairs", [8])
    @pytest.mark.parametrize(("new", "past", "lengths"), [(5, None, [5, 5]), (1, 6, [7, 4]), (3, 4, [7])])
    def test_rotary(self, interleaved, pairs, new, past, lengths):
        angles = RNG.uniform(-3, 3, (12, pairs))
        inputs = self.inputs(len(lengths), new, past, lengths)
        inputs += [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
        self.compare(inputs, {"do_rotary": 1, "rotary_interleaved": interleaved})

    @pytest.mark.parametrize("shape", [(2, 4), (1, 4), (2, 1), (1, 1)])
    def test_attention_bias(self, shape):
        inputs = [*self.inputs(2, 5, None, [5, 5]), None, None, None, normal(*shape, 5, 5)]
        self.compare(inputs)

    def test_head_sink(self):
        self.compare([*self.inputs(2, 5, None, [5, 5]), None, None, None, None, normal(4)])

    def test_room_in_the_cache(self):
        inputs = self.inputs(2, 1, 6, [7, 4], room=6)
        values = compare("GroupQueryAttention", inputs, {"num_heads": 4, "kv_num_heads": 2}, 3, (6,), symbolic=False)
        assert (values[1][1, :, 4:] == 0).all()


def refusal(error, op, inputs, attributes, outputs=1, constants=()):
    case = NodeCase(op, inputs, attributes, opset=20, outputs=outputs, domain="com.microsoft")
    with pytest.raises(error) as error_info:
        define(case, constants=constants)
    return str(error_info.value)


QKV = [normal(2, 6, 12) for _ in range(3)]
QUANTIZED = [np.ones((2, 6, 10), np.uint8), np.ones((10, 36), np.int8), normal(36), np.float32(0.1), np.float32(0.1)]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error", "message"),
    [
        ("Attention", [normal(2, 6, 10), normal(10, 36)], {"num_heads": 3, "do_rotary": 1}, UnsupportedError,
         "do_rotary is not supported"),
        ("QAttention", QUANTIZED, {"num_heads": 3, "past_present_share_buffer": 1}, UnsupportedError,
         "past_present_share_buffer is not supported"),
        ("Attention", [normal(2, 6, 10), normal(10, 36)], {"num_heads": 0}, ShapeError,
         "num_heads: expected 1 or more, got 0"),
        ("Attention", [normal(2, 6, 10), normal(10, 36)], {"num_heads": 5}, ShapeError,
         "weights: expected a multiple of 15 columns, got 36"),
        ("Attention", [normal(2, 6, 10), normal(10, 36)], {"num_heads": 3, "qkv_hidden_sizes": [12, 9, 15]}, ShapeError,
         "qkv_hidden_sizes: expected three multiples of 3, the first two equal, got [12, 9, 15]"),
        ("Attention", [normal(2, 6, 10), normal(10, 36), None, ints(1, 2, 3)], {"num_heads": 3}, ShapeError,
         "mask: expected 2 or 4 lengths, got [3]"),
        ("Attention", [normal(2, 6, 10), normal(10, 36), None, np.ones((2, 1, 6, 6), np.int32)], {"num_heads": 3},
         UnsupportedError, "a mask with four dimensions is not supported"),
        ("MultiHeadAttention", QKV, {"num_heads": 5}, ShapeError, "query: expected a multiple of 5 heads, got 12"),
        ("MultiHeadAttention", QKV[:1], {"num_heads": 3}, ShapeError, "input 1 (key) is missing"),
        ("MultiHeadAttention", [*QKV, None, None, normal(2, 3, 6, 7)], {"num_heads": 3}, ShapeError,
         "attention_bias: expected shape [2, 3, 6, 6], got [2, 3, 6, 7]"),
        ("GroupQueryAttention", [*QKV, None, None, ints(5, 5), np.int32(6)], {"num_heads": 3, "kv_num_heads": 2},
         ShapeError, "num_heads: expected a multiple of kv_num_heads, got 3 and 2"),
        ("GroupQueryAttention", [*QKV, None, None, ints(5, 5), np.int32(7)], {"num_heads": 3, "kv_num_heads": 3},
         ShapeError, "total_sequence_length: expected 6 without a past, got 7"),
        ("GroupQueryAttention", [*QKV, None, None, ints(5, 5), np.int32(6)],
         {"num_heads": 3, "kv_num_heads": 3, "causal": 0, "local_window_size": 2}, ShapeError,
         "local_window_size: expected -1, or 1 or more with causal=1, got 2"),
        ("GroupQueryAttention", [*QKV, None, None, ints(5, 5), np.int32(6)],
         {"num_heads": 3, "kv_num_heads": 3, "k_quant_type": "PER_TENSOR"}, UnsupportedError,
         "k_quant_type PER_TENSOR is not supported"),
    ],
)  # fmt: skip
def test_what_is_refused(op, inputs, attributes, error, message):
    assert message in refusal(error, op, inputs, attributes, constants=(6,))


def test_a_length_that_depends_on_data_is_refused():
    inputs = [*QKV, None, None, ints(5, 5), np.int32(6)]
    attributes = {"num_heads": 3, "kv_num_heads": 3}
    assert "input 6 depends on data" in refusal(UnsupportedError, "GroupQueryAttention", inputs, attributes)


class TestRotaryEmbedding:
    angles = RNG.uniform(-3, 3, (9, 4))
    tables = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))

    @pytest.mark.parametrize("interleaved", [0, 1])
    @pytest.mark.parametrize("positions", [np.array([2]), RNG.integers(0, 9, (2, 5))])
    @pytest.mark.parametrize("shape", [(2, 5, 24), (2, 3, 5, 8)])
    def test_whole_heads(self, shape, positions, interleaved):
        compare(
            "RotaryEmbedding", [normal(*shape), positions, *self.tables], {"interleaved": interleaved}, symbolic=False
        )

    @pytest.mark.parametrize("interleaved", [0, 1])
    def test_parts_of_heads(self, interleaved):
        inputs = [normal(2, 5, 36), RNG.integers(0, 9, (2, 5)), *self.tables]
        attributes = {"num_heads": 3, "rotary_embedding_dim": 8, "interleaved": interleaved}
        compare("RotaryEmbedding", inputs, attributes, symbolic=False)

    def test_refusals(self):
        inputs = [normal(2, 5, 24), np.array([2]), *self.tables]
        assert "is_packed_batching is not" in refusal(
            UnsupportedError, "RotaryEmbedding", inputs, {"is_packed_batching": 1}
        )
        assert "a scale is not" in refusal(UnsupportedError, "RotaryEmbedding", inputs, {"scale": 0.5})


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (5, 2, 4, 3)])
@pytest.mark.parametrize("transposed", [{}, {"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1, "alpha": 0.3}])
def test_fused_matmul(shape, transposed):
    *batch, rows, inner = shape
    a = normal(*batch, *((inner, rows) if transposed.get("transA") else (rows, inner)))
    b = normal(*batch, *((6, inner) if transposed.get("transB") else (inner, 6)))
    compare("FusedMatMul", [a, b], transposed)


@pytest.mark.parametrize("attributes", [{"transBatchA": 1}, {"transBatchA": 1, "transA": 1}])
def test_fused_matmul_with_rows_before_the_batch(attributes):
    # [rows, batch, inner], transposed [inner, batch, rows]
    a = normal(3, 2, 4) if attributes.get("transA") else normal(4, 2, 3)
    compare("FusedMatMul", [a, normal(2, 3, 6)], attributes)
    compare("FusedMatMul", [normal(2, 4, 3), normal(3, 2, 6)], {"transBatchB": 1})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 8), (5, 8)])
def test_skip_simplified_layer_normalization(shape, bias):
    inputs = [normal(*shape), normal(*shape), normal(8), *([normal(8)] if bias else [])]
    compare("SkipSimplifiedLayerNormalization", inputs, {"epsilon": 1e-5})

    def with_sum(x, skip, gamma, bias=0.0):
        total = (x + skip + bias).astype(np.float64)
        inverse = 1 / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-5)
        y = total * inverse * gamma
        return [v.astype(np.float32) for v in (y, inverse, inverse, total)]

    case = NodeCase("SkipSimplifiedLayerNormalization", inputs, {"epsilon": 1e-5}, outputs=4, domain="com.microsoft")
    check(case, reference=with_sum, tolerance=CLOSE)


@pytest.mark.parametrize("shape", [(1, 3, 8), (3, 8)])
def test_skip_layer_normalization_broadcasts_the_skip(shape):
    compare("SkipLayerNormalization", [normal(2, 3, 8), normal(*shape), normal(8), normal(8)], {}, symbolic=False)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("positions", [None, (1, 5), (2, 5)])
@pytest.mark.parametrize("masked", [False, True])
def test_embed_layer_normalization(segments, positions, masked):
    words = RNG.integers(0, 11, (2, 5)).astype(np.int32)
    numbers = RNG.integers(0, 2, (2, 5)).astype(np.int32) if segments else None
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32) if masked else None
    ids = None if positions is None else RNG.integers(0, 7, positions).astype(np.int32)
    table = normal(2, 8) if segments else None
    inputs = [words, numbers, normal(11, 8), normal(7, 8), table, normal(8), normal(8), mask, ids]
    compare("EmbedLayerNormalization", inputs, {"epsilon": 1e-6}, outputs=3, symbolic=False)
