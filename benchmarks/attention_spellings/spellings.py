"""One attention in the spellings of different exporters.

Every model computes self-attention with projections and an additive mask:

    y = merge(softmax(q k^T / sqrt(size) + mask) v) W_o,   q, k, v = split(x W + b)

of `x` [batch, length, heads * size] and `keep` [batch, length], which is 1 for keys that count and 0 for padding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]

MASK_VALUE = -10000.0
"""What is added to the scores of padding."""

_CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the attention; `batch` and `length` may be names of symbols."""

    batch: int | str = 1
    length: int | str = 128
    heads: int = 12
    size: int = 64

    @property
    def hidden(self) -> int:
        """Columns of the input."""
        return self.heads * self.size


@dataclass
class _Model:
    """A model under construction.

    Attributes:
        sizes: of the attention.
        weights: projections "q", "k", "v", "o" and the biases "bq", "bk", "bv".
    """

    sizes: Sizes
    weights: dict[str, Array]
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])

    def op(self, op_type: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        """The first result of a new node."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, f"n{len(self.nodes)}", domain=domain, **attributes))
        return names[0]

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """A new initializer."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def ints(self, *values: int) -> str:
        """A new initializer of int64 values."""
        return self.constant(values, np.int64)

    def projection(self, which: str) -> str:
        """x W + b of the query, key or value, [batch, length, hidden]."""
        product = self.op("MatMul", "x", self.constant(self.weights[which]))
        return self.op("Add", product, self.constant(self.weights[f"b{which}"]))

    def heads(self, value: str, perm: Sequence[int] = (0, 2, 1, 3)) -> str:
        """[batch, length, hidden] as heads, by default [batch, heads, length, size]."""
        split = self.op("Reshape", value, self.ints(0, 0, self.sizes.heads, self.sizes.size))
        return self.op("Transpose", split, perm=perm)

    def mask(self) -> str:
        """The additive mask, [batch, 1, 1, length]."""
        dropped = self.op("Sub", self.constant(1.0), self.op("Cast", "keep", to=onnx.TensorProto.FLOAT))
        return self.op("Mul", self.op("Unsqueeze", dropped, self.ints(1, 2)), self.constant(MASK_VALUE))

    def whole_mask(self) -> str:
        """The additive mask for every query, [batch, 1, length, length]."""
        shape = self.op("Shape", "keep")
        batch, length = (self.op("Slice", shape, self.ints(k), self.ints(k + 1)) for k in (0, 1))
        target = self.op("Concat", batch, self.ints(1), length, length, axis=0)
        return self.op("Expand", self.mask(), target)

    def lengths(self) -> tuple[str, str]:
        """The index of the last key per sequence, and the number of keys, for literal sizes."""
        batch, length = self.sizes.batch, self.sizes.length
        if isinstance(batch, str) or isinstance(length, str):
            raise TypeError(f"expected literal sizes, got {batch} and {length}")
        return self.constant([length - 1] * batch, np.int32), self.constant(length, np.int32)

    def merge(self, value: str) -> str:
        """[batch, heads, length, size] as [batch, length, hidden]."""
        moved = self.op("Transpose", value, perm=(0, 2, 1, 3))
        return self.op("Reshape", moved, self.ints(0, 0, self.sizes.hidden))

    def packed(self, *parts: str) -> Array:
        """Several weights side by side."""
        return np.concatenate([self.weights[p] for p in parts], -1)

    def finish(self, context: str) -> onnx.ModelProto:
        """The model, with the projection of the merged heads [batch, length, hidden]."""
        self.nodes.append(helper.make_node("MatMul", [context, self.constant(self.weights["o"])], ["y"], "out"))
        s = self.sizes
        x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (s.batch, s.length, s.hidden))
        keep = helper.make_tensor_value_info("keep", onnx.TensorProto.INT64, (s.batch, s.length))
        y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (s.batch, s.length, s.hidden))
        initializers = [numpy_helper.from_array(v, name) for name, v in self.constants.items()]
        graph = helper.make_graph(self.nodes, "attention", [x, keep], [y], initializers)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(_CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def _eager(m: _Model) -> onnx.ModelProto:
    """PyTorch's operators one by one, as written in Transformers' BERT."""
    q, k, v = m.heads(m.projection("q")), m.heads(m.projection("k"), (0, 2, 3, 1)), m.heads(m.projection("v"))
    scores = m.op("Div", m.op("MatMul", q, k), m.constant(np.sqrt(m.sizes.size)))
    weights = m.op("Softmax", m.op("Add", scores, m.mask()), axis=-1)
    return m.finish(m.merge(m.op("MatMul", weights, v)))


def _sdpa(m: _Model) -> onnx.ModelProto:
    """PyTorch's scaled_dot_product_attention: the square root of the scale on queries and on keys."""
    q, k, v = m.heads(m.projection("q")), m.heads(m.projection("k")), m.heads(m.projection("v"))
    scale = m.op("Sqrt", m.op("Div", m.constant(1.0), m.op("Sqrt", m.constant(m.sizes.size))))
    keys = m.op("Mul", m.op("Transpose", k, perm=(0, 1, 3, 2)), scale)
    scores = m.op("MatMul", m.op("Mul", q, scale), keys)
    weights = m.op("Softmax", m.op("Add", scores, m.mask()), axis=-1)
    return m.finish(m.merge(m.op("MatMul", weights, v)))


def _fused_matmul(m: _Model) -> onnx.ModelProto:
    """What ONNX Runtime's basic optimizations leave: products with a factor and a transposed operand."""
    q, k, v = m.heads(m.projection("q")), m.heads(m.projection("k")), m.heads(m.projection("v"))
    scores = m.op("FusedMatMul", q, k, domain=_CONTRIB, alpha=m.sizes.size**-0.5, transB=1)
    weights = m.op("Softmax", m.op("Add", scores, m.mask()), axis=-1)
    return m.finish(m.merge(m.op("MatMul", weights, v)))


def _contrib_attention(m: _Model) -> onnx.ModelProto:
    """com.microsoft Attention, with the projections inside."""
    weight, bias = m.constant(m.packed("q", "k", "v")), m.constant(m.packed("bq", "bk", "bv"))
    inputs = ("x", weight, bias, "", "", m.whole_mask())
    return m.finish(m.op("Attention", *inputs, domain=_CONTRIB, num_heads=m.sizes.heads))


def _contrib_multi_head(m: _Model) -> onnx.ModelProto:
    """com.microsoft MultiHeadAttention, with the projections' biases inside."""
    q, k, v = (m.op("MatMul", "x", m.constant(m.weights[w])) for w in "qkv")
    inputs = (q, k, v, m.constant(m.packed("bq", "bk", "bv")), "", m.whole_mask())
    return m.finish(m.op("MultiHeadAttention", *inputs, domain=_CONTRIB, num_heads=m.sizes.heads))


def _contrib_grouped(m: _Model) -> onnx.ModelProto:
    """com.microsoft GroupQueryAttention, bidirectional, with a group per head."""
    q, k, v = (m.projection(w) for w in "qkv")
    lengths, total = m.lengths()
    inputs = (q, k, v, "", "", lengths, total, "", "", "", m.whole_mask())
    heads = m.sizes.heads
    return m.finish(
        m.op("GroupQueryAttention", *inputs, domain=_CONTRIB, outputs=3, num_heads=heads, kv_num_heads=heads, causal=0)
    )


def _onnx_attention(m: _Model) -> onnx.ModelProto:
    """ONNX's Attention of merged heads."""
    q, k, v = (m.projection(w) for w in "qkv")
    heads = m.sizes.heads
    return m.finish(m.op("Attention", q, k, v, m.mask(), q_num_heads=heads, kv_num_heads=heads))


def _einsum(m: _Model) -> onnx.ModelProto:
    """Einsums that read and write heads in place."""
    shape = m.ints(0, 0, m.sizes.heads, m.sizes.size)
    q, k, v = (m.op("Reshape", m.projection(w), shape) for w in "qkv")
    scaled = m.op("Mul", q, m.constant(m.sizes.size**-0.5))
    scores = m.op("Einsum", scaled, k, equation="bqhd,bkhd->bhqk")
    weights = m.op("Softmax", m.op("Add", m.mask(), scores), axis=-1)
    context = m.op("Einsum", weights, v, equation="bhqk,bkhd->bqhd")
    return m.finish(m.op("Reshape", context, m.ints(0, 0, m.sizes.hidden)))


def _mask_before_scale(m: _Model) -> onnx.ModelProto:
    """The mask is added before the scale, and the softmax is spelled out."""
    q, k, v = m.heads(m.projection("q")), m.heads(m.projection("k"), (0, 2, 3, 1)), m.heads(m.projection("v"))
    root = m.constant(np.sqrt(m.sizes.size))
    scores = m.op("Add", m.op("Mul", m.mask(), root), m.op("MatMul", q, k))
    scaled = m.op("Div", scores, root)
    last = m.ints(-1)
    powers = m.op("Exp", m.op("Sub", scaled, m.op("ReduceMax", scaled, last, keepdims=1)))
    weights = m.op("Div", powers, m.op("ReduceSum", powers, last, keepdims=1))
    return m.finish(m.merge(m.op("MatMul", weights, v)))


def _packed_reshape(m: _Model) -> onnx.ModelProto:
    """One projection, whose heads are split before the queries, keys and values are, as in timm's ViT."""
    product = m.op("MatMul", "x", m.constant(m.packed("q", "k", "v")))
    qkv = m.op("Add", product, m.constant(m.packed("bq", "bk", "bv")))
    split = m.op("Reshape", qkv, m.ints(0, 0, 3, m.sizes.heads, m.sizes.size))
    moved = m.op("Transpose", split, perm=(2, 0, 3, 1, 4))
    q, k, v = (m.op("Gather", moved, m.constant(part, np.int64), axis=0) for part in range(3))
    scaled = m.op("Mul", q, m.constant(m.sizes.size**-0.5))
    scores = m.op("MatMul", scaled, m.op("Transpose", k, perm=(0, 1, 3, 2)))
    weights = m.op("Softmax", m.op("Add", scores, m.mask()), axis=-1)
    return m.finish(m.merge(m.op("MatMul", weights, v)))


SPELLINGS: dict[str, Callable[[_Model], onnx.ModelProto]] = {
    "eager": _eager,
    "sdpa": _sdpa,
    "fused-matmul": _fused_matmul,
    "contrib-attention": _contrib_attention,
    "contrib-multi-head": _contrib_multi_head,
    "contrib-grouped": _contrib_grouped,
    "onnx-attention": _onnx_attention,
    "einsum": _einsum,
    "mask-before-scale": _mask_before_scale,
    "packed-reshape": _packed_reshape,
}
"""Builders of the models, by name."""


def attention_model(spelling: str, sizes: Sizes, seed: int = 0) -> onnx.ModelProto:
    """The attention in a spelling (a key of `SPELLINGS`); equal weights for every spelling."""
    rng = np.random.default_rng(seed)
    h = sizes.hidden
    weights = {w: (rng.standard_normal((h, h)) / np.sqrt(h)).astype(np.float32) for w in "qkvo"}
    weights |= {f"b{w}": (rng.standard_normal(h) / 4).astype(np.float32) for w in "qkv"}
    return SPELLINGS[spelling](_Model(sizes, weights))


def reference(sizes: Sizes, x: Array, keep: Array, seed: int = 0) -> Array:
    """The result in float64."""
    rng = np.random.default_rng(seed)
    h = sizes.hidden
    wq, wk, wv, wo = ((rng.standard_normal((h, h)) / np.sqrt(h)).astype(np.float32).astype(float) for _ in "qkvo")
    bq, bk, bv = ((rng.standard_normal(h) / 4).astype(np.float32).astype(float) for _ in "qkv")

    def split(value: Array) -> Array:
        return value.reshape(*x.shape[:2], sizes.heads, sizes.size).transpose(0, 2, 1, 3)

    q, k, v = (split(x.astype(float) @ w + b) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(sizes.size) + ((1.0 - keep) * MASK_VALUE)[:, None, None, :]
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    context = powers / powers.sum(-1, keepdims=True) @ v
    return context.transpose(0, 2, 1, 3).reshape(x.shape) @ wo
