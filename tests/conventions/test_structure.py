"""Structure of the source: no circular imports, short files, short functions."""

import ast

import pytest
from tests.conventions.imports import import_circles, import_graph
from tests.conventions.source import ROOT, python_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


@pytest.mark.parametrize("folder", ["src", "benchmarks"])
def test_modules_do_not_import_each_other_in_circles(folder: str) -> None:
    assert import_circles(import_graph(python_files(folder))) == []


def test_circles_are_found_through_other_modules() -> None:
    graph = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a")}
    assert import_circles(graph) == [["a", "b", "c"]]
    assert import_circles(graph | {"c": frozenset()}) == []


def test_files_and_functions_are_short() -> None:
    too_long: list[str] = []
    for path in python_files("src", "benchmarks"):
        text, name = path.read_text(), path.relative_to(ROOT)
        if (count := len(text.splitlines())) > MAX_FILE_LINES:
            too_long.append(f"{name}: {count} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and (count := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES:
                too_long.append(f"{name}: {node.name} has {count} lines")
    assert too_long == []
