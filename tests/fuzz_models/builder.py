"""A model that grows node by node, each evaluated at once, so that the next one fits what is there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.fuzz.options import Choice, Options
from tests.fuzz_models.oracle import IR_VERSION, Array, captured, oracle

MOST_ELEMENTS, LARGEST, EXACT = 1 << 14, 1e4, 1 << 20
"""Results with more elements or larger values are not taken; whole numbers below `EXACT` are exact in float32."""


class UnfitError(Exception):
    """A kind of node has nothing here that it could work on."""


@dataclass(frozen=True)
class Value:
    """A value of the model.

    Attributes:
        name: its name.
        array: what it is in the run for which the model is drawn.
        dims: a text per dimension; equal texts are equal sizes in all runs. Literal sizes are digits.
        exact: whether there was no rounding: what jumps (comparisons, indices) works on such values alone.
    """

    name: str
    array: Array
    dims: tuple[str, ...]
    exact: bool

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self.array.ndim

    @property
    def is_float(self) -> bool:
        """Whether elements are float32."""
        return self.array.dtype == np.float32


def derived(dim: str, tag: str, size: int) -> str:
    """The text of a dimension that is computed from another."""
    return str(size) if dim.isdigit() else f"{tag}({dim})"


class Builder(Options):
    """Takes choices and collects inputs, constants and nodes.

    Args:
        record: choices that are known; the others are added.
        rng: draws them; None takes the simplest.
        seed: of inputs and constants.
    """

    def __init__(self, record: dict[str, Choice], rng: Random | None, seed: int) -> None:
        super().__init__(record, rng)
        self.seed = seed
        self.opset = self.number("opset", 1 if self.flag("old opset", 0) else 7, 28)
        self.symbols: dict[str, int] = {}
        self.inputs: dict[str, tuple[tuple[str, ...], str]] = {}
        self.values: list[Value] = []
        self.constants: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.kinds: list[str] = []
        self._drawn = np.random.default_rng(seed)
        self._count = 0

    # Values

    def input(self, name: str, dims: Sequence[tuple[str, int]], kind: str) -> None:
        """Adds an input; a dimension is (text, size)."""
        self.symbols |= {text: size for text, size in dims if not text.isdigit()}
        self.inputs[name] = tuple(text for text, _ in dims), kind
        array = input_array(name, [n for _, n in dims], kind, self.seed)
        self.values.append(Value(name, array, self.inputs[name][0], kind != "normal"))

    def constant(self, array: Array) -> str:
        """The name of a new initializer."""
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def weights(self, *shape: int, exact: bool = False) -> str:
        """A new initializer of random numbers."""
        whole = self._drawn.integers(-2, 3, shape).astype(np.float32)
        return self.constant(whole if exact else (self._drawn.standard_normal(shape) * 0.5).astype(np.float32))

    def pick(self, name: str, fits: Callable[[Value], bool]) -> Value:
        """One of the values that fit; late ones are likelier."""
        fitting = [v for v in self.values if fits(v)][::-1]
        if not fitting:
            raise UnfitError
        return fitting[min(self.number(f"{name} of", 0, 9), self.number(f"{name} late", 0, 9), len(fitting) - 1)]

    def emit(
        self, op: str, inputs: Sequence[str], dims: Sequence[Sequence[str] | None], exact: bool = False, **attrs: Any
    ) -> list[Value]:
        """Adds a node and evaluates it.

        Args:
            op: the operator.
            inputs: names of values and constants.
            dims: of each output, as in `Value`; None leaves an output out.
            exact: whether outputs are exact where the inputs are.
            attrs: attributes; those that are None are left out.
        """
        self._count += 1
        outputs = [f"v{self._count}_{k}" if d is not None else "" for k, d in enumerate(dims)]
        attributes = {name: value for name, value in attrs.items() if value is not None}
        if op == "Cast" and self.opset < 6:
            attributes["to"] = TensorProto.DataType.Name(attributes["to"])
        node = helper.make_node(op, inputs, outputs, name=f"n{self._count}", **attributes)
        arrays = self._evaluated(node)
        values: list[Value] = []
        for name, array, dim in zip(filter(None, outputs), arrays, [d for d in dims if d is not None], strict=True):
            wide = np.abs(array[np.isfinite(array)].astype(np.float64)) if array.dtype.kind in "fiu" else np.zeros(1)
            large = wide.max(initial=0)
            if array.ndim != len(dim) or array.size > MOST_ELEMENTS or (array.dtype.kind == "f" and large > LARGEST):
                raise UnfitError
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise UnfitError
            values.append(Value(name, array, tuple(dim), exact and large < EXACT))
        self.nodes.append(node)
        self.values += values
        return values

    def _evaluated(self, node: onnx.NodeProto) -> list[Array]:
        """The outputs of a node in the run for which the model is drawn."""
        arrays = {v.name: v.array for v in self.values} | self.constants
        needed = {*node.input, *captured(node)} - {""}
        model = self._model([node], {n: arrays[n] for n in needed}, [o for o in node.output if o], {}, {})
        try:
            return list(oracle(model, {n: arrays[n] for n in needed}))
        except Exception as error:
            raise UnfitError from error

    def _model(
        self,
        nodes: Sequence[onnx.NodeProto],
        feeds: Mapping[str, Array],
        outputs: Sequence[str],
        dims: Mapping[str, Sequence[str | int]],
        declared: Mapping[str, Array],
    ) -> onnx.ModelProto:
        def info(name: str, array: Array, shape: Sequence[str | int] | None) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)

        arrays = {v.name: v.array for v in self.values}
        results = [
            info(n, arrays[n], declared[n].shape if n in declared else None)
            if n in arrays
            else onnx.ValueInfoProto(name=n)
            for n in outputs
        ]
        used = {i for n in nodes for i in (*n.input, *captured(n))}
        weights = [numpy_helper.from_array(a, n) for n, a in self.constants.items() if n in used and n not in feeds]
        graph = helper.make_graph(
            nodes, "g", [info(n, a, dims.get(n, a.shape)) for n, a in feeds.items()], results, weights
        )
        inner = [
            v for n in graph.node if n.op_type in ("If", "Loop") for v in n.output if v in arrays and v in declared
        ]
        graph.value_info.extend(info(n, arrays[n], declared[n].shape) for n in inner if n not in outputs)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=IR_VERSION)

    # The whole

    def model(self) -> onnx.ModelProto:
        """What was built; its outputs are the values that nobody reads, and some others."""
        used = {i for n in self.nodes for i in (*n.input, *captured(n))}
        computed = [v for v in self.values if v.name not in self.inputs]
        outputs = [v for k, v in enumerate(computed) if v.name not in used or self.flag(f"output {k}", 0.1)]
        declares = self.choice("declares", ("nothing", "nothing", "this run"))
        declared = {v.name: v.array for v in computed} if declares == "this run" else {}
        dims = {n: [int(d) if d.isdigit() else d for d in texts] for n, (texts, _) in self.inputs.items()}
        feeds = {v.name: v.array for v in self.values if v.name in self.inputs}
        return self._model(self.nodes, feeds, [v.name for v in outputs], dims, declared)

    def feeds(self, sizes: Mapping[str, int] | None = None, draw: int = 0) -> dict[str, Array]:
        """Inputs of the run for which the model was drawn, or of one with other sizes; `draw` has other numbers."""
        sizes = self.symbols if sizes is None else sizes
        return {
            name: input_array(name, [int(d) if d.isdigit() else sizes[d] for d in texts], kind, self.seed + draw)
            for name, (texts, kind) in self.inputs.items()
        }


def input_array(name: str, shape: Sequence[int], kind: str, seed: int) -> Array:
    """What an input is fed: whole numbers of which none is like another, normally distributed ones, or bools."""
    rng = np.random.default_rng((seed, sum(name.encode())))
    count = int(np.prod(shape))
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind == "whole":
        return (rng.permutation(count) - count // 2).astype(np.float32).reshape(shape)
    if kind == "int":
        return rng.integers(-9, 10, shape).astype(np.int64)
    return rng.standard_normal(shape).astype(np.float32)


FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
