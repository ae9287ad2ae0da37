"""Shape inference, which is lowering, against ONNX's own on random models of one node; sizes literal and symbolic."""

import warnings
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.shape_inference
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tilewright.errors import FallbackWarning, ModelError
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Const
from tilewright.frontend.onnx import load_onnx
from tilewright.graph.lower import lower_graph
from tilewright.graph.program import Fallback

OPSET = 18
SIZES = st.integers(1, 7)


@dataclass
class Case:
    """One node with the shapes of its fed inputs (of one type) and its constant inputs, in the order of `inputs`."""

    op: str
    inputs: list[str]
    shapes: dict[str, list[int]]
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    attributes: dict = field(default_factory=dict)
    dtype: int = TensorProto.FLOAT
    outputs: int = 1

    def model(self, *, symbolic: bool) -> onnx.ModelProto:
        names = [f"y{k}" for k in range(self.outputs)]
        dims = {
            name: [f"{name}_{axis}" if symbolic else size for axis, size in enumerate(shape)]
            for name, shape in self.shapes.items()
        }
        graph = helper.make_graph(
            [helper.make_node(self.op, self.inputs, names, name="node", **self.attributes)], "g",
            [helper.make_tensor_value_info(n, self.dtype, d) for n, d in dims.items()],
            [onnx.ValueInfoProto(name=n) for n in names],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def shapes(low: int = 1, high: int = 4) -> st.SearchStrategy[list[int]]:
    return st.lists(SIZES, min_size=low, max_size=high)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


UNARY = (
    "Relu Sigmoid Tanh Erf Exp Sqrt Neg Abs HardSigmoid HardSwish LeakyRelu Softplus Floor IsNaN Softmax LogSoftmax "
    "Identity LayerNormalization CumSum Shape Size Trilu GlobalAveragePool GlobalMaxPool Flatten Cast"
)
REDUCE = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSumExp ArgMax ArgMin"
BINARY = "Add Sub Mul Div Pow Equal Less GreaterOrEqual Max Min Where MatMul"
MOVE = "Transpose Reshape Squeeze Unsqueeze Slice Gather Concat Expand Tile Pad Split GatherElements GatherND OneHot"
WINDOW = "Conv ConvTranspose MaxPool AveragePool"
OTHER = "Gemm Resize ConstantOfShape Range DepthToSpace SpaceToDepth BatchNormalization Einsum"


@st.composite
def unary(draw: st.DrawFn, op: str) -> Case:
    low = 3 if op.startswith("Global") else 2 if op == "Trilu" else 1
    shape = draw(shapes(low))
    rank = len(shape)
    axis = draw(st.integers(-rank, rank - 1))
    case = Case(op, ["x"], {"x": shape})
    if op in ("Softmax", "LogSoftmax", "Flatten"):
        case.attributes = {"axis": axis}
    elif op == "LayerNormalization":
        case.attributes = {"axis": axis}
        case.inputs.append("scale")
        case.constants["scale"] = np.ones(shape[axis:], np.float32)
    elif op == "CumSum":
        case.inputs.append("axis")
        case.constants["axis"] = np.array(axis)
    elif op == "Shape":
        case.attributes = {"start": draw(st.integers(-5, 5)), "end": draw(st.integers(-5, 5))}
    elif op == "Cast":
        case.attributes = {"to": draw(st.sampled_from([TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16]))}
    return case


@st.composite
def reduction(draw: st.DrawFn, op: str) -> Case:
    shape = draw(shapes())
    rank = len(shape)
    keep = draw(st.integers(0, 1))
    if op.startswith("Arg"):
        return Case(op, ["x"], {"x": shape}, {}, {"keepdims": keep, "axis": draw(st.integers(-rank, rank - 1))})
    axes = draw(st.lists(st.integers(0, rank - 1), unique=True, max_size=rank))
    axes = [a - rank if draw(st.booleans()) else a for a in axes]
    if op == "ReduceSum" or OPSET >= 18:
        attributes = {"keepdims": keep, "noop_with_empty_axes": draw(st.integers(0, 1))}
        given_axes = bool(axes) or draw(st.booleans())
        return Case(op, ["x", *(["axes"] if given_axes else [])], {"x": shape},
                    {"axes": ints(*axes)} if given_axes else {}, attributes)  # fmt: skip
    return Case(op, ["x"], {"x": shape}, {}, {"keepdims": keep})


@st.composite
def elementwise(draw: st.DrawFn, op: str) -> Case:
    if op == "MatMul":
        batch, (m, k, n) = draw(shapes(0, 2)), draw(st.tuples(SIZES, SIZES, SIZES))
        left, right = [*batch, m, k], [*batch[draw(st.integers(0, len(batch))) :], k, n]
        if draw(st.booleans()):
            left = left[-1:]
        elif draw(st.booleans()):
            right = [k]
        return Case(op, ["x", "z"], {"x": left, "z": right})
    full = draw(shapes())
    cut = [draw(st.integers(0, len(full))) for _ in range(2)]
    parts = [[n if draw(st.booleans()) else 1 for n in full[c:]] for c in cut]
    parts[draw(st.integers(0, 1))] = full
    case = Case(op, ["x", "z"], {"x": parts[0], "z": parts[1]})
    if op == "Where":
        case.inputs.insert(0, "c")
        case.constants["c"] = np.ones((1,), bool)
    return case


def _transpose(draw: st.DrawFn, shape: list[int]) -> Case:
    return Case("Transpose", ["x"], {"x": shape}, {}, {"perm": draw(st.permutations(range(len(shape))))})


def _reshape(draw: st.DrawFn, shape: list[int]) -> Case:
    target = list(shape)
    if len(target) > 1 and draw(st.booleans()):
        target[:2] = [target[0] * target[1]]
    zero = draw(st.booleans()) and target[0] == shape[0]
    target[draw(st.integers(1 if zero else 0, len(target) - 1)) if len(target) > zero else 0] = -1
    if zero and target[0] != -1:
        target[0] = 0
    return Case("Reshape", ["x", "s"], {"x": shape}, {"s": ints(*target)})


def _squeeze(draw: st.DrawFn, shape: list[int]) -> Case:
    axis = draw(st.integers(0, len(shape) - 1))
    shape = [*shape[:axis], 1, *shape[axis:]]
    return Case("Squeeze", ["x", "a"], {"x": shape}, {"a": ints(axis - draw(st.sampled_from([0, len(shape)])))})


def _unsqueeze(draw: st.DrawFn, shape: list[int]) -> Case:
    rank = len(shape) + 2
    axes = draw(st.lists(st.integers(-rank, rank - 1), min_size=2, max_size=2, unique_by=lambda a: a % rank))
    return Case("Unsqueeze", ["x", "a"], {"x": shape}, {"a": ints(*axes)})


def _slice(draw: st.DrawFn, shape: list[int]) -> Case:
    axis, bound = draw(st.integers(-len(shape), len(shape) - 1)), st.integers(-9, 9)
    values = {
        "b": draw(bound),
        "e": draw(bound | st.just(2**31 - 1)),
        "a": axis,
        "s": draw(st.sampled_from([1, 2, 3, -1])),
    }
    return Case("Slice", ["x", "b", "e", "a", "s"], {"x": shape}, {k: ints(v) for k, v in values.items()})


def _gather(draw: st.DrawFn, shape: list[int]) -> Case:
    attributes = {"axis": draw(st.integers(-len(shape), len(shape) - 1))}
    return Case("Gather", ["x", "i"], {"x": shape}, {"i": np.zeros(draw(shapes(0, 2)), np.int64)}, attributes)


def _concat(draw: st.DrawFn, shape: list[int]) -> Case:
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    other = list(shape)
    other[axis] = draw(SIZES)
    return Case("Concat", ["x", "z", "x"], {"x": shape, "z": other}, {}, {"axis": axis})


def _expand(draw: st.DrawFn, shape: list[int]) -> Case:
    target = [*draw(shapes(0, 2)), *(n if draw(st.booleans()) else 1 for n in shape)]
    return Case("Expand", ["x", "s"], {"x": shape}, {"s": ints(*target)})


def _tile(draw: st.DrawFn, shape: list[int]) -> Case:
    return Case("Tile", ["x", "r"], {"x": shape}, {"r": ints(*(draw(st.integers(1, 3)) for _ in shape))})


def _pad(draw: st.DrawFn, shape: list[int]) -> Case:
    pads = ints(*(draw(st.integers(0, 3)) for _ in range(2 * len(shape))))
    return Case("Pad", ["x", "p"], {"x": shape}, {"p": pads}, {"mode": draw(st.sampled_from(["constant", "edge"]))})


def _split(draw: st.DrawFn, shape: list[int]) -> Case:
    axis, parts = draw(st.integers(-len(shape), len(shape) - 1)), draw(st.lists(SIZES, min_size=2, max_size=3))
    shape[axis] = sum(parts)
    return Case("Split", ["x", "s"], {"x": shape}, {"s": ints(*parts)}, {"axis": axis}, outputs=len(parts))


def _gather_elements(draw: st.DrawFn, shape: list[int]) -> Case:
    index = np.zeros([draw(st.integers(1, n)) for n in shape], np.int64)
    return Case(
        "GatherElements", ["x", "i"], {"x": shape}, {"i": index}, {"axis": draw(st.integers(0, len(shape) - 1))}
    )


def _gather_nd(draw: st.DrawFn, shape: list[int]) -> Case:
    index = np.zeros([*draw(shapes(0, 2)), draw(st.integers(1, len(shape)))], np.int64)
    return Case("GatherND", ["x", "i"], {"x": shape}, {"i": index})


def _one_hot(draw: st.DrawFn, shape: list[int]) -> Case:
    constants = {"d": np.array(draw(SIZES)), "v": np.array([0.0, 1.0], np.float32)}
    attributes = {"axis": draw(st.integers(-len(shape) - 1, len(shape)))}
    return Case("OneHot", ["x", "d", "v"], {"x": shape}, constants, attributes, TensorProto.INT64)


MOVERS = {
    "Transpose": _transpose, "Reshape": _reshape, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Slice": _slice,
    "Gather": _gather, "Concat": _concat, "Expand": _expand, "Tile": _tile, "Pad": _pad, "Split": _split,
    "GatherElements": _gather_elements, "GatherND": _gather_nd, "OneHot": _one_hot,
}  # fmt: skip


@st.composite
def movement(draw: st.DrawFn, op: str) -> Case:
    return MOVERS[op](draw, draw(shapes()))


@st.composite
def window(draw: st.DrawFn, op: str) -> Case:
    spatial = draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(spatial)]
    strides, dilations = ([draw(st.integers(1, 3)) for _ in range(spatial)] for _ in range(2))
    attributes: dict = {"strides": strides, "kernel_shape": kernel}
    if op != "AveragePool":
        attributes["dilations"] = dilations
    if draw(st.booleans()):
        # ONNX's sizes of ConvTranspose with SAME padding are not those of its text where strides exceed the kernel.
        modes = ["VALID"] if op == "ConvTranspose" else ["VALID", "SAME_UPPER", "SAME_LOWER"]
        attributes["auto_pad"] = draw(st.sampled_from(modes))
        attributes.pop("dilations", None)
    else:
        attributes["pads"] = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
        # No ceil_mode: ONNX counts windows that start in the padding, which its text and all run times leave out.
    group = draw(st.integers(1, 2))
    shape = [draw(SIZES), 2 * group, *(draw(st.integers(7, 20)) for _ in range(spatial))]
    case = Case(op, ["x"], {"x": shape}, {}, attributes)
    if op.startswith("Conv"):
        attributes["group"] = group
        sizes = [3 * group, 2, *kernel] if op == "Conv" else [2 * group, 3, *kernel]
        case.inputs.append("w")
        case.constants["w"] = np.zeros(sizes, np.float32)
    if op == "ConvTranspose" and "pads" in attributes and draw(st.booleans()):
        attributes["output_padding"] = [min(1, max(s, d) - 1) for s, d in zip(strides, dilations, strict=True)]
    return case


