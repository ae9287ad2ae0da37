"""The operators that are measured: one-operator ONNX models with constant weights, by class.

Every engine gets the same model and the same feeds in the same layout, so conversions count. Sizes of the classes
`gensor` and `roller` come from the operator tables of those papers at batch 128 (data/*.csv says which).
"""

import csv
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.paper_mcfuser.workloads import WORKLOADS

DATA = Path(__file__).parent / "data"
OPSET = 20
MAX_CASE_BYTES = 8 << 30
MIN_ROTATED_BYTES, ROTATION_BYTES, MAX_COPIES = 8 << 20, 512 << 20, 8
"""Smallest operand for which calls rotate over copies; the total size of the copies; the most copies."""

RANDOM_PERIOD = 4_194_301
"""Period of the random numbers of large inputs; a prime."""

MAX_MEMORY_BOUND_INTENSITY = 8.0
"""Largest operational intensity of a memory-bound case."""


Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Case:
    """One operator at one size.

    Attributes:
        name: unique.
        group: its class.
        model: builds the ONNX model.
        shapes: of the inputs that are fed.
        flops: floating-point operations, padded zeros included.
        bytes: that must be moved at least: inputs, weights and outputs once.
        largest_operand_bytes: bytes of the largest operand.
    """

    name: str
    group: str
    model: Callable[[], ModelProto]
    shapes: Mapping[str, tuple[int, ...]]
    flops: float
    bytes: float
    largest_operand_bytes: float = 0.0

    @property
    def copies(self) -> int:
        """Over how many copies of the operands calls rotate: where memory is the limit and an operand is large, a model
        would have used much else before it comes to it again."""
        if self.largest_operand_bytes < MIN_ROTATED_BYTES or self.flops > MAX_MEMORY_BOUND_INTENSITY * self.bytes:
            return 1
        return min(MAX_COPIES, 1 + int(ROTATION_BYTES // self.largest_operand_bytes))

    def feeds(self, seed: int) -> dict[str, Array]:
        """Fresh random inputs; large ones repeat themselves after a prime number of elements."""
        rng = np.random.default_rng(seed)
        return {name: _random_array(rng, shape) for name, shape in self.shapes.items()}


def _random_array(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    drawn = rng.standard_normal(min(int(np.prod(shape)), RANDOM_PERIOD), dtype=np.float32)
    return drawn.reshape(shape) if drawn.size == np.prod(shape) else np.resize(drawn, shape)


def _weights(name: str, shape: Sequence[int], fan_in: int) -> TensorProto:
    rng = np.random.default_rng(zlib.crc32(f"{name}{shape}".encode()))
    data = rng.standard_normal(tuple(shape), dtype=np.float32) / np.float32(max(1, fan_in) ** 0.5)
    return numpy_helper.from_array(data, name)


def _model(
    op: str,
    shapes: Mapping[str, Sequence[int]],
    output: Sequence[int],
    constants: Sequence[TensorProto] = (),
    **attributes: object,
) -> ModelProto:
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in shapes.items()]
    node = helper.make_node(op, [*shapes, *(c.name for c in constants)], ["y"], name=op.lower(), **attributes)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(output))
    graph = helper.make_graph([node], op.lower(), inputs, [result], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def gemm(group: str, m: int, k: int, n: int, transposed: str = "", constant: bool = True) -> Case:
    """C[m, n] = A[m, k] * B[k, n] with a constant B; `transposed` names the operands that are stored transposed."""
    a = (k, m) if "a" in transposed else (m, k)
    b = (n, k) if "b" in transposed else (k, n)
    flags = {"transA": int("a" in transposed), "transB": int("b" in transposed)}

    def build() -> ModelProto:
        if constant:
            return _model("Gemm", {"a": a}, (m, n), [_weights("b", b, k)], **flags)
        return _model("Gemm", {"a": a, "b": b}, (m, n), **flags)

    shapes = {"a": a} if constant else {"a": a, "b": b}
    suffix = f"_t{transposed}" if transposed else ""
    moved, large = 4.0 * (m * k + k * n + m * n), 4.0 * max(m * k, k * n)
    return Case(f"gemm_m{m}_k{k}_n{n}{suffix}", group, build, shapes, 2.0 * m * k * n, moved, large)


def conv(
    group: str, n: int, c: int, h: int, w: int, o: int, kernel: int, stride: int = 1, pad: int | None = None,
    groups: int = 1, dilation: int = 1,
) -> Case:  # fmt: skip
    """A two-dimensional convolution with constant weights and no bias."""
    pad = dilation * (kernel - 1) // 2 if pad is None else pad
    reach = dilation * (kernel - 1) + 1
    oh, ow = (h + 2 * pad - reach) // stride + 1, (w + 2 * pad - reach) // stride + 1
    weights = (o, c // groups, kernel, kernel)

    def build() -> ModelProto:
        return _model(
            "Conv", {"x": (n, c, h, w)}, (n, o, oh, ow), [_weights("w", weights, c // groups * kernel * kernel)],
            kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[pad] * 4, group=groups,
            dilations=[dilation, dilation],
        )  # fmt: skip

    kind = "dw" if groups == c == o and c > 1 else "conv"
    name = f"{kind}_{n}x{c}x{h}x{w}_o{o}_k{kernel}_s{stride}"
    points = float(n * o * oh * ow)
    flops = 2 * points * c / groups * kernel * kernel
    moved = 4.0 * (n * c * h * w + o * c // groups * kernel * kernel) + 4 * points
    return Case(name, group, build, {"x": (n, c, h, w)}, flops, moved)


def product_chain(
    group: str, heads: int, m: int, k: int, n: int, h: int, softmax: bool, transposed: bool = True
) -> Case:
    """(A[heads, m, k] * B[heads, n, k]^T) * C[heads, n, h] of inputs; with a softmax of the scaled first product's rows
    between them, which is attention. B[heads, k, n] where it is not `transposed`."""
    shapes = {"a": (heads, m, k), "b": (heads, n, k) if transposed else (heads, k, n), "c": (heads, n, h)}

    def build() -> ModelProto:
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in shapes.items()]
        nodes = [helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1])] if transposed else []
        nodes.append(helper.make_node("MatMul", ["a", "t" if transposed else "b"], ["s"]))
        if softmax:
            nodes += [
                helper.make_node("Mul", ["s", "scale"], ["u"]),
                helper.make_node("Softmax", ["u"], ["p"], axis=-1),
            ]
        nodes.append(helper.make_node("MatMul", ["p" if softmax else "s", "c"], ["y"]))
        constants = [numpy_helper.from_array(np.array(k**-0.5, np.float32), "scale")] if softmax else []
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, (heads, m, h))
        graph = helper.make_graph(nodes, "chain", inputs, [result], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)

    points = float(heads * m * n)
    moved = 4.0 * (sum(float(np.prod(s)) for s in shapes.values()) + heads * m * h)
    kind = "attention" if softmax else "products" if transposed else "plain_products"
    name = f"{kind}_{heads}x{m}x{k}x{n}x{h}"
    return Case(name, group, build, shapes, 2 * points * (k + h) + 4 * points * softmax, moved)


def memory_bound(
    op: str, shape: tuple[int, ...], output: tuple[int, ...], label: str, group: str = "memory",
    constants: Callable[[], Sequence[TensorProto]] = tuple, ops: float = 1.0, **attributes: object,
) -> Case:  # fmt: skip
    """A memory-bound operator with one input and one output."""

    def build() -> ModelProto:
        return _model(op, {"x": shape}, output, constants(), **attributes)

    size = float(np.prod(shape))
    return Case(label, group, build, {"x": shape}, ops * size, 4.0 * (size + float(np.prod(output))))


def pool(
    op: str, n: int, c: int, h: int, w: int, kernel: int, stride: int, group: str = "memory", pad: int = 0
) -> Case:
    """A pooling window."""
    oh, ow = (h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1
    label = f"{op.lower()}_{n}x{c}x{h}x{w}_k{kernel}_s{stride}"
    return memory_bound(op, (n, c, h, w), (n, c, oh, ow), label, group, ops=kernel * kernel / stride / stride,
                  kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[pad] * 4)  # fmt: skip


def sum_axes(*values: int) -> Callable[[], Sequence[TensorProto]]:
    """The constant input that names axes of a reduction."""
    return lambda: [numpy_helper.from_array(np.array(values, np.int64), "axes")]


_GEMM_LARGE = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (128, 768, 768), (128, 768, 2304),
               (128, 3072, 768), (384, 768, 768), (1000, 1000, 1000), (3136, 576, 128))  # fmt: skip
_RESNET = ((224, 3, 7, 64, 2), (56, 64, 1, 64, 1), (56, 64, 3, 64, 1), (56, 64, 1, 256, 1), (56, 256, 1, 64, 1),
           (56, 256, 1, 128, 1), (56, 128, 3, 128, 2), (28, 128, 1, 512, 1), (56, 256, 1, 512, 2), (28, 512, 1, 128, 1),
           (28, 128, 3, 128, 1), (28, 512, 1, 256, 1), (28, 256, 3, 256, 2), (14, 256, 1, 1024, 1),
           (28, 512, 1, 1024, 2), (14, 1024, 1, 256, 1), (14, 256, 3, 256, 1), (14, 1024, 1, 512, 1),
           (14, 512, 3, 512, 2), (7, 512, 1, 2048, 1), (14, 1024, 1, 2048, 2), (7, 2048, 1, 512, 1),
           (7, 512, 3, 512, 1))  # fmt: skip
_DEPTHWISE = ((112, 32, 1), (112, 96, 2), (56, 144, 1), (56, 144, 2), (28, 192, 1), (28, 192, 2), (14, 384, 1),
              (14, 576, 1), (14, 576, 2), (7, 960, 1))  # fmt: skip


@lru_cache(maxsize=1)
def all_cases() -> tuple[Case, ...]:
    """Every case, by class."""
    large = [gemm("gemm_large", *size) for size in _GEMM_LARGE]
    large += [gemm("gemm_large", 512, 512, 512, t) for t in ("a", "b", "ab")]
    small = [gemm("gemm_small", *size) for size in ((64, 64, 64), (37, 768, 2304), (16, 4096, 4096), (4096, 1024, 4),
             (65536, 4, 1024), (32768, 64, 2048), (16384, 32, 1024), (1, 4096, 4096), (1, 768, 3072), (1, 2048, 1000),
             (4096, 4096, 1))]  # fmt: skip
    resnet = [conv("conv_resnet50", 1, c, h, h, o, k, s) for h, c, k, o, s in _RESNET]
    depthwise = [conv("depthwise", 1, c, h, h, c, 3, s, groups=c) for h, c, s in _DEPTHWISE]
    return (
        *large,
        *small,
        *resnet,
        *depthwise,
        *_edge_cases(),
        *_paper_chains(),
        *_memory_cases(),
        *_table_cases("gensor"),
        *_table_cases("roller"),
    )


def _edge_cases() -> list[Case]:
    """Sizes that are no multiples of anything: a product with a short sum, a convolution that skips elements, and
    products whose result the next product reads."""
    return [
        gemm("edges", 14209, 25, 428), conv("edges", 1, 297, 56, 56, 384, 1, 2),
        product_chain("edges", 1, 824, 64, 306, 128, True), product_chain("edges", 8, 754, 48, 873, 32, True),
        product_chain("edges", 8, 165, 64, 864, 80, False), product_chain("edges", 6, 84, 20, 844, 119, True),
        product_chain("edges", 11, 197, 77, 211, 120, False),
    ]  # fmt: skip


def _paper_chains() -> list[Case]:
    """The workloads of MCFuser's paper: two products in a row, and attention."""
    return [
        product_chain("mcfuser", w.batch, w.m, w.k, w.n, w.h, w.is_attention, transposed=w.is_attention)
        for w in WORKLOADS.values()
    ]


RANDOM_GEMMS, AWKWARD_GEMMS, EDGE_CASES_PER_CLASS = 60, 40, 12
"""Number of cases of the random classes."""

_MAX_FLOPS = 8e9


def random_cases(seed: int) -> tuple[Case, ...]:
    """Products of sizes that nobody chose, half of them by constants: `gemm_random` with every size from 128 to 2500,
    and `gemm_awkward` with one size from 1 to 64 and the others from 64 to 4000."""
    rng = np.random.default_rng(seed)

    def sizes(low: int, high: int) -> list[int]:
        return [int(x) for x in np.exp(rng.uniform(np.log(low), np.log(high), 3))]

    def drawn(group: str, low: int, high: int, count: int, short: bool) -> Iterator[Case]:
        while count:
            dims = sizes(low, high)
            if short:
                dims[int(rng.integers(3))] = int(rng.integers(1, 65))
            if 2.0 * np.prod(dims) <= _MAX_FLOPS:
                count -= 1
                yield gemm(group, *dims, constant=bool(count % 2))

    return (*drawn("gemm_random", 128, 2500, RANDOM_GEMMS, False),
            *drawn("gemm_awkward", 64, 4000, AWKWARD_GEMMS, True), *_random_edge_cases(seed))  # fmt: skip


def _random_edge_cases(seed: int) -> Iterator[Case]:
    """Operators of the class `edges` at sizes that nobody chose: `gemm_skinny` with sums of 1 to 32 products,
    `conv_strided` with one tap and a step of 2, `chain_random` of two products, half of them attention."""
    rng = np.random.default_rng((seed, 1))

    def size(low: int, high: int) -> int:
        return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))

    for _ in range(EDGE_CASES_PER_CLASS):
        yield gemm("gemm_skinny", size(1000, 30000), size(2, 32), size(32, 600), constant=bool(rng.integers(2)))
    for _ in range(EDGE_CASES_PER_CLASS):
        side = size(12, 80)
        yield conv("conv_strided", 1, size(32, 600), side, side, size(32, 600), 1, 2)
    for k in range(EDGE_CASES_PER_CLASS):
        sizes = (size(1, 12), size(32, 1000), size(16, 128), size(32, 1000), size(16, 128))
        yield product_chain("chain_random", *sizes, bool(k % 2))


