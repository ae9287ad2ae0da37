"""Nodes of a model once functions are put in place of their calls."""

import pytest
from onnx import helper
from tests.frontend.onnx_models import model

from tilewright.errors import ModelError
from tilewright.frontend.onnx import limits, load_onnx


def _with_functions(bodies):
    """A model that calls the function "f0", with functions by name and the names that they call one after the other."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]

    def chain(names):
        values = ["x", *(f"v{k}" for k in range(len(names) - 1)), "y"]
        return [helper.make_node(n, [values[k]], [values[k + 1]], domain="f") for k, n in enumerate(names)]

    proto = model("y = Relu(x)")
    del proto.graph.node[:]
    proto.graph.node.extend(chain(["f0"]))
    proto.opset_import.append(opsets[1])
    for name, called in bodies.items():
        body = chain(called) or [helper.make_node("Relu", ["x"], ["y"])]
        proto.functions.append(helper.make_function("f", name, ["x"], ["y"], body, opsets))
    return proto


def test_nodes_after_inlining():
    doubled = _with_functions({"f0": ["f1", "f1"], "f1": ["f2", "f2", "f2"], "f2": [], "unused": ["f0"]})
    assert limits._inlined_node_count(doubled) == 1 + 2 + 2 * 3 + 2 * 3 * 1
    deep = {f"f{k}": [f"f{k + 1}"] * 2 for k in range(40)} | {"f40": []}
    with pytest.raises(ModelError, match=f"got {3 * 2**40 - 1};"):
        load_onnx(_with_functions(deep))
    with pytest.raises(ModelError, match=f"got {3 * 2**40 - 1};"):
        load_onnx(_with_functions(deep | {"loop": ["loop", "f0"]}))  # that nothing calls


def test_the_count_of_nodes_takes_time_in_proportion_to_the_calls(monkeypatch):
    """Functions that one function calls are looked at once each, not once per call before them."""
    calls = []
    key = limits.function_key
    monkeypatch.setattr(limits, "function_key", lambda proto: (calls.append(1), key(proto))[1])
    names = [f"f{k}" for k in range(1, 400)]
    proto = _with_functions({"f0": names, **dict.fromkeys(names, ())})
    assert limits._inlined_node_count(proto) == 1 + len(names) * 2
    assert len(calls) < 5 * len(names)
