"""Every kind of random operator: one function each, from a builder to a model."""

from collections.abc import Callable, Mapping

from tests.fuzz_construct.builder import Builder, RandomModel
from tests.fuzz_construct.elements import chain, moved, resize, transpose
from tests.fuzz_construct.products import attention, einsum, gemm, integer_product, matmul
from tests.fuzz_construct.rows import (
    image_norm,
    layer_norm,
    place_of_extreme,
    reduction,
    root_mean_square_norm,
    softmax,
    statistics,
)  # fmt: skip
from tests.fuzz_construct.windows import convolution, pooling, transposed_convolution

KINDS: Mapping[str, Callable[[Builder], RandomModel]] = {
    f.__name__: f
    for f in (
        gemm, matmul, einsum, integer_product, convolution, transposed_convolution, pooling, reduction,
        place_of_extreme, softmax, attention, layer_norm, root_mean_square_norm, image_norm, transpose, moved, chain,
        resize, statistics,
    )
}  # fmt: skip
"""Every kind of operator by name."""

OFTEN = ("gemm", "matmul", "convolution", "convolution", "pooling", "reduction", *KINDS)
"""From which kinds are drawn: those that construction has most to choose for come up more often."""
