"""Kinds of nodes: what moves elements, with shapes that are literal or computed from shapes."""

from collections.abc import Sequence
from math import prod

import numpy as np
from tests.fuzz_models.builder import Builder, UnfitError, Value, derived


def _ints(b: Builder, *values: int) -> str:
    return b.constant(np.asarray(values, np.int64))


def _ranked(v: Value) -> bool:
    return v.rank > 0 and v.array.dtype.kind in "fi"


def _product(dims: Sequence[str], sizes: Sequence[int]) -> str:
    """The text of several dimensions that become one."""
    return str(prod(sizes)) if all(d.isdigit() for d in dims) else "*".join(dims)


def transpose(b: Builder, n: str) -> None:
    """By a permutation."""
    x = b.pick(n, _ranked)
    left, order = list(range(x.rank)), []
    while left:
        order.append(left.pop(b.number(f"{n} axis {len(order)}", 0, len(left) - 1)))
    b.emit("Transpose", [x.name], [[x.dims[k] for k in order]], x.exact, perm=order)


def flat(b: Builder, n: str) -> None:
    """Reshape to [size of the first dimension, -1], [-1] or with zeros for what stays."""
    x = b.pick(n, lambda v: _ranked(v) and v.array.size > 0)
    if b.opset < 5:
        raise UnfitError
    how = b.choice(f"{n} how", ["rest", "all", "kept"])
    inner = _product(x.dims[1:], x.array.shape[1:])
    if how == "rest":
        b.emit("Reshape", [x.name, _ints(b, 0, -1)], [(x.dims[0], inner)], x.exact)
    elif how == "all":
        b.emit("Reshape", [x.name, _ints(b, -1)], [(_product(x.dims, x.array.shape),)], x.exact)
    else:
        b.emit("Reshape", [x.name, _ints(b, *([0] * x.rank), 1)], [(*x.dims, "1")], x.exact)


def computed(b: Builder, n: str) -> None:
    """Reshape to sizes that come from Shape, as exporters write them."""
    x = b.pick(n, lambda v: _ranked(v) and v.rank >= 2 and v.array.size > 0)
    if b.opset < 11:
        raise UnfitError
    (shape,) = b.emit("Shape", [x.name], [(str(x.rank),)], True)
    (first,) = b.emit("Gather", [shape.name, _ints(b, 0)], [("1",)], True)
    (second,) = b.emit("Gather", [shape.name, _ints(b, 1)], [("1",)], True)
    (both,) = b.emit("Mul", [first.name, second.name], [("1",)], True)
    how = b.choice(f"{n} how", ["joined", "minus one"])
    tail = both.name if how == "joined" else _ints(b, -1)
    text = _product(x.dims[:2], x.array.shape[:2])
    parts = [tail]
    for k in range(2, x.rank):
        (size,) = b.emit("Gather", [shape.name, _ints(b, k)], [("1",)], True)
        parts.append(size.name)
    (target,) = b.emit("Concat", parts, [(str(x.rank - 1),)], True, axis=0)
    b.emit("Reshape", [x.name, target.name], [(text, *x.dims[2:])], x.exact)


def unit(b: Builder, n: str) -> None:
    """Unsqueeze, and Squeeze of what has size 1."""
    x = b.pick(n, _ranked)
    axis = b.number(f"{n} axis", 0, x.rank)
    ones = [k for k, d in enumerate(x.dims) if d == "1"]
    if ones and b.flag(f"{n} less"):
        op, dims, axis = "Squeeze", [d for k, d in enumerate(x.dims) if k != ones[0]], ones[0]
    else:
        op, dims = "Unsqueeze", [*x.dims[:axis], "1", *x.dims[axis:]]
        if x.rank >= 5:
            raise UnfitError
    if b.opset >= 13:
        b.emit(op, [x.name, _ints(b, axis)], [dims], x.exact)
    else:
        b.emit(op, [x.name], [dims], x.exact, axes=[axis])


def slice_(b: Builder, n: str) -> None:
    """A range of one axis, forwards or backwards."""
    x = b.pick(n, _ranked)
    axis = b.number(f"{n} axis", 0, x.rank - 1)
    start, stop = b.number(f"{n} start", 0, 2), b.choice(f"{n} stop", [2**31 - 1, -1, 3])
    step = b.choice(f"{n} step", [1, 2, -1]) if b.opset >= 10 else 1
    if step < 0:
        start, stop = -1 - start, -(2**31)
    size = len(range(*slice(start, None if stop == -(2**31) else stop, step).indices(x.array.shape[axis])))
    text = derived(x.dims[axis], f"{start}:{stop}:{step}", size)
    dims = (*x.dims[:axis], text, *x.dims[axis + 1 :])
    if b.opset >= 10:
        b.emit("Slice", [x.name, _ints(b, start), _ints(b, stop), _ints(b, axis), _ints(b, step)], [dims], x.exact)
    else:
        b.emit("Slice", [x.name], [dims], x.exact, starts=[start], ends=[stop], axes=[axis])


