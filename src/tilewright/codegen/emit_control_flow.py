"""Counted loops and conditional regions of one function; the scope follows the control flow."""

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
        scope: variables and cached values.
    """

    def __init__(self, builder: ir.IRBuilder, scope: EmitScope) -> None:
        self.builder, self.scope = builder, scope

    def counted_loop(
        self, var: Var, start: ir.Value, stop: ir.Value, body: Callable[[], None], nonempty: bool, latch: str = "<"
    ) -> None:
        """`for var in range(start, stop): body`.

        Args:
            var: the variable.
            start, stop: its range.
            body: emits an iteration.
            nonempty: whether there is at least one.
            latch: "<" or "!=": the comparison of the next value with `stop` by which the loop goes on.
        """
        b = self.builder
        preheader, header, exit_block = b.block, b.append_basic_block(var.name), b.append_basic_block(f"{var.name}.end")
        if nonempty:
            b.branch(header)
        else:
            b.cbranch(b.icmp_signed("<", start, stop), header, exit_block)
        b.position_at_end(header)
        counter = b.phi(I64, name=var.name)
        counter.add_incoming(start, preheader)
        self.scope.bind(var, counter)
        with self.scope.frame(True):
            body()
        next_value = b.add(counter, I64(1), flags=("nsw", "nuw"))
        counter.add_incoming(next_value, b.block)
        b.cbranch(b.icmp_signed(latch, next_value, stop), header, exit_block)
        b.position_at_end(exit_block)
        self.scope.variables.pop(var, None)

    def coalesced_loops(
        self, loops: Sequence[tuple[Var, ir.Value]], begin: ir.Value, end: ir.Value, body: Callable[[], None]
    ) -> None:
        """Iterations `begin` to `end` of a loop nest, given as `(variable, extent)`, counted in row-major order.

        Only `begin` is delinearised with divisions. The innermost loop remains a loop, so that LLVM hoists invariants
        out of it; the indices of the others are incremented whenever it ends.
        """
        b, (*outer, (var, extent)) = self.builder, loops
        with self.if_then(b.icmp_signed("<", begin, end)):
            initial = (b.sub(end, begin), *self._delinearize(begin, [size for _, size in loops]))
            preheader, header, exit_block = b.block, b.append_basic_block("nest"), b.append_basic_block("nest.end")
            b.branch(header)
            b.position_at_end(header)
            phis = [b.phi(I64) for _ in range(len(loops) + 1)]
            for phi, value in zip(phis, initial, strict=True):
                phi.add_incoming(value, preheader)
            remaining, *indices, start = phis
            for (v, _), index in zip(outer, indices, strict=True):
                self.scope.bind(v, index)
            stop = call_intrinsic(b, "smin.i64", I64, [extent, b.add(start, remaining)])
            with self.scope.frame(True):
                self.counted_loop(var, start, stop, body, nonempty=True)
            for v, _ in outer:
                self.scope.variables.pop(v, None)
            remaining = b.sub(remaining, b.sub(stop, start))
            for phi, value in zip(
                phis, (remaining, *self._increment_indices(indices, [size for _, size in outer]), I64(0)), strict=True
            ):
                phi.add_incoming(value, b.block)
            b.cbranch(b.icmp_signed(">", remaining, I64(0)), header, exit_block)
            b.position_at_end(exit_block)

    def _delinearize(self, position: ir.Value, extents: Sequence[ir.Value]) -> list[ir.Value]:
        """The indices of a row-major position."""
        inner_indices: list[ir.Value] = []
        for extent in reversed(extents[1:]):
            inner_indices.append(self.builder.urem(position, extent))
            position = self.builder.udiv(position, extent)
        return [position, *reversed(inner_indices)]

    def _increment_indices(self, indices: Sequence[ir.Value], extents: Sequence[ir.Value]) -> list[ir.Value]:
        """The indices of the next iteration, the last one varying fastest."""
        b, incremented, carry = self.builder, list[ir.Value](), I64(1)
        for index, extent in zip(reversed(indices), reversed(extents), strict=True):
            next_index = b.add(index, carry)
            overflows = b.icmp_signed("==", next_index, extent)
            incremented.append(b.select(overflows, I64(0), next_index))
            carry = b.zext(overflows, I64)
        return incremented[::-1]

    def branch_on(self, condition: ir.Value) -> tuple[ir.Block, ir.Block]:
        """Branches on a condition; returns the new blocks where it holds and where it fails."""
        holds, fails = self.builder.append_basic_block("holds"), self.builder.append_basic_block("fails")
        self.builder.cbranch(condition, holds, fails)
        return holds, fails

    def prevent_tail_merging(self) -> None:
        """Ends an arm with an empty instruction, so that LLVM does not merge the tails of both arms.

        Merged tails would move the additions of fused multiply-adds after the branch and leave the multiplications
        before it.
        """
        marker = ir.InlineAsm(ir.FunctionType(VOID, []), "", "", side_effect=True)
        self.builder.call(marker, [], attrs=("nounwind", "readnone"))

    def compiler_barrier(self) -> None:
        """Keeps LLVM from moving memory accesses across this point; emits no instruction."""
        barrier = ir.InlineAsm(ir.FunctionType(VOID, []), "", "~{memory}", side_effect=True)
        self.builder.call(barrier, [], attrs=("nounwind",))

    def prevent_promotion(self, pointer: ir.Value, builder: ir.IRBuilder) -> None:
        """Lets a stack slot escape, so that LLVM does not promote it to registers.

        Args:
            pointer: the slot's address.
            builder: positioned where the slot was allocated.
        """
        escape = ir.InlineAsm(ir.FunctionType(VOID, [pointer.type]), "", "r,~{memory}", side_effect=True)
        builder.call(escape, [pointer], attrs=("nounwind",))

    @contextmanager
    def if_then(self, condition: ir.Value | None) -> Generator[None]:
        """A region that runs where the condition holds; None for always."""
        if condition is None:
            with self.scope.frame(False):
                yield
            return
        b = self.builder
        then_block, end_block = b.append_basic_block("if"), b.append_basic_block("endif")
        b.cbranch(condition, then_block, end_block)
        b.position_at_end(then_block)
        with self.scope.frame(True):
            yield
        b.branch(end_block)
        b.position_at_end(end_block)
