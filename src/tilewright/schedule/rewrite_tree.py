"""Look-up and rewriting of loop trees; shared by the primitives."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts
from tilewright.loops.ir import Block, For, Func, If, IterKind, Seq, Stmt, Store, blocks, map_children, seq, walk
from tilewright.loops.redirect_accesses import Reindex, redirect_accesses_in
from tilewright.names import suggestion, unique_name
from tilewright.verify.prefetch_safety import drop_stale_prefetches


def find_loop(func: Func, name: str) -> tuple[For, tuple[For, ...]]:
    """The loop of this name and its enclosing loops, outermost first.

    Raises:
        ScheduleError: there is none.
    """
    for s, enclosing in walk(func.body):
        if isinstance(s, For) and s.var.name == name:
            return s, enclosing
    names = loop_names(func)
    what = f"there is no loop {name!r}; loops are {', '.join(names)}"
    raise ScheduleError(what, where=func.name, hint=suggestion(name, names))


def find_block(func: Func, name: str) -> tuple[Block, tuple[For, ...]]:
    """The block of this name and its enclosing loops, outermost first.

    Raises:
        ScheduleError: there is none.
    """
    for s, enclosing in walk(func.body):
        if isinstance(s, Block) and s.name == name:
            return s, enclosing
    names = [s.name for s, _ in walk(func.body) if isinstance(s, Block)]
    what = f"there is no block {name!r}; blocks are {', '.join(names)}"
    raise ScheduleError(what, where=func.name, hint=suggestion(name, names))


def find_alloc(func: Func, name: str) -> Buffer:
    """The internal buffer of this name.

    Raises:
        ScheduleError: there is none.
    """
    for b in func.allocs:
        if b.name == name:
            return b
    names = [b.name for b in func.allocs]
    what = f"there is no internal buffer {name!r}; there are: {', '.join(names) or 'none'}"
    raise ScheduleError(what, where=func.name, hint=suggestion(name, names))


def loop_names(func: Func) -> list[str]:
    """Names of all loops, in textual order."""
    return [s.var.name for s, _ in walk(func.body) if isinstance(s, For)]


def loops_inside(s: Stmt) -> list[For]:
    """All loops of a statement, itself included, in textual order."""
    return [x for x, _ in walk(s) if isinstance(x, For)]


def top_statements(func: Func) -> tuple[Stmt, ...]:
    """The statements of the function's outermost level, in order."""
    return func.body.stmts if isinstance(func.body, Seq) else (func.body,)


def top_statement_of(func: Func, inner: Stmt) -> Stmt:
    """The statement of the outermost level that contains `inner` (by identity)."""
    return next(top for top in top_statements(func) if any(s is inner for s, _ in walk(top)))


def exclusive_nest(node: Block, enclosing: Sequence[For], primitive: str) -> Stmt:
    """The whole outermost nest of a block that shares it with no other block.

    Raises:
        ScheduleError: another block is in it.
    """
    nest: Stmt = enclosing[0] if enclosing else node
    if len(blocks(nest)) != 1:
        raise ScheduleError("other blocks share its loops", where=f"{primitive} of block {node.name!r}")
    return nest


def used_names(func: Func) -> set[str]:
    """Names of all loops, blocks, iteration variables, buffers and symbols."""
    names = {b.name for b in (*func.params, *func.allocs)} | {v.name for v in func.symbols}
    for s, _ in walk(func.body):
        if isinstance(s, For):
            names.add(s.var.name)
        elif isinstance(s, Block):
            names.add(s.name)
            names.update(i.var.name for i in s.iters)
    return names


def fresh_name(name: str, used: Iterable[str]) -> str:
    """`name`, or `name_2`, `name_3`, ...: the first one that is not used."""
    return unique_name(name, set(used), first=2)


def claim_name(name: str, used: set[str]) -> str:
    """A fresh name, which is added to `used`."""
    chosen = unique_name(name, used, first=2)
    used.add(chosen)
    return chosen


def check_new_names(names: Sequence[str], used: set[str], place: str) -> None:
    """Checks that new names are unused and distinct."""
    for name in names:
        if name in used or names.count(name) > 1:
            raise ScheduleError(f"name {name!r} is already used", where=place)


def new_loop_vars(defaults: Sequence[str], names: Sequence[str] | None, used: set[str], place: str) -> tuple[Var, ...]:
    """Variables of new loops: with the given names, else with fresh ones after `defaults`; their names are added to
    `used`.

    Raises:
        ScheduleError: the number of names is not that of the loops, or a name is in use.
    """
    if names is None:
        return tuple(Var(claim_name(d, used)) for d in defaults)
    if len(names) != len(defaults):
        loops = f"{len(defaults)} new loops" + (f" ({', '.join(defaults)})" if defaults else "")
        raise ScheduleError(f"expected names for {loops}, got {', '.join(names) or 'none'}", where=place)
    check_new_names(names, used, place)
    used.update(names)
    return tuple(Var(n) for n in names)


