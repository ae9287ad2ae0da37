"""The place of the store of a test."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that does not exist, in a folder that does not exist."""
    return tmp_path / "folder" / "records.db"
