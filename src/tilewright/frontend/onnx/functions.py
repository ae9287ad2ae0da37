"""Inlining: functions of the model, functions by which ONNX defines operators, and conditionals on constants.

Everything but the bulk of the model goes through `onnx.inliner`; initializers stay out of it, so that large models are
not copied. An operator that has a definition here is never replaced by ONNX's function for it.
"""

from collections.abc import Callable, Iterator, Sequence

import onnx
import onnx.defs
import onnx.inliner

from tilewright.errors import ModelError, Problem
from tilewright.frontend.onnx.opsets import opset_versions, standard_domain
from tilewright.graph.onnx_nodes import renamed
from tilewright.ops.library import OPERATORS


def inlined(model: onnx.ModelProto) -> tuple[list[onnx.NodeProto], dict[str, int]]:
    """The nodes of the model with functions inlined, and the operator sets that they use.

    Raises:
        ModelError: the functions can't be inlined (they call each other in a circle, or versions do not fit).
    """
    nodes, opsets = list(model.graph.node), opset_versions(model)
    selected = _expandable(nodes, opsets)
    if not model.functions and not selected:
        return nodes, opsets
    skeleton = _skeleton(model)
    try:
        if model.functions:
            skeleton = onnx.inliner.inline_local_functions(skeleton, True)
            selected = _expandable(list(skeleton.graph.node), opset_versions(skeleton))
        if selected:
            skeleton = onnx.inliner.inline_selected_functions(skeleton, selected, False, True)
    except Exception as error:  # the inliner raises whatever its C++ code raises
        text = str(error).strip().splitlines()
        raise ModelError(
            [Problem("function", "model", f"functions can't be inlined ({text[0] if text else error})")]
        ) from error
    return list(skeleton.graph.node), opset_versions(skeleton)


def _expandable(nodes: Sequence[onnx.NodeProto], opsets: dict[str, int]) -> list[tuple[str, str]]:
    """Standard operators without a definition here that ONNX defines by a function."""
    found: dict[tuple[str, str], None] = {}
    for node in nodes:
        domain = standard_domain(node.domain)
        version = opsets.get(domain)
        if version is None or (domain, node.op_type) in OPERATORS or not onnx.defs.has(node.op_type, version, domain):
            continue
        schema = onnx.defs.get_schema(node.op_type, version, domain)
        # onnx's stubs leave these two out
        if schema.has_function or schema.has_context_dependent_function:  # pyright: ignore[reportAttributeAccessIssue]
            found[domain, node.op_type] = None
    return list(found)


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
    known = {v.name for v in model.graph.input}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in model.graph.initializer
        if t.name not in known
    )
    return result


def without_constant_branches(
    nodes: Sequence[onnx.NodeProto], truth: Callable[[str], bool | None]
) -> Iterator[onnx.NodeProto]:
    """The nodes, where an If whose condition is constant is replaced by the nodes of its branch.

    Args:
        nodes: of the main graph.
        truth: the value of a constant by name, None where it is not a constant bool.
    """
    for index, node in enumerate(nodes):
        taken = truth(node.input[0]) if node.op_type == "If" and not node.domain and node.input else None
        branch = None if taken is None else _branch(node, "then_branch" if taken else "else_branch")
        if branch is None or len(branch.output) != len(node.output) or branch.sparse_initializer:
            yield node
            continue
        yield from without_constant_branches(list(_spliced(node, branch, f"{node.name or 'If'}#{index}/")), truth)


def _branch(node: onnx.NodeProto, name: str) -> onnx.GraphProto | None:
    return next((a.g for a in node.attribute if a.name == name and a.type == onnx.AttributeProto.GRAPH), None)


def _spliced(node: onnx.NodeProto, branch: onnx.GraphProto, prefix: str) -> Iterator[onnx.NodeProto]:
    """The branch's nodes under names that are free in the graph around it."""
    inner = {t.name for t in branch.initializer} | {o for n in branch.node for o in n.output if o}
    names = {name: prefix + name for name in inner}
    for tensor in branch.initializer:
        constant = onnx.helper.make_node("Constant", [], [names[tensor.name]], name=names[tensor.name], value=tensor)
        yield constant
    for part in branch.node:
        proto = renamed(part, names)
        proto.name = prefix + part.name if part.name else ""
        yield proto
    for value, output in zip(branch.output, node.output, strict=True):
        if output:
            yield onnx.helper.make_node("Identity", [names.get(value.name, value.name)], [output], name=prefix + output)
