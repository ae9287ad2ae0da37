"""Settings of the operators on floating-point numbers, attention excepted."""

import numpy as np
from tests.fuzz_contrib.setting import (
    Draw,
    Rng,
    Setting,
    choice,
    is_true,
    node,
    normal,
    sizes,
    window_attributes,
)
from tests.ops.harness import EXACT, Array, Tolerance, reference_outputs


def _gelu(op_type: str) -> Draw:
    def draw(rng: Rng) -> Setting:
        shape = sizes(rng, int(rng.integers(1, 4)), 20)
        inputs = [normal(rng, *shape)]
        if op_type == "BiasGelu" or (op_type == "FastGelu" and is_true(rng)):
            inputs.append(normal(rng, shape[-1]))
        attributes = {"alpha": float(rng.uniform(0.5, 2))} if op_type == "QuickGelu" and is_true(rng) else {}
        return Setting(node(op_type, inputs, **attributes), (1,) if len(inputs) > 1 and is_true(rng) else ())

    return draw


def _fused_matmul(op_type: str) -> Draw:
    def draw(rng: Rng) -> Setting:
        m, k, n = sizes(rng, 3, 24)
        batch = sizes(rng, int(rng.integers(0, 3)), 3)
        transposed = [is_true(rng), is_true(rng)]
        moved = [op_type == "FusedMatMul" and bool(batch) and is_true(rng, 0.3) for _ in range(2)]
        operands = []
        for (rows, columns), swapped, is_moved in zip(((m, k), (k, n)), transposed, moved, strict=True):
            matrix = (columns, rows) if swapped else (rows, columns)
            # the first of the dimensions before the last one is moved behind the other batch dimensions
            shape = (matrix[0], *batch, matrix[1]) if is_moved else (*batch, *matrix)
            operands.append(normal(rng, *shape))
        attributes = {"transA": int(transposed[0]), "transB": int(transposed[1]), "alpha": float(rng.uniform(0.5, 2))}
        if op_type == "FusedMatMul":
            attributes |= {"transBatchA": int(moved[0]), "transBatchB": int(moved[1])}
        constant = (1,) if is_true(rng) else ()
        return Setting(node(op_type, operands, **attributes), constant, Tolerance(1e-4, 1e-4))

    return draw


GEMM_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "Softsign": (), "Softplus": (), "LeakyRelu": ("alpha",),
    "Elu": ("alpha",), "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Selu": ("alpha", "gamma"),
}  # fmt: skip


def _fused_gemm(rng: Rng) -> Setting:
    m, k, n = sizes(rng, 3, 20)
    name = choice(rng, *GEMM_ACTIVATIONS)
    swapped_a, swapped_b = is_true(rng), is_true(rng)
    inputs = [normal(rng, *((k, m) if swapped_a else (m, k))), normal(rng, *((n, k) if swapped_b else (k, n)))]
    if is_true(rng, 0.7):
        inputs.append(normal(rng, *((n,), (m, n), (1,), (m, 1))[int(rng.integers(4))]))
    attributes: dict[str, object] = {
        "transA": int(swapped_a), "transB": int(swapped_b), "alpha": float(rng.uniform(0.5, 2)),
        "beta": float(rng.uniform(0.5, 2)),
    }  # fmt: skip
    attributes["activation"] = name
    attributes |= {f"activation_{p}": float(rng.uniform(0.1, 1)) for p in GEMM_ACTIVATIONS[name]}
    return Setting(node("FusedGemm", inputs, **attributes), (1,) if is_true(rng) else (), Tolerance(1e-4, 1e-4))


CONV_ACTIVATIONS = {"Relu": 0, "HardSwish": 0, "Tanh": 0, "Sigmoid": 0, "LeakyRelu": 1, "Clip": 2, "HardSigmoid": 2}


def _fused_conv(rng: Rng) -> Setting:
    rank, groups = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    kernel = sizes(rng, rank, 3)
    depth, outputs = int(rng.integers(1, 5)), groups * int(rng.integers(1, 5))
    x = normal(rng, int(rng.integers(1, 3)), depth * groups, *(int(n) for n in rng.integers(7, 12, rank)))
    w = normal(rng, outputs, depth, *kernel)
    attributes = window_attributes(rng, rank, kernel) | {"group": groups}
    name = choice(rng, *CONV_ACTIVATIONS)
    attributes["activation"] = name
    parameters = sorted(float(v) for v in rng.uniform(0.1, 1, CONV_ACTIVATIONS[name]))
    if parameters:
        attributes["activation_params"] = parameters
    inputs = [x, w]
    if is_true(rng, 0.8):
        inputs.append(normal(rng, outputs))
        if is_true(rng, 0.4):
            inputs.append(normal(rng, *_conv_shape(x, w, attributes)))
    return Setting(node("FusedConv", inputs, **attributes), (1,) if is_true(rng) else (), Tolerance(1e-4, 1e-4))


