"""Loop specialization: copies of loops for the cases that conditions distinguish, as a pass over scheduled loops.

A predicate or a `select` is tested for every element. Where its outcome depends on outer loops alone, or where a whole
tile satisfies it, one branch before the nest selects between two copies (`unswitch.py`); where it holds in all
iterations but the last, that one gets a copy of its own (`peel_last_iteration.py`):

    for jo in serial(47):                            for jo in serial(46):
        for j in vectorized(16):                         for j in vectorized(16):
            block C(v: 740 = jo*16 + j)        ->            block C(v: 740 = jo*16 + j): ..
              where jo*16 + j < 740: ..              for jo.last in serial(1):
                                                         for j_1 in vectorized(16):
                                                             block C_1(..) where jo.last*16 + j_1 < 4: ..

The iterations of a parallel loop are not cut, threads share them as one range: a branch in its body selects the copy.
Buffers are shared by all copies, of which one runs at a time. This is the last pass before code generation, which
emits what it finds; the verifier undoes it (`verify/merge_copies.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from tilewright.expr.algebra.bounds import Bounds, interval
from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import FALSE, TRUE, Const, Expr, Select, Var, const
from tilewright.expr.operations import conjunction, minimum, select
from tilewright.expr.traversal import conjuncts
from tilewright.loops.ir import (
    NOTHING,
    Block,
    For,
    Func,
    If,
    LoopKind,
    Seq,
    Stmt,
    Store,
    blocks,
    map_children,
    seq,
    walk,
)
from tilewright.lower.dependencies import DependencyAnalysis
from tilewright.lower.lane_access import LaneAccesses
from tilewright.lower.loop_facts import LoopFacts
from tilewright.lower.nested_blocks import ResolvedBlocks
from tilewright.lower.parallel_nest import parallel_nest
from tilewright.lower.peel_last_iteration import (
    conditions_before_last_iteration,
    has_reduction_in_serial_loop,
    may_peel,
)
from tilewright.lower.unswitch import (
    Unswitch,
    choose_edge_unswitch,
    choose_unswitch,
    is_worth_unswitching,
    shared_conditions,
)
from tilewright.machine import Target
from tilewright.schedule.rewrite_tree import copy_with_fresh_names, map_store, substitute_vars


def specialize_loops(func: Func, target: Target) -> Func:
    """The function with copies of loops for the cases that conditions distinguish.

    Args:
        func: a scheduled function, its vectors legalized (`legalize_vectors.py`).
        target: whose masks and registers decide which copies pay.
    """
    body = _Specialization(target).statement(func.body, LoopFacts(DependencyAnalysis(), frozenset(func.symbols)))
    return func if body is func.body else func.with_body(copy_with_fresh_names(body, set()))


class _Specialization:
    """The pass over one function.

    Args:
        target: what the code runs on.
    """

    def __init__(self, target: Target) -> None:
        self.dependencies = DependencyAnalysis()
        self.accesses = LaneAccesses(self.dependencies, target)
        self.blocks = ResolvedBlocks()

    def statement(self, s: Stmt, facts: LoopFacts) -> Stmt:
        """A statement outside of vectorized loops."""
        match s:
            case If():
                return map_children(s, lambda c: self.statement(c, facts))
            case Block():
                return self._block(s, facts)
            case Seq(stmts):
                parts = self._sequence(stmts, facts)
                is_same = len(parts) == len(stmts) and all(a is b for a, b in zip(parts, stmts, strict=True))
                return s if is_same else seq(*parts)
            case For():
                return seq(*self._sequence((s,), facts))

    def _sequence(self, stmts: Sequence[Stmt], facts: LoopFacts) -> list[Stmt]:
        """Statements one after the other; one branch is around neighbours that run under the same conditions, as those
        that clear, sum up and store a register tile."""
        parts: list[Stmt] = []
        for shared, group in groupby(stmts, lambda s: self._shared_conditions(s, facts)):
            nests = list(group)
            pays = bool(shared) and any(is_worth_unswitching(s) for s in nests)
            inside = facts.under(shared) if pays else facts
            done = [self._unswitched(s, inside) if isinstance(s, For) else self.statement(s, inside) for s in nests]
            parts += [If(conjunction(*shared), seq(*done), NOTHING)] if pays else done
        return parts

    def _shared_conditions(self, s: Stmt, facts: LoopFacts) -> tuple[Expr, ...]:
        """The conditions under which a loop does anything, as far as they are known before it."""
        is_serial = isinstance(s, For) and s.kind is not LoopKind.PARALLEL
        if not is_serial or any(b.predicate is TRUE for b in blocks(s)):
            return ()
        return shared_conditions(self.blocks.inside(s, facts.bounds), facts)

    def _unswitched(self, loop: For, facts: LoopFacts) -> Stmt:
        """A loop, in two copies behind a branch where it is unswitched."""
        unswitch = self._choose_unswitch(loop, facts)
        if unswitch is None:
            return self._loop_of_kind(loop, facts)
        fails = False if unswitch.exact else None
        if isinstance(unswitch.test, Const):
            holds = True if unswitch.test.value else fails
            return self._unswitched(loop, facts.after_branch(unswitch.conditions, holds))
        then, otherwise = (
            self._unswitched(loop, facts.after_branch(unswitch.conditions, holds)) for holds in (True, fails)
        )
        return If(unswitch.test, then, otherwise)

    def _choose_unswitch(self, loop: For, facts: LoopFacts) -> Unswitch | None:
        """The condition to unswitch a loop on, where that pays."""
        if loop.kind is LoopKind.PARALLEL:
            return None
        if is_worth_unswitching(loop):
            nested = self.blocks.inside(loop, facts.bounds)
            return choose_unswitch(nested, facts, self.accesses.has_cheap_masks)
        if loop.kind is LoopKind.VECTORIZED:
            nested = self.blocks.inside(loop, facts.bounds)
            return choose_edge_unswitch(nested, facts, lambda x: not self.accesses.has_slow_masked_store(x))
        return None

    def _loop_of_kind(self, loop: For, facts: LoopFacts) -> Stmt:
        """One loop, by its kind."""
        size = constant_value(polynomial(loop.extent))
        if size is not None and size <= 0:
            return loop
        if size == 1 or (loop.kind is LoopKind.UNROLLED and size is not None):
            return _with_body(loop, self.statement(loop.body, facts.inside(loop, is_constant=True)))
        if loop.kind is LoopKind.VECTORIZED and size is not None and self._is_vectorizable(loop):
            return _with_body(loop, self._lanes(loop.body, facts.inside(loop)))
        if loop.kind is LoopKind.PARALLEL and not facts.is_in_parallel:
            return self._parallel_nest(parallel_nest(loop), facts)
        return self._serial_loop(loop, facts)

    def _is_vectorizable(self, loop: For) -> bool:
        """Whether the extents of all inner loops are the same in all lanes."""
        inner_loops = (s for s, _ in walk(loop.body) if isinstance(s, For))
        return all(loop.var not in self.dependencies(s.extent).variables for s in inner_loops)

    def _lanes(self, s: Stmt, facts: LoopFacts) -> Stmt:
        """A statement in a vectorized loop, in which nothing is copied."""
        match s:
            case Seq() | If():
                return map_children(s, lambda c: self._lanes(c, facts))
            case Block():
                return self._block(s, facts)
            case For():
                return _with_body(s, self._lanes(s.body, facts.inside(s)))

    def _serial_loop(self, loop: For, facts: LoopFacts) -> Stmt:
        """A loop, followed by a copy of its last iteration where only there lanes are inactive."""
        conditions = self._conditions_before_last_iteration(loop, loop.body, facts)
        if not conditions:
            return _with_body(loop, self.statement(loop.body, facts.inside(loop)))
        first = self.statement(loop.body, facts.inside(loop).after_branch(conditions, True))
        is_constant = constant_value(polynomial(loop.extent)) is not None
        last = self.statement(loop.body, facts.inside(loop, is_constant).after_branch(conditions, None))
        var, end = Var(f"{loop.var.name}.last"), loop.extent - 1
        mapping: dict[Var, Expr] = {loop.var: var + end}
        runs = (interval(loop.extent, facts.bounds)[0] or 0) > 0
        hints = loop.prefetches_with(lambda e: substitute(e, mapping))
        copy = For(var, const(1) if runs else minimum(loop.extent, 1), loop.kind, substitute_vars(last, mapping), hints)
        return seq(replace(loop, extent=end, body=first), copy)

    def _conditions_before_last_iteration(self, loop: For, body: Stmt, facts: LoopFacts) -> tuple[Expr, ...]:
        if not may_peel(loop):
            return ()
        nested = self.blocks.inside(body, facts.bounds.with_loop(loop.var, loop.extent))
        return conditions_before_last_iteration(loop, nested, facts, self.accesses.column_variables)

    def _parallel_nest(self, nest: Sequence[For], facts: LoopFacts) -> Stmt:
        """A nest of parallel loops; branches in its body select copies for the last iterations of its loops."""
        inside = replace(facts, is_in_parallel=True)
        counted: list[For] = []
        for loop in nest:
            is_single = constant_value(polynomial(loop.extent)) == 1
            counted += [] if is_single else [loop]
            inside = inside.inside(loop, is_single)
        body = self._last_iterations(counted, nest[-1].body, inside)
        for loop in reversed(nest):
            body = _with_body(loop, body)
        return body

    def _last_iterations(self, loops: Sequence[For], body: Stmt, facts: LoopFacts) -> Stmt:
        """The body of a nest of parallel loops, of which `loops` are not peeled yet."""
        if not loops:
            return self.statement(body, facts)
        loop, *others = loops
        is_constant = constant_value(polynomial(loop.extent)) is not None
        is_cut = is_constant or has_reduction_in_serial_loop(loop)
        conditions = self._conditions_before_last_iteration(loop, body, facts) if is_cut else ()
        if not conditions:
            return self._last_iterations(others, body, facts)
        last = facts.inside(loop, is_constant=True) if is_constant else facts
        return If(
            loop.var < loop.extent - 1,
            self._last_iterations(others, body, facts.after_branch(conditions, True)),
            self._last_iterations(others, body, last.after_branch(conditions, None)),
        )

    def _block(self, block: Block, facts: LoopFacts) -> Block:
        """A block without the conditions that are known where it is."""
        if not facts.true_conditions and not facts.false_conjunctions:
            return block
        resolved = self.blocks(block, facts.bounds)
        unknown = [] if facts.residual(conjunction(*resolved.conditions)) is TRUE else [
            c for c in conjuncts(block.predicate)
            if not facts.true_conditions.issuperset(conjuncts(simplify(c, facts.bounds)))
        ]  # fmt: skip
        predicate = conjunction(*unknown)
        bounds = facts.bounds.assuming(conjunction(*resolved.conditions))
        values = _DecidedSelects(facts, {i.var: simplify(i.binding, facts.bounds) for i in block.iters})

        def without_known(store: Store) -> Store:
            return map_store(store, lambda e: values.value(e, bounds))

        init = None if block.init is None else without_known(block.init)
        return replace(block, body=without_known(block.body), init=init, predicate=predicate)


class _DecidedSelects:
    """Expressions of a block without the conditions of selects that are known.

    Args:
        facts: what is known at the block.
        bindings: its iteration variables over loop variables.
    """

    def __init__(self, facts: LoopFacts, bindings: Mapping[Var, Expr]) -> None:
        self.facts, self.bindings = facts, bindings
        self._decided: dict[tuple[Expr, Bounds], Expr] = {}

    def value(self, e: Expr, bounds: Bounds) -> Expr:
        """An expression over iteration variables, under bounds of the loop variables."""
        key = e, bounds
        if key not in self._decided:
            if isinstance(e, Select):
                self._decided[key] = self._select(e, bounds)
            else:
                children = e.children()
                changed = tuple(self.value(c, bounds) for c in children)
                unchanged = all(a is b for a, b in zip(children, changed, strict=True))
                self._decided[key] = e if unchanged else e.rebuild(changed)
        return self._decided[key]

    def _select(self, e: Select, bounds: Bounds) -> Expr:
        test = substitute(e.cond, self.bindings, bounds)
        if test is FALSE or self.facts.is_false(test):
            return self.value(e.b, bounds)
        unknown = [] if self.facts.residual(test) is TRUE else [
            c for c in conjuncts(e.cond)
            if not self.facts.true_conditions.issuperset(conjuncts(substitute(c, self.bindings, bounds)))
        ]  # fmt: skip
        if not unknown:
            return self.value(e.a, bounds.where(test, True))
        a, b = self.value(e.a, bounds.where(test, True)), self.value(e.b, bounds.where(test, False))
        return select(conjunction(*unknown), a, b)


def _with_body(loop: For, body: Stmt) -> For:
    return loop if body is loop.body else replace(loop, body=body)
