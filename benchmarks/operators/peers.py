"""Engines under test at their best settings, each a function from feeds to the output with constants prepacked.

An engine returns None for an operator that it does not support, or if it is not installed.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from tilewright.driver.compile import make_compilation
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.driver.options import CompileOptions
from tilewright.expr.nodes import const
from tilewright.loops.ir import Func, blocks
from tilewright.loops.private_memory import workspace_of
from tilewright.measure.engines import onnxruntime_engine
from tilewright.measure.native_functions import NativeFunctions

Array = np.ndarray
Feeds = Mapping[str, Array]
RunOnce = Callable[[], Array]
Engine = Callable[[ModelProto, Feeds, int], RunOnce | None]


def tilewright(model: ModelProto, feeds: Feeds, threads: int, optimizer: str | None = None) -> RunOnce:
    """This compiler."""
    package: Any = import_module("tilewright")
    executable = package.compile(model, threads=threads, optimizer=optimizer)
    fed = dict(feeds)
    return lambda: executable.run(fed)["y"]


def main_kernel(model: ModelProto, feeds: Feeds, threads: int, optimizer: str | None = None) -> RunOnce | None:
    """This compiler's kernel that does most of the work, without those that pad or convert what it reads; None where
    there is only one. What it reads is random, so that its results are not compared."""
    compilation = make_compilation(model, CompileOptions(optimizer=optimizer))
    kernels = [u for u in compilation.units if isinstance(u, BoundKernel)]
    if len(kernels) < 2:
        return None
    main = max((u.compiled for u in kernels), key=lambda k: iteration_count(k.origin))
    func = main.func
    native = NativeFunctions([func], compilation.target)
    rng = np.random.default_rng(0)
    rooms = [workspace_of(func, b, const(threads)) for b in native.funcs[func.name].params]
    arrays = [rng.standard_normal([int(str(n)) for n in b.shape], dtype=np.float32) for b in rooms]
    out = next(k for k, b in enumerate(native.funcs[func.name].params) if b.name == main.origin.outputs[-1].name)

    def run() -> Array:
        native.call(func.name, arrays, (), threads)
        return arrays[out]

    return run


def iteration_count(func: Func) -> int:
    """Iterations of all blocks, where sizes are literal."""
    return sum(prod(int(str(i.extent)) for i in b.iters) for b in blocks(func.body))


def torch_kernel(model: ModelProto, feeds: Feeds, threads: int) -> RunOnce | None:
    """oneDNN's convolution on a channels-last input, with a channels-last result."""
    package: Any = import_module("torch")
    node = model.graph.node[0]
    if node.op_type != "Conv":
        return None
    package.set_num_threads(threads)
    attributes = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    x, w = (_tensor(package, a) for a in _operands(model, feeds))
    call = _prepacked_convolution(package, x.contiguous(memory_format=package.channels_last), w, attributes)

    def run() -> Array:
        with package.inference_mode():
            return call().numpy()

    return run


def onnxruntime(model: ModelProto, feeds: Feeds, threads: int) -> RunOnce:
    """ONNX Runtime's CPU provider with all graph optimisations."""
    run, fed = onnxruntime_engine(model.SerializeToString(), threads), dict(feeds)
    return lambda: next(iter(run(fed).values()))


def openvino(model: ModelProto, feeds: Feeds, threads: int) -> RunOnce | None:
    """OpenVINO's CPU plugin for latency, in float32."""
    try:
        ov: Any = import_module("openvino")
    except ImportError:
        return None
    core = ov.Core()
    read = core.read_model(model=model.SerializeToString())
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(read, "CPU", hints).create_infer_request()
    inputs = [ov.Tensor(array, shared_memory=True) for array in feeds.values()]
    for k, tensor in enumerate(inputs):
        request.set_input_tensor(k, tensor)

    def run() -> Array:
        request.infer()
        return request.get_output_tensor(0).data

    return run


def numpy(model: ModelProto, feeds: Feeds, threads: int) -> RunOnce | None:
    """NumPy's BLAS, for matrix products."""
    node = model.graph.node[0]
    if node.op_type != "Gemm":
        return None
    a, b = _operands(model, feeds)
    flags = {x.name: x.i for x in node.attribute}
    a = a.T if flags.get("transA") else a
    b = b.T if flags.get("transB") else b
    return lambda: a @ b


