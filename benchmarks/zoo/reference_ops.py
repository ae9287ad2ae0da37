"""ONNX operators on torch tensors for the float64 reference: every floating-point value is a double.

Written from the ONNX operator specification, independently of the compiler, and only as wide as the zoo needs: a form
that is not covered raises `ReferenceGapError`, so that no reference value is silently wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from onnx import TensorProto
from torch import Tensor
from torch.nn import functional

Attributes = Mapping[str, Any]
Operands = Sequence[Tensor | None]
Kernel = Callable[[Operands, Attributes, int], list[Tensor]]

FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
INTEGERS = {
    TensorProto.INT64: torch.int64, TensorProto.INT32: torch.int32, TensorProto.INT16: torch.int16,
    TensorProto.INT8: torch.int8, TensorProto.UINT8: torch.uint8, TensorProto.BOOL: torch.bool,
}  # fmt: skip
KERNELS: dict[str, Kernel] = {}


class ReferenceGapError(Exception):
    """An operator, or a form of one, that the reference does not evaluate."""


def evaluates(*names: str) -> Callable[[Kernel], Kernel]:
    """Register a function as the evaluator of the operators `names`."""

    def register(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(names, function))
        return function

    return register


def required(operand: Tensor | None) -> Tensor:
    """Return an operand that must be there; raises `ReferenceGapError` where it is absent."""
    if operand is None:
        raise ReferenceGapError("a required operand is absent")
    return operand


def optional(operands: Operands, index: int) -> Tensor | None:
    """Return the operand at `index`, or None where the node has none there."""
    return operands[index] if index < len(operands) else None


def integer_list(tensor: Tensor) -> list[int]:
    """Return the elements of an integer tensor as a flat list."""
    return cast(list[int], tensor.reshape(-1).tolist())


def axes_of(operands: Operands, attributes: Attributes) -> list[int] | None:
    """The axes of a reduction or squeeze: an attribute in old opsets, the second operand in new ones."""
    if "axes" in attributes:
        return list(attributes["axes"])
    operand = optional(operands, 1)
    return None if operand is None else integer_list(operand)


def _elementwise(function: Callable[..., Tensor]) -> Kernel:
    def evaluate(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
        return [function(*(required(operand) for operand in operands))]

    return evaluate


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


_ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": _divide, "Pow": torch.pow, "Sqrt": torch.sqrt,
    "Exp": torch.exp, "Log": torch.log, "Erf": torch.erf, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid,
    "Relu": torch.relu, "Neg": torch.neg, "Abs": torch.abs, "Reciprocal": torch.reciprocal, "Floor": torch.floor,
    "Ceil": torch.ceil, "Sin": torch.sin, "Cos": torch.cos, "IsNaN": torch.isnan, "Not": torch.logical_not,
    "And": torch.logical_and, "Or": torch.logical_or, "Equal": torch.eq, "Greater": torch.gt, "Less": torch.lt,
    "GreaterOrEqual": torch.ge, "LessOrEqual": torch.le, "Where": torch.where, "Identity": torch.clone,
    "MatMul": torch.matmul,
}  # fmt: skip
KERNELS.update({name: _elementwise(function) for name, function in _ELEMENTWISE.items()})


def _left_fold(function: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    def evaluate(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
        result = required(operands[0])
        for operand in operands[1:]:
            result = function(result, required(operand))
        return [result]

    return evaluate


KERNELS.update({"Max": _left_fold(torch.maximum), "Min": _left_fold(torch.minimum), "Sum": _left_fold(torch.add)})


@evaluates("Clip")
def _clip(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x = required(operands[0])
    low, high = optional(operands, 1), optional(operands, 2)
    if "min" in attributes:
        low = x.new_tensor(attributes["min"])
    if "max" in attributes:
        high = x.new_tensor(attributes["max"])
    x = x if low is None else torch.maximum(x, low)
    return [x if high is None else torch.minimum(x, high)]


@evaluates("HardSigmoid")
def _hard_sigmoid(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    return [(attributes.get("alpha", 0.2) * required(operands[0]) + attributes.get("beta", 0.5)).clamp(0.0, 1.0)]


@evaluates("HardSwish")
def _hard_swish(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x = required(operands[0])
    return [x * (x / 6.0 + 0.5).clamp(0.0, 1.0)]


@evaluates("LeakyRelu")
def _leaky_relu(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    return [functional.leaky_relu(required(operands[0]), attributes.get("alpha", 0.01))]


@evaluates("Gelu")
def _gelu(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    return [functional.gelu(required(operands[0]), approximate=attributes.get("approximate", b"none").decode())]


@evaluates("Cast")
def _cast(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    target = attributes["to"]
    if target not in FLOATS and target not in INTEGERS:
        raise ReferenceGapError(f"Cast to {TensorProto.DataType.Name(target)}")
    return [required(operands[0]).to(torch.float64 if target in FLOATS else INTEGERS[target])]


@evaluates("CastLike")
def _cast_like(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    return [required(operands[0]).to(required(operands[1]).dtype)]


@evaluates("Softmax")
def _softmax(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x = required(operands[0])
    if opset >= 13:
        return [torch.softmax(x, attributes.get("axis", -1))]
    # Before opset 13 the operator works on the matrix that `axis` splits the shape into.
    axis = attributes.get("axis", 1) % x.dim()
    return [torch.softmax(x.flatten(axis), -1).reshape(x.shape)]


@evaluates("LayerNormalization")
def _layer_norm(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x = required(operands[0])
    axis = attributes.get("axis", -1) % x.dim()
    scale = required(operands[1]).expand(x.shape[axis:])
    return [functional.layer_norm(x, x.shape[axis:], scale, optional(operands, 2), attributes.get("epsilon", 1e-5))]


@evaluates("BatchNormalization")
def _batch_norm(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, scale, bias, mean, variance = (required(operand) for operand in operands)
    if attributes.get("training_mode", 0):
        raise ReferenceGapError("BatchNormalization in training mode")
    return [functional.batch_norm(x, mean, variance, scale, bias, training=False, eps=attributes.get("epsilon", 1e-5))]


@evaluates("Gemm")
def _gemm(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    a, b, c = required(operands[0]), required(operands[1]), optional(operands, 2)
    product = (a.mT if attributes.get("transA") else a) @ (b.mT if attributes.get("transB") else b)
    product = attributes.get("alpha", 1.0) * product
    return [product if c is None else product + attributes.get("beta", 1.0) * c]


_REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keep),
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keep),
    "ReduceL2": lambda x, axes, keep: x.square().sum(axes, keep).sqrt(),
}


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Kernel:
    def evaluate(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
        x = required(operands[0])
        axes = axes_of(operands, attributes)
        if not axes:
            if attributes.get("noop_with_empty_axes", 0):
                return [x]
            axes = list(range(x.dim()))
        return [function(x, axes, bool(attributes.get("keepdims", 1)))]

    return evaluate


KERNELS.update({name: _reduction(function) for name, function in _REDUCTIONS.items()})


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


@evaluates("GlobalAveragePool")
def _global_average_pool(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x = required(operands[0])
    return [x.mean(_spatial(x), True)]


@evaluates("GlobalMaxPool")
def _global_max_pool(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x = required(operands[0])
    return [x.amax(_spatial(x), True)]


def _padding(attributes: Attributes, spatial: int) -> list[int]:
    """ONNX pads (all begins, then all ends) in the order of `torch.nn.functional.pad` (last axis first)."""
    auto = attributes.get("auto_pad", b"NOTSET")
    if auto not in (b"NOTSET", b"VALID"):
        raise ReferenceGapError(f"auto_pad {auto.decode()}")
    pads = list(attributes.get("pads", [0] * 2 * spatial))
    return [pads[side * spatial + axis] for axis in reversed(range(spatial)) for side in (0, 1)]


@evaluates("Conv")
def _conv(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, weight = required(operands[0]), required(operands[1])
    spatial = x.dim() - 2
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[spatial - 1]
    return [
        function(
            functional.pad(x, _padding(attributes, spatial)),
            weight,
            optional(operands, 2),
            list(attributes.get("strides", [1] * spatial)),
            0,
            list(attributes.get("dilations", [1] * spatial)),
            attributes.get("group", 1),
        )
    ]


@evaluates("ConvTranspose")
def _conv_transpose(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, weight = required(operands[0]), required(operands[1])
    spatial = x.dim() - 2
    if "output_shape" in attributes or any(attributes.get("output_padding", [0])):
        raise ReferenceGapError("ConvTranspose with an output shape or output padding")
    function = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[spatial - 1]
    strides = list(attributes.get("strides", [1] * spatial))
    dilations = list(attributes.get("dilations", [1] * spatial))
    full = function(x, weight, optional(operands, 2), strides, 0, 0, attributes.get("group", 1), dilations)
    # Negative padding crops: the pads of a transposed convolution are cut off its result.
    return [functional.pad(full, [-pad for pad in _padding(attributes, spatial)])]


@evaluates("MaxPool")
def _max_pool(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x = required(operands[0])
    spatial = x.dim() - 2
    if attributes.get("ceil_mode", 0):
        raise ReferenceGapError("MaxPool with ceil_mode")
    function = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[spatial - 1]
    padded = functional.pad(x, _padding(attributes, spatial), value=float("-inf"))
    strides = list(attributes.get("strides", [1] * spatial))
    dilations = list(attributes.get("dilations", [1] * spatial))
    return [cast(Tensor, function(padded, list(attributes["kernel_shape"]), strides, 0, dilations))]


@evaluates("AveragePool")
def _average_pool(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x = required(operands[0])
    spatial = x.dim() - 2
    if attributes.get("ceil_mode", 0) or any(dilation != 1 for dilation in attributes.get("dilations", [])):
        raise ReferenceGapError("AveragePool with ceil_mode or dilations")
    function = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[spatial - 1]
    window = list(attributes["kernel_shape"])
    strides = list(attributes.get("strides", [1] * spatial))
    padding = _padding(attributes, spatial)
    mean = function(functional.pad(x, padding), window, strides)
    if attributes.get("count_include_pad", 0):
        return [mean]
    return [mean / function(functional.pad(torch.ones_like(x), padding), window, strides)]
