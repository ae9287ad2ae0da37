"""Masked accesses: no vector register is loaded or stored under a mask without an active lane, for both kinds of
masks."""

import numpy as np
import onnx
import pytest
from benchmarks.masked_accesses import masked_accesses
from llvmlite import ir
from onnx import TensorProto, helper, numpy_helper
from tests.codegen.native import check

from tilewright.codegen import emit_llvm
from tilewright.codegen.llvm_types import constant, constant_mask, logical_and, shuffle, undefined
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.loops.parser import parse
from tilewright.machine import Target

MACHINES = {"x86-64-v4": "zen4", "x86-64-v3": "zen3"}

Shape = tuple[int | str, ...]


def model(op: str, *inputs: Shape, weights: tuple[tuple[int, ...], ...] = (), **attributes: object) -> onnx.ModelProto:
    """One operator on float32 inputs, symbols among their sizes, and constant weights."""
    rng = np.random.default_rng(3)
    names = [f"x{k}" for k in range(len(inputs))]
    constants = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), f"w{k}")
                 for k, s in enumerate(weights)]  # fmt: skip
    node = helper.make_node(op, [*names, *(c.name for c in constants)], ["y"], **attributes)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, inputs, strict=True)]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], op, values, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


MODELS = {
    "gemm": model("MatMul", (346, 761), (761, 724)),
    "gemm of four columns behind the last strip": model("MatMul", (34, 132), weights=((132, 100),)),
    "gemm of three columns behind the last strip": model("MatMul", (34, 132), weights=((132, 99),)),
    "gemm of unknown rows": model("MatMul", ("m", 61), weights=((61, 52),)),
    "gemm of unknown columns": model("MatMul", (33, 61), (61, "n")),
    "gemm of an unknown sum": model("MatMul", (33, "k"), ("k", 45)),
    "vector": model("MatMul", (1, 300), (300, 77)),
    "convolution": model("Conv", (1, 16, 19, 23), weights=((20, 16, 3, 3),), pads=[1, 1, 1, 1], strides=[2, 2]),
    "convolution of a picture": model("Conv", (1, 8, "h", "w"), weights=((12, 8, 3, 3),), pads=[1, 1, 1, 1]),
    "depthwise": model("Conv", (1, 20, 14, 37), weights=((20, 1, 5, 5),), pads=[2, 2, 2, 2], group=20),
    "depthwise of a picture": model("Conv", (1, 9, "h", "w"), weights=((9, 1, 3, 3),), pads=[1, 1, 1, 1], group=9),
    "maximum pool": model("MaxPool", (2, 5, 21, 22), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "average pool": model("AveragePool", (2, 5, "h", 22), kernel_shape=[3, 3]),
    "softmax": model("Softmax", (7, 1000), axis=-1),
    "softmax of unknown length": model("Softmax", (7, "n"), axis=-1),
    "transposition": model("Transpose", (100, 77), perm=[1, 0]),
    "transposition of unknown sizes": model("Transpose", ("m", "n"), perm=[1, 0]),
    "sums over columns": model("ReduceSum", (70, 45), keepdims=0),
    "maxima over unknown rows": model("ReduceMax", (70, "n"), axes=[1], keepdims=0),
    "padding": model("Concat", (9, 21), (9, "n"), axis=1),
}


@pytest.mark.parametrize("optimizer", ["gensor", "rule"])
@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("name", MODELS)
def test_every_mask_has_an_active_lane(name: str, target: str, optimizer: str) -> None:
    machine = MACHINES[target] if optimizer == "gensor" else None
    compilation = make_compilation(MODELS[name], CompileOptions(target=target, machine=machine, optimizer=optimizer))
    accesses = list(masked_accesses(compilation.llvm()))
    unknown = [a.line for a in accesses if not a.reason]
    assert unknown == []
    # else a part of it may be without active lanes
    assert [a.line for a in accesses if a.bits > Target.parse(target).vector_bits] == []


@pytest.mark.parametrize("target", MACHINES)
def test_vectors_without_active_lanes_are_not_computed(target: str) -> None:
    """Of 99 columns three remain: one vector for each row of a tile, whatever the tile's width."""
    options = CompileOptions(target=target, machine=MACHINES[target])
    text = make_compilation(MODELS["gemm of three columns behind the last strip"], options).llvm()
    assert {a.reason for a in masked_accesses(text)} == {"constant"}
    assert {a.bits for a in masked_accesses(text)} == {128}, "the narrowest registers that hold three columns"
    text = make_compilation(MODELS["gemm of four columns behind the last strip"], options).llvm()
    assert list(masked_accesses(text)) == [], "four fill one"


COPY = """
func copy(X: float32[4, W], Y: float32[4, W]):
    for i in serial(4):
        for l in vectorized(16):
            block Y(a: 4 = i, b: W = l) where l < W:
                Y[a, b] = X[a, b]
"""


@pytest.mark.parametrize(
    ("columns", "load", "store"),
    [
        (1, "masked.load.v4f32", "masked.store.v4f32"),
        (3, "masked.load.v4f32", "masked.store.v4f32"),
        (4, "load <4 x float>", "store <4 x float>"),
        (7, "masked.load.v8f32", "masked.store.v8f32"),
        (8, "load <8 x float>", "store <8 x float>"),
        (9, "masked.load.v16f32", "masked.store.v16f32"),
    ],
)
def test_constant_masks_access_the_narrowest_registers(columns: int, load: str, store: str) -> None:
    func = parse(COPY.replace("W", str(columns)))
    lines = [x for x in emit_llvm([func], [], Target.parse("x86-64-v4")).splitlines() if "declare" not in x]
    accesses = [x for x in lines if "masked" in x or "load <" in x or "store <" in x]
    assert len(accesses) == 2, "one load and one store"
    assert load in accesses[0]
    assert store in accesses[1]
    for target in ("x86-64-v4", "x86-64-v3"):
        x = np.random.default_rng(columns).standard_normal((4, columns)).astype(np.float32)
        check(func, {"X": x, "Y": np.full((4, columns), 9, np.float32)}, target=target)


@pytest.mark.parametrize(
    ("dtype", "columns", "store"),
    [
        ("int8", 5, "masked.store.v16i8"), ("float16", 7, "masked.store.v8i16"), ("float16", 9, "masked.store.v16i16"),
        ("float64", 3, "masked.store.v4f64"), ("float64", 2, "store <2 x double>"),
    ],
)  # fmt: skip
def test_narrowest_registers_of_all_widths(dtype: str, columns: int, store: str) -> None:
    func = parse(COPY.replace("W", str(columns)).replace("float32", dtype))
    lines = emit_llvm([func], [], Target.parse("x86-64-v4")).splitlines()
    stores = [x for x in lines if ("masked.store" in x or "store <" in x) and "declare" not in x]
    assert len(stores) == 1
    assert store in stores[0]
    x = np.random.default_rng(columns).integers(-9, 9, (4, columns)).astype(dtype)
    check(func, {"X": x, "Y": np.full((4, columns), 9, dtype)}, target="x86-64-v4")


def test_conjunctions_and_permutations_of_constant_masks_are_constants() -> None:
    builder = ir.IRBuilder(ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), []), "f").append_basic_block())
    kind = ir.VectorType(ir.IntType(1), 4)
    some, every, none = constant(kind, [1, 1, 0, 1]), constant(kind, 1), constant(kind, 0)
    assert constant_mask(logical_and(builder, some, every)) == [True, True, False, True]
    assert constant_mask(logical_and(builder, none, some)) == [False] * 4
    assert constant_mask(shuffle(builder, some, none, [3, 2, 1, 4])) == [True, False, True, False]
    unknown = undefined(kind)
    assert constant_mask(unknown) is None
    assert constant_mask(logical_and(builder, some, unknown)) is None
    assert constant_mask(constant(ir.VectorType(ir.IntType(32), 4), [1, 1, 0, 1])) is None, "numbers are no masks"


