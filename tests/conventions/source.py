"""The project's Python files, their module names, statements and identifiers."""

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORD = re.compile(r"[^\W\d]\w*")


def python_files(*folders: str) -> list[Path]:
    """The Python files below some folders of the repository, sorted."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def module_name(path: Path) -> str:
    """The dotted name under which a file is imported."""
    base = ROOT / "src" if path.is_relative_to(ROOT / "src") else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Every statement of a module, those inside of others too; quicker than `ast.walk`, which visits expressions."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            pending += getattr(node, part, ())


def has_words(text: str, words: Collection[str]) -> bool:
    """Whether one of some names is in a text, anywhere: what has none needs no parsing to know that."""
    return not set(WORD.findall(text)).isdisjoint(words)


def identifiers(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of every name in a Python source; keywords count, strings and comments do not."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string
