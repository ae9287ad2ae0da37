"""Control flow of one function: counted loops and conditional regions, with the scope following along."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.llvm_types import I64, VOID, call_intrinsic
from tilewright.expr.nodes import Var


class ControlFlow:
    """Emits control flow at a builder's position.

    Args:
        builder: where the instructions go.
        scope: variables and remembered values.
    """

    def __init__(self, builder: ir.IRBuilder, scope: EmitScope) -> None:
        self.builder, self.scope = builder, scope

    def counted_loop(self, var: Var, start: ir.Value, stop: ir.Value, body: Callable[[], None], nonempty: bool) -> None:
        """`for var in range(start, stop): body`; `nonempty` when there is at least one iteration."""
        b = self.builder
        before, inside, after = b.block, b.append_basic_block(var.name), b.append_basic_block(f"{var.name}.end")
        if nonempty:
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
        self.scope.variables.pop(var, None)

    def coalesced_loops(
        self, loops: Sequence[tuple[Var, ir.Value]], begin: ir.Value, end: ir.Value, body: Callable[[], None]
    ) -> None:
        """Positions `begin` to `end` of loops in one another, as `(variable, extent)`, of which the last varies
        fastest.

        Only the first position is divided: the last loop stays one, so that LLVM moves what does not depend on it out
        of it, and the others are counted on where it ends.
        """
        b, (*outer, (var, extent)) = self.builder, loops
        with self.if_then(b.icmp_signed("<", begin, end)):
            first = (b.sub(end, begin), *self._delinearize(begin, [size for _, size in loops]))
            before, run, after = b.block, b.append_basic_block("nest"), b.append_basic_block("nest.end")
            b.branch(run)
            b.position_at_end(run)
            phis = [b.phi(I64) for _ in range(len(loops) + 1)]
            for phi, value in zip(phis, first, strict=True):
                phi.add_incoming(value, before)
            left, *indices, start = phis
            for (v, _), index in zip(outer, indices, strict=True):
                self.scope.bind(v, index)
            stop = call_intrinsic(b, "smin.i64", I64, [extent, b.add(start, left)])
            with self.scope.frame(True):
                self.counted_loop(var, start, stop, body, nonempty=True)
            for v, _ in outer:
                self.scope.variables.pop(v, None)
            left = b.sub(left, b.sub(stop, start))
            for phi, value in zip(
                phis, (left, *self._increment_indices(indices, [size for _, size in outer]), I64(0)), strict=True
            ):
                phi.add_incoming(value, b.block)
            b.cbranch(b.icmp_signed(">", left, I64(0)), run, after)
            b.position_at_end(after)

    def _delinearize(self, position: ir.Value, extents: Sequence[ir.Value]) -> list[ir.Value]:
        """The indices at a position."""
        found: list[ir.Value] = []
        for extent in reversed(extents[1:]):
            found.append(self.builder.urem(position, extent))
            position = self.builder.udiv(position, extent)
        return [position, *reversed(found)]

    def _increment_indices(self, indices: Sequence[ir.Value], extents: Sequence[ir.Value]) -> list[ir.Value]:
        """The indices one step later, of which the last varies fastest."""
        b, found, step = self.builder, list[ir.Value](), I64(1)
        for index, extent in zip(reversed(indices), reversed(extents), strict=True):
            grown = b.add(index, step)
            over = b.icmp_signed("==", grown, extent)
            found.append(b.select(over, I64(0), grown))
            step = b.zext(over, I64)
        return found[::-1]

    def branch_on(self, condition: ir.Value) -> tuple[ir.Block, ir.Block]:
        """Branches to a new block where the condition holds, and to another where it does not."""
        holds, fails = self.builder.append_basic_block("holds"), self.builder.append_basic_block("fails")
        self.builder.cbranch(condition, holds, fails)
        return holds, fails

    def prevent_tail_merging(self) -> None:
        """Ends an arm with an empty instruction, so that LLVM does not merge the ends of both arms.

        It would move the additions of fused multiply-adds behind the branch and leave the multiplications in front.
        """
        nothing = ir.InlineAsm(ir.FunctionType(VOID, []), "", "", side_effect=True)
        self.builder.call(nothing, [], attrs=("nounwind", "readnone"))

    def compiler_barrier(self) -> None:
        """A barrier for the compiler, and no instruction: LLVM moves no access to memory across it."""
        barrier = ir.InlineAsm(ir.FunctionType(VOID, []), "", "~{memory}", side_effect=True)
        self.builder.call(barrier, [], attrs=("nounwind",))

    def prevent_promotion(self, pointer: ir.Value, builder: ir.IRBuilder) -> None:
        """Lets memory of the frame escape, so that LLVM does not turn it into registers.

        Args:
            place: its address.
            builder: where it was allocated.
        """
        escape = ir.InlineAsm(ir.FunctionType(VOID, [pointer.type]), "", "r,~{memory}", side_effect=True)
        builder.call(escape, [pointer], attrs=("nounwind",))

    @contextmanager
    def if_then(self, condition: ir.Value | None) -> Generator[None]:
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
