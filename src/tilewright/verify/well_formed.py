"""Well-formedness: unique names, declared variables and buffers, types, and buffers written before they are read."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tilewright.expr.dtype import DType, boolean, int64
from tilewright.expr.nodes import (
    COMPARISONS,
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    MemoryScope,
    Select,
    Symbol,
    Unary,
    Var,
)
from tilewright.expr.traversal import free_vars, loads, post_order
from tilewright.kernel_caches import kernel_cache
from tilewright.loops.access import accesses
from tilewright.loops.ir import NOTHING, Block, For, Func, If, LoopKind, Seq, Stmt, Store
from tilewright.loops.ir import walk as walk_stmt
from tilewright.loops.printer import show_buffer, show_stmt
from tilewright.verify.diagnostics import Diagnostic, text_of


def find_structure_errors(func: Func) -> Iterator[Diagnostic]:
    """Names that are used twice, undeclared or out of scope, and sequences that are not in normal form."""
    where = "its declarations"
    for name, count in Counter(b.name for b in (*func.params, *func.allocs)).items():
        if count > 1:
            yield Diagnostic(where, f"{count} buffers are named {name!r}")
    loops = [s for s, _ in walk_stmt(func.body) if isinstance(s, For)]
    blocks = [s for s, _ in walk_stmt(func.body) if isinstance(s, Block)]
    iter_vars = [i.var for b in blocks for i in b.iters]
    variables = [*func.symbols, *(loop.var for loop in loops), *iter_vars]
    for name, count in Counter(v.name for v in variables).items():
        if count > 1:
            yield Diagnostic(where, f"{count} symbols, loops or iteration variables are named {name!r}")
    for name, count in Counter(b.name for b in blocks).items():
        if count > 1:
            yield Diagnostic(where, f"{count} blocks are named {name!r}")
    for v in (*(loop.var for loop in loops), *iter_vars):
        if isinstance(v, Symbol):
            yield Diagnostic(where, f"variable {v.name!r} has a declared range; its loop or block gives it one")
    for b in (*func.params, *func.allocs):
        yield from _find_undefined(b.shape, set(func.symbols), set(), f"buffer {b.name!r}", b)
    for p in func.params:
        if p.scope is MemoryScope.REGISTER:
            yield Diagnostic(f"buffer {p.name!r}", f"a parameter has an address, got scope {p.scope}", show_buffer(p))
    yield from _find_scope_errors(func.body, set(func.symbols), {b.name: b for b in (*func.params, *func.allocs)})


def _find_scope_errors(s: Stmt, in_scope: set[Var], buffers: dict[str, Buffer]) -> Iterator[Diagnostic]:
    """Names in a statement that are not in scope, and sequences that are not in normal form."""
    match s:
        case Seq(stmts):
            if len(stmts) < 2 or any(isinstance(c, Seq) for c in stmts):
                yield Diagnostic("a sequence", f"has {len(stmts)} statements or a sequence inside", show_stmt(s))
            for child in stmts:
                yield from _find_scope_errors(child, in_scope, buffers)
        case If():
            yield from _find_undefined((s.condition,), in_scope, set(), "a branch", s)
            yield from _find_scope_errors(s.then, in_scope, buffers)
            if s.otherwise != NOTHING:
                yield from _find_scope_errors(s.otherwise, in_scope, buffers)
        case For():
            yield from _find_undefined((s.extent,), in_scope, set(), f"loop {s.var.name!r}", s)
            yield from _find_undefined(
                s.prefetches, in_scope | {s.var}, set(buffers.values()), f"loop {s.var.name!r}", s
            )
            yield from _find_scope_errors(s.body, in_scope | {s.var}, buffers)
        case Block():
            where = f"block {s.name!r}"
            for x in loads(s.predicate):
                what = f"the predicate {s.predicate} reads {x.buffer.name!r}: it may depend on loops and sizes only"
                yield Diagnostic(where, f"{what}; use select in the value", show_stmt(s))
            outside = [*(i.binding for i in s.iters), *(i.extent for i in s.iters)]
            yield from _find_undefined(
                outside if loads(s.predicate) else (s.predicate, *outside), in_scope, set(), where, s
            )
            inside = in_scope | {i.var for i in s.iters}
            for store in (s.body, s.init):
                if store is not None:
                    target = Load(store.buffer, store.indices)
                    yield from _find_undefined((target, store.value), inside, set(buffers.values()), where, s)


def _find_undefined(
    parts: Sequence[Expr], in_scope: set[Var], buffers: set[Buffer], where: str, thing: Buffer | Stmt
) -> Iterator[Diagnostic]:
    for e in parts:
        variables, buffers_used = _names(e)
        for v in variables:
            if v not in in_scope:
                yield Diagnostic(where, f"variable {v.name!r} is not defined here", text_of(thing))
        for b in buffers_used:
            if b not in buffers:
                yield Diagnostic(
                    where, f"buffer {b.name!r} is not declared, or with another shape or type", text_of(thing)
                )


@kernel_cache(maxsize=8192)
def _names(e: Expr) -> tuple[tuple[Var, ...], tuple[Buffer, ...]]:
    """The variables and buffers of an expression, in the order of the text."""
    nodes = list(post_order(e))
    variables = tuple(n for n in nodes if isinstance(n, Var))
    return variables, tuple(dict.fromkeys(n.buffer for n in nodes if isinstance(n, Load)))


def find_type_errors(func: Func) -> Iterator[Diagnostic]:
    """Values, operands, sizes, indices and conditions of the wrong type."""
    for b in (*func.params, *func.allocs):
        for n in b.shape:
            yield from _check_type(n, int64, "a size", f"buffer {b.name!r}", b)
    for s, _ in walk_stmt(func.body):
        if isinstance(s, For):
            yield from _check_type(s.extent, int64, "the extent", f"loop {s.var.name!r}", s)
            for prefetch in s.prefetches:
                yield from _check_type(prefetch, prefetch.dtype, "a hint", f"loop {s.var.name!r}", s)
        elif isinstance(s, If):
            yield from _check_type(s.condition, boolean, "the condition", "a branch", s)
        elif isinstance(s, Block):
            where = f"block {s.name!r}"
            yield from _check_type(s.predicate, boolean, "the predicate", where, s)
            for i in s.iters:
                yield from _check_type(i.extent, int64, f"the extent of {i.var.name!r}", where, s)
                yield from _check_type(i.binding, int64, f"the binding of {i.var.name!r}", where, s)
            for store in (s.body, s.init):
                if store is not None:
                    yield from _check_store_types(store, where, s)


def _check_store_types(store: Store, where: str, thing: Stmt) -> Iterator[Diagnostic]:
    b = store.buffer
    yield from _check_type(store.value, b.dtype, f"the value stored in {b.name!r}", where, thing)
    yield from _check_type(Load(b, store.indices), b.dtype, "the element that is stored", where, thing)


def _check_type(e: Expr, wanted: DType, what: str, where: str, thing: Buffer | Stmt) -> Iterator[Diagnostic]:
    if e.dtype != wanted:
        yield Diagnostic(where, f"{what} must be {wanted}, got {e.dtype}: {e}", text_of(thing))
    for problem in _type_errors(e):
        yield Diagnostic(where, problem, text_of(thing))


@kernel_cache(maxsize=8192)
def _type_errors(e: Expr) -> tuple[str, ...]:
    """The type errors inside an expression."""
    errors: list[str] = []
    for node in post_order(e):
        match node:
            case Binary(op, a, b) if a.dtype != b.dtype:
                errors.append(f"operands of {op!r} have types {a.dtype} and {b.dtype}: {node}")
            case Select(cond, a, b) if cond.dtype != boolean or a.dtype != b.dtype:
                errors.append(f"select needs bool and equal types, got {cond.dtype}, {a.dtype}, {b.dtype}: {node}")
            case Load(buffer, indices) if len(indices) != buffer.rank:
                errors.append(
                    f"buffer {buffer.name!r} has {buffer.rank} dimensions, got {len(indices)} indices: {node}"
                )
            case Load(_, indices) if any(i.dtype != int64 for i in indices):
                errors.append(f"indices must be int64: {node}")
            case Binary("and" | "or" | "xor", a, _) if a.dtype.is_float:
                errors.append(f"{node.op!r} takes bool or integers, got {a.dtype}: {node}")
            case Unary("not", a) if a.dtype.is_float:
                errors.append(f"'not' takes bool or integers, got {a.dtype}: {node}")
            case Binary(op, a, _) if a.dtype == boolean and op not in COMPARISONS and op not in _BOOL_OPS:
                errors.append(f"{op!r} does not take bool: {node}")
            case Cast() | _:
                pass
    return tuple(errors)


_BOOL_OPS = ("and", "or", "xor", "min", "max")


def find_lane_conditions(func: Func) -> Iterator[Diagnostic]:
    """Branches inside of a vectorized loop whose condition differs between its lanes, which all take one arm."""
    for s, enclosing in walk_stmt(func.body):
        if not isinstance(s, If):
            continue
        used = free_vars(s.condition)
        for loop in enclosing:
            is_single = isinstance(loop.extent, Const) and int(loop.extent.value) <= 1
            if loop.kind is LoopKind.VECTORIZED and loop.var in used and not is_single:
                what = f"the lanes of loop {loop.var.name!r} take one arm together, but the condition depends on it"
                hint = "make the condition a predicate of blocks, or the branch the outer statement"
                yield Diagnostic(f"branch on {s.condition}", what, show_stmt(s), hint)


def find_reads_before_writes(func: Func) -> Iterator[Diagnostic]:
    """Internal buffers and outputs that are read before any block writes them, and inits of another element."""
    written: set[Buffer] = set()
    outputs = {s.body.buffer for s, _ in walk_stmt(func.body) if isinstance(s, Block)}
    inputs = set(func.params) - outputs
    for s, _ in walk_stmt(func.body):
        if not isinstance(s, Block):
            continue
        if s.init is not None and (s.init.buffer, s.init.indices) != (s.body.buffer, s.body.indices):
            yield Diagnostic(f"block {s.name!r}", "init and body must store the same element", show_stmt(s))
        if s.init is not None:
            written.add(s.init.buffer)
        for a in accesses(s):
            if not a.is_write and a.buffer not in written and a.buffer not in inputs:
                what = f"buffer {a.buffer.name!r} is read before it is written"
                yield Diagnostic(f"block {s.name!r}", what, show_stmt(s))
        written.add(s.body.buffer)
