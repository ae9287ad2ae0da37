"""Printer of the loop IR; `loops/parser.py` parses the text back to an equal tree.

    func scale(A: float32[N, 16], B: float32[N, 16]; N: 1..64):
        alloc T: float32[16] in register
        for i in parallel(N):
            for j in vectorized(16):
                block T(v_j: 16 = j):
                    T[v_j] = A[0, v_j]
                block B(v_i: N = i, v_j_1: 16 = j) where i < N:
                    B[v_i, v_j_1] = T[v_j_1] * A[v_i, v_j_1]

A block lists for each iteration variable its extent and, after `=`, its binding; `reduce` marks reductions. Prefetches
of a loop follow its extent: `for i in serial(N) prefetching A[i + 4, 0]:`.
"""

from tilewright.expr.nodes import TRUE, Buffer, Load, MemoryScope, Var
from tilewright.expr.printer import show as show_expr
from tilewright.expr.printer import show_name
from tilewright.loops.ir import NOTHING, Block, BlockIter, For, Func, If, IterKind, Seq, Stmt, Store

_WIDTH = 120


def show(func: Func) -> str:
    """The function as text, ending with a newline."""
    params = [show_buffer(p) for p in func.params]
    symbols = "; " + ", ".join(show_symbol(s) for s in func.symbols) if func.symbols else ""
    header = f"func {show_name(func.name)}({', '.join(params)}{symbols}):"
    if len(header) > _WIDTH:
        inner = ",\n        ".join(params)
        header = f"func {show_name(func.name)}(\n        {inner}{symbols}):"
    lines = [header, *(f"    alloc {show_buffer(a)}" for a in func.allocs)]
    _show(func.body, 1, lines)
    return "\n".join(lines) + "\n"


def show_stmt(s: Stmt) -> str:
    """A statement as text, for error messages; without a newline at the end."""
    lines: list[str] = []
    _show(s, 0, lines)
    return "\n".join(lines)


def show_symbol(v: Var) -> str:
    """`M: 1..512`; an undeclared bound is left empty, and `M` has none."""
    if v.lo is None and v.hi is None:
        return show_name(v.name)
    return f"{show_name(v.name)}: {'' if v.lo is None else v.lo}..{'' if v.hi is None else v.hi}"


def show_buffer(b: Buffer) -> str:
    """`A: float32[M, 64]`, with ` in stack` or ` in register` where it is not in memory."""
    shape = ", ".join(show_expr(s) for s in b.shape)
    scope = "" if b.scope is MemoryScope.MEMORY else f" in {b.scope.value}"
    return f"{show_name(b.name)}: {b.dtype}[{shape}]{scope}"


def show_loop(loop: For) -> str:
    """The header of a loop."""
    prefetches = f" prefetching {', '.join(map(show_expr, loop.prefetches))}" if loop.prefetches else ""
    return f"for {show_name(loop.var.name)} in {loop.kind.value}({show_expr(loop.extent)}){prefetches}:"


def show_block(block: Block) -> str:
    """The header of a block."""
    where = "" if block.predicate is TRUE else f" where {show_expr(block.predicate)}"
    return f"block {show_name(block.name)}({', '.join(_show_iter(i) for i in block.iters)}){where}:"


def show_store(store: Store) -> str:
    """`C[v0, v1] = value`"""
    return f"{show_expr(Load(store.buffer, store.indices))} = {show_expr(store.value)}"


def _show_iter(i: BlockIter) -> str:
    kind = "reduce " if i.kind is IterKind.REDUCE else ""
    return f"{kind}{show_name(i.var.name)}: {show_expr(i.extent)} = {show_expr(i.binding)}"


def _show(s: Stmt, depth: int, lines: list[str]) -> None:
    indent = "    " * depth
    match s:
        case For():
            lines.append(indent + show_loop(s))
            _show(s.body, depth + 1, lines)
        case Seq(stmts):
            for child in stmts:
                _show(child, depth, lines)
        case If(condition, then, otherwise):
            lines.append(f"{indent}if {show_expr(condition)}:")
            _show(then, depth + 1, lines)
            if otherwise != NOTHING:
                lines.append(f"{indent}else:")
                _show(otherwise, depth + 1, lines)
        case Block():
            lines.append(indent + show_block(s))
            if s.init is not None:
                lines.append(f"{indent}    init {show_store(s.init)}")
            lines.append(f"{indent}    {show_store(s.body)}")
