"""Finding and rebuilding parts of a loop tree; shared by the primitives."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.bounds import Bounds
from tilewright.expr.buffer import Buffer
from tilewright.expr.nodes import Expr, Load, Var, conjuncts, both
from tilewright.expr.bounds import prove
from tilewright.expr.rewrite import replace_loads
from tilewright.expr.simplify import substitute
from tilewright.loops.ir import Block, BlockIter, For, Func, Seq, Stmt, Store, seq, walk


def find_loop(func: Func, name: str) -> tuple[For, tuple[For, ...]]:
    """The loop of that name with the loops around it.

    Raises:
        ScheduleError: there is none.
    """
    for s, around in walk(func.body):
        if isinstance(s, For) and s.var.name == name:
            return s, around
    raise ScheduleError(f"there is no loop {name!r}; loops are {', '.join(loop_names(func))}", where=func.name)


def find_block(func: Func, name: str) -> tuple[Block, tuple[For, ...]]:
    """The block of that name with the loops around it.

    Raises:
        ScheduleError: there is none.
    """
    for s, around in walk(func.body):
        if isinstance(s, Block) and s.name == name:
            return s, around
    known = ", ".join(s.name for s, _ in walk(func.body) if isinstance(s, Block))
    raise ScheduleError(f"there is no block {name!r}; blocks are {known}", where=func.name)


def loop_names(func: Func) -> list[str]:
    """Names of all loops, in the order of the text."""
    return [s.var.name for s, _ in walk(func.body) if isinstance(s, For)]


def used_names(func: Func) -> set[str]:
    """Every name of a loop, block, iteration variable, buffer or symbol."""
    names = {b.name for b in (*func.params, *func.allocs)} | {v.name for v in func.symbols}
    for s, _ in walk(func.body):
        if isinstance(s, For):
            names.add(s.var.name)
        elif isinstance(s, Block):
            names.add(s.name)
            names.update(i.var.name for i in s.iters)
    return names


def fresh(name: str, used: Iterable[str]) -> str:
    """`name`, or `name_2`, `name_3`, ... whichever is not used."""
    taken = set(used)
    if name not in taken:
        return name
    k = 2
    while f"{name}_{k}" in taken:
        k += 1
    return f"{name}_{k}"


def replaced(s: Stmt, old: Stmt, new: Stmt | None) -> Stmt | None:
    """`s` with the statement `old` (that very object) replaced, or removed where `new` is None."""
    if s is old:
        return new
    match s:
        case For():
            body = replaced(s.body, old, new)
            return s if body is s.body else None if body is None else replace(s, body=body)
        case Seq():
            parts = [replaced(c, old, new) for c in s.stmts]
            if all(a is b for a, b in zip(parts, s.stmts, strict=True)):
                return s
            left = [p for p in parts if p is not None]
            return seq(*left) if left else None
        case Block():
            return s


def with_replaced(func: Func, old: Stmt, new: Stmt | None) -> Func:
    """The function with one statement replaced or removed."""
    body = replaced(func.body, old, new)
    if body is None:
        raise ScheduleError("nothing would be left of the function", where=func.name)
    return func.with_body(body)


def map_blocks(s: Stmt, change: Callable[[Block], Block]) -> Stmt:
    """`s` with every block replaced by what `change` makes of it."""
    match s:
        case For():
            return replace(s, body=map_blocks(s.body, change))
        case Seq():
            return Seq(tuple(map_blocks(c, change) for c in s.stmts))
        case Block():
            return change(s)


def map_store(store: Store, change: Callable[[Expr], Expr]) -> Store:
    """A store with its indices and value changed."""
    return Store(store.buffer, tuple(change(i) for i in store.indices), change(store.value))


def substituted(s: Stmt, mapping: Mapping[Var, Expr]) -> Stmt:
    """`s` with loop variables replaced in extents, bindings, predicates and bodies."""
    match s:
        case For():
            return replace(s, extent=substitute(s.extent, mapping), body=substituted(s.body, mapping))
        case Seq():
            return Seq(tuple(substituted(c, mapping) for c in s.stmts))
        case Block():
            return replace(
                s,
                iters=tuple(replace(i, binding=substitute(i.binding, mapping)) for i in s.iters),
                predicate=substitute(s.predicate, mapping),
                init=None if s.init is None else map_store(s.init, lambda e: substitute(e, mapping)),
                body=map_store(s.body, lambda e: substitute(e, mapping)),
            )


def renamed(s: Stmt, used: set[str]) -> Stmt:
    """A copy of `s` whose loops, blocks and iteration variables have fresh names (added to `used`)."""

    def new(name: str) -> str:
        chosen = fresh(name, used)
        used.add(chosen)
        return chosen

    match s:
        case For():
            var = Var(new(s.var.name))
            return For(var, s.extent, s.kind, renamed(substituted(s.body, {s.var: var}), used))
        case Seq():
            return Seq(tuple(renamed(c, used) for c in s.stmts))
        case Block():
            mapping = {i.var: Var(new(i.var.name)) for i in s.iters}
            change: Callable[[Expr], Expr] = lambda e: substitute(e, mapping)  # noqa: E731
            return replace(
                s,
                name=new(s.name),
                iters=tuple(BlockIter(mapping[i.var], i.extent, i.kind, i.binding) for i in s.iters),
                init=None if s.init is None else map_store(s.init, change),
                body=map_store(s.body, change),
            )


def with_buffer(block: Block, old: Buffer, new: Buffer, index: Callable[[tuple[Expr, ...]], tuple[Expr, ...]]) -> Block:
    """A block whose accesses to `old` go to `new` at changed indices."""

    def load(node: Load) -> Expr:
        return Load(new, index(node.indices)) if node.buffer == old else node

    def store(s: Store) -> Store:
        target, indices = (new, index(s.indices)) if s.buffer == old else (s.buffer, s.indices)
        return Store(target, tuple(replace_loads(i, load) for i in indices), replace_loads(s.value, load))

    return replace(block, body=store(block.body), init=None if block.init is None else store(block.init))


def bounds_of(loops: Iterable[For]) -> Bounds:
    """What nested loops say about their variables."""
    known = Bounds()
    for loop in loops:
        known = known.with_loop(loop.var, loop.extent)
    return known


def needed(condition: Expr, known: Bounds) -> Expr:
    """The conjuncts of a condition that are not proved."""
    return both(*(c for c in conjuncts(condition) if not prove(c, known)))
