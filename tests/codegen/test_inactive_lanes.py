"""Inactive lanes of private buffers hold no denormal numbers, which arithmetic is slow on.

What earlier functions left on the stack, such as halves of addresses, is a denormal number as a float. No result
depends on it, so this is seen by the processor's flag alone: MXCSR has a bit that any denormal operand sets.
"""

import ctypes
import platform
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the flags of an x86 processor")

DENORMAL_OPERAND = 2
"""The bit of MXCSR."""

DIRTY_WORDS = 60_000
"""8-byte words of stack that are made dirty: more than private buffers of a kernel may take (256 KiB)."""

HELPERS = f"""
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define i32 @read_flags() {{
  %slot = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  %flags = load i32, ptr %slot
  ret i32 %flags
}}

define void @clear_flags() {{
  %slot = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  %flags = load i32, ptr %slot
  %cleared = and i32 %flags, -64
  store i32 %cleared, ptr %slot
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  ret void
}}

define void @dirty_stack() {{
entry:
  %words = alloca [{DIRTY_WORDS} x i64], align 64
  br label %next
next:
  %i = phi i64 [0, %entry], [%n, %next]
  %word = getelementptr i64, ptr %words, i64 %i
  store volatile i64 21474836487, ptr %word
  %n = add i64 %i, 1
  %more = icmp ult i64 %n, {DIRTY_WORDS}
  br i1 %more, label %next, label %end
end:
  ret void
}}
"""


class Processor:
    """The floating-point flags of this thread, and its stack."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._library = llvm.create_mcjit_compiler(llvm.parse_assembly(HELPERS), machine)
        self._library.finalize_object()
        self._read = ctypes.CFUNCTYPE(ctypes.c_int)(self._library.get_function_address("read_flags"))
        self._clear = ctypes.CFUNCTYPE(None)(self._library.get_function_address("clear_flags"))
        self._dirty = ctypes.CFUNCTYPE(None)(self._library.get_function_address("dirty_stack"))

    def meets_denormals(self, call: Callable[[], object]) -> bool:
        """Whether a call on a stack full of denormal numbers computes with one."""
        self._dirty()
        self._clear()
        call()
        return bool(self._read() & DENORMAL_OPERAND)


@pytest.fixture(scope="module")
def processor() -> Processor:
    return Processor()


def model(
    nodes: list[tuple[str, list[str], dict[str, object]]],
    inputs: dict[str, tuple[int, ...]],
    constants: dict[str, np.ndarray],
) -> ModelProto:
    """Nodes in a row: each takes the result of the one before it, `x` first, and the named values."""
    parameters = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    initializers = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    row, last = [], "x"
    for k, (op, others, attributes) in enumerate(nodes):
        row.append(helper.make_node(op, [last, *others], [f"y{k}"], **attributes))
        last = f"y{k}"
    result = helper.make_tensor_value_info(last, TensorProto.FLOAT, None)
    graph = helper.make_graph(row, "row", parameters, [result], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def depthwise(channels: int, side: int, taps: int) -> ModelProto:
    weights = np.random.default_rng(1).standard_normal((channels, 1, taps, taps)).astype(np.float32)
    attributes: dict[str, object] = {"group": channels, "strides": [2, 2], "pads": [taps // 2] * 4}
    return model([("Conv", ["w"], attributes)], {"x": (1, channels, side, side)}, {"w": weights})


MODELS = {
    "depthwise 3x3": lambda: depthwise(20, 33, 3),
    "depthwise 5x5": lambda: depthwise(12, 14, 5),
    "max pooling": lambda: model(
        [("MaxPool", [], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}), ("Sqrt", [], {})],
        {"x": (1, 8, 45, 45)}, {},
    ),
    "softmax": lambda: model([("Softmax", [], {"axis": -1})], {"x": (64, 1000)}, {}),
    "products in a row": lambda: model(
        [("MatMul", ["b"], {}), ("MatMul", ["c"], {})], {"x": (6, 61, 66), "b": (6, 66, 369), "c": (6, 369, 23)}, {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_kernels_compute_with_no_numbers_that_were_left_on_the_stack(name, processor):
    compiled = tilewright.compile(MODELS[name](), threads=1)
    rng = np.random.default_rng(2)
    feeds = {s.name: rng.uniform(1, 2, [int(str(n)) for n in s.dims]).astype(np.float32) for s in compiled.inputs}
    compiled(**feeds)
    assert not processor.meets_denormals(lambda: compiled(**feeds))


def test_the_flag_tells_denormal_numbers(processor):
    doubled = tilewright.compile(model([("Add", ["x"], {})], {"x": (64,)}, {}), threads=1)
    assert not processor.meets_denormals(lambda: doubled(np.ones(64, np.float32)))
    assert processor.meets_denormals(lambda: doubled(np.full(64, 1e-40, np.float32)))
