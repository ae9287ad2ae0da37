"""Weights of 2, 4 or 8 bits in blocks, each with a scale and a zero point: products and rows of them.

Dequantization is a stage of its own, so that constant weights are dequantized when the model is compiled.
"""

from collections.abc import Callable

from tilewright.errors import ShapeError
from tilewright.expr.dtype import DType, int32, int64, uint8
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, select
from tilewright.ops.checks import expect_dtype, expect_rank, expect_shape, expect_size
from tilewright.ops.clamp import clamp_index
from tilewright.ops.contraction import accumulator_dtype, epilogue, sum_over, widening_product
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.gather import resolve_index

ZeroPointReader = Callable[[Expr, Expr], Expr]
"""The zero point of (column, block)."""

_MIN_BLOCK = 16


def _block_size(d: Definition) -> int:
    """The attribute block_size.

    Raises:
        ShapeError: it is no power of two of 16 or more.
    """
    size = d.attr_int("block_size", 128)
    if size < _MIN_BLOCK or size & (size - 1):
        what = f"block_size: expected a power of two of {_MIN_BLOCK} or more, got {size}"
        raise ShapeError(what, where=f"node {d.label}")
    return size


def _bits(d: Definition) -> int:
    bits = d.attr_int("bits", 4)
    if bits not in (2, 4, 8):
        raise d.unsupported(f"weights of {bits} bits are not supported")
    return bits