@st.composite
def other(draw: st.DrawFn, op: str) -> Case:
    a, b, c = draw(st.tuples(SIZES, SIZES, SIZES))
    match op:
        case "Gemm":
            ta, tb = draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
            left, right = ([b, a] if ta else [a, b]), ([c, b] if tb else [b, c])
            return Case(op, ["x", "z"], {"x": left, "z": right}, {}, {"transA": ta, "transB": tb})
        case "Resize":
            scales = np.array(
                [1, 1, draw(st.sampled_from([0.5, 2, 3])), draw(st.sampled_from([0.5, 1, 2]))], np.float32
            )
            return Case(op, ["x", "", "s"], {"x": [a, b, 2 * c, 2 * a]}, {"s": scales}, {"mode": "nearest"})
        case "ConstantOfShape":
            return Case("ConstantOfShape", ["s"], {}, {"s": ints(a, b)})
        case "Range":
            return Case(op, ["b", "e", "s"], {}, {"b": np.array(a), "e": np.array(a + b), "s": np.array(c)})
        case "DepthToSpace":
            return Case(op, ["x"], {"x": [a, 4 * b, c, a]}, {}, {"blocksize": 2})
        case "SpaceToDepth":
            return Case(op, ["x"], {"x": [a, b, 2 * c, 2 * a]}, {}, {"blocksize": 2})
        case "BatchNormalization":
            parameters = dict.fromkeys(("scale", "shift", "mean", "variance"), np.ones(b, np.float32))
            return Case(op, ["x", *parameters], {"x": [a, b, c]}, parameters)
        case _:
            equation = draw(st.sampled_from(["ijk,kl->ijl", "bij,bkj->bik", "bij,bkj->bkij", "ijk,lkj->il"]))
            sizes = dict(zip("ijklb", (a, b, c, a, b), strict=True))
            terms = equation.split("->")[0].split(",")
            dims = {n: [sizes[letter] for letter in t] for n, t in zip("xz", terms, strict=True)}
            return Case("Einsum", ["x", "z"], dims, {}, {"equation": equation})


