"""Models with chains of convolutions."""

import numpy as np
import onnx
from tests.frontend.onnx_models import add_initializer, model


def inverted_residual(
    size: int = 14, channels: int = 16, wide: int = 32, stride: int = 1, outputs: int | None = None, tap: str = ""
) -> onnx.ModelProto:
    """A 1x1, a depthwise 3x3 and a 1x1 convolution with a residual where shapes allow it; `tap` names an intermediate
    that is a further output: `e`, of the first convolution, or `d`."""
    outputs, small = outputs or channels, -(-size // stride)
    body = f"""
        lo = Constant<value_float = 0.0>() hi = Constant<value_float = 6.0>()
        e0 = Conv(x, w1, b1) e = Clip(e0, lo, hi)
        d0 = Conv<group = {wide}, pads = [1, 1, 1, 1], strides = [{stride}, {stride}]>(e, w2) d = Relu(d0)
        p = Conv(d, w3, b3) {"y = Add(p, x)" if stride == 1 and outputs == channels else "y = Identity(p)"}"""
    shapes = {"e": (wide, size), "d": (wide, small)}
    more = f", float[1, {shapes[tap][0]}, {shapes[tap][1]}, {shapes[tap][1]}] {tap}" if tap else ""
    result = model(body, inputs=f"float[1, {channels}, {size}, {size}] x",
                   outputs=f"float[1, {outputs}, {small}, {small}] y{more}")  # fmt: skip
    rng = np.random.default_rng(0)
    weights = {"w1": (wide, channels, 1, 1), "b1": (wide,), "w2": (wide, 1, 3, 3), "w3": (outputs, wide, 1, 1)}
    for name, shape in {**weights, "b3": (outputs,)}.items():
        add_initializer(result, name, rng.standard_normal(shape).astype(np.float32))
    return result


def two_windows(size: int = 20, channels: int = 8) -> onnx.ModelProto:
    """Two 3x3 convolutions."""
    body = """c0 = Conv<pads = [1, 1, 1, 1]>(x, w1) c = Relu(c0) y = Conv<pads = [1, 1, 1, 1]>(c, w2)"""
    shape = f"float[1, {channels}, {size}, {size}]"
    result = model(body, inputs=f"{shape} x", outputs=f"{shape} y")
    rng = np.random.default_rng(0)
    for name in ("w1", "w2"):
        add_initializer(result, name, rng.standard_normal((channels, channels, 3, 3)).astype(np.float32))
    return result
