"""ONNX models from recorded choices: sizes around those that matter to vectors, constant or fed operands, epilogues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference
from tests.fuzz.options import Choice, Options

OPSET = 22

TYPES: Mapping[str, int] = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16, "int64": TensorProto.INT64, "int32": TensorProto.INT32, "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
}  # fmt: skip

FLOATS = ("float32", "float64", "float16", "bfloat16")

WATCHED = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 23, 31, 32, 33, 37, 47, 48, 49, 61, 63, 64, 65, 97, 127, 128, 129)
"""One, primes, and the neighbours of multiples of vectors' lanes."""

SYMBOLIC = 0.2


class Rounding(StrEnum):
    """How far results may be off.

    Attributes:
        NONE: small whole numbers are added, multiplied and selected: not at all.
        LINEAR: sums of products, measured by the sums of their absolute values.
        SMOOTH: functions of sums, measured by the largest result.
        RELATIVE: nothing is subtracted, so that every result is measured by itself.
    """

    NONE = "none"
    LINEAR = "linear"
    SMOOTH = "smooth"
    RELATIVE = "relative"


class Sizes(StrEnum):
    """Which sizes a run has.

    Attributes:
        DRAWN: those of the record.
        LEAST: symbolic ones as small as the operator allows.
        OTHER: symbolic ones of any size that is allowed, up to about twice the recorded.
    """

    DRAWN = "drawn"
    LEAST = "least"
    OTHER = "other"


@dataclass(frozen=True)
class Dim:
    """A dimension: its size in the run, and its name where it is symbolic."""

    size: int
    name: str | None = None
    least: int = 1


@dataclass(frozen=True)
class RandomModel:
    """An operator as a model.

    Attributes:
        model: its ONNX model.
        inputs: dimensions and element types of what is fed.
        rounding: how far its results may be off.
        whole: whether data are small whole numbers.
    """

    model: ModelProto
    inputs: Mapping[str, tuple[tuple[Dim, ...], str]]
    rounding: Rounding
    whole: bool

    def feeds(self, seed: int, which: Sizes = Sizes.DRAWN) -> dict[str, np.ndarray[Any, Any]]:
        """Random inputs of those sizes."""
        rng = np.random.default_rng(seed)
        sizes = self.sizes(which, np.random.default_rng((seed, 1)))
        return {
            name: random_array([sizes[d.name] if d.name else d.size for d in dims], dtype, rng, self.whole)
            for name, (dims, dtype) in self.inputs.items()
        }

    def sizes(self, which: Sizes, rng: np.random.Generator) -> dict[str, int]:
        """The symbolic sizes of a run."""
        named = {d.name: d for dims, _ in self.inputs.values() for d in dims if d.name}
        values = {
            Sizes.DRAWN: lambda d: d.size,
            Sizes.LEAST: lambda d: d.least,
            Sizes.OTHER: lambda d: int(rng.integers(d.least, max(d.least, 2 * d.size) + 1)),
        }[which]
        return {name: values(d) for name, d in named.items()}

    @property
    def symbolic(self) -> bool:
        """Whether a size is not known at compile time."""
        return any(d.name for dims, _ in self.inputs.values() for d in dims)


def random_array(shape: Sequence[int], dtype: str, rng: np.random.Generator, whole: bool) -> np.ndarray[Any, Any]:
    """Small whole numbers but zero, or normally distributed ones."""
    if whole or "int" in dtype:
        values = rng.integers(1, 4, shape)
        return (values if dtype.startswith("u") else values * rng.choice((-1, 1), shape)).astype(numpy_of(dtype))
    return rng.standard_normal(shape).astype(numpy_of(dtype))


