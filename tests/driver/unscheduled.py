"""The kernels of a model before any is scheduled, for tests of what is decided before that."""

from collections.abc import Sequence

import onnx
import pytest

import tilewright.driver.compile as pipeline
from tilewright.driver.build import Build
from tilewright.driver.options import CompileOptions
from tilewright.graph.partition import Unit
from tilewright.graph.program import Program
from tilewright.machine import Target


class ReachedError(Exception):
    """A compilation has come to its kernels."""


def unscheduled(model: onnx.ModelProto, options: CompileOptions) -> tuple[Program, Sequence[Unit], Target]:
    """The model's computations, its kernels and other steps, and what they are compiled for."""

    def stop(programs: Sequence[tuple[Program, Sequence[Unit]]], build: Build, target: Target, *_: object) -> None:
        raise ReachedError(*programs[0], target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_compile_units", stop)
        with pytest.raises(ReachedError) as reached:
            pipeline.make_compilation(model, options)
    program, units, target = reached.value.args
    return program, units, target
