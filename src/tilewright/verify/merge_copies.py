"""Copies of loops for different cases, merged into the loops that they are copies of: loop specialization undone.

Two arms of a branch whose blocks store the same elements over the same loops, and a loop followed by a copy of its last
iteration, are one program for the verifier: that without the branch, under the conditions of the general copy. What the
other copy leaves out must be proved to hold where it runs; where only its values differ, they become a `select` on the
condition of the branch. So a branch is verified by one proof that its arms agree, and all further proofs are those of
the program without branches. A branch without a second arm is a predicate of the blocks inside. A branch around an
iteration of which a mask leaves nothing is one of two copies, too (`masked_iterations.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds, interval
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import Expr, Select, Var
from tilewright.expr.operations import conjunction, minimum
from tilewright.expr.traversal import conjuncts, is_one, loads
from tilewright.loops.ir import NOTHING, Block, For, Func, If, Seq, Stmt, Store, map_children, seq
from tilewright.verify.masked_iterations import masked_iterations
from tilewright.verify.trimmed_loops import under_condition


def merge_copies(func: Func) -> Func:
    """The function with all copies merged that are recognised; branches of other statements are left."""
    body = _merge_inside(func.body, NO_BOUNDS, func, ())
    return func if body is func.body else func.with_body(body)


def _merge_inside(s: Stmt, bounds: Bounds, func: Func, loops: tuple[For, ...]) -> Stmt:
    """A statement with all copies in it merged.

    Args:
        s: the statement.
        bounds: of the enclosing loops.
        func: the function, with all copies.
        loops: the enclosing loops.
    """
    match s:
        case Block():
            return s
        case For():
            body = _merge_inside(s.body, bounds.with_loop(s.var, s.extent), func, (*loops, s))
            if isinstance(body, If) and _is_rest_of_masked(body, s, loops, func):
                return replace(s, body=body.then)
            return s if body is s.body else replace(s, body=body)
        case If(condition):
            then = _merge_inside(s.then, bounds.where(condition, True), func, loops)
            if s.otherwise == NOTHING:
                return under_condition(then, condition)
            otherwise = _merge_inside(s.otherwise, bounds.where(condition, False), func, loops)
            merged = _Copies(condition).merge(then, otherwise, bounds.where(condition, True), {})
            if merged is not None:
                return merged
            return s if then is s.then and otherwise is s.otherwise else If(condition, then, otherwise)
        case Seq():
            inner = map_children(s, lambda c: _merge_inside(c, bounds, func, loops))
            return _with_last_iterations(inner, bounds) if isinstance(inner, Seq) else inner


def _is_rest_of_masked(branch: If, loop: For, enclosing: tuple[For, ...], func: Func) -> bool:
    """Whether the second arm of a branch around the iterations of a loop is what the first one comes to where it does
    not run, because all of its scores are masked."""
    found = masked_iterations(func, replace(loop, body=branch.then), enclosing)
    if found is None or _normal_form(found.is_live, {}) is not _normal_form(branch.condition, {}):
        return False
    bounds = Bounds.from_loops((x.var, x.extent) for x in (*enclosing, loop))
    return _Copies(None).merge(found.rest, branch.otherwise, bounds, {}) is not None


def _with_last_iterations(s: Seq, bounds: Bounds) -> Stmt:
    """A sequence in which copies of last iterations belong to the loops before them again."""
    merged: list[Stmt] = []
    for x in s.stmts:
        whole = _with_last_iteration(merged[-1], x, bounds) if merged else None
        if whole is None:
            merged.append(x)
        else:
            merged[-1] = whole
    return s if len(merged) == len(s.stmts) else seq(*merged)


def _with_last_iteration(first: Stmt, last: Stmt, bounds: Bounds) -> For | None:
    """A loop and the copy of its last iteration as one loop; None for other statements."""
    if not isinstance(first, For) or not isinstance(last, For) or first.kind is not last.kind:
        return None
    whole = first.extent + 1
    if is_one(last.extent):
        # it runs in any case, so there must be such an iteration
        if (interval(whole, bounds)[0] or 0) <= 0:
            return None
    elif _normal_form(last.extent, {}) is not minimum(whole, 1):
        return None
    names: dict[Var, Expr] = {last.var: first.var - first.extent}
    if not _prefetch_alike(first, last, names):
        return None
    body = _Copies(None).merge(first.body, last.body, bounds.with_loop(first.var, first.extent), names)
    return None if body is None else replace(first, extent=whole, body=body)


def _normal_form(e: Expr, names: Mapping[Var, Expr]) -> Expr:
    """An expression over other variables, in the normal form of index arithmetic."""
    return simplify(substitute(e, names), NO_BOUNDS)


def _prefetch_alike(a: For, b: For, names: Mapping[Var, Expr]) -> bool:
    """Whether two loops prefetch the same elements."""
    own = [(p.buffer, tuple(_normal_form(i, {}) for i in p.indices)) for p in a.prefetches]
    return own == [(p.buffer, tuple(_normal_form(i, names) for i in p.indices)) for p in b.prefetches]


@dataclass(frozen=True, slots=True)
class _Copies:
    """Two copies of a statement: one that leaves conditions out, and the general one.

    Attributes:
        condition: of the branch that selects the first; None where nothing but conditions may differ.
    """

    condition: Expr | None

    def merge(self, a: Stmt, b: Stmt, bounds: Bounds, names: Mapping[Var, Expr]) -> Stmt | None:
        """The statement that two copies are; None where they are not.

        Args:
            a: the copy that leaves conditions out.
            b: the general copy.
            bounds: that hold at `a`.
            names: the variables around `b` in terms of those around `a`.
        """
        match a, b:
            case Seq(), Seq() if len(a.stmts) == len(b.stmts):
                parts = [self.merge(x, y, bounds, names) for x, y in zip(a.stmts, b.stmts, strict=True)]
                found = [p for p in parts if p is not None]
                return seq(*found) if len(found) == len(parts) else None
            case For(), For():
                inside = {**names, b.var: a.var}
                is_alike = a.kind is b.kind and _normal_form(b.extent, names) is _normal_form(a.extent, {})
                if not is_alike or not _prefetch_alike(a, b, inside):
                    return None
                body = self.merge(a.body, b.body, bounds.with_loop(a.var, a.extent), inside)
                return None if body is None else replace(a, body=body)
            case Block(), Block() if len(a.iters) == len(b.iters):
                return self._merge_blocks(a, b, bounds, names)
            case _:
                return None

    def _merge_blocks(self, a: Block, b: Block, bounds: Bounds, names: Mapping[Var, Expr]) -> Block | None:
        pairs = list(zip(a.iters, b.iters, strict=True))
        if any(
            i.kind is not j.kind
            or i.extent is not j.extent
            or _normal_form(j.binding, names) is not _normal_form(i.binding, {})
            for i, j in pairs
        ):
            return None
        own, general = conjuncts(_normal_form(a.predicate, {})), conjuncts(_normal_form(b.predicate, names))
        bounds = bounds.assuming(a.predicate)
        if not set(own) <= set(general) or not all(can_prove(c, bounds) for c in general if c not in own):
            return None
        inside = {**names, **{j.var: i.var for i, j in pairs}}
        bindings = {i.var: i.binding for i in a.iters}

        def holds(c: Expr) -> bool:
            return not loads(c) and can_prove(substitute(c, bindings), bounds)

        body = self._merge_stores(a.body, b.body, inside, holds)
        init = None if a.init is None or b.init is None else self._merge_stores(a.init, b.init, inside, holds)
        if body is None or (init is None) != (a.init is None) or (init is None) != (b.init is None):
            return None
        return replace(a, body=body, init=init, predicate=conjunction(*general))

    def _merge_stores(
        self, a: Store, b: Store, names: Mapping[Var, Expr], holds: Callable[[Expr], bool]
    ) -> Store | None:
        indices = tuple(_normal_form(i, names) for i in b.indices)
        if a.buffer != b.buffer or any(i is not _normal_form(j, {}) for i, j in zip(indices, a.indices, strict=True)):
            return None
        value = self._merge_values(_normal_form(a.value, {}), _normal_form(b.value, names), holds)
        return None if value is None else Store(a.buffer, a.indices, value)

    def _merge_values(self, a: Expr, b: Expr, holds: Callable[[Expr], bool]) -> Expr | None:
        """The value that is `a` in the first copy and `b` in the general one, with a `select` as deep inside as they
        differ; None where they differ and no branch selects one.

        Args:
            a, b: the values.
            holds: whether a condition that only `b` tests is proved to hold where `a` is computed.
        """
        if a is b:
            return a
        if isinstance(b, Select):
            own = conjuncts(a.cond) if isinstance(a, Select) else ()
            left_out = [c for c in conjuncts(b.cond) if c not in own]
            if set(own) <= set(conjuncts(b.cond)) and all(holds(c) for c in left_out):
                inner = (a.a, a.b) if isinstance(a, Select) and own else (a, b.b)
                arms = [self._merge_values(x, y, holds) for x, y in zip(inner, (b.a, b.b), strict=True)]
                if arms[0] is not None and arms[1] is not None:
                    return Select(b.cond, arms[0], arms[1])
        if self.condition is None:
            return None
        children = a.children(), b.children()
        if isinstance(a, Select) and a.b is b:
            return Select(conjunction(self.condition, a.cond), a.a, b)
        if len(children[0]) == len(children[1]) > 0 and not (isinstance(a, Select) and a.cond is not children[1][0]):
            # the same operation: with the operands of another one it would not be `b`
            merged = [self._merge_values(x, y, holds) for x, y in zip(*children, strict=True)]
            rebuilt = [m for m in merged if m is not None]
            if len(rebuilt) == len(merged) and a.rebuild(children[1]) is b:
                return a.rebuild(tuple(rebuilt))
        return Select(self.condition, a, b)
