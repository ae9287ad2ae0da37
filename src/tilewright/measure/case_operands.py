"""Operands of a task for one case of sizes, with reference elements of its outputs, in memory and in files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.measure.build import BuiltCandidate
from tilewright.measure.linked_candidate import Array, poisoned
from tilewright.runtime.weights import align_array, numpy_dtype


@dataclass(frozen=True, slots=True)
class OutputSample:
    """Reference elements of an output.

    Attributes:
        flat: their positions [point] in row-major order.
        values: the elements [point].
        tolerance: largest error relative to the largest element.
    """

    flat: Array
    values: Array
    tolerance: float


@dataclass(frozen=True, slots=True)
class CaseData:
    """Operands for one case of sizes.

    Attributes:
        inputs: arrays by name.
        samples: reference elements by output.
    """

    inputs: Mapping[str, Array]
    samples: Mapping[str, OutputSample]


def case_operands(built: BuiltCandidate, case: int, data: CaseData) -> dict[str, Array]:
    """Inputs and outputs of a case, in which all candidates of a run work, so that places of tensors do not differ."""
    outputs = (p for p in built.kernel.parameters if p.name in data.samples)
    return {name: align_array(array) for name, array in data.inputs.items()} | {
        p.name: poisoned(p.shapes[case], p.dtype) for p in outputs
    }


def write_case(folder: Path, data: CaseData) -> dict[str, Any]:
    """Writes operands for other processes; returns what `read_case` needs besides the folder."""
    folder.mkdir(parents=True)
    described: dict[str, Any] = {"folder": str(folder), "inputs": {}, "samples": {}}
    for k, (name, array) in enumerate(data.inputs.items()):
        np.ascontiguousarray(array).tofile(folder / f"input{k}")
        described["inputs"][name] = [f"input{k}", array.dtype.name, array.shape]
    for k, (name, sample) in enumerate(data.samples.items()):
        sample.flat.astype(np.int64).tofile(folder / f"flat{k}")
        sample.values.tofile(folder / f"values{k}")
        described["samples"][name] = [f"flat{k}", f"values{k}", sample.values.dtype.name, sample.tolerance]
    return described


def read_case(described: Mapping[str, Any]) -> CaseData:
    """The operands that `write_case` wrote."""
    folder = Path(described["folder"])
    inputs = {
        name: align_array(np.fromfile(folder / file, numpy_dtype(dtype)).reshape(shape))
        for name, (file, dtype, shape) in described["inputs"].items()
    }
    samples = {
        name: OutputSample(np.fromfile(folder / f, np.int64), np.fromfile(folder / v, numpy_dtype(dtype)), tolerance)
        for name, (f, v, dtype, tolerance) in described["samples"].items()
    }
    return CaseData(inputs, samples)