LOAD = """
define void @"f"()
{
entry:
  %"any" = bitcast <8 x i1> %"mask" to i8
  %"some" = icmp ne i8 %"any", 0
  %"safe" = select  i1 %"some", ptr %"far", ptr @"tilewright_zeros"
  %"x" = call <8 x float> @"llvm.masked.load.v8f32.p0"(ptr %"POINTER", i32 4, <8 x i1> MASK, <8 x float> zero)NOTE
  br i1 %"CONDITION", label %"then", label %"end"
then:
  call void @"llvm.masked.store.v8f32.p0"(<8 x float> %"x", ptr %"far", i32 4, <8 x i1> MASK)NOTE
"""


@pytest.mark.parametrize(
    ("pointer", "mask", "note", "condition", "reasons"),
    [
        ("safe", '%"mask"', "", "some", ["asked", "asked"]),
        ("far", '%"mask"', "", "other", ["", ""]),
        ("safe", '%"other"', "", "some", ["", ""]),
        ("far", '%"mask"', ", !some_lane !0", "other", ["marked", "marked"]),
        ("far", "<i1 1, i1 0, i1 0, i1 0, i1 0, i1 0, i1 0, i1 0>", "", "other", ["constant", "constant"]),
        ("safe", "<i1 0, i1 0, i1 0, i1 0, i1 0, i1 0, i1 0, i1 0>", "", "some", ["", ""]),
        ("far", "splat (i1 0)", "", "other", ["", ""]),
    ],
)
def test_classification_of_masked_accesses(
    pointer: str, mask: str, note: str, condition: str, reasons: list[str]
) -> None:
    text = LOAD.replace("POINTER", pointer).replace("MASK", mask).replace("NOTE", note).replace("CONDITION", condition)
    accesses = list(masked_accesses(text))
    assert [a.reason for a in accesses] == reasons
    assert [a.bits for a in accesses] == [256, 256]