def _conv_shape(x: Array, w: Array, attributes: dict[str, object]) -> tuple[int, ...]:
    """The shape of a convolution by ONNX Runtime."""
    return reference_outputs("ort", node("FusedConv", [x, w], **attributes))[0].shape


def _conv_transpose(rng: Rng) -> Setting:
    kernel, (depth, outputs) = sizes(rng, 2, 3), sizes(rng, 2, 4)
    x = normal(rng, 1, depth, *(int(n) for n in rng.integers(3, 7, 2)))
    attributes: dict[str, object] = {"strides": [int(s) for s in rng.integers(1, 3, 2)]}
    pads = np.array([min(int(p), k - 1) for p, k in zip(rng.integers(0, 2, 4), (*kernel, *kernel), strict=True)])
    inputs = [x, normal(rng, depth, outputs, *kernel), pads.astype(np.int64)]
    if is_true(rng):
        inputs.append(normal(rng, outputs))
    return Setting(node("ConvTransposeWithDynamicPads", inputs, **attributes), (1, 2), Tolerance(1e-4, 1e-4))


def _skip_normalization(op_type: str) -> Draw:
    def draw(rng: Rng) -> Setting:
        batch, length, hidden = sizes(rng, 3, 24)
        shape = (batch, length, hidden) if is_true(rng, 0.7) else (length, hidden)
        skip = shape if len(shape) == 2 or is_true(rng) else (1, length, hidden)
        inputs = [normal(rng, *shape), normal(rng, *skip), normal(rng, hidden)]
        has_beta = op_type == "SkipLayerNormalization"
        if is_true(rng, 0.7):
            inputs.append(normal(rng, hidden))
            if has_beta and is_true(rng):
                inputs.append(normal(rng, hidden))
        return Setting(node(op_type, inputs, epsilon=choice(rng, 1e-12, 1e-5)), (2,), Tolerance(1e-4, 1e-4))

    return draw


def _embed_layer_normalization(rng: Rng) -> Setting:
    batch, length, hidden = sizes(rng, 3, 9)
    words, positions, segments = 11, length + 2, 3
    has_segments, has_mask, has_positions = is_true(rng), is_true(rng), is_true(rng, 0.4)
    inputs = [
        rng.integers(0, words, (batch, length)).astype(np.int32),
        rng.integers(0, segments, (batch, length)).astype(np.int32) if has_segments else None,
        normal(rng, words, hidden), normal(rng, positions, hidden),
        normal(rng, segments, hidden) if has_segments else None, normal(rng, hidden), normal(rng, hidden),
        (rng.random((batch, length)) > 0.4).astype(np.int32) if has_mask else None,
        rng.integers(0, positions, (batch, length)).astype(np.int32) if has_positions else None,
    ]  # fmt: skip
    case = node("EmbedLayerNormalization", inputs, outputs=2, epsilon=1e-5)
    constants = tuple(k for k in (2, 3, 4, 5, 6) if inputs[k] is not None)
    return Setting(case, constants, Tolerance(1e-4, 1e-4))


def _pad(rng: Rng) -> Setting:
    shape = tuple(n + 2 for n in sizes(rng, int(rng.integers(1, 4))))
    mode = choice(rng, "constant", "edge", "reflect")
    low = 0 if mode == "reflect" else -1
    pads = rng.integers(low, 2, 2 * len(shape)).astype(np.int64)
    inputs = [normal(rng, *shape), pads]
    if mode == "constant" and is_true(rng):
        inputs.append(np.array(rng.uniform(-3, 3), np.float32))
    return Setting(node("Pad", inputs, mode=mode), (1,), EXACT)


def _trilu(rng: Rng) -> Setting:
    x = normal(rng, *sizes(rng, int(rng.integers(2, 4)), 9))
    inputs = [x, np.array(int(rng.integers(-3, 4)), np.int64)] if is_true(rng) else [x]
    return Setting(node("Trilu", inputs, upper=int(is_true(rng))), (1,) if len(inputs) > 1 else (), EXACT)


def _gather_nd(rng: Rng) -> Setting:
    x = normal(rng, *sizes(rng, int(rng.integers(2, 4))))
    depth = int(rng.integers(1, x.ndim + 1))
    outer = sizes(rng, int(rng.integers(1, 3)))
    entries = [rng.integers(-n, n, outer) for n in x.shape[:depth]]
    dtype = np.int32 if is_true(rng) else np.int64
    return Setting(node("GatherND", [x, np.stack(entries, -1).astype(dtype)]), (), EXACT, literal=True)


