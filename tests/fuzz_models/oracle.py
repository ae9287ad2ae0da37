"""What others make of a model: ONNX Runtime, and ONNX's reference evaluator where that has no kernel."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as _Loop

Array = np.ndarray[Any, Any]

VERSION_7 = 7
"""Since this version operators broadcast as NumPy does, and ONNX Runtime has all of them."""

IR_VERSION = 8


def oracle(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[Array]:
    """What ONNX Runtime makes of a model; where it has no kernel, what ONNX's reference evaluator makes of it.

    The evaluator does what the newest version of an operator does, whatever version the model names, and Runtime begins
    at version 7: older models run there as what they are in version 7. Runtime allocates the results of branches as
    they are declared, there or where they leave the model, and refuses them if they are computed otherwise: it gets
    branches and results that declare no shapes.

    Raises:
        Exception: neither runs it.
    """
    if model.opset_import[0].version < VERSION_7:
        return runtime(_in_version_7(model), feeds)
    try:
        return runtime(_without_shapes_of_results(model), feeds)
    except Exception:  # ONNX Runtime has an exception type per status
        return evaluated(model, feeds)


def evaluated(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[Array]:
    """What ONNX's reference evaluator makes of a model, with the nodes that it has wrongly on ONNX Runtime."""
    with np.errstate(all="ignore"):
        evaluator = ReferenceEvaluator(model, new_ops=[MaxPool, AveragePool, Softmax, LogSoftmax, Hardmax, Loop])
        return evaluator.run(None, dict(feeds))  # type: ignore


def runtime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[Array]:
    """What ONNX Runtime makes of a model, without rewriting it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def captured(node: onnx.NodeProto) -> set[str]:
    """Values that sub-graphs of a node take from outside."""
    names: set[str] = set()
    for graph in _graphs(node):
        inner = {o for n in graph.node for o in n.output} | {v.name for v in graph.input}
        inner |= {t.name for t in graph.initializer}
        used = {i for n in graph.node for i in (*n.input, *captured(n))} | {v.name for v in graph.output}
        names |= used - inner - {""}
    return names


def _graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    return result


def _in_version_7(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model of a version before 7 in version 7, for the operators and attributes that are drawn there."""
    result = _copy(model)
    result.opset_import[0].version = VERSION_7
    for node in result.graph.node:
        attributes = [a for a in node.attribute if a.name != "broadcast"]
        for attribute in attributes:
            attribute.name = "pads" if attribute.name == "paddings" else attribute.name
        if node.op_type == "Cast" and attributes[0].type == onnx.AttributeProto.STRING:
            attributes = [helper.make_attribute("to", TensorProto.DataType.Value(attributes[0].s.decode()))]
        del node.attribute[:]
        node.attribute.extend(attributes)
    return result


def _without_shapes_of_results(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model whose results, and those of its branches, have types without shapes."""
    result = _copy(model)
    waiting = [result.graph]
    for output in result.graph.output:
        output.type.tensor_type.ClearField("shape")
    while waiting:
        for node in waiting.pop().node:
            waiting += _graphs(node)
            for graph in _graphs(node) if node.op_type == "If" else ():
                for output in graph.output:
                    output.type.tensor_type.ClearField("shape")
    return result


class _OnRuntime(OpRun):
    """A node on ONNX Runtime: in pooling the evaluator rounds sizes up wrongly, and reads beside the image where it
    pads by itself; a softmax is to it that of version 13, of one axis, in all versions."""

    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array, ...]:
        node = self.onnx_node
        input_info = helper.make_tensor_value_info(node.input[0], helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
        opsets = [helper.make_opsetid("", self.run_params["opsets"][""])]
        graph = helper.make_graph([node], "g", [input_info], outputs)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        return tuple(runtime(model, {node.input[0]: x}))


class MaxPool(_OnRuntime):
    """The operator."""


class AveragePool(_OnRuntime):
    """The operator."""


class Softmax(_OnRuntime):
    """The operator."""


class LogSoftmax(_OnRuntime):
    """The operator."""


class Hardmax(_OnRuntime):
    """The operator."""


class Loop(_Loop):
    """Stacks scan outputs along a new dimension; the evaluator concatenates them. None that is drawn is a scalar."""

    op_domain = ""

    def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
        super().__init__(onnx_node, run_params)
        run_body: Callable[..., Sequence[Array]] = vars(self)["_run_body"]

        def run_stackable(*args: Any, **kwargs: Any) -> list[Array]:
            results = list(run_body(*args, **kwargs))
            first = len(results) - self.K
            return results[:first] + [x[np.newaxis] for x in results[first:]]

        vars(self)["_run_body"] = run_stackable
