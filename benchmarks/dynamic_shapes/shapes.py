"""Random sizes of a model, and the model with its sizes fixed."""

import zlib
from collections.abc import Mapping

import numpy as np
from onnx import ModelProto

from benchmarks.dynamic_shapes.models import DynamicModel
from benchmarks.zoo.inputs import Feeds

Shape = Mapping[str, int]


def draw_shapes(model: DynamicModel, count: int, seed: int) -> tuple[Shape, ...]:
    """Distinct shapes, every size evenly distributed over the logarithms of its range; fewer where the ranges have
    fewer."""
    rng = np.random.default_rng([seed, zlib.crc32(model.name.encode())])
    shapes: dict[tuple[int, ...], Shape] = {}
    for _ in range(20 * count):
        shape = {name: _draw(rng, *span, model.multiples.get(name, 1)) for name, span in model.drawn.items()}
        shapes.setdefault(tuple(shape.values()), shape)
        if len(shapes) == count:
            break
    return tuple(shapes.values())


def _draw(rng: np.random.Generator, low: int, high: int, multiple: int) -> int:
    drawn = round(float(low * (high / low) ** rng.random()))
    return int(np.clip(round(drawn / multiple) * multiple, low, high))


def shape_feeds(model: DynamicModel, shape: Shape, seed: int) -> Feeds:
    """Random inputs of a model for a shape."""
    return model.feeds(np.random.default_rng([seed, *shape.values()]), shape)


def with_fixed_sizes(model: ModelProto, feeds: Feeds) -> ModelProto:
    """A copy of a model whose inputs have the sizes of these feeds; other sizes follow from them."""
    fixed = ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        if value.name in feeds:
            for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=True):
                dim.dim_value = size
    del fixed.graph.value_info[:]
    for value in fixed.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    return fixed
