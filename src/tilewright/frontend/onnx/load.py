"""The steps of loading an ONNX model: read, inline, check structure and types, convert.

All problems are reported together.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import onnx

from tilewright.errors import Defect, ModelError
from tilewright.expr.dtype import dtype_of, opaque
from tilewright.frontend.onnx.convert import extract_constant, initializer_values, tensor_type
from tilewright.frontend.onnx.dialect import OnnxDialect
from tilewright.frontend.onnx.dimensions import InputSpec, ShapeOption, SymbolicInputs, make_inputs
from tilewright.frontend.onnx.element_types import ELEMENT_TYPE_NUMBERS, ELEMENT_TYPES
from tilewright.frontend.onnx.embedded_tensors import embed_external_data
from tilewright.frontend.onnx.inlining import inline_functions
from tilewright.frontend.onnx.limits import check_limits
from tilewright.frontend.onnx.node_protos import initializer_names
from tilewright.frontend.onnx.opsets import check_opsets, opset_versions
from tilewright.frontend.onnx.read_file import ReadFile
from tilewright.frontend.onnx.source import Source, read_model
from tilewright.frontend.onnx.structure import check_structure, node_names
from tilewright.frontend.onnx.subgraphs import ConversionContext, convert_nodes
from tilewright.frontend.onnx.tensors import type_name
from tilewright.frontend.onnx.types import check_types, type_text
from tilewright.graph.ir import Array, Graph, Node, TensorType
from tilewright.ops.library import OPERATORS


def load(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto | ReadFile",
    shapes: Mapping[str, ShapeOption],
    folder: str | None,
) -> Graph:
    """See `tilewright.frontend.onnx.load_onnx`."""
    source = read_model(model, folder)
    problems = [*check_opsets(opset_versions(source.model)), *check_limits(source.model)]
    if problems:
        raise ModelError(problems, where=source.where)
    source = embed_external_data(source)
    try:
        nodes, opsets = inline_functions(source.model)
    except ModelError as error:
        raise ModelError(error.problems, where=source.where) from error
    graph = source.model.graph
    constants, exotic = _constants(source, problems)
    defective: set[str] = set()
    folders = source.folders
    named = [n for n in (*exotic, *nodes) if not extract_constant(n, constants, defective, folders, problems)]
    # Defective initializers and constants count as defined, so that their users are not reported as well; those of
    # exotic types are nodes.
    exotic_names = {o for n in exotic for o in n.output}
    predefined = (constants.keys() | initializer_names(graph) | defective) - exotic_names
    order = check_structure(
        [v for v in graph.input if v.name not in exotic_names], graph.output, named, predefined, problems
    )
    names = node_names(named)
    specs = list(_input_specs(graph, constants, shapes, problems))
    types = {name: f"tensor({type_name(ELEMENT_TYPE_NUMBERS[dtype_of(a.dtype)])})" for name, a in constants.items()}
    types |= {t.name: f"tensor({type_name(t.data_type)})" for t in graph.initializer}
    types |= {v.name: text for v in graph.input if v.name not in types and (text := type_text(v.type))}
    declared = {v.name: text for v in (*graph.value_info, *graph.output) if (text := type_text(v.type))}
    ordered = [(names[i], named[i]) for i in order]
    check_types(ordered, types, declared, opsets, problems)
    converted = convert_nodes(ordered, ConversionContext(opsets, folders, types), constants, problems)
    if problems:
        raise ModelError(list(dict.fromkeys(problems)), where=source.where)
    native = set(_native_reads(converted))
    specs = [replace(s, may_be_empty=s.name not in native) for s in specs]
    return _build_graph(source.model, make_inputs(specs, shapes), constants, converted, opsets)


def _native_reads(nodes: Iterable[Node]) -> Iterator[str]:
    """Names of the values that native code reads, in sub-graphs, too."""
    for node in nodes:
        if (node.domain, node.op_type) in OPERATORS:
            yield from node.inputs
        for subgraph in node.subgraphs.values():
            yield from (node.captured.get(v, v) for v in _native_reads(subgraph.nodes))


def _constants(source: Source, problems: list[Defect]) -> tuple[dict[str, Array], list[onnx.NodeProto]]:
    """Initializers by name, and Constant nodes for those of exotic types."""
    constants: dict[str, Array] = {}
    exotic: list[onnx.NodeProto] = []
    for name, value in initializer_values(source.model.graph, source.folders, problems):
        if isinstance(value, onnx.NodeProto):
            exotic.append(value)
        elif name in constants:
            problems.append(Defect("duplicate", f"initializer '{name}'", "the model has two initializers of this name"))
        else:
            constants[name] = value
    return constants, exotic


def _input_specs(
    graph: onnx.GraphProto, constants: Mapping[str, Array], shapes: Mapping[str, ShapeOption], problems: list[Defect]
) -> Iterator[InputSpec]:
    """The inputs that a caller feeds; an input that is also an initializer is a constant, as in old files."""
    initializers = constants.keys() | initializer_names(graph)
    for value in graph.input:
        if value.name in initializers:
            continue
        where = f"input '{value.name}'"
        tensor = value.type.tensor_type
        if value.type.WhichOneof("value") is None or (value.type.HasField("tensor_type") and not tensor.elem_type):
            problems.append(Defect("type", where, "the model declares no type"))
            continue
        dtype = ELEMENT_TYPES.get(tensor.elem_type) if value.type.WhichOneof("value") == "tensor_type" else None
        if dtype is None or not (tensor.HasField("shape") or dtype.is_native):
            yield InputSpec(value.name, opaque, ())
            continue
        if not tensor.HasField("shape"):
            if value.name not in shapes:
                hint = f"give its shape, e.g. shapes={{'{value.name}': [1, 3, 224, 224]}}"
                problems.append(Defect("shape", where, "the model declares no shape", hint))
            yield InputSpec(value.name, dtype, None)
            continue
        yield InputSpec(value.name, dtype, tuple(_dim(d) for d in tensor.shape.dim))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value
    return dim.dim_param or None


def _build_graph(
    model: onnx.ModelProto,
    inputs: SymbolicInputs,
    constants: dict[str, Array],
    nodes: tuple[Node, ...],
    opsets: dict[str, int],
) -> Graph:
    declared: dict[str, TensorType] = {}
    for value in (*model.graph.value_info, *model.graph.output):
        declared_type = tensor_type(value.type)
        if declared_type is not None:
            declared[value.name] = declared_type
    opaque_names = {v.name for v in inputs.values if v.type.dtype is opaque}
    return Graph(
        name=model.graph.name,
        inputs=inputs.values,
        outputs=tuple(v.name for v in model.graph.output),
        constants=constants,
        nodes=nodes,
        symbols=inputs.symbols,
        declared_types=declared,
        metadata=_metadata(model),
        opsets=opsets,
        symbol_names=inputs.symbol_names,
        opaque_types={
            v.name: v.type.SerializeToString(deterministic=True) for v in model.graph.input if v.name in opaque_names
        },
        dialect=OnnxDialect(),
    )


def _metadata(model: onnx.ModelProto) -> dict[str, str]:
    fields = {
        "graph_name": model.graph.name,
        "producer_name": model.producer_name,
        "producer_version": model.producer_version,
        "domain": model.domain,
        "model_version": str(model.model_version),
        "description": model.doc_string,
        "ir_version": str(model.ir_version),
    }
    return fields | {f"custom:{p.key}": p.value for p in model.metadata_props}
