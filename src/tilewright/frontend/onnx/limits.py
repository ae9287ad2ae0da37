"""Limits of a model, checked before anything processes it: a small file can describe a huge model.

Functions that call functions twice double at every level, and the inliner's C++ code cannot be interrupted.
"""

from collections import Counter
from collections.abc import Iterator

import onnx

from tilewright.errors import Defect
from tilewright.frontend.onnx.node_protos import FunctionKey, all_nodes, function_key
from tilewright.graph.limits import MAX_RANK

MAX_NODES = 1 << 20
"""Nodes of a model after inlining, those in sub-graphs included."""

MAX_FUNCTION_DEPTH = 64
"""Functions of a model that call one another in a row: each level of calls is a copy of the graph."""

MAX_OUTPUTS = 1 << 12
"""Outputs of one node: each is a kernel of its own."""

MAX_VERSION = (1 << 31) - 1
"""ONNX's own functions take versions of operator sets as 32-bit numbers."""


def check_limits(model: onnx.ModelProto) -> Iterator[Defect]:
    """Problems with the size and versions of a model."""
    for where, part in (("model", model), *((f"function {f.name}", f) for f in model.functions)):
        for entry in part.opset_import:
            if not 0 <= entry.version <= MAX_VERSION:
                what = f"expected a version of operator set '{entry.domain}' below 2^31, got {entry.version}"
                yield Defect("opset", where, what)
    for value in model.graph.input:
        rank = len(value.type.tensor_type.shape.dim)
        if rank > MAX_RANK:
            what = f"expected at most {MAX_RANK} dimensions, got {rank}"
            yield Defect("shape", f"input '{value.name}'", what)
    for node in (*model.graph.node, *(n for f in model.functions for n in f.node)):
        if len(node.output) > MAX_OUTPUTS:
            what = f"expected at most {MAX_OUTPUTS} outputs, got {len(node.output)}"
            yield Defect("arity", f"node {node.name or node.output[0]} ({node.op_type})", what)
    count = _inlined_node_count(model)
    if count > MAX_NODES:
        what = f"expected at most {MAX_NODES} nodes once functions are put in place of their calls, got {count}"
        yield Defect("function", "model", what, "functions that call functions several times multiply")


def _inlined_node_count(model: onnx.ModelProto) -> int:
    """Nodes of the main graph after inlining, without calls in a cycle, which can't be inlined."""
    bodies = {function_key(f): list(all_nodes(f.node)) for f in model.functions}
    calls = {k: Counter(c for n in body if (c := function_key(n)) in bodies) for k, body in bodies.items()}
    nodes = list(all_nodes(model.graph.node))
    copies = Counter[FunctionKey](c for n in nodes if (c := function_key(n)) in bodies)
    reached, seen = list(copies), set(copies)
    for key in reached:
        new = calls[key].keys() - seen
        reached += new
        seen |= new
    # all calls of a function are known once those of its callers are; functions that nothing calls have no say
    callers = Counter(c for key in reached for c in calls[key])
    known = [k for k in reached if not callers[k]]
    for key in known:
        for called, count in calls[key].items():
            copies[called] += copies[key] * count
            callers[called] -= 1
            if not callers[called]:
                known.append(called)
    return len(nodes) + sum(copies[k] * len(body) for k, body in bodies.items())