def _layer_norm(shape: tuple[int, ...], label: str) -> Case:
    """Layer normalisation over the last axis."""

    def scale_and_bias() -> Sequence[TensorProto]:
        return [_weights("scale", shape[-1:], 1), _weights("bias", shape[-1:], 1)]

    return memory_bound("LayerNormalization", shape, shape, label, constants=scale_and_bias, ops=6)


def _memory_cases() -> list[Case]:
    """Pooling, softmax, normalisation, transposition, reduction."""
    return [
        pool("MaxPool", 1, 64, 112, 112, 3, 2, pad=1), pool("MaxPool", 1, 256, 56, 56, 2, 2),
        pool("AveragePool", 1, 128, 56, 56, 2, 2), pool("AveragePool", 1, 512, 28, 28, 3, 1, pad=1),
        memory_bound("GlobalAveragePool", (1, 2048, 7, 7), (1, 2048, 1, 1), "globalaveragepool_2048x7x7"),
        memory_bound("Softmax", (12, 128, 128), (12, 128, 128), "softmax_12x128x128", ops=4, axis=-1),
        memory_bound("Softmax", (1, 32000), (1, 32000), "softmax_1x32000", ops=4, axis=-1),
        memory_bound("Softmax", (64, 1000), (64, 1000), "softmax_64x1000", ops=4, axis=-1),
        _layer_norm((1, 128, 768), "layernorm_128x768"),
        _layer_norm((4, 197, 768), "layernorm_788x768"),
        _layer_norm((1, 512, 1024), "layernorm_512x1024"),
        memory_bound("Transpose", (1, 128, 12, 64), (1, 12, 128, 64), "transpose_0213_128x12x64", perm=[0, 2, 1, 3]),
        memory_bound("Transpose", (1, 256, 56, 56), (1, 56, 56, 256), "transpose_nhwc_256x56x56", perm=[0, 2, 3, 1]),
        memory_bound("Transpose", (1024, 1024), (1024, 1024), "transpose_1024x1024", perm=[1, 0]),
        memory_bound("Transpose", (1000, 777), (777, 1000), "transpose_1000x777", perm=[1, 0]),
        memory_bound("ReduceSum", (1024, 1024), (1024,), "reducesum_rows_1024x1024", constants=sum_axes(1), keepdims=0),
        memory_bound("ReduceSum", (1024, 1024), (1024,), "reducesum_columns_1024x1024", constants=sum_axes(0),
        keepdims=0),
        memory_bound("ReduceMean", (1, 256, 56, 56), (1, 256), "reducemean_256x56x56", constants=sum_axes(2, 3),
        keepdims=0),
        memory_bound("ReduceMax", (64, 32000), (64,), "reducemax_64x32000", constants=sum_axes(1), keepdims=0),
        memory_bound("Gelu", (1, 128, 3072), (1, 128, 3072), "gelu_128x3072", ops=10),
    ]  # fmt: skip


