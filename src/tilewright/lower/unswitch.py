"""Loop unswitching: a condition is tested once before a nest, which gets one copy per outcome.

A padded convolution tests for every product whether its row lies inside the image, but the outcome depends on outer
loops alone: one branch selects between a copy where it does and one where it does not. A tile at the edge of a tensor
checks every row and lane: one branch selects a copy without checks where the whole tile lies inside. Where all blocks
of a nest have the same condition on outer loops, such as rows above the image that no tile computes, the second copy is
empty.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Binary, Expr, Select, Var, const
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts
from tilewright.loops.ir import For, LoopKind, Stmt, walk
from tilewright.lower.loop_facts import LoopFacts
from tilewright.lower.nested_blocks import NestedBlock

MAX_UNSWITCH_DEPTH = 5
"""Nested unswitched branches around a nest; a sequence of selects needs one each."""


@dataclass(frozen=True, slots=True)
class Unswitch:
    """A branch before a nest.

    Attributes:
        test: the condition, over variables that are bound outside.
        conditions: what holds in the first copy.
        exact: whether in the second copy they never all hold (otherwise nothing is known there).
    """

    test: Expr
    conditions: tuple[Expr, ...]
    exact: bool


def is_worth_unswitching(s: Stmt) -> bool:
    """Whether a nest does enough work for a branch before it: it has an unrolled loop, or a loop around a vectorized
    one."""
    loops = [x for x, _ in walk(s) if isinstance(x, For)]
    kinds = {x.kind for x in loops}
    return LoopKind.UNROLLED in kinds or (LoopKind.VECTORIZED in kinds and len(loops) > 1)


def shared_conditions(nested_blocks: Iterable[NestedBlock], facts: LoopFacts) -> tuple[Expr, ...]:
    """The conditions over variables that are bound outside of a nest and that all of its blocks have: where they do not
    hold, nothing of it runs.

    Args:
        nested_blocks: the blocks of the nest.
        facts: what is known before the nest.
    """
    shared: tuple[Expr, ...] | None = None
    for nested in nested_blocks:
        own = nested.block.conditions if shared is None else tuple(c for c in shared if c in nested.block.conditions)
        unknown = (c for c in own if c not in facts.true_conditions)
        shared = tuple(c for c in unknown if _is_loop_invariant(c, facts, facts.constants))
        if not shared:
            break
    return shared or ()


def choose_unswitch(
    nested_blocks: Iterable[NestedBlock], facts: LoopFacts, has_cheap_masks: Callable[[NestedBlock], bool]
) -> Unswitch | None:
    """The branch to put before a nest; None where none pays.

    Args:
        nested_blocks: the blocks of the nest.
        facts: what is known before the nest.
        has_cheap_masks: whether a block costs little more with a mask than without.
    """
    if facts.depth >= MAX_UNSWITCH_DEPTH:
        return None
    blocks = list(nested_blocks)
    for nested in blocks:
        select = _select_unswitch(nested.block.target.value, facts)
        if select is not None:
            return select
    return choose_edge_unswitch(blocks, facts, has_cheap_masks)


def choose_edge_unswitch(
    nested_blocks: Iterable[NestedBlock], facts: LoopFacts, has_cheap_masks: Callable[[NestedBlock], bool]
) -> Unswitch | None:
    """The branch to put before a nest so that rows and lanes of a tile need no conditions of their own; None where
    there is none. Arguments as of `choose_unswitch`."""
    if facts.depth >= MAX_UNSWITCH_DEPTH:
        return None
    blocks = list(nested_blocks)
    edges = [x for nested in blocks for x in _edge_conditions(nested.block.conditions, nested, facts, has_cheap_masks)]
    if not edges and not facts.undecided_conditions:
        # only where no store is masked: a masked store stays masked whatever is loaded, and one test for both would
        # take the masked copy wherever loads vary
        edges = [
            x for n in blocks for x in _edge_conditions(_load_mask_conditions(n, facts), n, facts, has_cheap_masks)
        ]
    conditions = tuple(dict.fromkeys(c for c, _ in edges))
    return Unswitch(conjunction(*dict.fromkeys(test for _, test in edges)), conditions, False) if edges else None


def _select_unswitch(e: Expr, facts: LoopFacts) -> Unswitch | None:
    """The unswitch on the outermost select that reads memory and whose condition is loop-invariant."""
    for unknown in _undecided_selects(e, facts, set()):
        invariant = tuple(c for c in unknown if _is_loop_invariant(c, facts))
        if invariant:
            return Unswitch(conjunction(*invariant), invariant, True)
    return None


def _undecided_selects(e: Expr, facts: LoopFacts, seen: set[Expr]) -> Iterator[tuple[Expr, ...]]:
    """The unknown conjuncts of the conditions of selects that read memory, outer selects first; arms known not to be
    taken are skipped, and expressions seen before."""
    if e in seen or not facts.dependencies(e).reads_memory:
        return
    seen.add(e)
    children = e.children()
    if isinstance(e, Select):
        if facts.is_false(e.cond):
            children = (e.b,)
        else:
            unknown = conjuncts(facts.residual(e.cond))
            yield unknown
            children = children if unknown else (e.a,)
    for child in children:
        yield from _undecided_selects(child, facts, seen)


def _is_loop_invariant(c: Expr, facts: LoopFacts, constants: frozenset[Var] = frozenset()) -> bool:
    """Whether a condition compares indices over variables with run-time values here, and `constants` beside them."""
    if not isinstance(c, Binary) or c.a.dtype.name != "int64":
        return False
    dependencies = facts.dependencies(c)
    variables = [v for v in dependencies.variables if v not in constants]
    return not dependencies.reads_memory and bool(variables) and all(v in facts.variables for v in variables)


def _edge_conditions(
    conditions: Iterable[Expr], nested: NestedBlock, facts: LoopFacts, has_cheap_masks: Callable[[NestedBlock], bool]
) -> list[tuple[Expr, Expr]]:
    """Conditions of a block that vary between rows or lanes of a tile, each with the condition that implies it for
    all."""
    edges: list[tuple[Expr, Expr]] = []
    for c in conditions:
        if (
            c in facts.true_conditions
            or c in facts.undecided_conditions
            or not isinstance(c, Binary)
            or c.op not in ("lt", "le")
        ):
            continue
        dependencies = facts.dependencies(c)
        variables = [v for v in dependencies.variables if v not in facts.variables and v not in facts.constants]
        if dependencies.reads_memory or not variables or any(v not in nested.expanded for v in variables):
            continue
        lanes_only = all(v in nested.lanes for v in variables)
        strongest = (
            None
            if lanes_only and has_cheap_masks(nested)
            else _strongest_instance(c, variables, nested.expanded, facts)
        )
        if strongest is not None:
            edges.append((c, strongest))
    return edges


def _load_mask_conditions(nested: NestedBlock, facts: LoopFacts) -> Iterator[Expr]:
    """Lane-varying comparisons of indices that decide which lanes load."""
    for unknown in _undecided_selects(nested.block.target.value, facts, set()):
        for c in unknown:
            compares_indices = isinstance(c, Binary) and c.a.dtype.name == "int64"
            if compares_indices and not facts.dependencies(c).variables.isdisjoint(nested.lanes):
                yield c


def _strongest_instance(c: Binary, variables: list[Var], expanded: Mapping[Var, int], facts: LoopFacts) -> Expr | None:
    """The instance of a condition, over the variables' ranges, that is hardest to satisfy; None where it is not linear.

    Inactive lanes count, too: sizes at which their indices would leave 64 bits are rejected before.
    """
    slack = polynomial(c.b - c.a)
    ends: dict[Var, Expr] = {}
    for v in sorted(variables, key=lambda x: x.name):
        terms = [(m, k) for m, k in slack.items() if any(v in facts.dependencies(a).variables for a in m)]
        if len(terms) != 1 or terms[0][0] != (v,):
            return None
        ends[v] = const(0 if terms[0][1] > 0 else expanded[v] - 1)
    return substitute(c, ends, facts.bounds)
