"""Loop IR: an immutable tree of loops around blocks, modelled on TensorIR.

A *block* is the unit of computation: it has iteration variables with their own domains, defines what one iteration
stores, and is independent of its enclosing loops; through the bindings of the iteration variables, the loops only
determine order, parallelism and place of its iterations. A loop transformation therefore changes loops and bindings,
never the meaning of a block. The one exception: a buffer that was shrunk to what one iteration of a loop needs is
indexed relative to that iteration (`T[v - jo * 4]`), so indices may use loop variables, too.

    func matmul(A: float32[M, 64], B: float32[64, 32], C: float32[M, 32]; M: 1..512):
        for i in parallel(M):
            for j in vectorized(32):
                for k in serial(64):
                    block C(v0: M = i, v1: 32 = j, reduce v2: 64 = k):
                        init C[v0, v1] = 0.0
                        C[v0, v1] = C[v0, v1] + A[v0, v2] * B[v2, v1]
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tilewright.expr.algebra import polynomial as poly
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import TRUE, Binary, BinaryOp, Buffer, Expr, Load, Var
from tilewright.expr.traversal import loads


class LoopKind(StrEnum):
    """How the iterations of a loop are executed.

    A loop that is bound to an axis runs on a GPU: the iterations of `block_x(N)` are the blocks of a grid along x,
    those of `thread_x(N)` the threads of a block. The statement after such a loop starts when all iterations are done.
    `vthread` loops are interleaved: every statement inside runs for all iterations before the next one does.
    """

    SERIAL = "serial"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unrolled"
    VTHREAD = "vthread"
    BLOCK_X = "block_x"
    BLOCK_Y = "block_y"
    BLOCK_Z = "block_z"
    THREAD_X = "thread_x"
    THREAD_Y = "thread_y"
    THREAD_Z = "thread_z"


BLOCK_AXES = (LoopKind.BLOCK_X, LoopKind.BLOCK_Y, LoopKind.BLOCK_Z)
THREAD_AXES = (LoopKind.THREAD_X, LoopKind.THREAD_Y, LoopKind.THREAD_Z)
GPU_AXES = (*BLOCK_AXES, *THREAD_AXES)

THREADED = (LoopKind.PARALLEL, *GPU_AXES)
"""Kinds whose iterations run on separate threads, each with its own registers and stack."""

CONCURRENT = (*THREADED, LoopKind.VECTORIZED, LoopKind.VTHREAD)
"""Kinds whose iterations are unordered and must be independent."""

EXPANDED = (LoopKind.UNROLLED, LoopKind.VECTORIZED, LoopKind.VTHREAD)
"""Kinds whose iterations are expanded by code generation, so that their extent must be a literal."""


class IterKind(StrEnum):
    """Whether iterations are independent (spatial) or accumulate into one value (reduce)."""

    SPATIAL = "spatial"
    REDUCE = "reduce"


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[indices] = value

    An accumulation is normalised to one operation on the stored element and the rest: the algebra sorts the terms of
    int64 expressions, so that `C[v] + (A[v] + 1)` would become `A[v] + C[v] + 1`.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr

    def __post_init__(self) -> None:
        if self.value.dtype is int64 and isinstance(self.value, Binary) and self.value.op in ("add", "sub", "mul"):
            object.__setattr__(self, "value", _as_accumulation(Load(self.buffer, self.indices), self.value))


def _as_accumulation(target: Load, value: Binary) -> Expr:
    """An int64 value as target + rest or target * rest where rest does not read the buffer; else the value itself."""
    if value.a is target or not any(load is target for load in loads(value)):
        return value
    terms = poly.polynomial(value)
    by_target = {m: c for m, c in terms.items() if target in m}
    if by_target == {(target,): 1}:
        op: BinaryOp = "add"
        rest = {m: c for m, c in terms.items() if m not in by_target}
    elif len(by_target) == len(terms):
        op = "mul"
        rest = {poly.drop_atom(m, target): c for m, c in terms.items()}
    else:
        return value
    other = poly.expression(rest)
    if any(load.buffer.name == target.buffer.name for load in loads(other)):
        return value
    return Binary(op, target, other)


@dataclass(frozen=True, slots=True)
class BlockIter:
    """An iteration variable of a block, 0 <= var < extent, and its value in terms of the enclosing loops.

    Attributes:
        var: the variable that the block's body uses; unique within the function.
        extent: size of its domain.
        kind: spatial or reduce.
        binding: its value over loop variables and symbols.
    """

    var: Var
    extent: Expr
    kind: IterKind
    binding: Expr


@dataclass(frozen=True, slots=True)
class Block:
    """One statement with its own iteration domain.

    Attributes:
        name: unique within the function.
        iters: iteration variables.
        body: what one iteration stores, over the iteration variables and symbols; indices of staging buffers, which are
            relative to a tile, may also use the variables of the enclosing loops.
        init: stored before the first reduction iteration, and where the reduction is empty
            (`loops/empty_reductions.py`); None for spatial blocks and after `decompose_reduction`.
        predicate: over loop variables; the iteration is executed only where it holds.
    """

    name: str
    iters: tuple[BlockIter, ...]
    body: Store
    init: Store | None = None
    predicate: Expr = TRUE


@dataclass(frozen=True, slots=True)
class For:
    """`for var in range(extent): body`, executed as `kind` says. The variable's name is unique within the function.

    Attributes:
        prefetches: elements, over this and the enclosing loops' variables, whose cache lines every iteration prefetches
            before its body. They do not change the meaning, and elements may be out of bounds.
    """

    var: Var
    extent: Expr
    kind: LoopKind
    body: "Stmt"
    prefetches: tuple[Load, ...] = ()

    def prefetches_with(self, change: Callable[[Expr], Expr]) -> tuple[Load, ...]:
        """The prefetches with `change` applied to their indices."""
        return tuple(Load(p.buffer, tuple(change(i) for i in p.indices)) for p in self.prefetches)


@dataclass(frozen=True, slots=True)
class Seq:
    """A sequence of at least two statements, never nested directly in another Seq; or `NOTHING`."""

    stmts: "tuple[Stmt, ...]"


NOTHING = Seq(())
"""No statement: the second arm of a branch around statements that run under a condition alone."""


@dataclass(frozen=True, slots=True)
class If:
    """`if condition: then else: otherwise`, where the condition depends on enclosing loops and sizes only. It prints
    without `else` where nothing is executed there.

    Schedules express conditions as predicates of blocks; branches are made after scheduling, by `lower/specialize.py`,
    so that a condition is tested once before a whole nest.

    Attributes:
        condition: over the variables of the enclosing loops and symbols.
        then: executed where it holds.
        otherwise: executed where it does not; may be `NOTHING`.
    """

    condition: Expr
    then: "Stmt"
    otherwise: "Stmt"


Stmt = For | Block | Seq | If


@dataclass(frozen=True, slots=True)
class Func:
    """A kernel.

    Attributes:
        name: a C identifier.
        params: buffers that the caller passes, inputs first; outputs are those that blocks write. One in stack scope
            has a slice per thread.
        symbols: sizes that the caller passes, as variables with declared ranges.
        allocs: internal buffers: those in register scope have constant shapes, those in stack scope are private to
            threads (`private_memory.py`); memory scope is workspace.
        body: the loops.
    """

    name: str
    params: tuple[Buffer, ...]
    symbols: tuple[Var, ...]
    allocs: tuple[Buffer, ...]
    body: Stmt

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The parameters that its blocks write, in their order."""
        written = {b.body.buffer.name for b in blocks(self.body)}
        return tuple(p for p in self.params if p.name in written)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The parameters that no block writes, in their order."""
        written = {b.body.buffer.name for b in blocks(self.body)}
        return tuple(p for p in self.params if p.name not in written)

    def with_body(self, body: Stmt) -> "Func":
        """The same function with another body."""
        return replace(self, body=body)


def seq(*stmts: Stmt) -> Stmt:
    """Statements in sequence, flattened."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.stmts if isinstance(s, Seq) else (s,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def map_children(s: Seq | If, transform: Callable[[Stmt], Stmt]) -> Stmt:
    """A sequence or branch with the statements directly inside it transformed; itself where none of them changes."""
    if isinstance(s, If):
        then, otherwise = transform(s.then), transform(s.otherwise)
        return s if then is s.then and otherwise is s.otherwise else If(s.condition, then, otherwise)
    parts = [transform(c) for c in s.stmts]
    return s if all(a is b for a, b in zip(parts, s.stmts, strict=True)) else seq(*parts)


def walk(s: Stmt, loops: tuple[For, ...] = ()) -> Iterator[tuple[Stmt, tuple[For, ...]]]:
    """Every statement with its enclosing loops, outermost first, in the order of execution."""
    stack: list[tuple[Stmt, tuple[For, ...]]] = [(s, loops)]
    while stack:
        current = stack.pop()
        yield current
        stmt, outer = current
        if isinstance(stmt, For):
            stack.append((stmt.body, (*outer, stmt)))
        elif isinstance(stmt, Seq):
            stack.extend((child, outer) for child in reversed(stmt.stmts))
        elif isinstance(stmt, If):
            stack += [(stmt.otherwise, outer), (stmt.then, outer)]


def blocks(s: Stmt) -> tuple[Block, ...]:
    """The blocks in a statement, in the order of execution."""
    result: list[Block] = []
    stack = [s]
    while stack:
        current = stack.pop()
        if isinstance(current, For):
            stack.append(current.body)
        elif isinstance(current, Seq):
            stack.extend(reversed(current.stmts))
        elif isinstance(current, If):
            stack += [current.otherwise, current.then]
        else:
            result.append(current)
    return tuple(result)
