"""The import graph of a set of Python files, lazy imports included."""

import ast
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

from tests.conventions.source import module_name, statements

Graph = Mapping[str, frozenset[str]]


def import_graph(files: Iterable[Path]) -> Graph:
    """Per module the modules of the set that it imports, at the top or inside functions."""
    paths = {module_name(path): path for path in files}
    return {n: frozenset(_imported(ast.parse(p.read_text()), paths.keys())) - {n} for n, p in paths.items()}


def _imported(tree: ast.Module, modules: Set[str]) -> set[str]:
    names: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {path if path in modules else node.module for path in paths}
    return names & modules


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
