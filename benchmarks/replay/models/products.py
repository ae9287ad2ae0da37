"""Matrix products: sizes, batches, transposed operands, what is fused to them, element types."""

import onnx

from benchmarks.replay.models.build import Graph, Model, Models

_SIZES = [
    (1, 1, 1), (1, 64, 64), (7, 13, 5), (16, 16, 16), (33, 65, 17), (64, 256, 128), (128, 128, 128), (100, 3, 200),
    (200, 300, 1), (1, 512, 10), (5, 1024, 48), (96, 40, 4096),
]  # fmt: skip


def models() -> Models:
    """All of them."""
    for m, k, n in _SIZES:
        yield Model(f"matmul/constant_{m}x{k}x{n}", lambda m=m, k=k, n=n: _constant(m, k, n))
    for m, k, n in ((32, 48, 64), (17, 31, 29), (1, 100, 100), (120, 64, 96)):
        yield Model(f"matmul/inputs_{m}x{k}x{n}", lambda m=m, k=k, n=n: _two((m, k), (k, n)))
    yield Model("matmul/batched", lambda: _two((4, 32, 16), (4, 16, 24)))
    yield Model("matmul/broadcast_right", lambda: _two((2, 3, 8, 16), (16, 12)))
    yield Model("matmul/broadcast_both", lambda: _two((2, 1, 8, 16), (1, 3, 16, 12)))
    yield Model("matmul/vector_matrix", lambda: _two((24,), (24, 40)))
    yield Model("matmul/matrix_vector", lambda: _two((40, 24), (24,)))
    yield Model("matmul/dynamic_rows", lambda: _constant("m", 64, 96), ("m:1..512",))
    yield Model("matmul/dynamic_rows_undeclared", lambda: _constant("m", 48, 33))
    yield Model("matmul/dynamic_all", lambda: _two(("m", "k"), ("k", "n")), ("m:1..256", "k:1..256", "n:1..256"))
    yield Model("matmul/dynamic_batch", lambda: _two(("b", 12, 32), ("b", 32, 20)), ("b:1..64",))
    yield Model("matmul/dynamic_inner", lambda: _two((16, "k"), ("k", 40)), ("k:1..1000",))
    for dtype in ("float64", "float16", "int32"):
        yield Model(f"matmul/{dtype}", lambda dtype=dtype: _constant(24, 32, 40, dtype))
    yield Model("matmul/transposed_input", _transposed_input)
    for a, b in ((0, 0), (1, 0), (0, 1), (1, 1)):
        yield Model(f"gemm/trans{a}{b}", lambda a=a, b=b: _gemm(a, b))
    yield Model("gemm/scaled", lambda: _gemm(0, 1, alpha=0.5, beta=2.0))
    yield Model("gemm/bias_column", lambda: _gemm(0, 0, bias=(40, 1)))
    yield Model("gemm/bias_scalar", lambda: _gemm(0, 0, bias=(1,)))
    yield Model("gemm/no_bias", lambda: _gemm(0, 1, bias=None))
    for after in ("Relu", "Tanh", "Erf", "Sigmoid"):
        yield Model(f"matmul/bias_{after.lower()}", lambda after=after: _epilogue(after))
    yield Model("matmul/residual", _residual)
    yield Model("matmul/residual_dynamic", lambda: _residual("m"), ("m:1..128",))
    yield Model("einsum/batched", lambda: _einsum("bij,bjk->bik", (3, 12, 20), (3, 20, 16)))
    yield Model("einsum/heads", lambda: _einsum("bihd,bjhd->bhij", (2, 10, 4, 8), (2, 10, 4, 8)))
    yield Model("einsum/outer", lambda: _einsum("i,j->ij", (30,), (50,)))
    yield Model("quantised/matmul_integer", _matmul_integer)
    yield Model("quantised/qlinear_matmul", _qlinear_matmul)


def _constant(m: int | str, k: int, n: int, dtype: str = "float32") -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("MatMul", g.input(m, k, dtype=dtype), g.weight(k, n, dtype=dtype)), dtype=dtype)


def _two(a: tuple[int | str, ...], b: tuple[int | str, ...]) -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("MatMul", g.input(*a), g.input(*b)))


def _transposed_input() -> onnx.ModelProto:
    g = Graph()
    left = g.op("Transpose", g.input(4, 24, 30), perm=[0, 2, 1])
    return g.done(g.op("MatMul", left, g.input(4, 24, 18)))


def _gemm(
    a: int, b: int, alpha: float = 1.0, beta: float = 1.0, bias: tuple[int, ...] | None = (56,)
) -> onnx.ModelProto:
    g = Graph()
    x = g.input(*((32, 40) if a else (40, 32)))
    w = g.weight(*((56, 32) if b else (32, 56)))
    third = [] if bias is None else [g.weight(*bias)]
    return g.done(g.op("Gemm", x, w, *third, transA=a, transB=b, alpha=alpha, beta=beta))


def _epilogue(after: str) -> onnx.ModelProto:
    g = Graph()
    product = g.op("MatMul", g.input(48, 64), g.weight(64, 80))
    return g.done(g.op(after, g.op("Add", product, g.weight(80))))


def _residual(m: int | str = 30) -> onnx.ModelProto:
    g = Graph()
    x = g.input(m, 64)
    return g.done(g.op("Add", g.op("Add", g.op("MatMul", x, g.weight(64, 64)), g.weight(64)), x))


def _einsum(equation: str, a: tuple[int, ...], b: tuple[int, ...]) -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("Einsum", g.input(*a), g.input(*b), equation=equation))


def _matmul_integer() -> onnx.ModelProto:
    g = Graph()
    x, w = g.input(20, 48, dtype="uint8"), g.weight(48, 32, dtype="int8")
    return g.done(g.op("MatMulInteger", x, w, g.constant(128, "uint8"), g.constant(0, "int8")), dtype="int32")


def _qlinear_matmul() -> onnx.ModelProto:
    g = Graph()
    x, w = g.input(20, 48, dtype="uint8"), g.weight(48, 32, dtype="int8")
    scales = [g.constant(s) for s in (0.02, 0.01, 0.05)]
    zero_x, zero_w, zero_y = g.constant(120, "uint8"), g.constant(0, "int8"), g.constant(100, "uint8")
    result = g.op("QLinearMatMul", x, scales[0], zero_x, w, scales[1], zero_w, scales[2], zero_y)
    return g.done(result, dtype="uint8")
