"""Control flow of one function: counted loops and conditional regions, with the scope following along."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from llvmlite import ir

from tilewright.codegen.scope import Scope
from tilewright.codegen.types import I64, VOID
from tilewright.expr.nodes import Var


class Control:
    """Emits control flow at a builder's position.

    Args:
        builder: where the instructions go.
        scope: variables and remembered values.
    """

    def __init__(self, builder: ir.IRBuilder, scope: Scope) -> None:
        self.builder, self.scope = builder, scope

    def ranged(self, var: Var, start: ir.Value, stop: ir.Value, body: Callable[[], None], certain: bool) -> None:
        """`for var in range(start, stop): body`; `certain` when there is at least one iteration."""
        b = self.builder
        before, inside, after = b.block, b.append_basic_block(var.name), b.append_basic_block(f"{var.name}.end")
        if certain:
            b.branch(inside)
        else:
            b.cbranch(b.icmp_signed("<", start, stop), inside, after)
        b.position_at_end(inside)
        counter = b.phi(I64, name=var.name)
        counter.add_incoming(start, before)
        self.scope.bind(var, counter)
        with self.scope.frame(True):
            body()
        following = b.add(counter, I64(1), flags=("nsw", "nuw"))
        counter.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, stop), inside, after)
        b.position_at_end(after)
        self.scope.values.pop(var, None)

    def fork(self, condition: ir.Value) -> tuple[ir.Block, ir.Block]:
        """Branches to a new block where the condition holds, and to another where it does not."""
        holds, fails = self.builder.append_basic_block("holds"), self.builder.append_basic_block("fails")
        self.builder.cbranch(condition, holds, fails)
        return holds, fails

    def keep_apart(self) -> None:
        """Ends an arm with an empty instruction, so that LLVM does not merge the ends of both arms.

        It would move the additions of fused multiply-adds behind the branch and leave the multiplications in front.
        """
        nothing = ir.InlineAsm(ir.FunctionType(VOID, []), "", "", side_effect=True)
        self.builder.call(nothing, [], attrs=("nounwind", "readnone"))

    @contextmanager
    def when(self, condition: ir.Value | None) -> Generator[None]:
        """A region that runs only where the condition holds (None: always)."""
        if condition is None:
            with self.scope.frame(False):
                yield
            return
        b = self.builder
        then, after = b.append_basic_block("if"), b.append_basic_block("endif")
        b.cbranch(condition, then, after)
        b.position_at_end(then)
        with self.scope.frame(True):
            yield
        b.branch(after)
        b.position_at_end(after)
