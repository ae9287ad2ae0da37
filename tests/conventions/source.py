"""The project's Python files, their module names and identifiers."""

import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python_files(*folders: str) -> list[Path]:
    """The Python files below some folders of the repository, sorted."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def module_name(path: Path) -> str:
    """The dotted name under which a file is imported."""
    base = ROOT / "src" if path.is_relative_to(ROOT / "src") else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def identifiers(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of every name in a Python source; keywords count, strings and comments do not."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string
