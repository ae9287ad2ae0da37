"""The import graph of a set of Python files, lazy imports included."""

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.conventions.source import module_name

Graph = Mapping[str, frozenset[str]]


def import_graph(files: Iterable[Path]) -> Graph:
    """Per module the modules of the set that it imports, at the top or inside functions."""
    trees = {module_name(path): ast.parse(path.read_text()) for path in files}
    return {name: frozenset(_imported(tree, trees)) - {name} for name, tree in trees.items()}


def _imported(tree: ast.Module, modules: Mapping[str, ast.Module]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {path if path in modules else node.module for path in paths}
    return names & modules.keys()


def import_circles(graph: Graph) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others."""
    reachable = {name: _reachable(graph, name) for name in graph}
    groups = {frozenset({n for n in reachable[name] if name in reachable[n]}) for name in graph}
    return sorted(sorted(group) for group in groups if group)


def _reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    pending = [start]
    while pending:
        for name in graph[pending.pop()] - seen:
            seen.add(name)
            pending.append(name)
    return seen
