"""Matrix products of `com.microsoft`: with transposed operands, scaled, and followed by an activation."""

from tilewright.ops.contraction import accumulator_dtype, batched_matmul, epilogue
from tilewright.ops.contrib import CONTRIB
from tilewright.ops.contrib.fused_activation import gemm_activation
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.elementwise import two_inputs_of_one_type
from tilewright.ops.gemm import scaled_product
from tilewright.ops.transpose import permute


@operator("FusedMatMul", "TransposeMatMul", domain=CONTRIB)
def fused_matmul(d: Definition) -> OpValue:
    """alpha * A' B'; matrices are transposed where `transA`, `transB` are set.

    With `transBatchA`, `transBatchB` the first dimension moves behind the other batch dimensions, to the rows.
    """
    a, b = two_inputs_of_one_type(d)
    wide = accumulator_dtype(a.dtype)
    left, right = (
        _matrix_operand(d, x, bool(d.attr_int(f"trans{name}", 0)), bool(d.attr_int(f"transBatch{name}", 0)))
        for x, name in ((a, "A"), (b, "B"))
    )
    return epilogue(d, batched_matmul(d, left, right, wide), a.dtype, scale=d.attr_float("alpha", 1.0))


def _matrix_operand(d: Definition, x: OpValue, transposed: bool, batch_transposed: bool) -> OpValue:
    """An operand of FusedMatMul with its dimensions in the order batch, rows, columns; vectors stay as they are."""
    if x.rank < 2:
        return x
    order = list(range(x.rank))
    if batch_transposed and x.rank > 2:
        order = [*order[1:-1], 0, order[-1]]
    if transposed:
        order = [*order[:-2], order[-1], order[-2]]
    return permute(d, x, order)


@operator("FusedGemm", domain=CONTRIB)
def fused_gemm(d: Definition) -> OpValue:
    """activation(alpha * A' B' + beta * C)

    Raises:
        UnsupportedError: an activation that is not known.
    """
    function = gemm_activation(d)
    product = scaled_product(d)
    return product if function is None else d.compute(product.shape, lambda *i: function(product[i]))
