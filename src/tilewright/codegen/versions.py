"""Conditions decided once before a nest, not in every iteration: a nest in copies, in each of which more is known.

A padded convolution asks for every product whether its row lies inside the image, but the answer changes only with
outer loops: one branch chooses between a copy where it does and one where it does not. A tile at the edge of a tensor
checks every row and lane: one branch chooses the copy without checks where the whole tile lies inside.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.codegen.blocks import Resolved
from tilewright.codegen.scope import Scope
from tilewright.expr.bounds import Bounds
from tilewright.expr.nodes import Binary, Expr, Select, Var, both, conjuncts, const
from tilewright.expr.polynomial import polynomial
from tilewright.expr.simplify import substitute
from tilewright.loops.ir import For, LoopKind, Stmt, walk

MAX_DECISIONS = 5
"""Decisions around one nest; chains of selects need one per link."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A branch before a nest.

    Attributes:
        test: what is asked; over variables that are bound outside.
        conditions: what holds in the first copy.
        exact: whether in the second copy they do not all hold anywhere (else nothing is known there).
    """

    test: Expr
    conditions: tuple[Expr, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class Inner:
    """A block inside a nest, the extents of the expanded (unrolled, vectorized) loops between, and all bounds there."""

    block: Resolved
    expanded: Mapping[Var, int]
    bounds: Bounds


def worthwhile(s: Stmt) -> bool:
    """Whether a nest does so much that a branch before it pays: it has a loop that is unrolled, or one around lanes."""
    loops = [x for x, _ in walk(s) if isinstance(x, For)]
    kinds = {x.kind for x in loops}
    return LoopKind.UNROLLED in kinds or (LoopKind.VECTORIZED in kinds and len(loops) > 1)


def decision(inside: Iterable[Inner], scope: Scope, cheap_masks: Callable[[Inner], bool]) -> Decision | None:
    """What to decide before a nest, or None.

    Args:
        inside: the blocks of the nest.
        scope: what is bound outside the nest.
        cheap_masks: whether a block costs little more under a mask than without.
    """
    if scope.decisions >= MAX_DECISIONS:
        return None
    listed = list(inside)
    for inner in listed:
        select = _first_select(inner.block.target.value, scope)
        if select is not None:
            return select
    return edge_decision(listed, scope, cheap_masks)


def edge_decision(inside: Iterable[Inner], scope: Scope, cheap_masks: Callable[[Inner], bool]) -> Decision | None:
    """What to decide before a nest so that rows and lanes of a tile need no conditions each, or None; arguments as of
    `decision`."""
    if scope.decisions >= MAX_DECISIONS:
        return None
    listed = list(inside)
    edges = [x for inner in listed for x in _edges(inner.block.conditions, inner, scope, cheap_masks)]
    if not edges and not scope.left_open:
        # where all lanes have work: else stores are masked whatever is loaded, and one test for both would mask them
        # wherever loads differ
        masks = [(_load_masks(inner.block.target.value, scope), inner) for inner in listed]
        edges = [x for conditions, inner in masks for x in _edges(conditions, inner, scope, cheap_masks)]
    conditions = tuple(dict.fromkeys(c for c, _ in edges))
    return Decision(both(*dict.fromkeys(test for _, test in edges)), conditions, False) if edges else None


def _first_select(e: Expr, scope: Scope) -> Decision | None:
    """The outermost select that loads and whose condition can be decided."""
    for rest in _open_selects(e, scope, set()):
        found = tuple(c for c in rest if _outside(c, scope))
        if found:
            return Decision(both(*found), found, True)
    return None


def _open_selects(e: Expr, scope: Scope, seen: set[Expr]) -> Iterator[tuple[Expr, ...]]:
    """What is not known to hold of the conditions of selects that load, the outer ones first; arms known not to be
    taken are skipped, and what was seen."""
    if e in seen or not scope.facts(e).loads:
        return
    seen.add(e)
    children = e.children()
    if isinstance(e, Select):
        if scope.denied(e.cond):
            children = (e.b,)
        else:
            rest = conjuncts(scope.undecided(e.cond))
            yield rest
            children = children if rest else (e.a,)
    for child in children:
        yield from _open_selects(child, scope, seen)


def _outside(c: Expr, scope: Scope) -> bool:
    """Whether a condition compares positions whose variables have scalar values here."""
    if not isinstance(c, Binary) or c.a.dtype.name != "int64":
        return False
    facts = scope.facts(c)
    return not facts.loads and bool(facts.variables) and all(v in scope.values for v in facts.variables)


def _edges(
    conditions: Iterable[Expr], inner: Inner, scope: Scope, cheap_masks: Callable[[Inner], bool]
) -> list[tuple[Expr, Expr]]:
    """Conditions of a block that differ between rows or lanes of a tile, each with the one that implies it for all."""
    found: list[tuple[Expr, Expr]] = []
    for c in conditions:
        if c in scope.decided or c in scope.left_open or not isinstance(c, Binary) or c.op not in ("lt", "le"):
            continue
        facts = scope.facts(c)
        moving = [v for v in facts.variables if v not in scope.values and v not in scope.fixed]
        if facts.loads or not moving or any(v not in inner.expanded for v in moving):
            continue
        lanes_only = all(v in scope.vector_variables for v in moving)
        worst = None if lanes_only and cheap_masks(inner) else _worst(c, moving, inner.expanded, scope)
        if worst is not None:
            found.append((c, worst))
    return found


def _load_masks(e: Expr, scope: Scope) -> Iterator[Expr]:
    """Comparisons of positions that differ between lanes and tell which of them load."""
    for rest in _open_selects(e, scope, set()):
        for c in rest:
            positions = isinstance(c, Binary) and c.a.dtype.name == "int64"
            if positions and scope.facts(c).variables & scope.vector_variables:
                yield c


def _worst(c: Binary, moving: list[Var], expanded: Mapping[Var, int], scope: Scope) -> Expr | None:
    """The condition at the end of the variables' ranges where it is hardest to meet; None where it is not linear.

    Positions of lanes that have no work count too: sizes at which these would leave 64 bits are refused before.
    """
    slack = polynomial(c.b - c.a)
    ends: dict[Var, Expr] = {}
    for v in sorted(moving, key=lambda x: x.name):
        terms = [(m, k) for m, k in slack.items() if any(v in scope.facts(a).variables for a in m)]
        if len(terms) != 1 or terms[0][0] != (v,):
            return None
        ends[v] = const(0 if terms[0][1] > 0 else expanded[v] - 1)
    return substitute(c, ends, scope.bounds)