def _unpacked(byte: Expr, place: Expr, bits: int) -> Expr:
    """The unsigned number number `place` of those in a byte, the lowest bits first, as int32."""
    value = cast(int32, byte)
    if bits == 8:
        return value
    per_byte, base = 8 // bits, 1 << bits
    shifted = value
    for k in range(1, per_byte):
        shifted = select((place % per_byte).equals(k), value // base**k, shifted)
    return shifted % base


@operator("MatMulNBits", domain=CONTRIB, ignores=("accuracy_level",))
def matmul_nbits(d: Definition) -> OpValue:
    """A @ W' + bias, with W [N, K] of 2, 4 or 8 bits: inputs A, W in bytes [N, blocks, bytes], scales [N, blocks], zero
    points (in bytes of several, or of the type of A), block numbers of the columns (g_idx), bias.

    A is not quantized, whatever precision `accuracy_level` allows.

    Raises:
        ShapeError: an operand does not have the size that N, K, bits and block_size imply.
    """
    a, packed, scales = d.input(0), d.input(1), d.input(2)
    if d.attr_int("weight_prepacked", 0):
        raise d.unsupported("prepacked weights are not supported")
    columns, depth, block, bits = d.attr_int("N", 0), d.attr_int("K", 0), _block_size(d), _bits(d)
    if columns < 1 or depth < 1:
        raise ShapeError(f"expected N and K of 1 or more, got {columns} and {depth}", where=f"node {d.label}")
    blocks, blob = -(-depth // block), block * bits // 8
    expect_dtype(d, packed, uint8, "B")
    expect_shape(d, packed, (const(columns), const(blocks), const(blob)), "B")
    expect_dtype(d, scales, a.dtype, "scales")
    weights = _dequantized_matrix(d, packed, scales, columns, depth)
    if a.rank < 1:
        raise ShapeError("A: expected at least 1 dimension, got a scalar", where=f"node {d.label}")
    expect_size(d, a.shape[-1], const(depth), "last dimension of A")
    bias, wide = d.optional(5), accumulator_dtype(a.dtype)
    if bias is not None:
        expect_dtype(d, bias, a.dtype, "bias")
        expect_shape(d, bias, (const(columns),), "bias")
    total = sum_over(
        d, (*a.shape[:-1], const(columns)), (const(depth),),
        lambda i, r: widening_product(a[(*i[:-1], r[0])], weights[i[-1], r[0]], wide),
    )  # fmt: skip
    return epilogue(d, total, a.dtype, None if bias is None else lambda i: cast(wide, bias[i[-1]]))


def _dequantized_matrix(d: Definition, packed: OpValue, scales: OpValue, columns: int, depth: int) -> OpValue:
    """The weights [N, K] in the type of the scales."""
    block, bits, per_byte = _block_size(d), _bits(d), 8 // _bits(d)
    blocks = -(-depth // block)
    factors = d.view(scales, (const(columns), const(blocks))) if scales.rank == 1 else scales
    if scales.rank == 1:
        expect_size(d, scales.shape[0], const(columns * blocks), "scales")
    expect_shape(d, factors, (const(columns), const(blocks)), "scales")
    zero, numbers, wide = d.optional(3), d.optional(4), accumulator_dtype(scales.dtype)
    read_zero = _zero_point_reader(d, zero, columns, blocks, wide)
    if numbers is not None:
        expect_dtype(d, numbers, int32, "g_idx")
        expect_rank(d, numbers, 1, "g_idx")
        d.require(numbers.shape[0] >= depth, f"g_idx: expected {depth} numbers or more, got {numbers.shape[0]}")

    def element(n: Expr, k: Expr) -> Expr:
        number = k // block if numbers is None else clamp_index(cast(int64, numbers[k]), const(blocks))
        byte = packed[n, k // block, (k % block) // per_byte]
        value = cast(wide, _unpacked(byte, k, bits)) - read_zero(n, number)
        return cast(scales.dtype, value * cast(wide, factors[n, number]))

    return d.compute((const(columns), const(depth)), element)


def _zero_point_reader(d: Definition, zero: OpValue | None, columns: int, blocks: int, wide: DType) -> ZeroPointReader:
    """A function that gives the zero point of (column, block): by default the middle of the range."""
    bits = _bits(d)
    if zero is None:
        return lambda n, number: const(1 << (bits - 1), wide)
    is_packed = zero.dtype == uint8
    row = -(-blocks * bits // 8) if is_packed else blocks
    table = d.view(zero, (const(columns), const(row))) if zero.rank == 1 else zero
    if zero.rank == 1:
        expect_size(d, zero.shape[0], const(columns * row), "zero_points")
    expect_shape(d, table, (const(columns), const(row)), "zero_points")
    if not is_packed:
        return lambda n, number: cast(wide, table[n, number])
    per_byte = 8 // bits
    return lambda n, number: cast(wide, _unpacked(table[n, number // per_byte], number, bits))


@operator("GatherBlockQuantized", domain=CONTRIB)
def gather_block_quantized(d: Definition) -> OpValue:
    """Rows of a table of 2, 4 or 8 bits, dequantized: inputs the table in bytes, row numbers, scales and zero points of
    the blocks of the last dimension.

    Raises:
        UnsupportedError: a table that is not in bytes, or not gathered by its first and quantized by its last
            dimension.
    """
    x, indices, scales, zero = d.input(0), d.input(1), d.input(2), d.optional(3)
    block, bits = _block_size(d), _bits(d)
    axes = d.axis(d.attr_int("gather_axis", 0), x.rank), d.axis(d.attr_int("quantize_axis", 1), x.rank)
    if x.dtype != uint8 or axes != (0, x.rank - 1):
        raise d.unsupported("expected a table of bytes, gathered by its first and quantized by its last dimension")
    per_byte, wide = 8 // bits, accumulator_dtype(scales.dtype)
    size = x.shape[-1] * per_byte
    blocks = (size + (block - 1)) // block
    expect_shape(d, scales, (*x.shape[:-1], blocks), "scales")
    if zero is not None:
        expect_dtype(d, zero, x.dtype, "zero_points")
        expect_shape(d, zero, (*x.shape[:-1], (blocks + (per_byte - 1)) // per_byte), "zero_points")

    def element(*i: Expr) -> Expr:
        row = resolve_index(d, indices, i[: indices.rank], x.shape[0], "the table")
        place, k = (row, *i[indices.rank : -1]), i[-1]
        number = k // block
        value = _unpacked(x[(*place, k // per_byte)], k, bits)
        middle: Expr = const(1 << (bits - 1), int32)
        offset = middle if zero is None else _unpacked(zero[(*place, number // per_byte)], number, bits)
        return cast(scales.dtype, cast(wide, value - offset) * cast(wide, scales[(*place, number)]))

    return d.compute((*indices.shape, *x.shape[1:-1], size), element)
