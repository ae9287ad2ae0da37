"""ONNX models from recorded choices: sizes around those that matter to vectors, constant or fed operands, epilogues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tests.fuzz.options import Choice, Options

OPSET = 22

TYPES: Mapping[str, int] = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8,
}  # fmt: skip

FLOATS = ("float32", "float64", "float16")

WATCHED = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 23, 31, 32, 33, 37, 47, 48, 49, 61, 63, 64, 65, 97, 127, 128, 129)
"""One, primes, and the neighbours of multiples of vectors' lanes."""

SYMBOLIC = 0.2


class Rounding(StrEnum):
    """How far results may be off.

    Attributes:
        NONE: small whole numbers are added, multiplied and selected: not at all.
        LINEAR: sums of products, measured by the sums of their absolute values.
        SMOOTH: functions of sums, measured by the largest result.
    """

    NONE = "none"
    LINEAR = "linear"
    SMOOTH = "smooth"


@dataclass(frozen=True)
class Dim:
    """A dimension: its size in the run, and its name where it is symbolic."""

    size: int
    name: str | None = None
    least: int = 1


@dataclass(frozen=True)
class Made:
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

    def feeds(self, seed: int, least: bool = False) -> dict[str, np.ndarray[Any, Any]]:
        """Random inputs, of the sizes drawn or of the least ones."""
        rng = np.random.default_rng(seed)
        return {
            name: random_array([d.least if least and d.name else d.size for d in dims], dtype, rng, self.whole)
            for name, (dims, dtype) in self.inputs.items()
        }

    @property
    def symbolic(self) -> bool:
        """Whether a size is not known at compile time."""
        return any(d.name for dims, _ in self.inputs.values() for d in dims)


def random_array(shape: Sequence[int], dtype: str, rng: np.random.Generator, whole: bool) -> np.ndarray[Any, Any]:
    """Small whole numbers, or normally distributed ones."""
    if whole or "int" in dtype:
        return rng.integers(0 if dtype.startswith("u") else -3, 4, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


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
        drawn = random_array(shape, dtype, self.data, self.whole if whole is None else whole)
        return self.constant(name, drawn)

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

    def epilogue(self, result: str, dtype: str, channels: int | None = None, place: int = -1) -> str:
        """The result, or what element-wise nodes behind the operator make of it.

        Args:
            result: the operator's.
            dtype: its element type.
            channels: the size of an axis along which a constant may be added; None where it is not known.
            place: that axis, from the end: -1 is the last one.
        """
        kind = self.choice("epilogue", ("none", "relu", "scale", "bias", "bias relu"))
        if kind == "scale":
            return self.node("Mul", result, self.constant("two", np.array(2, dtype)))
        if kind.startswith("bias") and channels is not None:
            shape = [channels] + [1] * (-1 - place)
            result = self.node("Add", result, self.weights("bias", shape, dtype))
        return self.node("Relu", result) if kind.endswith("relu") else result

    def finished(self, result: str, dtype: str, rounding: Rounding) -> Made:
        """The model with that result."""
        inputs = [
            helper.make_tensor_value_info(n, TYPES[t], [d.name or d.size for d in dims])
            for n, (dims, t) in self.inputs.items()
        ]
        output = helper.make_tensor_value_info(result, TYPES[dtype], None)
        graph = helper.make_graph(self.nodes, "operator", inputs, [output], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        return Made(model, dict(self.inputs), rounding, self.whole)
