"""A model of the zoo: where it comes from, the shapes it is run at, and its inputs.

`build_model` writes the ONNX file of one model below a cache folder and is a no-op where it is already there.
Importing this module is cheap: torch is loaded only while building.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from benchmarks.zoo.inputs import Feeds, Sizes
from benchmarks.zoo.sources import BuiltGraph, ExportedNetwork, PackagedModel, WheelModel

CACHE = Path(__file__).resolve().parents[2] / "build" / "zoo"


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of the zoo: `feeds(rng, sizes)` generates inputs, `shapes` are the size sets that are checked.

    `ranges` are the inclusive ranges of the named symbolic dimensions, as `tilewright.compile` takes them. `tolerance`
    is the largest difference from ONNX Runtime, relative to the largest value, of a model without a float64 reference.
    """

    name: str
    source: PackagedModel | WheelModel | ExportedNetwork | BuiltGraph
    feeds: Callable[[np.random.Generator, Sizes], Feeds]
    shapes: tuple[Mapping[str, int], ...]
    ranges: Mapping[str, str] = field(default_factory=dict[str, str])
    tolerance: float = 1e-4

    @property
    def path(self) -> Path:
        """Where the ONNX file is, once built."""
        return CACHE / self.name / "model.onnx"

    def inputs(self, sizes: Sizes, seed: int = 0) -> Feeds:
        """Return the feeds for one size set; the same seed gives the same arrays."""
        return self.feeds(np.random.default_rng([seed, *sizes.values()]), sizes)


def label(sizes: Sizes) -> str:
    """Return a size set as it is written in tables: `4x128`."""
    return "x".join(str(size) for size in sizes.values())


def build_model(model: Model, *, rebuild: bool = False) -> bool:
    """Write the model's ONNX file into the cache; return whether anything had to be done."""
    if model.path.exists() and not rebuild:
        return False
    folder = model.path.parent
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if isinstance(model.source, PackagedModel):
        shutil.copyfile(model.source.locate(), partial / "model.onnx")
    elif isinstance(model.source, WheelModel):
        (partial / "model.onnx").write_bytes(model.source.read())
    elif isinstance(model.source, BuiltGraph):
        onnx.save(model.source.build(), partial / "model.onnx")
    else:
        from benchmarks.zoo.export import export

        export(model.source, model.inputs(model.source.example), partial / "model.onnx")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return True


def size_sets(*names: str) -> Callable[..., tuple[Mapping[str, int], ...]]:
    """Return a function that turns tuples of sizes into size sets with these names."""

    def sets(*rows: tuple[int, ...]) -> tuple[Mapping[str, int], ...]:
        return tuple(dict(zip(names, row, strict=True)) for row in rows)

    return sets
