"""Placement of a chain's loads, computations and stores in a tiling expression (MCFuser, section III-B).

Loops and primitive statements form a directed acyclic graph. A scope edge leads from a loop to the statements whose
operands it indexes, which must be inside; an order edge leads from a statement to one that must come later. Loops of
one iteration are dead: they index nothing, so they and their edges are removed first. Then a computation is placed in
the innermost loop that has an edge to it, and a load or a store is moved out of its computation's place to the
innermost loop with an edge to it. With C = A B and E = C D, the expression `mhnk` becomes

    mh(n(k(L_A,L_B,C_C),L_D,C_E),S_E)        and with one tile along k        m(L_A,h(n(L_B,C_C,L_D,C_E),S_E))
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tilewright.optimize.chains.expression import (
    Path,
    TilingExpression,
    loop_paths,
    statement_path,
    without_loops,
)
from tilewright.optimize.chains.problem import Chain, ChainStatement, ChainTensor


class PrimitiveKind(StrEnum):
    """What a primitive statement does with tiles.

    Attributes:
        LOAD: reads a tile of an input of the kernel into fast memory.
        COMPUTE: computes a tile of a statement's result.
        STORE: writes a tile of a result of the kernel.
    """

    LOAD = "L"
    COMPUTE = "C"
    STORE = "S"


@dataclass(frozen=True, slots=True)
class Primitive:
    """A load, a computation or a store of tiles.

    Attributes:
        kind: which of them.
        tensor: what is read, computed or written.
        position: of the statement of the chain that it belongs to; of the first one where several read one tile.
    """

    kind: PrimitiveKind
    tensor: ChainTensor
    position: int

    def __str__(self) -> str:
        return f"{self.kind}_{self.tensor.name}"


@dataclass(frozen=True, slots=True)
class PlacedLoop:
    """A loop over the tiles of an axis, with everything that it executes in order."""

    axis: str
    body: "tuple[PlacedLoop | Primitive, ...]"


PlacedNode = PlacedLoop | Primitive


@dataclass(frozen=True, slots=True)
class DependenceGraph:
    """The graph of a chain's loops and primitive statements.

    Attributes:
        scopes: per primitive statement the axes of the loops with an edge to it.
        order: pairs of primitive statements, of which the first comes first.
    """

    scopes: tuple[tuple[Primitive, frozenset[str]], ...]
    order: frozenset[tuple[Primitive, Primitive]]


def dependence_graph(chain: Chain, dead: Collection[str] = ()) -> DependenceGraph:
    """The graph of a chain, without its dead loops."""
    computes = {s.name: Primitive(PrimitiveKind.COMPUTE, s.result, k) for k, s in enumerate(chain.statements)}
    loads: dict[ChainTensor, Primitive] = {}
    scopes: dict[Primitive, frozenset[str]] = {}
    order: set[tuple[Primitive, Primitive]] = set()
    for k, s in enumerate(chain.statements):
        compute = computes[s.name]
        for tensor in s.loads:
            load = loads.setdefault(tensor, Primitive(PrimitiveKind.LOAD, tensor, k))
            scopes[load] = tensor.axes - set(dead)
            order.add((load, compute))
        scopes[compute] = s.axes - set(dead)
        order |= {(computes[name], compute) for name in s.reads}
        if s.is_output:
            store = Primitive(PrimitiveKind.STORE, s.result, k)
            scopes[store] = s.result.axes - set(dead)
            order.add((compute, store))
    return DependenceGraph(tuple(scopes.items()), frozenset(order))


def store_path(statement: ChainStatement, around: Path) -> Path:
    """The loops that a statement's result may be stored in: those around the first one that it reduces along, because
    only then it is finished."""
    first = next((k for k, axis in enumerate(around) if axis in statement.reductions), len(around))
    return around[:first]


def place_statements(chain: Chain, expression: TilingExpression, dead: Collection[str] = ()) -> tuple[PlacedNode, ...]:
    """The primitive statements of a chain in their loops.

    Args:
        chain: the chain.
        expression: loops over its axes.
        dead: axes whose loops have one iteration and are eliminated; those that stay are taken for longer ones.
    """
    live = without_loops(expression, dead)
    paths = loop_paths(live)
    graph = dependence_graph(chain, dead)
    places: dict[Primitive, Path] = {}
    for primitive, scope in graph.scopes:
        statement = chain.statements[primitive.position]
        around = statement_path(statement.axes, paths)
        if primitive.kind is PrimitiveKind.STORE:
            around = store_path(statement, around)
        inner = max((k for k, axis in enumerate(around) if axis in scope), default=-1)
        places[primitive] = around[: inner + 1]
    return _fill_scope(live, (), places, graph.order)


def _fill_scope(
    loops: TilingExpression, path: Path, places: dict[Primitive, Path], order: frozenset[tuple[Primitive, Primitive]]
) -> tuple[PlacedNode, ...]:
    """What a scope executes: its primitive statements and its loops in an order that the edges allow."""
    nodes: list[PlacedNode] = [p for p, place in places.items() if place == path]
    for loop in loops:
        body = _fill_scope(loop.body, (*path, loop.axis), places, order)
        nodes += [PlacedLoop(loop.axis, body)] if body else []
    return tuple(_ordered_nodes(nodes, order))


def _ordered_nodes(nodes: Sequence[PlacedNode], order: frozenset[tuple[Primitive, Primitive]]) -> list[PlacedNode]:
    """Nodes of a scope, each as early as statements allow; see `is_ordered` for those that no order allows."""
    members = {id(node): set(primitives(node)) for node in nodes}
    left = sorted(nodes, key=lambda node: min(_priority(p) for p in members[id(node)]))
    result: list[PlacedNode] = []
    while left:
        ready = next((x for x in left if not _has_predecessor(members[id(x)], left, members, order)), left[0])
        left = [x for x in left if x is not ready]
        result.append(ready)
    return result


def _has_predecessor(
    inside: set[Primitive],
    left: Sequence[PlacedNode],
    members: dict[int, set[Primitive]],
    order: frozenset[tuple[Primitive, Primitive]],
) -> bool:
    outside = set[Primitive]().union(*(members[id(x)] for x in left)) - inside
    return any(a in outside and b in inside for a, b in order)


def _priority(primitive: Primitive) -> tuple[int, int]:
    return primitive.position, list(PrimitiveKind).index(primitive.kind)


def primitives(*nodes: PlacedNode) -> tuple[Primitive, ...]:
    """The primitive statements inside nodes, in the order of execution."""
    return tuple(p for node in nodes for p in ((node,) if isinstance(node, Primitive) else primitives(*node.body)))


def order_problem(chain: Chain, expression: TilingExpression) -> str | None:
    """Why the statements of a chain cannot run in an expression whose loops are all live; None where they can.

    A statement that reads another one's result must be outside of the loops that that one reduces along, unless its
    own result is rescaled when the running one changes; and what is in a loop must not wait for what follows it.
    """
    paths = loop_paths(expression)
    for s in chain.statements:
        around = statement_path(s.axes, paths)
        for name in s.reads:
            reductions = chain.statement(name).reductions & set(around)
            if reductions and name not in s.online:
                return f"{s.name} reads {name} inside of the loop over {sorted(reductions)[0]}, which sums it up"
    computed = [p for p in primitives(*place_statements(chain, expression)) if p.kind is PrimitiveKind.COMPUTE]
    position = {p: k for k, p in enumerate(computed)}
    for first, second in dependence_graph(chain).order:
        if position.get(first, -1) > position.get(second, len(computed)):
            return f"{second.tensor.name} would be computed before {first.tensor.name}"
    return None


def placed_text(nodes: Sequence[PlacedNode]) -> str:
    """The text of placed statements as the paper prints it: `mh(n(k(L_A,L_B,C_C),L_D,C_E),S_E)`."""
    separator = "" if all(len(x) == 1 for x in _loop_axes(nodes)) else " "

    def text(node: PlacedNode) -> str:
        if isinstance(node, Primitive):
            return str(node)
        if len(node.body) == 1 and isinstance(node.body[0], PlacedLoop):
            return f"{node.axis}{separator}{text(node.body[0])}"
        return f"{node.axis}({','.join(map(text, node.body))})"

    return ",".join(map(text, nodes))


def _loop_axes(nodes: Sequence[PlacedNode]) -> list[str]:
    return [a for node in nodes if isinstance(node, PlacedLoop) for a in (node.axis, *_loop_axes(node.body))]
