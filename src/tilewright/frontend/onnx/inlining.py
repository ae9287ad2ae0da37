"""Inlining of functions.

Functions of the model, and functions by which ONNX defines operators, go through `onnx.inliner`. Initializers stay out
of it, so that large models are not copied. An operator with a definition in `ops` is never replaced by ONNX's function
for it.
"""

from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnx.defs
import onnx.inliner

from tilewright.errors import Defect, ModelError
from tilewright.frontend.onnx.node_protos import FunctionKey, all_nodes, function_key
from tilewright.frontend.onnx.opsets import opset_versions, standard_domain
from tilewright.ops.library import OPERATORS

_MAX_INLINE_ROUNDS = 64
"""ONNX's functions call functions, a few levels deep."""


def inline_functions(model: onnx.ModelProto) -> tuple[list[onnx.NodeProto], dict[str, int]]:
    """The nodes of the model with functions inlined, and the operator sets that they use.

    An operator whose function ONNX's inliner rejects stays an operator.

    Raises:
        ModelError: functions of the model cannot be inlined (they call each other in a cycle, versions do not fit, or
            an attribute that a call leaves out is passed on to a function with a default of its own).
    """
    nodes, opsets = list(model.graph.node), opset_versions(model)
    if not model.functions and not _expandable(nodes, opsets):
        return nodes, opsets
    skeleton = _skeleton(model)
    if model.functions:
        _complete_calls(skeleton)
        try:
            skeleton = onnx.inliner.inline_local_functions(skeleton, True)
        except Exception as error:  # the inliner raises whatever its C++ code raises
            text = str(error).strip().splitlines()
            raise ModelError(
                [Defect("function", "model", f"functions can't be inlined ({text[0] if text else error})")]
            ) from error
    rejected: set[tuple[str, str]] = set()
    for _ in range(_MAX_INLINE_ROUNDS):
        selected = [f for f in _expandable(list(skeleton.graph.node), opset_versions(skeleton)) if f not in rejected]
        if not selected:
            break
        _add_default_attributes(skeleton, selected)
        try:
            skeleton = onnx.inliner.inline_selected_functions(skeleton, selected, False, True)
        except Exception:  # as above; single attempts find the functions that cannot be inlined
            skeleton = _inline_each(skeleton, selected, rejected)
    return list(skeleton.graph.node), opset_versions(skeleton)


def _complete_calls(model: onnx.ModelProto) -> None:
    """Adds defaults of the model's functions to calls: the inliner drops references to attributes without a value.

    Raises:
        ModelError: see `inline_functions`.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    passed_on = {key: list(_passed_on(f, functions)) for key, f in functions.items()}
    problems: list[Defect] = []
    for node in all_nodes([*model.graph.node, *(n for f in model.functions for n in f.node)]):
        key = function_key(node)
        if key not in functions:
            continue
        given = {a.name for a in node.attribute}
        node.attribute.extend(a for a in functions[key].attribute_proto if a.name not in given)
        for attribute, callee in passed_on[key]:
            if attribute not in given:
                where = f"node {node.name or next(iter(node.output), '')} ({node.op_type})"
                what = f"got no attribute '{attribute}', which its function passes on to {callee}, which has a default"
                problems.append(Defect("function", where, what, f"give the node the attribute '{attribute}'"))
    if problems:
        raise ModelError(problems)


def _passed_on(
    function: onnx.FunctionProto, functions: Mapping[FunctionKey, onnx.FunctionProto]
) -> Iterator[tuple[str, str]]:
    """Attributes without a default that the function's body passes on to those with a default, and whose these are."""
    for node in all_nodes(function.node):
        callee = functions.get(function_key(node))
        if callee is None:
            continue
        defaults = {a.name for a in callee.attribute_proto}
        for attribute in node.attribute:
            if attribute.name in defaults and attribute.ref_attr_name in function.attribute:
                yield attribute.ref_attr_name, callee.name


def _inline_each(
    model: onnx.ModelProto, selected: Sequence[tuple[str, str]], rejected: set[tuple[str, str]]
) -> onnx.ModelProto:
    """The model with every function inlined that the inliner accepts; the others are added to `rejected`."""
    for function in selected:
        try:
            model = onnx.inliner.inline_selected_functions(model, [function], False, True)
        except Exception:  # the inliner asserts on omitted inputs, among others
            rejected.add(function)
    return model


def _add_default_attributes(model: onnx.ModelProto, selected: Sequence[tuple[str, str]]) -> None:
    """Adds default attributes to nodes that will be inlined: the inliner omits attributes without a value."""
    opsets = opset_versions(model)
    for node in all_nodes(model.graph.node):
        domain = standard_domain(node.domain)
        if (domain, node.op_type) not in selected:
            continue
        present = {a.name for a in node.attribute}
        for name, formal in onnx.defs.get_schema(node.op_type, opsets[domain], domain).attributes.items():
            if name not in present and formal.default_value.name:
                node.attribute.append(formal.default_value)


def _expandable(nodes: Sequence[onnx.NodeProto], opsets: dict[str, int]) -> list[tuple[str, str]]:
    """Standard operators without a definition in `ops` that ONNX defines by a function, also those in sub-graphs."""
    expandable: dict[tuple[str, str], None] = {}
    for node in all_nodes(nodes):
        domain = standard_domain(node.domain)
        version = opsets.get(domain)
        if version is None or (domain, node.op_type) in OPERATORS or not onnx.defs.has(node.op_type, version, domain):
            continue
        schema = onnx.defs.get_schema(node.op_type, version, domain)
        # onnx's stubs leave these two out
        if schema.has_function or schema.has_context_dependent_function:  # pyright: ignore[reportAttributeAccessIssue]
            expandable[domain, node.op_type] = None
    return list(expandable)


def _skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its initializers turned into inputs."""
    result = onnx.ModelProto(ir_version=model.ir_version)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(model.functions)
    graph = result.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    input_names = {v.name for v in model.graph.input}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in model.graph.initializer
        if t.name not in input_names
    )
    return result