def _expand_dims(rng: Rng) -> Setting:
    x = normal(rng, *sizes(rng, int(rng.integers(1, 4))))
    axis = np.array(int(rng.integers(-x.ndim - 1, x.ndim + 1)), np.int32)
    return Setting(node("ExpandDims", [x, axis]), (1,), EXACT)


def _range(rng: Rng) -> Setting:
    dtype = (np.int64, np.int32, np.float32)[int(rng.integers(3))]
    start, count, step = int(rng.integers(-5, 5)), int(rng.integers(1, 9)), int(rng.integers(1, 4))
    values = [np.array(v, dtype) for v in (start, start + count * step, step)]
    values = values if is_true(rng) or step != 1 else values[:2]
    return Setting(node("Range", values), tuple(range(len(values))), EXACT)


def _cdist(rng: Rng) -> Setting:
    m, n, k = sizes(rng, 3, 12)
    metric = choice(rng, "sqeuclidean", "euclidean")
    # ONNX Runtime expands the square, which cancels for near rows
    return Setting(node("CDist", [normal(rng, m, k), normal(rng, n, k)], metric=metric), (), Tolerance(1e-3, 1e-3))


def _grid_sample(rng: Rng) -> Setting:
    batch, channels, height, width = sizes(rng, 4, 6)
    grid = rng.uniform(-1.3, 1.3, (batch, *sizes(rng, 2, 6), 2)).astype(np.float32)
    attributes = {
        "mode": choice(rng, "bilinear", "nearest", "bicubic"),
        "padding_mode": choice(rng, "zeros", "border", "reflection"),
        "align_corners": int(is_true(rng)),
    }
    x = normal(rng, batch, channels, height + 1, width + 1)
    return Setting(node("GridSample", [x, grid], **attributes), (), Tolerance(1e-3, 1e-3))


def _ngram_repeat_block(rng: Rng) -> Setting:
    batch, length, words = int(rng.integers(1, 4)), int(rng.integers(1, 24)), int(rng.integers(2, 6))
    ids = rng.integers(0, words, (batch, length)).astype(np.int64)
    case = node("NGramRepeatBlock", [ids, normal(rng, batch, words)], ngram_size=int(rng.integers(1, 5)))
    return Setting(case, (), EXACT)


def _rotary_embedding(rng: Rng) -> Setting:
    batch, length, heads = sizes(rng, 3, 5)
    size, room = 2 * int(rng.integers(1, 6)), length + 3
    is_split, interleaved = is_true(rng), is_true(rng)
    pairs, attributes = size // 2, {"interleaved": int(interleaved)}
    if is_true(rng, 0.4) and size > 2:
        pairs = pairs - 1
        attributes |= {"rotary_embedding_dim": 2 * pairs, "num_heads": heads}
    x = normal(rng, batch, heads, length, size) if is_split else normal(rng, batch, length, heads * size)
    positions = np.array([2], np.int64) if is_true(rng) else rng.integers(0, room, (batch, length)).astype(np.int64)
    tables = [normal(rng, room, pairs), normal(rng, room, pairs)]
    return Setting(node("RotaryEmbedding", [x, positions, *tables], **attributes), (2, 3), literal=True)


def _inverse(rng: Rng) -> Setting:
    size, batch = int(rng.integers(1, 20)), sizes(rng, int(rng.integers(0, 3)), 3)
    # far from singular, but with rows in another order, so that pivots have to be found
    x = normal(rng, *batch, size, size, scale=0.3) + 3 * np.eye(size, dtype=np.float32)[rng.permutation(size)]
    return Setting(node("Inverse", [x]), (), Tolerance(1e-3, 1e-4))


def _unique(rng: Rng) -> Setting:
    x = rng.integers(-3, 4, int(rng.integers(1, 30))).astype(np.float32)
    return Setting(node("Unique", [x], outputs=3), (), EXACT)


FLOATS: dict[str, Draw] = {
    **{name: _gelu(name) for name in ("Gelu", "QuickGelu", "BiasGelu", "FastGelu")},
    **{name: _fused_matmul(name) for name in ("FusedMatMul", "TransposeMatMul")},
    **{name: _skip_normalization(name) for name in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")},
    "FusedGemm": _fused_gemm,
    "FusedConv": _fused_conv,
    "ConvTransposeWithDynamicPads": _conv_transpose,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "Inverse": _inverse,
    "Unique": _unique,
    "Pad": _pad,
    "Trilu": _trilu,
    "GatherND": _gather_nd,
    "ExpandDims": _expand_dims,
    "Range": _range,
    "CDist": _cdist,
    "GridSample": _grid_sample,
    "NGramRepeatBlock": _ngram_repeat_block,
    "RotaryEmbedding": _rotary_embedding,
}
"""What draws a setting, by operator."""
