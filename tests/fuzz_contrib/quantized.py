"""Settings of the operators on quantized tensors.

Results are within one step of ONNX Runtime's: it multiplies by factors that it rounds in another order, or looks values
up in tables, so that halves may be rounded to either side.
"""

import numpy as np
from tests.fuzz_contrib.setting import (
    Draw,
    Rng,
    Setting,
    broadcast_partner,
    choice,
    is_true,
    node,
    normal,
    sizes,
    whole,
    window_attributes,
)
from tests.ops.harness import Array, Tolerance


def _element_type(rng: Rng) -> type:
    return np.uint8 if is_true(rng) else np.int8


def _scale(rng: Rng, low: float = 0.01, high: float = 0.1) -> Array:
    return np.array(rng.uniform(low, high), np.float32)


def _zero(rng: Rng, dtype: type) -> Array:
    middle = 128 if dtype == np.uint8 else 0
    return np.array(middle + int(rng.integers(-20, 20)), dtype)


def _column_scale(rng: Rng, count: tuple[int, ...]) -> Array:
    """One scale, or one per column."""
    return np.asarray(rng.uniform(0.01, 0.1, count), np.float32)


def _column_zero(rng: Rng, dtype: type, count: tuple[int, ...]) -> Array:
    """One zero point, or one per column."""
    return np.asarray(whole(rng, dtype, *count) // 4, dtype)


def _parameters(rng: Rng, dtype: type) -> list[Array]:
    return [_scale(rng), _zero(rng, dtype)]


def _constants(rng: Rng, *positions: int) -> tuple[int, ...]:
    """Scales and zero points are constants in most models."""
    return positions if is_true(rng, 0.7) else ()


def _binary(op_type: str) -> Draw:
    def draw(rng: Rng) -> Setting:
        dtype, shape = _element_type(rng), sizes(rng, int(rng.integers(1, 4)), 9)
        shapes = [shape, broadcast_partner(rng, shape)]
        a, b = (whole(rng, dtype, *s) for s in (shapes if is_true(rng) else shapes[::-1]))
        inputs = [a, *_parameters(rng, dtype), b, *_parameters(rng, dtype), *_parameters(rng, dtype)]
        if op_type == "QLinearMul":
            inputs[6] = _scale(rng, 0.2, 0.8)
        return Setting(node(op_type, inputs), _constants(rng, 1, 2, 4, 5, 6, 7), steps=1)

    return draw


def _activation(op_type: str) -> Draw:
    def draw(rng: Rng) -> Setting:
        dtype = _element_type(rng)
        x = whole(rng, dtype, *sizes(rng, int(rng.integers(1, 4)), 12))
        attributes = {"alpha": float(rng.uniform(0.01, 0.5))} if op_type == "QLinearLeakyRelu" else {}
        inputs = [x, *_parameters(rng, dtype), *_parameters(rng, dtype)]
        return Setting(node(op_type, inputs, **attributes), _constants(rng, 1, 2, 3, 4), steps=1)

    return draw


def _average_pool(rng: Rng) -> Setting:
    dtype, is_last, kernel = np.uint8 if is_true(rng, 0.7) else np.int8, is_true(rng), sizes(rng, 2, 3)
    spatial = tuple(int(n) for n in rng.integers(6, 10, 2))
    batch, channels = sizes(rng, 2, 6)
    x = whole(rng, dtype, *((batch, *spatial, channels) if is_last else (batch, channels, *spatial)))
    attributes = window_attributes(rng, 2, kernel, dilated=False)
    attributes |= {"kernel_shape": list(kernel), "channels_last": int(is_last), "count_include_pad": int(is_true(rng))}
    attributes["ceil_mode"] = int(is_true(rng))
    inputs = [x, *_parameters(rng, dtype), *_parameters(rng, dtype)]
    return Setting(node("QLinearAveragePool", inputs, **attributes), _constants(rng, 1, 2, 3, 4), steps=1)


def _global_average_pool(rng: Rng) -> Setting:
    dtype, is_last = _element_type(rng), is_true(rng)
    x = whole(rng, dtype, *sizes(rng, 4, 7))
    inputs = [x, *_parameters(rng, dtype), *_parameters(rng, dtype)]
    case = node("QLinearGlobalAveragePool", inputs, channels_last=int(is_last))
    return Setting(case, _constants(rng, 1, 2, 3, 4), steps=1)


def _max_pool(rng: Rng) -> Setting:
    kernel = sizes(rng, 2, 3)
    spatial = tuple(int(n) for n in rng.integers(6, 10, 2))
    x = whole(rng, _element_type(rng), int(rng.integers(1, 3)), *spatial, int(rng.integers(1, 6)))
    attributes = window_attributes(rng, 2, kernel) | {"kernel_shape": list(kernel)}
    return Setting(node("NhwcMaxPool", [x], **attributes))


def _softmax(rng: Rng) -> Setting:
    dtype, rank = _element_type(rng), int(rng.integers(1, 4))
    x = whole(rng, dtype, *sizes(rng, rank, 9))
    zero = np.array(0 if dtype == np.uint8 else -128, dtype)
    inputs = [x, _scale(rng), _zero(rng, dtype), np.array(1 / 256, np.float32), zero]
    axis = int(rng.integers(-rank, rank))
    case = node("QLinearSoftmax", inputs, axis=axis, opset=choice(rng, 12, 13))
    return Setting(case, _constants(rng, 1, 2, 3, 4), steps=1)


def _where(rng: Rng) -> Setting:
    dtype, shape = _element_type(rng), sizes(rng, int(rng.integers(1, 4)), 7)
    condition = np.asarray(rng.random(broadcast_partner(rng, shape)) > 0.5)
    x, y = whole(rng, dtype, *shape), whole(rng, dtype, *broadcast_partner(rng, shape))
    inputs = [condition, x, *_parameters(rng, dtype), y, *_parameters(rng, dtype), *_parameters(rng, dtype)]
    return Setting(node("QLinearWhere", inputs), _constants(rng, 2, 3, 5, 6, 7, 8), steps=1)


def _concat(rng: Rng) -> Setting:
    dtype, shape = _element_type(rng), sizes(rng, int(rng.integers(1, 4)))
    axis, result = int(rng.integers(-len(shape), len(shape))), _parameters(rng, dtype)
    inputs = list(result)
    for _ in range(int(rng.integers(1, 4))):
        own = list(shape)
        own[axis] = int(rng.integers(1, 6))
        inputs += [whole(rng, dtype, *own), *(result if is_true(rng, 0.3) else _parameters(rng, dtype))]
    constants = [k for k, x in enumerate(inputs) if x.ndim == 0]
    return Setting(node("QLinearConcat", inputs, axis=axis), _constants(rng, *constants), steps=1)


def _conv(rng: Rng) -> Setting:
    groups, kernel, is_last = int(rng.integers(1, 3)), sizes(rng, 2, 3), is_true(rng)
    dtype = _element_type(rng)
    # ONNX Runtime has no kernel for signed inputs and unsigned weights
    weights = np.int8 if dtype == np.int8 or is_true(rng) else np.uint8
    depth, outputs = int(rng.integers(1, 6)), groups * int(rng.integers(1, 6))
    spatial = tuple(int(n) for n in rng.integers(7, 11, 2))
    channels = depth * groups
    x = whole(rng, dtype, 1, *((*spatial, channels) if is_last else (channels, *spatial)))
    per_channel = is_true(rng)
    scale_w = rng.uniform(0.01, 0.1, outputs).astype(np.float32) if per_channel else _scale(rng)
    zero_w = np.zeros(outputs, weights) if per_channel else _zero(rng, weights)
    w = np.clip(whole(rng, weights, outputs, depth, *kernel), -60, 60).astype(weights)
    inputs = [x, *_parameters(rng, dtype), w, scale_w, zero_w, _scale(rng, 1, 4), _zero(rng, dtype)]
    if is_true(rng):
        inputs.append(rng.integers(-999, 999, outputs).astype(np.int32))
    attributes = window_attributes(rng, 2, kernel) | {"group": groups, "channels_last": int(is_last)}
    return Setting(node("QLinearConv", inputs, **attributes), (1, 2, 3, 4, 5, 6, 7), steps=1)


def _gemm(rng: Rng) -> Setting:
    m, k, n = sizes(rng, 3, 20)
    dtype = _element_type(rng)
    weights = np.int8 if dtype == np.int8 or is_true(rng) else np.uint8
    swapped_a, swapped_b, per_column = is_true(rng), is_true(rng), is_true(rng)
    a = whole(rng, dtype, *((k, m) if swapped_a else (m, k)))
    b = whole(rng, weights, *((n, k) if swapped_b else (k, n)))
    count = (n,) if per_column else ()
    scale_b = _column_scale(rng, count)
    inputs = [a, *_parameters(rng, dtype), b, scale_b, _column_zero(rng, weights, count)]
    addend = rng.integers(-999, 999, (n,) if is_true(rng) else (m, n)).astype(np.int32) if is_true(rng) else None
    is_quantized = is_true(rng)
    if addend is not None or is_quantized:
        inputs.append(addend)
    if is_quantized:
        inputs += [_scale(rng, 1, 4), _zero(rng, dtype)]
    attributes = {"transA": int(swapped_a), "transB": int(swapped_b), "alpha": float(rng.uniform(0.5, 2))}
    constants = (1, 2, 3, 4, 5, *((7, 8) if is_quantized else ()))
    return Setting(node("QGemm", inputs, **attributes), constants, Tolerance(1e-4, 1e-3), steps=1)


def _matmul_integer_to_float(rng: Rng) -> Setting:
    m, k, n = sizes(rng, 3, 20)
    dtype = _element_type(rng)
    weights = np.int8 if dtype == np.int8 or is_true(rng) else np.uint8
    batch, columns = sizes(rng, int(rng.integers(0, 3)), 3), (n,) if is_true(rng) else ()
    inputs = [
        whole(rng, dtype, *batch, m, k), whole(rng, weights, k, n), _scale(rng),
        _column_scale(rng, columns), _zero(rng, dtype) if is_true(rng) else None,
        _column_zero(rng, weights, columns) if is_true(rng) else None,
        normal(rng, n) if is_true(rng) else None,
    ]  # fmt: skip
    constants = tuple(p for p in (1, 3, 5) if inputs[p] is not None)
    return Setting(node("MatMulIntegerToFloat", inputs), constants, Tolerance(1e-4, 1e-3))


def _dynamic_quantize_matmul(rng: Rng) -> Setting:
    m, k, n = sizes(rng, 3, 20)
    weights, batch = _element_type(rng), sizes(rng, int(rng.integers(0, 3)), 3)
    columns = (n,) if is_true(rng) else ()
    inputs = [
        normal(rng, *batch, m, k), whole(rng, weights, k, n), _column_scale(rng, columns),
        _column_zero(rng, weights, columns) if is_true(rng) else None,
        normal(rng, n) if is_true(rng) else None,
    ]  # fmt: skip
    constants = tuple(p for p in (1, 2, 3) if inputs[p] is not None)
    # an element of A that is quantized to the other side of a half changes a row by one step
    step = 0.1 * 6 / 255 * 128
    return Setting(node("DynamicQuantizeMatMul", inputs), constants, Tolerance(1e-3, 2 * step))


def _linear(op_type: str) -> Draw:
    def draw(rng: Rng) -> Setting:
        dtype = (np.uint8, np.int8, np.uint16, np.int16)[int(rng.integers(4))]
        shape = sizes(rng, int(rng.integers(1, 4)), 9)
        attributes, count = {}, ()
        if is_true(rng):
            axis = int(rng.integers(-len(shape), len(shape)))
            attributes, count = {"axis": axis}, (shape[axis],)
        scale = _column_scale(rng, count)
        zero = _column_zero(rng, dtype, count)
        x = normal(rng, *shape, scale=3) if op_type == "QuantizeLinear" else whole(rng, dtype, *shape)
        return Setting(node(op_type, [x, scale, zero], **attributes), _constants(rng, 1, 2))

    return draw


def _matmul_nbits(rng: Rng) -> Setting:
    bits = choice(rng, 2, 4, 4, 4, 8)
    block, columns = choice(rng, 16, 32, 64), int(rng.integers(1, 40))
    depth, rows = block * int(rng.integers(1, 4)), int(rng.integers(1, 9))
    if is_true(rng, 0.3):
        depth -= int(rng.integers(1, block // 2))
    blocks = -(-depth // block)
    a = normal(rng, *sizes(rng, int(rng.integers(0, 2)), 3), rows, depth)
    packed = whole(rng, np.uint8, columns, blocks, block * bits // 8)
    scales = rng.uniform(0.01, 0.1, (columns, blocks)).astype(np.float32)
    inputs: list[Array | None] = [a, packed, scales]
    if is_true(rng):
        inputs.append(whole(rng, np.uint8, columns, -(-blocks * bits // 8)))
    if is_true(rng, 0.3):
        inputs += [None] * (5 - len(inputs))
        inputs.append(normal(rng, columns))
    constants = tuple(p for p in (1, 2, 3, 5) if p < len(inputs) and inputs[p] is not None)
    case = node("MatMulNBits", inputs, K=depth, N=columns, bits=bits, block_size=block)
    return Setting(case, constants, Tolerance(1e-3, 2e-3), literal=True)


def _gather_block_quantized(rng: Rng) -> Setting:
    bits, block = choice(rng, 4, 8), 16
    rows, blocks = sizes(rng, 2, 6)
    width = block * blocks
    inputs = [
        whole(rng, np.uint8, rows, width * bits // 8),
        rng.integers(0, rows, sizes(rng, int(rng.integers(1, 3)))).astype(np.int64),
        rng.uniform(0.01, 0.1, (rows, blocks)).astype(np.float32),
    ]
    if is_true(rng):
        inputs.append(whole(rng, np.uint8, rows, -(-blocks * bits // 8)))
    case = node("GatherBlockQuantized", inputs, bits=bits, block_size=block, gather_axis=0, quantize_axis=1)
    return Setting(case, tuple(k for k in (0, 2, 3) if k < len(inputs)), literal=True)


def _embed_layer_normalization(rng: Rng) -> Setting:
    batch, length, hidden = sizes(rng, 3, 9)
    words, positions, segments = 11, length + 2, 3
    has_segments, has_mask, dtype = is_true(rng), is_true(rng), _element_type(rng)
    tables = [whole(rng, dtype, n, hidden) for n in (words, positions, segments)]
    tables += [whole(rng, dtype, hidden), whole(rng, dtype, hidden)]
    scales, zeros = [_scale(rng) for _ in range(5)], [_zero(rng, dtype) for _ in range(5)]
    ids = rng.integers(0, words, (batch, length)).astype(np.int32)
    segment_ids = rng.integers(0, segments, (batch, length)).astype(np.int32)
    mask = (rng.random((batch, length)) > 0.4).astype(np.int32)
    inputs: list[Array | None] = [ids, segment_ids, *tables, mask, *scales, *zeros]
    for position in () if has_segments else (1, 4, 10, 15):
        inputs[position] = None
    if not has_mask:
        inputs[7] = None
    constants = tuple(k for k in (2, 3, 4, 5, 6, *range(8, 18)) if inputs[k] is not None)
    case = node("QEmbedLayerNormalization", inputs, outputs=2, epsilon=1e-5)
    return Setting(case, constants, Tolerance(1e-3, 1e-3))


QUANTIZED: dict[str, Draw] = {
    **{name: _binary(name) for name in ("QLinearAdd", "QLinearMul")},
    **{name: _activation(name) for name in ("QLinearSigmoid", "QLinearLeakyRelu")},
    **{name: _linear(name) for name in ("QuantizeLinear", "DequantizeLinear")},
    "QLinearAveragePool": _average_pool,
    "QLinearGlobalAveragePool": _global_average_pool,
    "NhwcMaxPool": _max_pool,
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QLinearConcat": _concat,
    "QLinearConv": _conv,
    "QGemm": _gemm,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "MatMulNBits": _matmul_nbits,
    "GatherBlockQuantized": _gather_block_quantized,
    "QEmbedLayerNormalization": _embed_layer_normalization,
}
"""What draws a setting, by operator."""
