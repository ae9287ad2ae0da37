"""Nodes that run on ONNX's reference evaluator: which run together, and what they compute.

Most are steps of their own. Values that are no tensors of known rank (sequences, strings) can't be buffers, so nodes
that pass each other such values are one step, together with everything on the ways between them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.errors import Problem
from tilewright.expr.buffer import Buffer
from tilewright.expr.nodes import Const, Expr, Var, const
from tilewright.graph.data_shapes import MAX_UNKNOWN, DataShape, Size, Unknown, data_shapes
from tilewright.graph.ir import Array, Graph, Node
from tilewright.graph.program import Constraint, Fallback
from tilewright.graph.refine import Settled
from tilewright.ops.definition import Operand

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
    done: set[tuple[str, int]] = set()
    result: list[Unit] = []
    waiting = list(parts)
    while waiting:
        ready = [k for k in waiting if needs[k] <= done]
        if not ready:
            return [tuple(p) for p in parts.values()]  # pragma: no cover - groups are convex
        # One after the other, so that the model's order is kept where it can be.
        for k in waiting:
            if needs[k] <= done:
                done.add(k)
                result.append(tuple(parts[k]))
        waiting = [k for k in waiting if k not in done]
    return result


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
        operands: both, with the elements that are known.
        graph: the whole graph.
        settled: what is known of sizes that only the evaluator tells, by the symbol's name.
    """

    feeds: Mapping[str, Buffer]
    constants: Mapping[str, Array]
    operands: Mapping[str, Operand]
    graph: Graph
    settled: Mapping[str, Settled]


@dataclass(slots=True)
class Results:
    """The values that fallback nodes give.

    Attributes:
        buffers: by value name; None where not even a rank is known.
        arriving: their sizes as the evaluator tells them: literals and symbols.
        fresh: those symbols that come up here for the first time.
        constraints: that sizes are what `buffers` say where that is something else than what arrives.
    """

    buffers: dict[str, Buffer | None] = field(default_factory=dict[str, Buffer | None])
    arriving: dict[str, tuple[Expr, ...]] = field(default_factory=dict[str, tuple[Expr, ...]])
    fresh: list[Var] = field(default_factory=list[Var])
    constraints: list[Constraint] = field(default_factory=list[Constraint])


def results_of(unit: Unit, outside: Outside, wanted: Iterable[str], name: Callable[[str], str]) -> Results:
    """What some nodes give, with fresh symbols for sizes that nobody knows.

    Sizes that the model declares are not relied on: exporters write those of one run of the network.

    Args:
        unit: the nodes.
        outside: what they take.
        wanted: values to make buffers for.
        name: gives a buffer's name for a value's name.
    """
    types = _types(unit, outside)
    label = ", ".join(n.label for n in unit)
    result = Results()
    # The symbols of unknown sizes, so that outputs that have one in common share it, and what is known of them.
    shared: dict[tuple[str, str], tuple[Var, Expr]] = {}
    for value in wanted:
        if value not in types:
            result.buffers[value] = None
            continue
        owner, known = types[value]
        buffer_name = name(value)
        pairs: list[tuple[Expr, Expr]] = []
        for axis, size in enumerate(known.shape):
            key = (owner, size.key) if isinstance(size, Unknown) else (value, str(axis))
            if isinstance(size, Const | Var):
                pairs.append((size, size))
                continue
            if key not in shared:
                what = f"node {label}: dimension {axis} of '{value}'"
                shared[key] = _arrival(f"{buffer_name}_n{axis}", size, what, outside.settled, result)
            pairs.append(shared[key])
        result.arriving[value] = tuple(p[0] for p in pairs)
        result.buffers[value] = Buffer(buffer_name, tuple(p[1] for p in pairs), known.dtype)
    return result


def _arrival(
    name: str, size: Expr | Unknown, what: str, settled: Mapping[str, Settled], result: Results
) -> tuple[Var, Expr]:
    """The symbol of a size that the evaluator tells, and the expression that stands for it elsewhere."""
    symbol = Var(name, 0, size.most if isinstance(size, Unknown) else MAX_UNKNOWN)
    if isinstance(size, Unknown):
        known = settled.get(name)
        meant, message = (symbol, "") if known is None else (known.size, known.message)
    else:
        meant, message = size, f"{what}: sizes {symbol} and {size} differ"
    if isinstance(meant, Var) and meant.name == name:
        symbol = meant
    elif meant is not symbol:
        result.constraints.append(Constraint(symbol.equals(meant), message))
    result.fresh.append(symbol)
    return symbol, meant


def _types(unit: Unit, outside: Outside) -> dict[str, tuple[str, DataShape]]:
    """Types of the values that nodes compute, each with the name of its node, as far as ranks are known."""
    from tilewright.graph.reference import infer_outputs  # here because it imports onnx

    inferred = infer_outputs(unit, outside.feeds, outside.constants, outside.graph.opsets)
    texts = {repr(s): s for b in outside.feeds.values() for s in b.shape}
    found: dict[str, tuple[str, DataShape]] = {}
    for node in unit:
        ours = data_shapes(node, [outside.operands.get(v) for v in node.arguments]) or ()
        stated = dict(zip(node.outputs, ours, strict=False))
        for value in filter(None, node.outputs):
            theirs, declared = inferred.get(value), outside.graph.declared.get(value)
            if value in stated:
                found[value] = node.name, stated[value]
            elif theirs is not None:
                sizes = tuple(_size(d, texts, f"{value}.{axis}") for axis, d in enumerate(theirs.dims))
                found[value] = node.name, DataShape(theirs.dtype, sizes)
            elif declared is not None:
                sizes = tuple(_size(None, texts, f"{value}.{axis}") for axis, _ in enumerate(declared.shape))
                found[value] = node.name, DataShape(declared.dtype, sizes)
    return found


def _size(dim: int | str | None, texts: Mapping[str, Expr], key: str) -> Size:
    """A dimension that ONNX infers: a size, the text of an input's dimension, or nothing."""
    if isinstance(dim, int):
        return const(dim)
    known = texts.get(dim or "")
    return Unknown(key) if known is None else known


def make_fallback(unit: Unit, outside: Outside, results: Results, reason: str) -> "Fallback | Problem":
    """The step, or the problem that the reference evaluator has no such operator either."""
    from tilewright.graph.reference import evaluator_lacks, reference_model  # here because it imports onnx

    outputs = {name: b for name, b in results.buffers.items() if b is not None}
    model = reference_model(unit, outside.feeds, outside.constants, outputs, outside.graph.opsets)
    lacking = evaluator_lacks(model)
    if lacking is not None:
        label = ", ".join(n.label for n in unit)
        what = f"{reason}, and ONNX's reference evaluator can't run it either ({lacking})"
        return Problem("unsupported", f"node {label}", what)
    data = model.SerializeToString(deterministic=True)
    arriving = tuple(results.arriving[name] for name in outputs)
    fresh = tuple(results.fresh)
    return Fallback(unit, tuple(outside.feeds.values()), tuple(outputs.values()), arriving, fresh, reason, data)