def split(b: Builder, n: str) -> None:
    """Two parts along an axis of literal size."""
    x = b.pick(n, lambda v: _ranked(v) and any(d.isdigit() and int(d) > 1 for d in v.dims))
    axis = next(k for k, d in enumerate(x.dims) if d.isdigit() and int(d) > 1)
    size = x.array.shape[axis]
    first = b.number(f"{n} first", 1, size - 1)
    dims = [[*x.dims[:axis], str(s), *x.dims[axis + 1 :]] for s in (first, size - first)]
    if b.opset >= 13:
        b.emit("Split", [x.name, _ints(b, first, size - first)], dims, x.exact, axis=axis)
    else:
        b.emit("Split", [x.name], dims, x.exact, axis=axis, split=[first, size - first])


def gather(b: Builder, n: str) -> None:
    """Elements along an axis of literal size by constant indices."""
    x = b.pick(n, lambda v: _ranked(v) and any(d.isdigit() and int(d) > 0 for d in v.dims))
    axis = next(k for k, d in enumerate(x.dims) if d.isdigit() and int(d) > 0)
    size = x.array.shape[axis]
    indices = [b.number(f"{n} index {k}", 0, size - 1) for k in range(b.number(f"{n} count", 1, 3))]
    dims = [*x.dims[:axis], str(len(indices)), *x.dims[axis + 1 :]]
    b.emit("Gather", [x.name, _ints(b, *indices)], [dims], x.exact, axis=axis)


def pad(b: Builder, n: str) -> None:
    """Zeros, another constant, edges or reflections around all axes."""
    x = b.pick(n, lambda v: v.is_float and v.rank > 0 and min(v.array.shape, default=0) > 1)
    mode = b.choice(f"{n} mode", ["constant", "edge", "reflect"])
    pads = [b.number(f"{n} pad {k}", 0, 1) for k in range(2 * x.rank)]
    sizes = [s + p + q for s, p, q in zip(x.array.shape, pads[: x.rank], pads[x.rank :], strict=True)]
    dims = [derived(d, f"+{pads[k]}+{pads[k + x.rank]}", sizes[k]) for k, d in enumerate(x.dims)]
    if b.opset >= 11:
        value = [b.constant(np.float32(2))] if mode == "constant" and b.flag(f"{n} value") else []
        b.emit("Pad", [x.name, _ints(b, *pads), *value], [dims], x.exact, mode=mode)
    else:
        b.emit("Pad", [x.name], [dims], x.exact, mode=mode, **{"pads" if b.opset >= 2 else "paddings": pads})


def expand(b: Builder, n: str) -> None:
    """A leading dimension more, by a literal or by another value's shape."""
    x = b.pick(n, lambda v: _ranked(v) and v.rank < 4)
    if b.opset < 8:
        raise UnfitError
    if b.flag(f"{n} like"):
        y = b.pick(f"{n} second", lambda v: v.rank == x.rank + 1 and v.dims[1:] == x.dims)
        (shape,) = b.emit("Shape", [y.name], [(str(y.rank),)], True)
        b.emit("Expand", [x.name, shape.name], [y.dims], x.exact)
    else:
        count = b.number(f"{n} count", 1, 3)
        b.emit("Expand", [x.name, _ints(b, count, *([1] * x.rank))], [(str(count), *x.dims)], x.exact)


def tile(b: Builder, n: str) -> None:
    """Repeats along all axes."""
    x = b.pick(n, lambda v: _ranked(v) and v.is_float)
    if b.opset < 6:
        raise UnfitError
    counts = [b.number(f"{n} repeats {k}", 1, 2) for k in range(x.rank)]
    dims = [derived(d, f"x{c}", s * c) if c > 1 else d for d, s, c in zip(x.dims, x.array.shape, counts, strict=True)]
    b.emit("Tile", [x.name, _ints(b, *counts)], [dims], x.exact)


def counting(b: Builder, n: str) -> None:
    """0, 1, 2, ... up to a size, as positions are made."""
    x = b.pick(n, _ranked)
    if b.opset < 11:
        raise UnfitError
    axis = b.number(f"{n} axis", 0, x.rank - 1)
    (shape,) = b.emit("Shape", [x.name], [(str(x.rank),)], True)
    (size,) = b.emit("Gather", [shape.name, b.constant(np.asarray(axis, np.int64))], [()], True)
    zero, one = b.constant(np.asarray(0, np.int64)), b.constant(np.asarray(1, np.int64))
    (results,) = b.emit("Range", [zero, size.name, one], [(x.dims[axis],)], True)
    b.emit("Cast", [results.name], [results.dims], True, to=1)
