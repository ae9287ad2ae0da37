"""All operator definitions: importing this module fills `OPERATORS`."""

from tilewright.ops import (
    activation as activation,
    conv as conv,
    conv_transpose as conv_transpose,
    einsum as einsum,
    gemm as gemm,
    matmul as matmul,
    normalization as normalization,
    pool as pool,
    quantize as quantize,
    resize as resize,
)
from tilewright.ops.definition import OPERATORS as OPERATORS
