"""Settings of the attention operators."""

import numpy as np
from tests.fuzz_contrib.setting import Draw, Rng, Setting, is_true, node, normal, sizes, whole
from tests.ops.harness import Array, Tolerance

CLOSE = Tolerance(1e-4, 1e-4)


def _mask(rng: Rng, batch: int, length: int, past: int) -> Array | None:
    """No mask, one per key, or (without a past) one per query and key, or the lengths."""
    total = past + length
    kind = int(rng.integers(4 if past == 0 else 2))
    if kind == 0:
        return None
    if kind == 1:
        return (rng.random((batch, total)) > 0.3).astype(np.int32)
    if kind == 2:
        return (rng.random((batch, length, total)) > 0.3).astype(np.int32)
    return rng.integers(1, total + 1, batch).astype(np.int32)


def _past(rng: Rng, batch: int, heads: int, size: int) -> tuple[int, Array | None]:
    if is_true(rng, 0.6):
        return 0, None
    length = int(rng.integers(1, 5))
    return length, normal(rng, 2, batch, heads, length, size)


def _attention(rng: Rng) -> Setting:
    batch, length, heads, size = sizes(rng, 4, 5)
    hidden = int(rng.integers(2, 9))
    count, past = _past(rng, batch, heads, size)
    inputs = [
        normal(rng, batch, length, hidden), normal(rng, hidden, 3 * heads * size, scale=0.4),
        normal(rng, 3 * heads * size), _mask(rng, batch, length, count), past,
    ]  # fmt: skip
    if past is None and is_true(rng, 0.3):
        inputs.append(normal(rng, batch, heads, length, length))
    outputs = 2 if past is not None else 1
    attributes = {"num_heads": heads, "unidirectional": int(is_true(rng))}
    return Setting(node("Attention", inputs, outputs=outputs, **attributes), (1, 2), CLOSE, literal=True)


def _quantized_attention(rng: Rng) -> Setting:
    batch, length, heads, size = sizes(rng, 4, 5)
    hidden = int(rng.integers(2, 9))
    count, past = _past(rng, batch, heads, size)
    weights, columns = np.int8 if is_true(rng) else np.uint8, (3 * heads * size,) if is_true(rng) else ()
    inputs = [
        whole(rng, np.uint8, batch, length, hidden), whole(rng, weights, hidden, 3 * heads * size),
        normal(rng, 3 * heads * size), np.array(0.02, np.float32),
        np.asarray(rng.uniform(0.005, 0.02, columns), np.float32), _mask(rng, batch, length, count),
        np.array(120, np.uint8) if is_true(rng) else None,
        np.asarray(whole(rng, weights, *columns) // 4, weights) if is_true(rng) else None, past,
    ]  # fmt: skip
    constants = tuple(k for k in (1, 2, 3, 4, 6, 7) if inputs[k] is not None)
    outputs = 2 if past is not None else 1
    attributes = {"num_heads": heads, "unidirectional": int(is_true(rng))}
    return Setting(node("QAttention", inputs, outputs=outputs, **attributes), constants, CLOSE, literal=True)


def _multi_head_attention(rng: Rng) -> Setting:
    batch, length, keys, heads, size = sizes(rng, 5, 5)
    hidden, width = heads * size, heads * int(rng.integers(1, 5))
    query, key, value = (
        normal(rng, batch, length, hidden),
        normal(rng, batch, keys, hidden),
        normal(rng, batch, keys, width),
    )
    bias = normal(rng, 2 * hidden + width) if is_true(rng) else None
    mask = (rng.random((batch, keys)) > 0.3).astype(np.int32) if is_true(rng, 0.4) else None
    scores = normal(rng, batch, heads, length, keys) if is_true(rng, 0.4) else None
    inputs = [query, key, value, bias, mask, scores]
    return Setting(
        node("MultiHeadAttention", inputs, num_heads=heads), (3,) if bias is not None else (), CLOSE, literal=True
    )


def _group_query_attention(rng: Rng) -> Setting:
    batch, length, groups, kv_heads = sizes(rng, 4, 4)
    size, heads = 8 * int(rng.integers(1, 3)), groups * kv_heads
    new = [normal(rng, batch, length, n * size) for n in (heads, kv_heads, kv_heads)]
    past = 0 if is_true(rng) else int(rng.integers(1, 5))
    if past:
        length = 1
        new = [x[:, :1] for x in new]
        caches = [normal(rng, batch, kv_heads, past + 1, size) for _ in range(2)]
    else:
        caches = [None, None]
    total = past + length
    lengths = np.full(batch, total - 1, np.int32)
    inputs = [*new, *caches, lengths, np.array(total, np.int32)]
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads}
    case = node("GroupQueryAttention", inputs, outputs=3 if past else 1, **attributes)
    return Setting(case, (6,), CLOSE, literal=True)


ATTENTION: dict[str, Draw] = {
    "Attention": _attention,
    "QAttention": _quantized_attention,
    "MultiHeadAttention": _multi_head_attention,
    "GroupQueryAttention": _group_query_attention,
}
"""What draws a setting, by operator."""
