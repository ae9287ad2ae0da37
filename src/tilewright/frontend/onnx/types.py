"""Type checks: nodes against ONNX's operator schemas, with element types propagated node by node.

Shapes are not checked here but where operators are lowered.
"""

from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnx.defs
import onnx.shape_inference

from tilewright.custom_operators import PYTHON_OPERATORS, load_operator_packages
from tilewright.errors import Defect
from tilewright.frontend.onnx.expand_nodes import EXPANDED
from tilewright.frontend.onnx.opsets import standard_domain
from tilewright.frontend.onnx.structure import node_label
from tilewright.frontend.onnx.tensors import type_name
from tilewright.frontend.onnx.unknown_operators import describe_unknown_operator
from tilewright.ops.library import OPERATORS

Types = dict[str, str]
"""ONNX's text of a value's type by name: "tensor(float)", "seq(tensor(int64))"."""


def type_text(proto: onnx.TypeProto) -> str | None:
    """The text of a type, None where the model leaves it open."""
    match proto.WhichOneof("value"):
        case "tensor_type":
            kind = proto.tensor_type.elem_type
            return f"tensor({type_name(kind)})" if kind else None
        case "sparse_tensor_type":
            return f"sparse_tensor({type_name(proto.sparse_tensor_type.elem_type)})"
        case "sequence_type":
            inner = type_text(proto.sequence_type.elem_type)
            return f"seq({inner})" if inner else None
        case "optional_type":
            inner = type_text(proto.optional_type.elem_type)
            return f"optional({inner})" if inner else None
        case _:
            return None


def check_types(
    nodes: Iterable[tuple[str, onnx.NodeProto]],
    types: Types,
    declared: Mapping[str, str],
    opsets: Mapping[str, int],
    problems: list[Defect],
) -> None:
    """Checks operators, numbers of inputs and outputs, attributes and element types; appends problems.

    Args:
        nodes: names and nodes in topological order.
        types: of inputs and constants; the types of computed values are added.
        declared: types that the model declares for computed values.
        opsets: versions of the operator sets.
        problems: appended to.
    """
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    for name, node in nodes:
        where = node_label(name, node)
        schema = _schema(node, opsets, where, problems)
        if schema is None:
            types.update({o: declared[o] for o in node.output if o in declared})
            continue
        problems.extend(_check_counts(node, schema, where))
        problems.extend(_check_attributes(node, schema, where))
        bound = _check_inputs(node, schema, types, where, problems)
        results = _output_types(node, schema, bound, types, imports)
        for output, result in zip(node.output, results, strict=True):
            declared_type = declared.get(output)
            if result and declared_type and result != declared_type:
                what = f"computes '{output}' as {result}, but the model declares it as {declared_type}"
                problems.append(Defect("type", where, what))
            final = result or declared_type
            if output and final:
                types[output] = final


def _schema(
    node: onnx.NodeProto, opsets: Mapping[str, int], where: str, problems: list[Defect]
) -> onnx.defs.OpSchema | None:
    domain = standard_domain(node.domain)
    version = opsets.get(domain)
    if version is None:
        shown = domain or "ai.onnx"
        problems.append(Defect("operator", where, f"the model does not import the operator set '{shown}'"))
        return None
    if not onnx.defs.has(node.op_type, version, domain):
        # A definition here may be of an operator that ONNX knows in no version at all.
        if onnx.defs.has(node.op_type, domain) or not is_defined_here(domain, node.op_type):
            problems.append(Defect("operator", where, *describe_unknown_operator(node.op_type, domain, version)))
        return None
    schema = onnx.defs.get_schema(node.op_type, version, domain)
    if schema.deprecated:
        what = f"operator '{node.op_type}' was removed in version {schema.since_version}, the model uses {version}"
        problems.append(Defect("operator", where, what))
        return None
    return schema


def is_defined_here(domain: str, op_type: str) -> bool:
    """Whether the package, the user or an installed package defines an operator; the last are loaded on need."""
    key = domain, op_type
    if key in EXPANDED:
        return True
    if key not in OPERATORS and key not in PYTHON_OPERATORS:
        load_operator_packages()
    return key in OPERATORS or key in PYTHON_OPERATORS


