"""Kinds of nodes: convolutions and poolings."""

from tests.fuzz_models.builder import Builder, UnfitError, Value, derived


def _is_image(v: Value) -> bool:
    return v.is_float and v.rank in (3, 4) and v.dims[1].isdigit() and v.array.size > 0


def _window(b: Builder, n: str, x: Value, most: int = 3) -> dict[str, object]:
    space = x.rank - 2
    attrs: dict[str, object] = {"kernel_shape": [b.number(f"{n} window {k}", 1, most) for k in range(space)]}
    attrs["strides"] = [b.number(f"{n} stride {k}", 1, 3) for k in range(space)] if b.flag(f"{n} strided") else None
    kind = b.choice(f"{n} padding", ["none", "explicit", "SAME_UPPER", "SAME_LOWER"])
    if kind.startswith("SAME") and attrs["strides"]:
        # Steps larger than the window need no padding, but runtimes cut the image in front.
        pairs = zip(attrs["strides"], attrs["kernel_shape"], strict=True)  # type: ignore[call-overload]
        attrs["strides"] = [min(pair) for pair in pairs]
    if kind == "explicit":
        sizes = attrs["kernel_shape"]
        assert isinstance(sizes, list)
        attrs["pads"] = [b.number(f"{n} pad {k}", 0, sizes[k % space] - 1) for k in range(2 * space)]
    elif kind != "none":
        attrs["auto_pad"] = kind
    return attrs


def _dims(x: Value, channels: str, attrs: dict[str, object], shape: tuple[int, ...]) -> list[str]:
    tag = ",".join(f"{k}{v}" for k, v in sorted(attrs.items()) if v is not None)
    return [x.dims[0], channels, *(derived(d, f"w{k}:{tag}", shape[k]) for k, d in enumerate(x.dims[2:], 2))]


def _emit(
    b: Builder, op: str, inputs: list[str], x: Value, channels: str, attrs: dict[str, object], exact: tuple[bool, ...]
) -> None:
    """A node whose literal sizes are known when it has run. All outputs, of which `exact` has one entry each, have one
    shape.

    A window that does not fit is an error, unless sizes are rounded up. ONNX Runtime rounds (1 - 2) / 2 up in any case.
    """
    if "auto_pad" not in attrs and not attrs.get("ceil_mode"):
        space = x.rank - 2
        pads, dilations = attrs.get("pads", [0] * 2 * space), attrs.get("dilations", [1] * space)
        sizes, kernel = x.array.shape[2:], attrs["kernel_shape"]
        assert isinstance(pads, list)
        assert isinstance(dilations, list)
        assert isinstance(kernel, list)
        if any((kernel[k] - 1) * dilations[k] >= sizes[k] + pads[k] + pads[space + k] for k in range(space)):
            raise UnfitError
    unknown = [x.dims[0], channels, *("?" * (x.rank - 2))]
    values = b.emit(op, inputs, [unknown] * len(exact), all(exact), **attrs)
    if not values[0].array.size:
        raise UnfitError
    dims = tuple(_dims(x, channels, attrs, values[0].array.shape))
    b.values[-len(exact) :] = [Value(y.name, y.array, dims, y.exact) for y in values]


def convolution(b: Builder, n: str) -> None:
    """With groups, steps, dilations and paddings of all kinds."""
    x = b.pick(n, _is_image)
    attrs = _window(b, n, x)
    c = x.array.shape[1]
    group = b.choice(f"{n} group", [g for g in range(1, c + 1) if c % g == 0])
    m = group * b.number(f"{n} filters", 1, 3)
    kernel = attrs["kernel_shape"]
    assert isinstance(kernel, list)
    exact = b.flag(f"{n} whole", 0.4)
    w = b.weights(m, c // group, *kernel, exact=exact)
    bias = [b.weights(m, exact=exact)] if b.flag(f"{n} bias") else []
    if b.flag(f"{n} dilated", 0.2) and "auto_pad" not in attrs:
        attrs["dilations"] = [2] * (x.rank - 2)
    _emit(b, "Conv", [x.name, w, *bias], x, str(m), {**attrs, "group": group}, (x.exact and exact,))


def pooling(b: Builder, n: str) -> None:
    """With `ceil_mode`, padding that counts or not, and windows larger than what is there."""
    x = b.pick(n, _is_image)
    op = b.choice(f"{n} op", ["MaxPool", "AveragePool"])
    attrs = _window(b, n, x, most=4)
    if b.opset >= 10 and b.flag(f"{n} ceil", 0.5):
        attrs["ceil_mode"] = 1
    if op == "AveragePool" and b.opset >= 7 and b.flag(f"{n} counted", 0.3):
        attrs["count_include_pad"] = 1
    # of values that rounding makes equal or not, the places may differ
    places = op == "MaxPool" and x.exact and b.opset >= 8 and b.flag(f"{n} places", 0.4)
    _emit(b, op, [x.name], x, x.dims[1], attrs, (x.exact and op == "MaxPool",) * (2 if places else 1))


def whole_pooling(b: Builder, n: str) -> None:
    """Over all of an image."""
    x = b.pick(n, _is_image)
    op = b.choice(f"{n} op", ["GlobalAveragePool", "GlobalMaxPool"])
    b.emit(op, [x.name], [(*x.dims[:2], *("1" * (x.rank - 2)))], x.exact and op == "GlobalMaxPool")