def torch(model: ModelProto, feeds: Feeds, threads: int) -> RunOnce | None:
    """PyTorch; convolutions and products through oneDNN with weights in its own layout."""
    if len(model.graph.node) > 1:
        return None
    package: Any = import_module("torch")
    package.set_num_threads(threads)
    call = _torch_call(package, model, feeds)
    if call is None:
        return None

    def run() -> Array:
        with package.inference_mode():
            return call().numpy()

    return run


def _operands(model: ModelProto, feeds: Feeds) -> list[Array]:
    """The node's operands: the feeds, then the constants."""
    return [*feeds.values(), *(numpy_helper.to_array(t) for t in model.graph.initializer)]


def _tensor(package: Any, array: Array) -> Any:
    """A tensor that shares an array's memory if it is writeable, which torch requires."""
    return package.from_numpy(array if array.flags.writeable else np.array(array))


def _torch_call(package: Any, model: ModelProto, feeds: Feeds) -> Callable[[], Any] | None:
    node = model.graph.node[0]
    attributes = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    operands = [_tensor(package, a) for a in _operands(model, feeds)]
    functional = package.nn.functional
    x = operands[0]
    match node.op_type:
        case "Conv":
            return _prepacked_convolution(package, x, operands[1], attributes)
        case "Gemm":
            return _prepacked_product(package, x, operands[1], attributes, constant=len(feeds) == 1)
        case "MaxPool" | "AveragePool":
            size, stride, pad = attributes["kernel_shape"], attributes["strides"], attributes["pads"][:2]
            if node.op_type == "MaxPool":
                return lambda: functional.max_pool2d(x, size, stride, pad)
            return lambda: functional.avg_pool2d(x, size, stride, pad, count_include_pad=False)
        case "GlobalAveragePool":
            return lambda: x.mean((2, 3), keepdim=True)
        case "Softmax":
            return lambda: package.softmax(x, -1)
        case "LayerNormalization":
            return lambda: functional.layer_norm(x, x.shape[-1:], operands[1], operands[2])
        case "Transpose":
            return lambda: x.permute(attributes["perm"]).contiguous()
        case "ReduceSum":
            return lambda: x.sum(operands[1].tolist())
        case "ReduceMean":
            return lambda: x.mean(operands[1].tolist())
        case "ReduceMax":
            return lambda: x.amax(operands[1].tolist())
        case "Relu":
            return lambda: package.relu(x)
        case "Gelu":
            return lambda: functional.gelu(x)
        case _:
            return None


def _prepacked_convolution(package: Any, x: Any, w: Any, attributes: Mapping[str, Any]) -> Callable[[], Any]:
    pad, stride = attributes["pads"][:2], attributes["strides"]
    dilation, groups = attributes["dilations"], attributes["group"]
    onednn = package.ops.mkldnn
    packed = package._C._nn.mkldnn_reorder_conv2d_weight(w.to_mkldnn(), pad, stride, dilation, groups, x.shape)
    return lambda: onednn._convolution_pointwise(x, packed, None, pad, stride, dilation, groups, "none", [], "")


def _prepacked_product(
    package: Any, a: Any, b: Any, attributes: Mapping[str, Any], constant: bool
) -> Callable[[], Any]:
    left = a.t() if attributes.get("transA") else a
    right = b.t() if attributes.get("transB") else b
    if not constant or left.shape[0] == 1 or right.shape[1] == 1:
        return lambda: left @ right
    packed = package.ops.mkldnn._reorder_linear_weight(right.t().contiguous(), left.shape[0])
    return lambda: package.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")


KERNEL_PEERS: Mapping[str, Engine] = {"torch": torch_kernel}
"""Kernels without the layout conversions of row-major inputs and outputs, for engines that expose them."""

PEERS: Mapping[str, Engine] = {
    "numpy": numpy, "torch": torch, "onnxruntime": onnxruntime, "openvino": openvino,
}  # fmt: skip