def numpy_of(dtype: str) -> np.dtype[Any]:
    """NumPy's type, also of the types that it does not have itself."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(TYPES[dtype]))


class Builder(Options):
    """Takes choices and collects nodes, constants and inputs.

    Args:
        record: choices that are known; the others are added.
        rng: draws them; None takes the simplest.
        seed: of constants.
    """

    def __init__(self, record: dict[str, Choice], rng: Random | None, seed: int) -> None:
        super().__init__(record, rng)
        self.data = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: dict[str, tuple[tuple[Dim, ...], str]] = {}
        self.further: dict[str, str] = {}
        self.opset, self.smooth, self.added = OPSET, False, False
        self.whole = self.flag("whole", 0.6)

    def extent(self, name: str, high: int, low: int = 1) -> int:
        """A size, often one of those watched."""
        if self.rng is not None and name not in self.record and self.rng.random() < 0.7:
            watched = [n for n in WATCHED if low <= n <= high]
            if watched:
                self.record[name] = self.rng.choice(watched)
        return self.number(name, low, high)

    def dim(self, name: str, high: int, low: int = 1, fixed: bool = False) -> Dim:
        """A dimension, symbolic sometimes unless it is fixed."""
        size = self.extent(name, high, low)
        return Dim(size, name if not fixed and self.flag(f"{name} symbolic", SYMBOLIC) else None, low)

    def feed(self, name: str, dims: Sequence[Dim], dtype: str) -> str:
        """An input of the model."""
        self.inputs[name] = tuple(dims), dtype
        return name

    def constant(self, name: str, array: np.ndarray[Any, Any]) -> str:
        """A constant of the model."""
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, name: str, shape: Sequence[int], dtype: str, whole: bool | None = None) -> str:
        """A constant with random elements."""
        values = random_array(shape, dtype, self.data, self.whole if whole is None else whole)
        return self.constant(name, values)

    def operand(self, name: str, dims: Sequence[Dim], dtype: str) -> str:
        """A constant, or an input of the model; symbolic sizes are always fed."""
        constant = self.flag(f"{name} constant", 0.6)
        if constant and not any(d.name for d in dims):
            return self.weights(name, [d.size for d in dims], dtype)
        return self.feed(name, dims, dtype)

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """The name of the result of a new node."""
        out = f"t{len(self.nodes)}"
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=name, **attributes))
        return out

    def node_with_results(self, op: str, dtypes: Sequence[str], *inputs: str, **attributes: object) -> str:
        """The name of the first result of a new node with several; the others are results of the model.

        Types are those of the results but the first.
        """
        out = self.node(op, *inputs, **attributes)
        names = [f"{out}_{k}" for k in range(len(dtypes))]
        self.nodes[-1].output.extend(names)
        self.further |= dict(zip(names, dtypes, strict=True))
        return out

    def epilogue(self, result: str, dtype: str, channels: int | None = None, place: int = -1) -> str:
        """The result, or what element-wise nodes behind the operator make of it.

        Args:
            result: the operator's.
            dtype: its element type.
            channels: the size of an axis along which a constant may be added; None where it is not known.
            place: that axis, from the end: -1 is the last one.
        """
        kind = self.choice("epilogue", ("none", "relu", "scale", "bias", "bias relu", "residual", "residual relu",
                                        "bias clip", "bias swish"))  # fmt: skip
        if kind == "scale":
            return self.node("Mul", result, self.constant("two", np.array(2, numpy_of(dtype))))
        if kind.startswith("bias") and channels is not None:
            shape = [channels] + [1] * (-1 - place)
            result = self.node("Add", result, self.weights("bias", shape, dtype))
        if kind.startswith("residual"):
            dims = self.inferred(result, dtype)
            if dims is not None:
                result, self.added = self.node("Add", self.feed("residual", dims, dtype), result), True
        if kind.endswith("clip"):
            low, high = (self.constant(n, np.array(v, numpy_of(dtype))) for n, v in (("low", -2), ("high", 6)))
            return self.node("Clip", result, low, high)
        if kind.endswith("swish") and "int" not in dtype:
            self.smooth = True
            return self.node("Mul", result, self.node("Sigmoid", result))
        return self.node("Relu", result) if kind.endswith("relu") else result

    def inferred(self, result: str, dtype: str) -> tuple[Dim, ...] | None:
        """The dimensions of a node's result as ONNX infers them, None where it can't tell one."""
        inferred = shape_inference.infer_shapes(self.model(result, dtype), data_prop=True)
        symbols = {d.name: d for dims, _ in self.inputs.values() for d in dims if d.name}
        tensor_type = inferred.graph.output[0].type.tensor_type
        dims = [symbols.get(d.dim_param) if d.dim_param else Dim(d.dim_value) for d in tensor_type.shape.dim]
        is_complete = tensor_type.HasField("shape") and all(
            d.HasField("dim_value") or d.dim_param for d in tensor_type.shape.dim
        )
        return tuple(d for d in dims if d) if is_complete and None not in dims else None

    def model(self, result: str, dtype: str) -> ModelProto:
        """What there is so far as a model with that result, and further results of nodes that have several."""
        inputs = [
            helper.make_tensor_value_info(n, TYPES[t], [d.name or d.size for d in dims])
            for n, (dims, t) in self.inputs.items()
        ]
        results = {result: dtype, **self.further}
        outputs = [helper.make_tensor_value_info(name, TYPES[t], None) for name, t in results.items()]
        graph = helper.make_graph(self.nodes, "operator", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def finished(self, result: str, dtype: str, rounding: Rounding) -> RandomModel:
        """The model with that result."""
        chosen = rounding
        if self.smooth:
            chosen = Rounding.SMOOTH
        elif self.added and rounding in (Rounding.NONE, Rounding.RELATIVE) and not self.whole and "int" not in dtype:
            chosen = Rounding.LINEAR
        return RandomModel(self.model(result, dtype), dict(self.inputs), chosen, self.whole)