def replace_stmt(s: Stmt, old: Stmt, new: Stmt | None) -> Stmt | None:
    """`s` with the statement `old` (by identity) replaced, or removed where `new` is None."""
    if s is old:
        return new
    match s:
        case For():
            body = replace_stmt(s.body, old, new)
            return s if body is s.body else None if body is None else replace(s, body=body)
        case If():
            then, otherwise = replace_stmt(s.then, old, new), replace_stmt(s.otherwise, old, new)
            if then is None or otherwise is None:
                raise ScheduleError("an arm of a branch cannot be empty", where="removal of a statement")
            return s if then is s.then and otherwise is s.otherwise else If(s.condition, then, otherwise)
        case Seq():
            parts = [replace_stmt(c, old, new) for c in s.stmts]
            if all(a is b for a, b in zip(parts, s.stmts, strict=True)):
                return s
            remaining = [p for p in parts if p is not None]
            return seq(*remaining) if remaining else None
        case Block():
            return s


def with_stmt_replaced(func: Func, old: Stmt, new: Stmt | None) -> Func:
    """The function with one statement replaced or removed; prefetches that became meaningless are dropped."""
    body = replace_stmt(func.body, old, new)
    if body is None:
        raise ScheduleError("nothing would be left of the function", where=func.name)
    return drop_stale_prefetches(func.with_body(body))


def nest_loops(loops: Sequence[For], body: Stmt) -> Stmt:
    """A statement nested in loops, outermost first; their present bodies are dropped."""
    for loop in reversed(loops):
        body = replace(loop, body=body)
    return body


def map_blocks(s: Stmt, transform: Callable[[Block], Block]) -> Stmt:
    """`s` with every block transformed."""
    match s:
        case For():
            body = map_blocks(s.body, transform)
            return s if body is s.body else replace(s, body=body)
        case Seq() | If():
            return map_children(s, lambda c: map_blocks(c, transform))
        case Block():
            return transform(s)


def map_store(store: Store, transform: Callable[[Expr], Expr]) -> Store:
    """A store with its indices and value transformed."""
    return Store(store.buffer, tuple(transform(i) for i in store.indices), transform(store.value))


def substitute_vars(s: Stmt, mapping: Mapping[Var, Expr]) -> Stmt:
    """`s` with loop variables substituted in extents, bindings, predicates and bodies."""
    match s:
        case For():
            hints = s.prefetches_with(lambda e: substitute(e, mapping))
            return replace(
                s, extent=substitute(s.extent, mapping), body=substitute_vars(s.body, mapping), prefetches=hints
            )
        case Seq():
            return map_children(s, lambda c: substitute_vars(c, mapping))
        case If(condition, then, otherwise):
            arms = substitute_vars(then, mapping), substitute_vars(otherwise, mapping)
            return If(substitute(condition, mapping), *arms)
        case Block():
            return replace(
                s,
                iters=tuple(replace(i, binding=substitute(i.binding, mapping)) for i in s.iters),
                predicate=substitute(s.predicate, mapping),
                init=None if s.init is None else map_store(s.init, lambda e: substitute(e, mapping)),
                body=map_store(s.body, lambda e: substitute(e, mapping)),
            )


def copy_with_fresh_names(s: Stmt, used: set[str]) -> Stmt:
    """A copy of `s` whose loops, blocks and iteration variables have fresh names (added to `used`)."""
    return _copy_with_fresh_names(s, used, {})


def _copy_with_fresh_names(s: Stmt, used: set[str], outer: Mapping[Var, Expr]) -> Stmt:
    """`copy_with_fresh_names`, given the new variables of the enclosing loops."""
    match s:
        case For():
            var = Var(claim_name(s.var.name, used))
            inside = outer if var is s.var else {**outer, s.var: var}
            hints = s.prefetches_with(lambda e: substitute(e, inside))
            return For(var, substitute(s.extent, outer), s.kind, _copy_with_fresh_names(s.body, used, inside), hints)
        case Seq():
            return map_children(s, lambda c: _copy_with_fresh_names(c, used, outer))
        case If(condition, then, otherwise):
            arms = _copy_with_fresh_names(then, used, outer), _copy_with_fresh_names(otherwise, used, outer)
            return If(substitute(condition, outer), *arms)
        case Block():
            iter_vars = {i.var: Var(claim_name(i.var.name, used)) for i in s.iters}
            mapping: dict[Var, Expr] = {**outer, **{old: new for old, new in iter_vars.items() if old is not new}}

            def change(e: Expr) -> Expr:
                return substitute(e, mapping)

            bindings = (substitute(i.binding, outer) for i in s.iters)
            return Block(
                claim_name(s.name, used),
                tuple(replace(i, var=iter_vars[i.var], binding=b) for i, b in zip(s.iters, bindings, strict=True)),
                map_store(s.body, change),
                None if s.init is None else map_store(s.init, change),
                substitute(s.predicate, outer),
            )


def with_buffer_replaced(func: Func, old: Buffer, new: Buffer, index: Reindex = lambda i: i) -> Func:
    """The function with an internal buffer replaced everywhere."""
    body = redirect_accesses_in(func.body, old, new, index)
    return drop_stale_prefetches(replace(func, allocs=tuple(new if a == old else a for a in func.allocs), body=body))


def bounds_of(loops: Iterable[For]) -> Bounds:
    """The ranges of the variables of nested loops."""
    return Bounds.from_loops((loop.var, loop.extent) for loop in loops)


def unproved_conjuncts(condition: Expr, bounds: Bounds) -> Expr:
    """The conjuncts of a condition that are not proved."""
    return conjunction(*(c for c in conjuncts(condition) if not can_prove(c, bounds)))


def spatial_vars(block: Block) -> tuple[Var, ...]:
    """The block's spatial iteration variables."""
    return tuple(i.var for i in block.iters if i.kind is IterKind.SPATIAL)
