"""What is measured: ONNX files, artifacts of dynamic sizes and of every single shape, kept between runs.

Compilation takes longer than measurement, so it can be done before (`--prepare`). Artifacts are kept by the version of
the compiler.
"""

from hashlib import sha256
from pathlib import Path

import onnx

import tilewright
from benchmarks.common.sources import source_hash
from benchmarks.dynamic_shapes.models import DynamicModel
from benchmarks.dynamic_shapes.shapes import Shape, shape_feeds, with_fixed_sizes

FOLDER = Path(__file__).resolve().parents[2] / "build" / "dynamic_shapes"


def model_file(model: DynamicModel) -> Path:
    """The ONNX file of a model."""
    path = FOLDER / f"{_digest(model.name)}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model.build(), path)
    return path


def dynamic_artifact(model: DynamicModel, optimizer: str | None = None) -> Path:
    """The artifact for all sizes in the declared ranges."""
    path = _artifact(f"{model.name} {optimizer}")
    if not path.exists():
        ranges = {name: f"{low}..{high}" for name, (low, high) in model.ranges.items()}
        tilewright.compile(model_file(model), shapes=ranges or None, optimizer=optimizer, records=False).save(path)
    return path


def static_artifact(model: DynamicModel, shape: Shape) -> Path:
    """The artifact for exactly one shape."""
    path = _artifact(f"{model.name} {dict(shape)}")
    if not path.exists():
        fixed = with_fixed_sizes(onnx.load(model_file(model)), shape_feeds(model, shape, 0))
        tilewright.compile(fixed, records=False).save(path)
    return path


def _artifact(name: str) -> Path:
    path = FOLDER / source_hash()[:16] / f"{_digest(name)}.tw"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:16]