def _table_cases(group: str) -> list[Case]:
    """The cases of a paper's table that fit into memory."""
    with (DATA / f"{group}.csv").open(encoding="utf-8") as file:
        cases = [_table_case(group, row) for row in csv.DictReader(line for line in file if not line.startswith("#"))]
    unique = {case.name: case for case in cases if case.bytes <= MAX_CASE_BYTES}
    return list(unique.values())


def _table_case(group: str, row: Mapping[str, str]) -> Case:
    size = {k: int(v) for k, v in row.items() if v and k not in ("label", "op", "padding", "shape")}
    op = row["op"]
    if op in ("conv2d", "depthwise_conv2d"):
        pad = None if row["padding"] == "SAME" else 0
        groups = size["C"] if op.startswith("depthwise") else 1
        return conv(group, size["N"], size["C"], size["H"], size["W"], size.get("O", size["C"]), size["KH"],
                    size.get("stride", 1), pad, groups, size.get("dilation", 1))  # fmt: skip
    if op == "gemm":
        return gemm(group, size["M"], size["K"], size["Ncol"])
    if op == "gemv":
        return gemm(group, size["M"], size["K"], 1)
    if op == "avgpool2d":
        pad = size["KH"] // 2 if row["padding"] == "SAME" else 0
        return pool("AveragePool", size["N"], size["C"], size["H"], size["W"], size["KH"], size["stride"], group, pad)
    shape = tuple(int(n) for n in row["shape"].split("x"))
    if op == "relu":
        return memory_bound("Relu", shape, shape, f"relu_{row['shape']}", group)
    # the table names the shape alone; all axes behind the first two, or the last one, are summed
    axes = tuple(range(2, len(shape))) or (1,)
    output = tuple(n for k, n in enumerate(shape) if k not in axes)
    return memory_bound(
        "ReduceSum", shape, output, f"reducesum_{row['shape']}", group, constants=sum_axes(*axes), keepdims=0
    )
