"""Conditions decided once before a nest, not in every iteration: a nest in copies, in each of which more is known.

A padded convolution asks for every product whether its row lies inside the image, but the answer changes only with
outer loops: one branch chooses between a copy where it does and one where it does not. A tile at the edge of a tensor
checks every row and lane: one branch chooses the copy without checks where the whole tile lies inside.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.resolve_block import ResolvedBlock
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Binary, Expr, Select, Var, const
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts
from tilewright.loops.ir import For, LoopKind, Stmt, walk

MAX_UNSWITCH_DEPTH = 5
"""Decisions around one nest; chains of selects need one per link."""


@dataclass(frozen=True, slots=True)
class Unswitch:
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
class NestedBlock:
    """A block inside a nest, the extents of the expanded (unrolled, vectorized) loops between, and all bounds there."""

    block: ResolvedBlock
    expanded: Mapping[Var, int]
    bounds: Bounds


def is_worth_unswitching(s: Stmt) -> bool:
    """Whether a nest does so much that a branch before it pays: it has a loop that is unrolled, or one around lanes."""
    loops = [x for x, _ in walk(s) if isinstance(x, For)]
    kinds = {x.kind for x in loops}
    return LoopKind.UNROLLED in kinds or (LoopKind.VECTORIZED in kinds and len(loops) > 1)


def choose_unswitch(
    nested_blocks: Iterable[NestedBlock], scope: EmitScope, has_cheap_masks: Callable[[NestedBlock], bool]
) -> Unswitch | None:
    """What to decide before a nest, or None.

    Args:
        inside: the blocks of the nest.
        scope: what is bound outside the nest.
        has_cheap_masks: whether a block costs little more under a mask than without.
    """
    if scope.unswitch_depth >= MAX_UNSWITCH_DEPTH:
        return None
    listed = list(nested_blocks)
    for inner in listed:
        select = _select_unswitch(inner.block.target.value, scope)
        if select is not None:
            return select
    return choose_edge_unswitch(listed, scope, has_cheap_masks)


def choose_edge_unswitch(
    nested_blocks: Iterable[NestedBlock], scope: EmitScope, has_cheap_masks: Callable[[NestedBlock], bool]
) -> Unswitch | None:
    """What to decide before a nest so that rows and lanes of a tile need no conditions each, or None; arguments as of
    `choose_unswitch`."""
    if scope.unswitch_depth >= MAX_UNSWITCH_DEPTH:
        return None
    listed = list(nested_blocks)
    edges = [x for inner in listed for x in _edge_conditions(inner.block.conditions, inner, scope, has_cheap_masks)]
    if not edges and not scope.undecided_conditions:
        # where all lanes have work: else stores are masked whatever is loaded, and one test for both would mask them
        # wherever loads differ
        masks = [(_load_mask_conditions(inner.block.target.value, scope), inner) for inner in listed]
        edges = [x for conditions, inner in masks for x in _edge_conditions(conditions, inner, scope, has_cheap_masks)]
    conditions = tuple(dict.fromkeys(c for c, _ in edges))
    return Unswitch(conjunction(*dict.fromkeys(test for _, test in edges)), conditions, False) if edges else None


def _select_unswitch(e: Expr, scope: EmitScope) -> Unswitch | None:
    """The outermost select that loads and whose condition can be decided."""
    for rest in _undecided_selects(e, scope, set()):
        found = tuple(c for c in rest if _is_loop_invariant(c, scope))
        if found:
            return Unswitch(conjunction(*found), found, True)
    return None


def _undecided_selects(e: Expr, scope: EmitScope, seen: set[Expr]) -> Iterator[tuple[Expr, ...]]:
    """What is not known to hold of the conditions of selects that load, the outer ones first; arms known not to be
    taken are skipped, and what was seen."""
    if e in seen or not scope.dependencies(e).reads_memory:
        return
    seen.add(e)
    children = e.children()
    if isinstance(e, Select):
        if scope.is_false(e.cond):
            children = (e.b,)
        else:
            rest = conjuncts(scope.residual(e.cond))
            yield rest
            children = children if rest else (e.a,)
    for child in children:
        yield from _undecided_selects(child, scope, seen)


def _is_loop_invariant(c: Expr, scope: EmitScope) -> bool:
    """Whether a condition compares positions whose variables have scalar values here."""
    if not isinstance(c, Binary) or c.a.dtype.name != "int64":
        return False
    facts = scope.dependencies(c)
    return not facts.reads_memory and bool(facts.variables) and all(v in scope.variables for v in facts.variables)


def _edge_conditions(
    conditions: Iterable[Expr], nested: NestedBlock, scope: EmitScope, has_cheap_masks: Callable[[NestedBlock], bool]
) -> list[tuple[Expr, Expr]]:
    """Conditions of a block that differ between rows or lanes of a tile, each with the one that implies it for all."""
    found: list[tuple[Expr, Expr]] = []
    for c in conditions:
        if (
            c in scope.true_conditions
            or c in scope.undecided_conditions
            or not isinstance(c, Binary)
            or c.op not in ("lt", "le")
        ):
            continue
        facts = scope.dependencies(c)
        moving = [v for v in facts.variables if v not in scope.variables and v not in scope.constants]
        if facts.reads_memory or not moving or any(v not in nested.expanded for v in moving):
            continue
        lanes_only = all(v in scope.vector_variables for v in moving)
        worst = (
            None if lanes_only and has_cheap_masks(nested) else _strongest_instance(c, moving, nested.expanded, scope)
        )
        if worst is not None:
            found.append((c, worst))
    return found


def _load_mask_conditions(e: Expr, scope: EmitScope) -> Iterator[Expr]:
    """Comparisons of positions that differ between lanes and tell which of them load."""
    for rest in _undecided_selects(e, scope, set()):
        for c in rest:
            positions = isinstance(c, Binary) and c.a.dtype.name == "int64"
            if positions and scope.dependencies(c).variables & scope.vector_variables:
                yield c


def _strongest_instance(c: Binary, variables: list[Var], expanded: Mapping[Var, int], scope: EmitScope) -> Expr | None:
    """The condition at the end of the variables' ranges where it is hardest to meet; None where it is not linear.

    Positions of lanes that have no work count too: sizes at which these would leave 64 bits are refused before.
    """
    slack = polynomial(c.b - c.a)
    ends: dict[Var, Expr] = {}
    for v in sorted(variables, key=lambda x: x.name):
        terms = [(m, k) for m, k in slack.items() if any(v in scope.dependencies(a).variables for a in m)]
        if len(terms) != 1 or terms[0][0] != (v,):
            return None
        ends[v] = const(0 if terms[0][1] > 0 else expanded[v] - 1)
    return substitute(c, ends, scope.bounds)
