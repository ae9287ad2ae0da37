"""Kinds of nodes: results whose sizes depend on data, and what is done with them."""

import numpy as np
from tests.fuzz_models.builder import Builder, UnfitError, Value


def _ranked(v: Value) -> bool:
    return v.is_float and v.exact and v.rank > 0 and v.array.size > 0


def _distinct(v: Value) -> bool:
    """Whether no two elements are equal, so that their order is one."""
    return _ranked(v) and np.unique(v.array).size == v.array.size


def top_k(b: Builder, n: str) -> None:
    """The largest or smallest elements along an axis; k is literal, computed or an input's."""
    x = b.pick(n, _distinct)
    axis = b.number(f"{n} axis", 0, x.rank - 1)
    size = x.array.shape[axis]
    how = b.choice(f"{n} k", ["literal", "size"]) if b.opset >= 11 else "literal"
    attrs: dict[str, int] = {"axis": axis}
    if b.opset >= 11 and b.flag(f"{n} smallest", 0.3):
        attrs["largest"] = 0
    if how == "literal":
        k = b.number(f"{n} count", 1, min(size, 3))
        dims = (*x.dims[:axis], str(k), *x.dims[axis + 1 :])
        inputs = [x.name] if b.opset < 10 else [x.name, b.constant(np.asarray([k], np.int64))]
        results = b.emit("TopK", inputs, [dims, dims], True, **attrs, k=k if b.opset < 10 else None)
    else:
        (shape,) = b.emit("Shape", [x.name], [(str(x.rank),)], True)
        (one,) = b.emit("Gather", [shape.name, b.constant(np.asarray([axis], np.int64))], [("1",)], True)
        if b.opset >= 13:
            (one,) = b.emit("Min", [one.name, b.constant(np.asarray([4], np.int64))], [("1",)], True)
        text = x.dims[axis] if b.opset < 13 else f"least({x.dims[axis]},4)"
        dims = (*x.dims[:axis], text, *x.dims[axis + 1 :])
        results = b.emit("TopK", [x.name, one.name], [dims, dims], True, **attrs)
    if b.flag(f"{n} joined", 0.5):
        (places,) = b.emit("Cast", [results[1].name], [dims], True, to=1)
        b.emit("Add", [results[0].name, places.name], [dims], True)


def _mask(b: Builder, n: str, x: Value) -> Value:
    if b.opset < 9:
        raise UnfitError
    (mask,) = b.emit("Greater", [x.name, b.constant(np.float32(b.number(f"{n} above", 0, 3) - 2))], [x.dims], True)
    return mask


def compress(b: Builder, n: str) -> None:
    """The elements, or the slices along an axis, that a condition keeps."""
    x = b.pick(n, _ranked)
    if b.flag(f"{n} flat", 0.5):
        mask = _mask(b, n, x)
        if x.rank > 1:
            (mask,) = b.emit("Reshape", [mask.name, b.constant(np.asarray([-1], np.int64))], [("?",)], True)
        (y,) = b.emit("Compress", [x.name, mask.name], [(f"count({n})",)], True)
    else:
        axis = b.number(f"{n} axis", 0, x.rank - 1)
        row = b.pick(f"{n} by", lambda v: _ranked(v) and v.rank == 1 and v.dims[0] == x.dims[axis])
        mask = _mask(b, n, row)
        dims = (*x.dims[:axis], f"count({n})", *x.dims[axis + 1 :])
        (y,) = b.emit("Compress", [x.name, mask.name], [dims], True, axis=axis)
        if b.flag(f"{n} twice", 0.5):
            (z,) = b.emit("Compress", [row.name, mask.name], [(f"count({n})",)], True)
            if axis == x.rank - 1:
                b.emit("Add", [y.name, z.name], [dims], True)


def non_zero(b: Builder, n: str) -> None:
    """Indices of what is not zero, and the elements there."""
    x = b.pick(n, _ranked)
    if b.opset < 9:
        raise UnfitError
    count = f"count({n})"
    (clipped,) = b.emit("Relu", [x.name], [x.dims], True)
    (places,) = b.emit("NonZero", [clipped.name], [(str(x.rank), count)], True)
    (turned,) = b.emit("Transpose", [places.name], [(count, str(x.rank))], True)
    if b.opset >= 11 and b.flag(f"{n} elements", 0.6):
        (results,) = b.emit("GatherND", [x.name, turned.name], [(count,)], True)
        (numbers,) = b.emit("Cast", [places.name], [(str(x.rank), count)], True, to=1)
        b.emit("Mul", [numbers.name, results.name], [(str(x.rank), count)], True)


def unique(b: Builder, n: str) -> None:
    """Values without those that come again, how often each comes, and where."""
    x = b.pick(n, _ranked)
    if b.opset < 11:
        raise UnfitError
    (halves,) = b.emit("Relu", [x.name], [x.dims], True)
    count = f"count({n})"
    if b.flag(f"{n} flat", 0.7):
        whole = str(x.array.size) if all(d.isdigit() for d in x.dims) else "*".join(x.dims)
        results = b.emit("Unique", [halves.name], [(count,), (count,), (whole,), (count,)], True)
        (often,) = b.emit("Cast", [results[3].name], [(count,)], True, to=1)
        b.emit("Add", [results[0].name, often.name], [(count,)], True)
    else:
        axis = b.number(f"{n} axis", 0, x.rank - 1)
        dims = (*x.dims[:axis], count, *x.dims[axis + 1 :])
        b.emit("Unique", [halves.name], [dims], True, axis=axis)


def suppression(b: Builder, n: str) -> None:
    """Boxes that overlap others too much are left out."""
    x = b.pick(n, lambda v: _distinct(v) and v.rank == 2)
    if b.opset < 11:
        raise UnfitError
    (scores,) = b.emit("Unsqueeze", *_unsqueezed(b, x))
    boxes = np.random.default_rng(b.seed).random((1, x.array.shape[1], 4)).astype(np.float32)
    if not x.dims[1].isdigit():
        raise UnfitError
    limits = [np.asarray([b.number(f"{n} most", 1, 3)], np.int64), np.float32([0.3]), np.float32([-100])]
    inputs = [b.constant(boxes), scores.name, *(b.constant(np.asarray(a)) for a in limits)]
    b.emit("NonMaxSuppression", inputs, [(f"count({n})", "3")], True)


def _unsqueezed(b: Builder, x: Value) -> tuple[list[str], list[tuple[str, ...]]]:
    if b.opset < 13:
        raise UnfitError
    return [x.name, b.constant(np.asarray([0], np.int64))], [("1", *x.dims)]
