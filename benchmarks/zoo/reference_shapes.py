"""ONNX operators of the float64 reference that move, select or count elements but do no arithmetic on them."""

import math

import torch
from torch import Tensor

from benchmarks.zoo.reference_ops import (
    Attributes,
    Operands,
    ReferenceGapError,
    axes_of,
    evaluates,
    integer_list,
    optional,
    required,
)


@evaluates("Shape")
def _shape(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    shape = list(required(operands[0]).shape)
    return [torch.tensor(shape[attributes.get("start", 0) : attributes.get("end", None)], dtype=torch.int64)]


@evaluates("Size")
def _size(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    return [torch.tensor(required(operands[0]).numel(), dtype=torch.int64)]


@evaluates("Reshape")
def _reshape(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, target = required(operands[0]), integer_list(required(operands[1]))
    if not attributes.get("allowzero", 0):
        target = [x.shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    return [x.reshape(target)]


@evaluates("Flatten")
def _flatten(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x = required(operands[0])
    axis = attributes.get("axis", 1)
    return [x.reshape(math.prod(x.shape[: axis + x.dim() if axis < 0 else axis]), -1)]


@evaluates("Transpose")
def _transpose(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x = required(operands[0])
    return [x.permute(list(attributes.get("perm", reversed(range(x.dim())))))]


@evaluates("Squeeze")
def _squeeze(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, axes = required(operands[0]), axes_of(operands, attributes)
    return [x.squeeze() if axes is None else x.squeeze(axes)]


@evaluates("Unsqueeze")
def _unsqueeze(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, axes = required(operands[0]), axes_of(operands, attributes) or []
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return [x]


@evaluates("Concat")
def _concat(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    return [torch.cat([required(operand) for operand in operands], attributes["axis"])]


@evaluates("Split")
def _split(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, sizes = required(operands[0]), optional(operands, 1)
    axis = attributes.get("axis", 0)
    if sizes is not None or "split" in attributes:
        lengths = integer_list(sizes) if sizes is not None else list(attributes["split"])
        return list(torch.split(x, lengths, axis))
    if "num_outputs" not in attributes:
        raise ReferenceGapError("Split into equal parts without num_outputs")
    return list(torch.split(x, math.ceil(x.shape[axis] / attributes["num_outputs"]), axis))


@evaluates("Slice")
def _slice(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x = required(operands[0])
    if "starts" in attributes:
        raise ReferenceGapError("Slice with attributes (opset below 10)")
    starts, ends = integer_list(required(operands[1])), integer_list(required(operands[2]))
    axes_operand, steps_operand = optional(operands, 3), optional(operands, 4)
    axes = list(range(len(starts))) if axes_operand is None else integer_list(axes_operand)
    steps = [1] * len(starts) if steps_operand is None else integer_list(steps_operand)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        chosen = range(x.shape[axis])[start:end:step]
        x = x.index_select(axis, torch.tensor(list(chosen), dtype=torch.int64))
    return [x]


@evaluates("Gather")
def _gather(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, indices = required(operands[0]), required(operands[1]).long()
    axis = attributes.get("axis", 0) % x.dim()
    indices = torch.where(indices < 0, indices + x.shape[axis], indices)
    shape = [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]
    return [x.index_select(axis, indices.reshape(-1)).reshape(shape)]


@evaluates("GatherND")
def _gather_nd(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    if attributes.get("batch_dims", 0):
        raise ReferenceGapError("GatherND with batch dimensions")
    x, indices = required(operands[0]), required(operands[1])
    return [x[tuple(indices.unbind(-1))]]


@evaluates("GatherElements")
def _gather_elements(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, indices = required(operands[0]), required(operands[1])
    axis = attributes.get("axis", 0) % x.dim()
    return [torch.gather(x, axis, torch.where(indices < 0, indices + x.shape[axis], indices))]


@evaluates("Expand")
def _expand(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, target = required(operands[0]), integer_list(required(operands[1]))
    return [x.expand(torch.broadcast_shapes(x.shape, target))]


@evaluates("Tile")
def _tile(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    return [required(operands[0]).tile(integer_list(required(operands[1])))]


@evaluates("Range")
def _range(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    start, limit, step = (required(operand) for operand in operands)
    return [torch.arange(start.item(), limit.item(), step.item(), dtype=start.dtype)]


@evaluates("Trilu")
def _trilu(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    offset = optional(operands, 1)
    function = torch.triu if attributes.get("upper", 1) else torch.tril
    return [function(required(operands[0]), 0 if offset is None else int(offset.item()))]


@evaluates("CumSum")
def _cumsum(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    if attributes.get("exclusive", 0) or attributes.get("reverse", 0):
        raise ReferenceGapError("CumSum, exclusive or reversed")
    return [torch.cumsum(required(operands[0]), int(required(operands[1]).item()))]


@evaluates("Pad")
def _pad(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, pads, value = required(operands[0]), optional(operands, 1), optional(operands, 2)
    if pads is None or attributes.get("mode", b"constant") != b"constant" or optional(operands, 3) is not None:
        raise ReferenceGapError("Pad other than by a constant over all axes")
    amounts = integer_list(pads)
    order = [amounts[side * x.dim() + axis] for axis in reversed(range(x.dim())) for side in (0, 1)]
    return [torch.nn.functional.pad(x, order, value=0.0 if value is None else value.item())]


@evaluates("Resize")
def _resize(operands: Operands, attributes: Attributes, opset: int) -> list[Tensor]:
    x, scales, sizes = required(operands[0]), optional(operands, 2), optional(operands, 3)
    form = tuple(attributes.get(name, b"") for name in ("mode", "coordinate_transformation_mode", "nearest_mode"))
    if form != (b"nearest", b"asymmetric", b"floor") or sizes is not None or scales is None or "axes" in attributes:
        raise ReferenceGapError("Resize other than nearest, asymmetric, floor, by scales")
    for axis, scale in enumerate(scales.tolist()):
        if scale != 1.0:
            index = torch.floor(torch.arange(math.floor(x.shape[axis] * scale), dtype=torch.float64) / scale).long()
            x = x.index_select(axis, index)
    return [x]