def _check_counts(node: onnx.NodeProto, schema: onnx.defs.OpSchema, where: str) -> Iterable[Defect]:
    for what, count, least, most in (
        ("input", len(node.input), schema.min_input, schema.max_input),
        ("output", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            span = f"{least}" if least == most else f"at least {least}" if most >= 1 << 30 else f"{least} to {most}"
            yield Defect("arity", where, f"expected {span} {what}{'' if span == '1' else 's'}, got {count}")
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    for position, (value, formal) in enumerate(zip(node.input, schema.inputs, strict=False)):
        if not value and formal.option == single:
            yield Defect("arity", where, f"input {position} ('{formal.name}') is required")


def _check_attributes(node: onnx.NodeProto, schema: onnx.defs.OpSchema, where: str) -> Iterable[Defect]:
    attributes = {a.name: a for a in node.attribute}
    for name, formal in schema.attributes.items():
        if formal.required and name not in attributes:
            yield Defect("attribute", where, f"attribute '{name}' is required")
    for name, attribute in attributes.items():
        formal = schema.attributes.get(name)
        if formal is None:
            # Names that begin with two underscores are private notes of exporters.
            if not name.startswith("__"):
                names = ", ".join(sorted(schema.attributes)) or "none"
                yield Defect("attribute", where, f"attribute '{name}' is not known", f"the operator has: {names}")
            continue
        expected = str(formal.type).rpartition(".")[2]
        actual = onnx.AttributeProto.AttributeType.Name(attribute.type)
        if attribute.type and actual != expected:
            yield Defect("attribute", where, f"attribute '{name}': expected {expected}, got {actual}")


def _formal_parameter(
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter], position: int
) -> onnx.defs.OpSchema.FormalParameter | None:
    if position < len(parameters):
        return parameters[position]
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return parameters[-1] if parameters and parameters[-1].option == variadic else None


def _check_inputs(
    node: onnx.NodeProto, schema: onnx.defs.OpSchema, types: Types, where: str, problems: list[Defect]
) -> Types:
    """The bindings of the schema's type parameters by the inputs."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    bound: Types = {}
    first: dict[str, int] = {}
    for position, value in enumerate(node.input):
        formal = _formal_parameter(schema.inputs, position)
        actual = types.get(value)
        if formal is None or not value or actual is None:
            continue
        parameter = formal.type_str
        options = allowed.get(parameter, [parameter])
        if actual not in options:
            listed = ", ".join(sorted(options)[:8]) + (", ..." if len(options) > 8 else "")
            what = f"input {position} '{value}' has type {actual}, expected {listed}"
            problems.append(Defect("type", where, what))
        elif formal.is_homogeneous and bound.setdefault(parameter, actual) != actual:
            other = first[parameter]
            what = f"input {position} '{value}' has type {actual}, expected {bound[parameter]} like input {other}"
            problems.append(Defect("type", where, what, "insert a Cast"))
        first.setdefault(parameter, position)
    return bound


def _output_types(
    node: onnx.NodeProto,
    schema: onnx.defs.OpSchema,
    bound: Types,
    types: Types,
    imports: list[onnx.OperatorSetIdProto],
) -> list[str | None]:
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    results: list[str | None] = []
    for position in range(len(node.output)):
        formal = _formal_parameter(schema.outputs, position)
        parameter = formal.type_str if formal else ""
        options = allowed.get(parameter, [parameter] if parameter else [])
        homogeneous = formal is not None and formal.is_homogeneous
        results.append(bound.get(parameter) if homogeneous else None)
        if results[-1] is None and len(options) == 1:
            results[-1] = options[0]
    if None not in results:
        return results
    inferred = _infer_types(node, schema, types, imports)
    return [r or inferred.get(o) for r, o in zip(results, node.output, strict=True)]


def _infer_types(
    node: onnx.NodeProto, schema: onnx.defs.OpSchema, types: Types, imports: list[onnx.OperatorSetIdProto]
) -> Types:
    """Output types by ONNX's inference, for operators whose result type depends on attributes."""
    input_types: dict[str, onnx.TypeProto] = {}
    for name in node.input:
        kind = types.get(name, "")
        if not name:
            continue
        number = kind[7:-1].upper() if kind.startswith("tensor(") else ""
        if number not in onnx.TensorProto.DataType.keys():  # noqa: SIM118 - an enum wrapper, no dict
            return {}
        input_types[name] = onnx.helper.make_tensor_type_proto(onnx.TensorProto.DataType.Value(number), None)
    try:
        inferred = onnx.shape_inference.infer_node_outputs(schema, node, input_types, opset_imports=imports)
    except Exception:  # C++ errors of many kinds; a type that can't be inferred stays open
        return {}
    return {name: text for name, proto in inferred.items() if (text := type_text(proto))}
