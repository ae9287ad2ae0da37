"""Models and inputs of the tests of the command line."""

import numpy as np
import onnx
import pytest
from tests.driver import models

import tilewright


@pytest.fixture(scope="module", autouse=True)
def _reuse_code(reuse_code):
    """Commands are tested here, not the code of the few models that they are given."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, _reuse_code):
    path = tmp_path_factory.mktemp("cli")
    onnx.save(models.mlp(), path / "mlp.onnx")
    tilewright.compile(models.mlp()).save(path / "mlp.tw")
    x = np.random.default_rng(1).standard_normal((3, 24)).astype(np.float32)
    np.savez(path / "x.npz", x=x)
    return path


@pytest.fixture(autouse=True)
def no_progress_reports(monkeypatch):
    """What a verb prints does not depend on the machine's speed: the reports of long work never fall due.

    Tests of the reports themselves set another interval.
    """
    monkeypatch.setattr("tilewright.cli.terminal_line.PROGRESS_INTERVAL", float("inf"))
