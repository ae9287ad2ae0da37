"""Nodes that run on ONNX's reference evaluator: which run together, and what they compute.

Most are steps of their own. Values that are no tensors of known rank (sequences, strings) can't be buffers, so nodes
that pass each other such values are one step, together with everything on the ways between them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import Problem
from tilewright.expr.buffer import Buffer
from tilewright.expr.nodes import Const, Expr, Var, const
from tilewright.graph.ir import Array, Graph, Node
from tilewright.graph.order import stable_order
from tilewright.graph.program import Fallback

_MAX_SIZE = 2**31 - 1

Unit = tuple[Node, ...]
"""Nodes that are lowered together: one, or those of one fallback step."""


def units(graph: Graph, groups: Sequence[frozenset[int]]) -> list[Unit]:
    """The nodes in topological order, where each group (positions of nodes) is one unit."""
    member = {i: g for g, group in enumerate(groups) for i in group}
    key = [("group", member[i]) if i in member else ("node", i) for i in range(len(graph.nodes))]
    producer = {o: i for i, n in enumerate(graph.nodes) for o in n.outputs if o}
    needs: dict[tuple[str, int], set[tuple[str, int]]] = {k: set() for k in key}
    for i, node in enumerate(graph.nodes):
        needs[key[i]] |= {key[producer[v]] for v in node.inputs if v in producer} - {key[i]}
    parts: dict[tuple[str, int], list[Node]] = {}
    for i, node in enumerate(graph.nodes):
        parts.setdefault(key[i], []).append(node)
    at = {k: position for position, k in enumerate(parts)}
    found = list(parts.values())
    order = stable_order([[at[k] for k in needs[unit]] for unit in parts])
    if len(order) < len(found):
        order = list(range(len(found)))  # pragma: no cover - groups are convex
    return [tuple(found[k]) for k in order]


def convex_groups(graph: Graph, links: Iterable[frozenset[int]]) -> tuple[frozenset[int], ...]:
    """Groups of nodes that contain the given links (positions of nodes that must run together) and all ways between.

    A group and the rest of the graph never need each other in a circle.
    """
    groups = [set(link) for link in links]
    changed = True
    while changed:
        merged: list[set[int]] = []
        for group in groups:
            overlapping = [m for m in merged if m & group]
            merged = [m for m in merged if not m & group]
            merged.append(set(group).union(*overlapping))
        groups = [_convex(graph, g, merged) for g in merged]
        changed = groups != merged
    return tuple(frozenset(g) for g in sorted(groups, key=min))


def _convex(graph: Graph, group: set[int], others: list[set[int]]) -> set[int]:
    """The group and the nodes that depend on it and that it depends on; other groups count as one node each."""
    producer = {o: i for i, n in enumerate(graph.nodes) for o in n.outputs if o}
    needs = [{producer[v] for v in n.inputs if v in producer} for n in graph.nodes]
    for other in others:
        if other is not group:
            shared = set[int]().union(*(needs[i] for i in other)) - other
            for i in other:
                needs[i] = needs[i] | shared
    users: list[set[int]] = [set() for _ in needs]
    for i, found in enumerate(needs):
        for p in found:
            users[p].add(i)
    return group | (_reachable(group, needs) & _reachable(group, users))


def _reachable(start: set[int], edges: list[set[int]]) -> set[int]:
    seen: set[int] = set()
    stack = [n for i in start for n in edges[i]]
    while stack:
        i = stack.pop()
        if i not in seen:
            seen.add(i)
            stack.extend(edges[i])
    return seen


@dataclass(frozen=True, slots=True)
class Outside:
    """What surrounds fallback nodes.

    Attributes:
        feeds: buffers of the values that they need, by value name.
        constants: constant values that they need, by value name.
        graph: the whole graph.
    """

    feeds: Mapping[str, Buffer]
    constants: Mapping[str, Array]
    graph: Graph


def output_buffers(
    unit: Unit, outside: Outside, wanted: Iterable[str], name: Callable[[str], str]
) -> tuple[dict[str, Buffer | None], tuple[Var, ...]]:
    """Buffers of the wanted values with fresh symbols for sizes that nobody knows; None where not even a rank is known.

    Args:
        unit: the nodes.
        outside: what they take.
        wanted: values to make buffers for.
        name: gives a buffer's name for a value's name.
    """
    from tilewright.graph.reference import infer_outputs  # here because it imports onnx

    inferred = infer_outputs(unit, outside.feeds, outside.constants, outside.graph.opsets)
    sizes = {repr(s): s for b in outside.feeds.values() for s in b.shape}
    fresh: list[Var] = []
    result: dict[str, Buffer | None] = {}
    for value in wanted:
        declared = outside.graph.declared.get(value)
        found = inferred.get(value)
        if found is None and declared is None:
            result[value] = None
            continue
        dtype = found.dtype if found is not None else declared.dtype if declared is not None else None
        stated: tuple[Expr | None, ...] = declared.shape if declared is not None else ()
        dims = found.dims if found is not None else (None,) * len(stated)
        if len(stated) != len(dims):
            stated = (None,) * len(dims)
        if dtype is None:  # pragma: no cover - one of the two is known
            continue
        buffer_name = name(value)
        shape: list[Expr] = []
        for axis, (dim, hint) in enumerate(zip(dims, stated, strict=True)):
            size = const(dim) if isinstance(dim, int) else sizes.get(dim or "")
            if size is None and isinstance(hint, Const):
                size = hint
            if size is None:
                size = Var(f"{buffer_name}_n{axis}", 0, _MAX_SIZE)
                fresh.append(size)
            shape.append(size)
        result[value] = Buffer(buffer_name, tuple(shape), dtype)
    return result, tuple(fresh)


def make_fallback(
    unit: Unit, outside: Outside, outputs: Mapping[str, Buffer], fresh: tuple[Var, ...], reason: str
) -> "Fallback | Problem":
    """The step, or the problem that the reference evaluator has no such operator either."""
    from tilewright.graph.reference import evaluator_lacks, reference_model  # here because it imports onnx

    model = reference_model(unit, outside.feeds, outside.constants, outputs, outside.graph.opsets)
    lacking = evaluator_lacks(model)
    if lacking is not None:
        label = ", ".join(n.label for n in unit)
        what = f"{reason}, and ONNX's reference evaluator can't run it either ({lacking})"
        return Problem("unsupported", f"node {label}", what)
    data = model.SerializeToString(deterministic=True)
    return Fallback(unit, tuple(outside.feeds.values()), tuple(outputs.values()), fresh, reason, data)
