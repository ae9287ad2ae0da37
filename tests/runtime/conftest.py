"""An artifact file for the tests of the runtime."""

from pathlib import Path

import pytest
from tests.runtime.models import scale_artifact

from tilewright.runtime import save_artifact


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.tw"
    save_artifact(scale_artifact(), path)
    return path
