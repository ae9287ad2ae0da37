"""Tensors inside of nodes: in attributes, in branches and bodies at any depth, and in functions.

The reference evaluator, shape inference and ONNX's inliner receive nodes unchanged. Before that, every tensor in a node
is checked here, external data is read (by the one reader that stays in the model's folder) and embedded, and sparse
values, which the evaluator cannot run inside of branches, become dense: nothing opens a file after loading.
Initializers of the main graph are left to `tensors.py`, except for those of types that it does not read.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from tilewright.errors import Defect, ModelError
from tilewright.frontend.onnx import external_data
from tilewright.frontend.onnx.external_data import ExternalDataError
from tilewright.frontend.onnx.source import Source
from tilewright.frontend.onnx.tensors import (
    TensorDefectError,
    check_data,
    check_dims,
    element_bits,
    has_native_type,
    sparse_to_array,
)

MAX_EMBEDDED_BYTES = 1 << 30
"""Bytes of one embedded tensor; messages that contain nodes end at 2 GiB."""


class _CopyNeededError(Exception):
    """The caller's model needs a change."""


def embed_external_data(source: Source) -> Source:
    """The source with all tensors of nodes embedded.

    The caller's model is not changed: a copy is, where a change is needed.

    Raises:
        ModelError: lists all defective tensors, except for initializers of the main graph.
    """
    problems: list[Defect] = []
    try:
        _TensorPass(source, problems).run()
    except _CopyNeededError:
        model = onnx.ModelProto()
        model.CopyFrom(source.model)
        source, problems = replace(source, model=model, owned=True), []
        _TensorPass(source, problems).run()
    if problems:
        raise ModelError(problems, where=source.where)
    return source


class _TensorPass:
    """A walk over all tensors, which changes them in place."""

    def __init__(self, source: Source, problems: list[Defect]) -> None:
        self.source, self.problems = source, problems

    def run(self) -> None:
        """Processes all tensors of the model."""
        model = self.source.model
        for tensor in model.graph.initializer:
            if not has_native_type(tensor):
                self._tensor(tensor, f"initializer '{tensor.name}'")
        for sparse in model.graph.sparse_initializer:
            self._sparse(sparse, f"initializer '{sparse.values.name}'")
        self._nodes(model.graph.node)
        for function in model.functions:
            self._nodes(function.node)
            for attribute in function.attribute_proto:
                self._attribute(attribute, f"function {function.name}, attribute '{attribute.name}'")

    def _nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            for attribute in node.attribute:
                where = f"node {node.name or node.op_type} ({node.op_type}), attribute '{attribute.name}'"
                if node.op_type == "Constant" and not node.domain and node.output:
                    where = f"constant '{node.output[0]}'"
                self._attribute(attribute, where)

    def _attribute(self, attribute: AttributeProto, where: str) -> None:
        """Processes every field of an attribute, whatever its declared type."""
        for tensor in (*((attribute.t,) if attribute.HasField("t") else ()), *attribute.tensors):
            self._tensor(tensor, where)
        for sparse in attribute.sparse_tensors:
            self._sparse(sparse, where)
        for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            self._branch(graph, where)
        if attribute.HasField("sparse_tensor"):
            dense = self._sparse(attribute.sparse_tensor, where)
            if dense is not None and attribute.name == "sparse_value":
                self._require_owned()
                attribute.ClearField("sparse_tensor")
                attribute.name, attribute.type = "value", AttributeProto.TENSOR
                attribute.t.CopyFrom(dense)

    def _branch(self, graph: onnx.GraphProto, where: str) -> None:
        """Processes a graph inside of a node."""
        for tensor in graph.initializer:
            self._tensor(tensor, f"{where}, initializer '{tensor.name}'")
        for sparse in graph.sparse_initializer:
            dense = self._sparse(sparse, f"{where}, initializer '{sparse.values.name}'")
            if dense is not None:
                graph.initializer.append(dense)
        if graph.sparse_initializer:
            self._require_owned()
            del graph.sparse_initializer[:]
        self._nodes(graph.node)

    def _sparse(self, tensor: onnx.SparseTensorProto, where: str) -> TensorProto | None:
        """A sparse tensor as a dense one; None and a problem where it is defective."""
        if not all([self._tensor(tensor.values, where), self._tensor(tensor.indices, f"{where}, sparse indices")]):
            return None
        try:
            return numpy_helper.from_array(sparse_to_array(tensor, where), tensor.values.name)
        except TensorDefectError as error:
            self.problems.append(error.problem)
            return None

    def _tensor(self, tensor: TensorProto, where: str) -> bool:
        """Embeds a tensor's external data and checks the tensor; whether it is valid."""
        try:
            if tensor.data_location == TensorProto.EXTERNAL:
                self._require_owned()
                tensor.raw_data = bytes(self._read(tensor, where))
                tensor.ClearField("data_location")
                del tensor.external_data[:]
            check_data(tensor, where)
        except ExternalDataError as error:
            self.problems.append(external_data.external_data_problem(where, error))
        except TensorDefectError as error:
            self.problems.append(error.problem)
        else:
            return True
        return False

    def _read(self, tensor: TensorProto, where: str) -> bytearray:
        bits = element_bits(tensor, where)
        shape = check_dims(tensor.dims, where)
        if tensor.data_type == TensorProto.STRING:
            what = "is a string tensor, whose data can't lie in a file"
            raise TensorDefectError(Defect("external-data", where, what))
        count = -(-math.prod(shape) * bits // 8)
        if count > MAX_EMBEDDED_BYTES:
            what = f"expected at most {MAX_EMBEDDED_BYTES} bytes of external data inside of a node, got {count}"
            hint = "make it an initializer of the main graph"
            raise TensorDefectError(Defect("external-data", where, what, hint))
        return bytearray(external_data.read_external(tensor, self.source.folders, count))

    def _require_owned(self) -> None:
        if not self.source.owned:
            raise _CopyNeededError