CASES = st.one_of(
    *(family(op) for family, names in (
        (unary, UNARY), (reduction, REDUCE), (elementwise, BINARY), (movement, MOVE), (window, WINDOW), (other, OTHER),
    ) for op in names.split())
)  # fmt: skip


def inferred(model: onnx.ModelProto) -> list[tuple[int, list[int]]]:
    """ONNX's types of the outputs."""
    actual = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    result = []
    for value in actual.graph.output:
        dims = value.type.tensor_type.shape.dim
        # A scalar that ONNX does not state a shape for has no dimensions to compare either.
        assert value.type.tensor_type.HasField("shape") or value.name == "y0"
        assert all(d.HasField("dim_value") for d in dims)
        result.append((value.type.tensor_type.elem_type, [d.dim_value for d in dims]))
    return result


@settings(max_examples=400)
@given(CASES)
def test_against_onnx(case):
    expected = inferred(case.model(symbolic=False))
    program = lower_graph(load_onnx(case.model(symbolic=False)))
    assert [
        (helper.np_dtype_to_tensor_dtype(b.dtype.numpy), [s.value for s in b.shape if isinstance(s, Const)])
        for _, b in program.outputs
    ] == expected


@settings(max_examples=400)
@given(CASES)
def test_symbolic_sizes_against_onnx(case):
    expected = inferred(case.model(symbolic=False))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            program = lower_graph(load_onnx(case.model(symbolic=True)))
    except ModelError as error:
        # Sizes of 1 that are stretched look like any other size when they are symbols.
        assert "broadcast" in str(error) or case.op in ("Squeeze", "MatMul"), error  # noqa: PT017
        return
    if any(isinstance(s, Fallback) for s in program.steps):
        return
    sizes = {}
    for name, buffer in zip(program.input_names, program.inputs, strict=True):
        for symbol, size in zip(buffer.shape, case.shapes[name], strict=True):
            if sizes.setdefault(symbol, size) != size or (isinstance(symbol, Const) and symbol.value != size):
                return
    environment = Environment({v: np.int64(n) for v, n in sizes.items() if not isinstance(v, Const)}, {})
    if not all(evaluate_expr(c.condition, environment) for c in program.constraints):
        return
    for (_, buffer), (_, dims) in zip(program.outputs, expected, strict=True):
        assert [int(evaluate_expr(s, environment)) for s in buffer.shape] == dims
