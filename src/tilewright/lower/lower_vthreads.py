"""Lowering of loop kinds that a CPU lacks: vthread loops become unrolled ones, loops bound to GPU axes are refused.

A vthread loop is interleaved by sinking it to every innermost statement: a block, or the vectorized loop around one,
whose lanes stay together.

    for v in vthread(2):                for k in serial(K):
        for k in serial(K):                 for v in unrolled(2):
            block A(.. v, k ..)     ->          block A(.. v, k ..)
            block B(.. v, k ..)             for v.1 in unrolled(2):
                                                block B(.. v.1, k ..)
"""

from dataclasses import replace

from tilewright.errors import TargetError
from tilewright.expr.nodes import Var
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import GPU_AXES, Block, For, Func, If, LoopKind, Seq, Stmt, map_children, walk
from tilewright.machine import Target
from tilewright.schedule.rewrite_tree import substitute_vars


def lower_vthreads(func: Func, target: Target) -> Func:
    """The function with only those loop kinds that a CPU has.

    Raises:
        TargetError: a loop is bound to a GPU axis.
    """
    for s, _ in walk(func.body):
        if isinstance(s, For) and s.kind in GPU_AXES:
            raise TargetError(
                f"loop {s.var.name!r} is bound to {s.kind}, an axis of a GPU, but the target {target.name} is a CPU",
                where=f"func {func.name!r}",
                hint="make the loop `parallel` instead, or leave it serial",
            )
    return func.with_body(_lower(func.body))


def _lower(s: Stmt) -> Stmt:
    match s:
        case Block():
            return s
        case Seq() | If():
            return map_children(s, _lower)
        case For():
            body = _lower(s.body)
            return _SunkLoop(s).sink_into(body) if s.kind is LoopKind.VTHREAD else replace(s, body=body)


class _SunkLoop:
    """A vthread loop that sinks inwards; each statement gets a copy of its own."""

    def __init__(self, loop: For) -> None:
        self.loop = loop
        self.copies = 0

    def sink_into(self, s: Stmt) -> Stmt:
        """The statement with the loop around every innermost statement."""
        match s:
            case Seq():
                return map_children(s, self.sink_into)
            case For() if self.loop.var not in free_vars(s.extent) and not _is_vector_of_block(s):
                hints = tuple(p for p in s.prefetches if self.loop.var not in free_vars(p))
                return replace(s, body=self.sink_into(s.body), prefetches=hints)
            case _:
                return self._unrolled_around(s)

    def _unrolled_around(self, s: Stmt) -> Stmt:
        number, self.copies = self.copies, self.copies + 1
        if not number:
            return replace(self.loop, kind=LoopKind.UNROLLED, body=s)
        var = Var(f"{self.loop.var.name}.{number}")
        return For(var, self.loop.extent, LoopKind.UNROLLED, substitute_vars(s, {self.loop.var: var}))


def _is_vector_of_block(loop: For) -> bool:
    return loop.kind is LoopKind.VECTORIZED and isinstance(loop.body, Block)
