"""The verifier: whether a function of the loop IR is well-formed.

Checked, in this order; the first group that fails ends the verification and lists all its findings:
  * structure: unique names, sequences in normal form, every variable and buffer declared, every variable in scope;
  * types: values fit buffers, operands fit each other, indices and sizes are int64, conditions bool;
  * order: internal buffers are written before they are read;
  * scopes: register and stack buffers have literal shapes; register buffers are indexed by literals and by
    variables of unrolled, vectorized and vthread loops;
  * stack (`stack.py`): the buffers on a thread's stack fit it together;
  * divisors (`divisors.py`): indices are not divided by sizes that may be 0 where they are computed;
  * domains: bindings stay in the domains of their variables, and every access stays in its buffer;
  * hints (`hints.py`): addresses of prefetches are safe to compute;
  * axes (`axes.py`): loops on the axes of a GPU form grids of blocks of threads;
  * races (`races.py`): iterations of concurrent loops write different elements and do not read each other's;
  * coverage (`coverage.py`): the blocks that write a parameter cover their domains, and reductions count every point
    once, begin with a first value, and are not overwritten before they are read.

Everything is proved, nothing is sampled: a function that passes has these properties for all sizes in range. The
proofs are sound but not complete: an exotic binding may be rejected although it is right. Not checked: whether every
single element of an internal buffer was written before it is read (only that some block wrote the buffer before).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from tilewright.errors import VerifyError
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_lt, can_prove_non_negative
from tilewright.expr.algebra.simplify import simplify
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
from tilewright.loops import stack_size
from tilewright.loops.access import Access, accesses
from tilewright.loops.block_context import BlockContext, Diagnostic
from tilewright.loops.empty_reductions import initialize_empty_reductions
from tilewright.loops.ir import EXPANDED, Block, For, Func, Seq, Stmt, Store
from tilewright.loops.ir import walk as walk_stmt
from tilewright.loops.printer import show_buffer, show_loop, show_stmt
from tilewright.verify import coverage, gpu_launch, nonzero_divisors, prefetch_safety, races
from tilewright.verify.index_overflow import possible_overflows


def verify(func: Func, *, registers: bool = True) -> None:
    """Checks a function.

    Args:
        func: the function.
        registers: whether register buffers must have their final form already (literal indices after unrolling);
            False between the steps of a schedule.

    Raises:
        VerifyError: lists what is wrong and where, with the loop or block.
    """
    nests = [BlockContext.of(s, around) for s, around in walk_stmt(func.body) if isinstance(s, Block)]

    @cache
    def executed() -> tuple[BlockContext, ...]:
        return (*nests, *_empty_reduction_blocks(func))

    groups = (
        lambda: _find_structure_errors(func),
        lambda: _find_type_errors(func),
        lambda: _find_overflows(func),
        lambda: _find_reads_before_writes(func),
        lambda: _find_memory_scope_errors(func, nests, registers),
        lambda: stack_size.find_stack_overflow(func),
        lambda: (f for nest in executed() for f in nonzero_divisors.find_zero_divisors(nest)),
        lambda: (f for nest in executed() for f in find_domain_errors(nest)),
        lambda: prefetch_safety.find_unsafe_prefetches(func),
        lambda: gpu_launch.find_launch_errors(func, nests),
        lambda: races.find_races(func, nests),
        lambda: coverage.find_coverage_errors(func, nests),
    )
    for group in groups:
        found = list(dict.fromkeys(group()))
        if found:
            raise _to_error(func, found)


def _empty_reduction_blocks(func: Func) -> Iterator[BlockContext]:
    """The blocks that store the first values of reductions over nothing; interpreter and native code run these too."""
    own = {id(s) for s, _ in walk_stmt(func.body)}
    extended = initialize_empty_reductions(func)
    if extended is not func:
        for s, around in walk_stmt(extended.body):
            if isinstance(s, Block) and id(s) not in own:
                yield BlockContext.of(s, around)


def _to_error(func: Func, found: Sequence[Diagnostic]) -> VerifyError:
    def text(f: Diagnostic) -> str:
        shown = "".join(f"\n    {line}" for line in f.snippet.splitlines())
        return f.what + shown

    if len(found) == 1:
        return VerifyError(text(found[0]), where=f"func {func.name!r}, {found[0].where}", hint=found[0].hint)
    lines = "".join(f"\n  {f.where}: {text(f)}{f.hint and '; '}{f.hint}" for f in found)
    return VerifyError(f"{len(found)} problems{lines}", where=f"func {func.name!r}")


def _find_structure_errors(func: Func) -> Iterator[Diagnostic]:
    where = "its declarations"
    for name, count in Counter(b.name for b in (*func.params, *func.allocs)).items():
        if count > 1:
            yield Diagnostic(where, f"{count} buffers are named {name!r}")
    loops = [s for s, _ in walk_stmt(func.body) if isinstance(s, For)]
    blocks = [s for s, _ in walk_stmt(func.body) if isinstance(s, Block)]
    own = [i.var for b in blocks for i in b.iters]
    variables = [*func.symbols, *(loop.var for loop in loops), *own]
    for name, count in Counter(v.name for v in variables).items():
        if count > 1:
            yield Diagnostic(where, f"{count} symbols, loops or iteration variables are named {name!r}")
    for name, count in Counter(b.name for b in blocks).items():
        if count > 1:
            yield Diagnostic(where, f"{count} blocks are named {name!r}")
    for v in (*(loop.var for loop in loops), *own):
        if isinstance(v, Symbol):
            yield Diagnostic(where, f"variable {v.name!r} has a declared range; its loop or block gives it one")
    for b in (*func.params, *func.allocs):
        yield from _find_undefined(b.shape, set(func.symbols), set(), f"buffer {b.name!r}", b)
    for p in func.params:
        if p.scope is not MemoryScope.MEMORY:
            yield Diagnostic(f"buffer {p.name!r}", f"a parameter lives in memory, got scope {p.scope}", show_buffer(p))
    yield from _find_scope_errors(func.body, set(func.symbols), {b.name: b for b in (*func.params, *func.allocs)})


def _find_scope_errors(s: Stmt, known: set[Var], buffers: dict[str, Buffer]) -> Iterator[Diagnostic]:
    """Whether every name in a statement means something there."""
    match s:
        case Seq(stmts):
            if len(stmts) < 2 or any(isinstance(c, Seq) for c in stmts):
                yield Diagnostic("a sequence", f"has {len(stmts)} statements or a sequence inside", show_stmt(s))
            for child in stmts:
                yield from _find_scope_errors(child, known, buffers)
        case For():
            yield from _find_undefined((s.extent,), known, set(), f"loop {s.var.name!r}", s)
            yield from _find_undefined(s.prefetches, known | {s.var}, set(buffers.values()), f"loop {s.var.name!r}", s)
            yield from _find_scope_errors(s.body, known | {s.var}, buffers)
        case Block():
            where = f"block {s.name!r}"
            for x in loads(s.predicate):
                what = f"the predicate {s.predicate} reads {x.buffer.name!r}: it may depend on loops and sizes only"
                yield Diagnostic(where, f"{what}; use select in the value", show_stmt(s))
            outside = [*(i.binding for i in s.iters), *(i.extent for i in s.iters)]
            yield from _find_undefined(
                outside if loads(s.predicate) else (s.predicate, *outside), known, set(), where, s
            )
            inside = known | {i.var for i in s.iters}
            for store in (s.body, s.init):
                if store is not None:
                    target = Load(store.buffer, store.indices)
                    yield from _find_undefined((target, store.value), inside, set(buffers.values()), where, s)


def _find_undefined(
    parts: Sequence[Expr], known: set[Var], buffers: set[Buffer], where: str, thing: Buffer | Stmt
) -> Iterator[Diagnostic]:
    for e in parts:
        variables, used = _names(e)
        for v in variables:
            if v not in known:
                yield Diagnostic(where, f"variable {v.name!r} is not defined here", _text_of(thing))
        for b in used:
            if b not in buffers:
                yield Diagnostic(
                    where, f"buffer {b.name!r} is not declared, or with another shape or type", _text_of(thing)
                )


def _text_of(thing: Buffer | Stmt) -> str:
    """The offending buffer, loop (its header) or block as text; made only where something is wrong."""
    if isinstance(thing, Buffer):
        return show_buffer(thing)
    return show_loop(thing) if isinstance(thing, For) else show_stmt(thing)


@lru_cache(maxsize=8192)
def _names(e: Expr) -> tuple[tuple[Var, ...], tuple[Buffer, ...]]:
    """The variables and buffers of an expression, in the order of the text."""
    nodes = list(post_order(e))
    variables = tuple(n for n in nodes if isinstance(n, Var))
    return variables, tuple(dict.fromkeys(n.buffer for n in nodes if isinstance(n, Load)))


def _find_type_errors(func: Func) -> Iterator[Diagnostic]:
    for b in (*func.params, *func.allocs):
        for n in b.shape:
            yield from _check_type(n, int64, "a size", f"buffer {b.name!r}", b)
    for s, _ in walk_stmt(func.body):
        if isinstance(s, For):
            yield from _check_type(s.extent, int64, "the extent", f"loop {s.var.name!r}", s)
            for hint in s.prefetches:
                yield from _check_type(hint, hint.dtype, "a hint", f"loop {s.var.name!r}", s)
        elif isinstance(s, Block):
            where = f"block {s.name!r}"
            yield from _check_type(s.predicate, boolean, "the predicate", where, s)
            for i in s.iters:
                yield from _check_type(i.extent, int64, f"the extent of {i.var.name!r}", where, s)
                yield from _check_type(i.binding, int64, f"the binding of {i.var.name!r}", where, s)
            for store in (s.body, s.init):
                if store is not None:
                    yield from _check_store_types(store, where, s)


def _find_overflows(func: Func) -> Iterator[Diagnostic]:
    """Numbers made of literals and loop variables that need not fit int64 (see `reach.py`)."""
    for s, e, most in possible_overflows(func, {}):
        if isinstance(most, Const):
            where = f"block {s.name!r}" if isinstance(s, Block) else f"loop {s.var.name!r}"
            what = f"{e} may reach {most.value}, but numbers made of sizes and loop variables must stay below 2^62"
            hint = "where it shall wrap, compute it in uint64"
            yield Diagnostic(where, what, _text_of(s), hint)


def _check_store_types(store: Store, where: str, thing: Stmt) -> Iterator[Diagnostic]:
    b = store.buffer
    yield from _check_type(store.value, b.dtype, f"the value stored in {b.name!r}", where, thing)
    yield from _check_type(Load(b, store.indices), b.dtype, "the element that is stored", where, thing)


def _check_type(e: Expr, wanted: DType, what: str, where: str, thing: Buffer | Stmt) -> Iterator[Diagnostic]:
    if e.dtype != wanted:
        yield Diagnostic(where, f"{what} must be {wanted}, got {e.dtype}: {e}", _text_of(thing))
    for problem in _type_errors(e):
        yield Diagnostic(where, problem, _text_of(thing))


@lru_cache(maxsize=8192)
def _type_errors(e: Expr) -> tuple[str, ...]:
    """What is wrong with the types inside an expression."""
    found: list[str] = []
    for node in post_order(e):
        match node:
            case Binary(op, a, b) if a.dtype != b.dtype:
                found.append(f"operands of {op!r} have types {a.dtype} and {b.dtype}: {node}")
            case Select(cond, a, b) if cond.dtype != boolean or a.dtype != b.dtype:
                found.append(f"select needs bool and equal types, got {cond.dtype}, {a.dtype}, {b.dtype}: {node}")
            case Load(buffer, indices) if len(indices) != buffer.rank:
                found.append(f"buffer {buffer.name!r} has {buffer.rank} dimensions, got {len(indices)} indices: {node}")
            case Load(_, indices) if any(i.dtype != int64 for i in indices):
                found.append(f"indices must be int64: {node}")
            case Binary("and" | "or" | "xor", a, _) if a.dtype.is_float:
                found.append(f"{node.op!r} takes bool or integers, got {a.dtype}: {node}")
            case Unary("not", a) if a.dtype.is_float:
                found.append(f"'not' takes bool or integers, got {a.dtype}: {node}")
            case Binary(op, a, _) if a.dtype == boolean and op not in COMPARISONS and op not in _BOOL_OPS:
                found.append(f"{op!r} does not take bool: {node}")
            case Cast() | _:
                pass
    return tuple(found)


_BOOL_OPS = ("and", "or", "xor", "min", "max")


def _find_reads_before_writes(func: Func) -> Iterator[Diagnostic]:
    """Whether internal buffers and outputs are written before they are read."""
    written: set[Buffer] = set()
    outputs = {s.body.buffer for s, _ in walk_stmt(func.body) if isinstance(s, Block)}
    ready = set(func.params) - outputs
    for s, _ in walk_stmt(func.body):
        if not isinstance(s, Block):
            continue
        if s.init is not None and (s.init.buffer, s.init.indices) != (s.body.buffer, s.body.indices):
            yield Diagnostic(f"block {s.name!r}", "init and body must store the same element", show_stmt(s))
        if s.init is not None:
            written.add(s.init.buffer)
        for a in accesses(s):
            if not a.is_write and a.buffer not in written and a.buffer not in ready:
                what = f"buffer {a.buffer.name!r} is read before it is written"
                yield Diagnostic(f"block {s.name!r}", what, show_stmt(s))
        written.add(s.body.buffer)


def _find_memory_scope_errors(func: Func, nests: Sequence[BlockContext], registers: bool) -> Iterator[Diagnostic]:
    for b in func.allocs:
        if b.scope is not MemoryScope.MEMORY and not all(isinstance(n, Const) for n in b.shape):
            yield Diagnostic(f"buffer {b.name!r}", f"scope {b.scope} needs a literal shape", show_buffer(b))
    if not registers:
        return
    for nest in nests:
        moving = {loop.var for loop in nest.loops if loop.kind not in EXPANDED}
        for a in accesses(nest.block):
            if a.buffer.scope is not MemoryScope.REGISTER:
                continue
            for i in a.indices:
                bad = sorted(v.name for v in free_vars(nest.over_loops(i)) if v in moving or isinstance(v, Symbol))
                if bad:
                    yield Diagnostic(
                        f"block {nest.block.name!r}",
                        f"index {i} of register buffer {a.buffer.name!r} depends on {', '.join(bad)}, "
                        "which is no unrolled, vectorized or vthread loop",
                        show_stmt(nest.block),
                    )


def find_domain_errors(nest: BlockContext) -> Iterator[Diagnostic]:
    """The bindings of a block that may leave their domains, and its accesses that may leave their buffers."""
    block = nest.block
    where = f"block {block.name!r}"
    for i in block.iters:
        binding = nest.over_loops(i.var)
        if not can_prove_non_negative(binding, nest.bounds):
            yield Diagnostic(where, f"binding {i.binding} of {i.var.name!r} is not proved >= 0", nest.text)
        if not can_prove_lt(binding, i.extent, nest.bounds):
            yield Diagnostic(where, f"binding {i.binding} of {i.var.name!r} is not proved < {i.extent}", nest.text)
    domains = tuple((i.var, i.extent) for i in block.iters)
    for a, axis in _unproved_accesses(domains, accesses(block)):
        # Over the block's own domains it is not in bounds; it may be where the loops and the predicate go.
        index, size = a.indices[axis], a.buffer.shape[axis]
        known = nest.bounds.assuming(nest.over_loops(a.condition))
        bound = simplify(nest.over_loops(index), known)
        for holds, limit in (
            (can_prove_non_negative(bound, known), ">= 0"),
            (can_prove_lt(bound, size, known), f"< {size}"),
        ):
            if not holds:
                verb = "written" if a.is_write else "read"
                what = f"index {index} of buffer {a.buffer.name!r} ({verb}, dimension {axis}) is not proved {limit}"
                yield Diagnostic(where, what, show_stmt(block))


@lru_cache(maxsize=4096)
def _unproved_accesses(
    domains: tuple[tuple[Var, Expr], ...], touched: tuple[Access, ...]
) -> tuple[tuple[Access, int], ...]:
    """The accesses, with the dimension, that the domains of the iteration variables alone do not keep in bounds."""
    known = Bounds()
    for var, extent in domains:
        known = known.with_loop(var, extent)
    found: list[tuple[Access, int]] = []
    for a in touched:
        inside = known.assuming(a.condition)
        for axis, (index, size) in enumerate(zip(a.indices, a.buffer.shape, strict=True)):
            if not (can_prove_non_negative(index, inside) and can_prove_lt(index, size, inside)):
                found.append((a, axis))
    return tuple(found)
