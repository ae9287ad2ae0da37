"""Inlining of functions.

Functions of the model, and functions by which ONNX defines operators, go through `onnx.inliner`. Initializers stay out
of it, so that large models are not copied. An operator with a definition in `ops` is never replaced by ONNX's function
for it.
"""

from collections import Counter
from collections.abc import Container, Iterable, Sequence

import onnx
import onnx.defs
import onnx.inliner

from tilewright.errors import Defect, ModelError
from tilewright.frontend.onnx.limits import MAX_FUNCTION_DEPTH
from tilewright.frontend.onnx.node_protos import FunctionKey, all_nodes, function_key
from tilewright.frontend.onnx.opsets import opset_versions, standard_domain
from tilewright.ops.library import OPERATORS

_MAX_INLINE_ROUNDS = 64
"""ONNX's functions call functions, a few levels deep."""


def inline_functions(model: onnx.ModelProto) -> tuple[list[onnx.NodeProto], dict[str, int]]:
    """The nodes of the model with functions inlined, and the operator sets that they use.

    An operator whose function ONNX's inliner rejects stays an operator.

    Raises:
        ModelError: functions of the model cannot be inlined (they call each other in a cycle or too deep, or versions
            do not fit).
    """
    nodes, opsets = list(model.graph.node), opset_versions(model)
    if not model.functions and not _expandable(nodes, opsets):
        return nodes, opsets
    skeleton = _skeleton(model)
    for functions in _call_levels(model):
        _add_attribute_defaults(skeleton, functions)
        del skeleton.functions[:]
        skeleton.functions.extend(functions)
        try:
            skeleton = onnx.inliner.inline_local_functions(skeleton, True)
        except Exception as error:  # the inliner raises whatever its C++ code raises
            text = str(error).strip().splitlines()
            raise _inlining_error(text[0] if text else str(error)) from error
    rejected: set[tuple[str, str]] = set()
    for _ in range(_MAX_INLINE_ROUNDS):
        selected = [f for f in _expandable(list(skeleton.graph.node), opset_versions(skeleton)) if f not in rejected]
        if not selected:
            break
        _add_schema_defaults(skeleton, selected)
        try:
            skeleton = onnx.inliner.inline_selected_functions(skeleton, selected, False, True)
        except Exception:  # as above; single attempts find the functions that cannot be inlined
            skeleton = _inline_each(skeleton, selected, rejected)
    return list(skeleton.graph.node), opset_versions(skeleton)


def _call_levels(model: onnx.ModelProto) -> list[list[onnx.FunctionProto]]:
    """The functions that the graph reaches, each on a level after those of all functions that call it.

    Where a level is inlined, all calls of its functions are in the graph, with the attributes that they have in the
    end: the inliner drops references to attributes without a value.

    Raises:
        ModelError: functions call each other in a cycle, or are nested too deep.
    """
    functions = {function_key(f): f for f in model.functions}
    called = {key: _called(f.node, functions) for key, f in functions.items()}
    reached = dict.fromkeys(_called(model.graph.node, functions))
    for key in (pending := list(reached)):
        new = [k for k in called[key] if k not in reached]
        reached.update(dict.fromkeys(new))
        pending.extend(new)
    callers = Counter(k for key in reached for k in called[key])
    levels = list[list[onnx.FunctionProto]]()
    level = [k for k in reached if not callers[k]]
    while level:
        levels.append([functions[k] for k in level])
        below = list[FunctionKey]()
        for key in level:
            for k in called[key]:
                callers[k] -= 1
                if not callers[k]:
                    below.append(k)
        level = below
    if sum(map(len, levels)) < len(reached):
        raise _inlining_error(f"{next(functions[k].name for k in reached if callers[k])} is in a cycle of calls")
    if len(levels) > MAX_FUNCTION_DEPTH:
        raise _inlining_error(f"expected at most {MAX_FUNCTION_DEPTH} that call each other, got {len(levels)}")
    return levels


def _called(nodes: Iterable[onnx.NodeProto], functions: Container[FunctionKey]) -> list[FunctionKey]:
    """The functions that nodes call, each once."""
    return [k for k in dict.fromkeys(map(function_key, all_nodes(nodes))) if k in functions]


def _add_attribute_defaults(model: onnx.ModelProto, functions: Sequence[onnx.FunctionProto]) -> None:
    """Adds to the graph's calls of functions the default attributes that they leave out."""
    defaults = {function_key(f): f.attribute_proto for f in functions if f.attribute_proto}
    for node in all_nodes(model.graph.node) if defaults else ():
        present = {a.name for a in node.attribute}
        node.attribute.extend(a for a in defaults.get(function_key(node), ()) if a.name not in present)


def _inlining_error(what: str) -> ModelError:
    return ModelError([Defect("function", "model", f"functions can't be inlined ({what})")])


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


def _add_schema_defaults(model: onnx.ModelProto, selected: Sequence[tuple[str, str]]) -> None:
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
    """The model without its functions, and with its initializers turned into inputs."""
    result = onnx.ModelProto(ir_version=model.ir_version)
    result.opset_import.extend(model.opset_import)
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
