"""Fallback steps of an artifact, which ONNX's reference evaluator runs."""

from dataclasses import replace

import numpy as np

from tilewright.driver.artifact.weight_pool import WeightPool
from tilewright.driver.artifact_names import ArtifactNames, tensor_spec
from tilewright.graph.program import Fallback
from tilewright.runtime.manifest import FallbackStep


def fallback_step(unit: Fallback, index: int, names: ArtifactNames, pool: WeightPool) -> FallbackStep:
    """The manifest's record of a fallback; its ONNX model is stored as a weight."""
    value_names = {b.name: names.of(b) for b in (*unit.inputs, *unit.outputs)}
    model = unit.model
    if any(buffer != value for buffer, value in value_names.items()):
        model = _rename_values(model, value_names)
    results = [replace(b, shape=sizes) for b, sizes in zip(unit.outputs, unit.runtime_shapes, strict=True)]
    return FallbackStep(
        model=pool.add(f"fallback.{index}", np.frombuffer(model, np.uint8)),
        inputs=tuple(tensor_spec(names.of(b), b, names, printed=False) for b in unit.inputs),
        outputs=tuple(tensor_spec(names.of(b), b, names, printed=False) for b in results),
        nodes=tuple(n.label for n in unit.nodes),
    )


def _rename_values(model_bytes: bytes, names: dict[str, str]) -> bytes:
    """Renames a model's inputs and outputs by Identity nodes."""
    import onnx  # here because few models need it

    model = onnx.load_model_from_string(model_bytes)
    graph = model.graph
    before = [
        onnx.helper.make_node("Identity", [names[v.name]], [v.name]) for v in graph.input if names[v.name] != v.name
    ]
    after = [
        onnx.helper.make_node("Identity", [v.name], [names[v.name]]) for v in graph.output if names[v.name] != v.name
    ]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in (*graph.input, *graph.output):
        value.name = names[value.name]
    return model.SerializeToString(deterministic=True)
