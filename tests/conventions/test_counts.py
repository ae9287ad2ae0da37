"""Texts for users say "1 input", not "1 inputs": counts that may be one are written by `pluralize`."""

import ast
import re
from collections.abc import Iterator

from tests.conventions.source import ROOT, python_files

FOLDERS = [f"src/tilewright/{layer}" for layer in ("cli", "driver", "frontend", "machine", "ops", "report", "runtime")]

NOUNS = "CPUs|arguments|arrays|dimensions|inputs|kernels|models|nodes|operands|outputs|problems|threads|trials"

COUNTED = re.compile(rf" (?:(?!of )[a-z]+ )?(?:{NOUNS})\b")
NAMED_LIMIT = re.compile("[A-Z_]+")


def unpluralized(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of the formatted counts of a source that are followed by a plural; limits by name are many."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not (isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant)):
                continue
            count = ast.unparse(value.value)
            if value.format_spec is None and NAMED_LIMIT.fullmatch(count) is None and COUNTED.match(str(text.value)):
                yield value.lineno, f"{{{count}}}{text.value}"


def test_counts_that_may_be_one_have_the_right_noun() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in python_files(*FOLDERS)
        for line, text in unpluralized(path.read_text())
    ] == []


def test_plurals_behind_counts_are_noticed() -> None:
    assert list(unpluralized('f"expected {len(names)} inputs, got {MAX} nodes"')) == [(1, "{len(names)} inputs, got ")]
    assert list(unpluralized("f\"{pluralize(n, 'input')} and {x:.1f} trials\"")) == []
