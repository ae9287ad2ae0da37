"""Structure of the source: no circular imports, short files and functions, plain names in tests."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conventions.imports import import_circles, import_graph
from tests.conventions.source import ROOT, has_words, python_files, statements

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_HELPER_PARAMETERS = 7

VAGUE_NAMES = frozenset(("found", "made", "known", "wanted", "caught", "told", "said", "met"))
"""Names of the state of a search, which say nothing of the value."""


@pytest.mark.parametrize("folder", ["src", "benchmarks"])
def test_modules_do_not_import_each_other_in_circles(folder: str) -> None:
    assert import_circles(import_graph(python_files(folder))) == []


def test_circles_are_found_through_other_modules() -> None:
    graph = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a")}
    assert import_circles(graph) == [["a", "b", "c"]]
    assert import_circles(graph | {"c": frozenset()}) == []


def _too_long(path: Path) -> Iterator[str]:
    text, name = path.read_text(), path.relative_to(ROOT)
    if (count := len(text.splitlines())) > MAX_FILE_LINES:
        yield f"{name}: {count} lines"
    for function in _functions(text):
        if (count := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES:
            yield f"{name}: {function.name} has {count} lines"


def _functions(text: str) -> list[ast.FunctionDef]:
    return [node for node in statements(ast.parse(text)) if isinstance(node, ast.FunctionDef)]


def _parameters(function: ast.FunctionDef) -> list[str]:
    """Names of all parameters but `self` and `cls`."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


@pytest.mark.parametrize("folder", ["src", "benchmarks", "tests"])
def test_files_and_functions_are_short(folder: str) -> None:
    assert [problem for path in python_files(folder) for problem in _too_long(path)] == []


def test_helpers_of_tests_have_few_parameters() -> None:
    """Parameters of the tests themselves are fixtures and parametrized values, so they are not counted."""
    assert [
        f"{path.relative_to(ROOT)}: {function.name} has {len(_parameters(function))} parameters"
        for path in python_files("tests")
        for function in _functions(path.read_text())
        if not function.name.startswith("test_") and len(_parameters(function)) > MAX_HELPER_PARAMETERS
    ] == []


def test_locals_of_tests_are_named_by_what_they_hold() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.id}"
        for path in python_files("tests")
        if has_words(text := path.read_text(), VAGUE_NAMES)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES
    ] == []
