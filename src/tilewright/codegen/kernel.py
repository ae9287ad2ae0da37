"""One loop-IR function to one LLVM function: loops, blocks, predicates, buffers.

The function takes a pointer per parameter buffer, an i64 per symbol and a pointer to a team of threads. Serial loops
become loops; unrolled ones are expanded; in a vectorized one every expression that depends on its variable is a
vector; the body of a parallel one becomes a function of its own (`parallel`).
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from llvmlite import ir

from tilewright.codegen import parallel
from tilewright.codegen.block import BlockWriter
from tilewright.codegen.control import Control
from tilewright.codegen.ends import before_the_end, is_around_lanes
from tilewright.codegen.memory import PRIVATE_PADDING
from tilewright.codegen.pressure import accumulates_alone, fills_registers, spilled_tiles
from tilewright.codegen.reduction import row_reduction
from tilewright.codegen.scope import FactsOf, Scope
from tilewright.codegen.spare import spare_lanes
from tilewright.codegen.team import Team
from tilewright.codegen.types import I64, PTR, VOID, memory_type, opaque
from tilewright.codegen.values import Values
from tilewright.codegen.versions import Decision, Inner, decision, edge_decision, worthwhile
from tilewright.codegen.widths import first_lanes, legal_widths
from tilewright.errors import InternalError
from tilewright.expr import buffer as buffers
from tilewright.expr.bounds import Bounds, interval
from tilewright.expr.buffer import Buffer
from tilewright.expr.nodes import Expr, Var
from tilewright.expr.polynomial import constant_value, polynomial
from tilewright.loops.ir import Block, For, Func, LoopKind, Seq, Stmt, walk
from tilewright.machine import Target

_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Kernel:
    """What all functions of one kernel share."""

    module: ir.Module
    func: Func
    target: Target
    teams: Team
    facts: FactsOf
    spare: frozenset[str]
    spilled: frozenset[str]


def emit_kernel(teams: Team, func: Func, target: Target, name: str, stamped: bool = False) -> ir.Function:
    """Add a loop-IR function to an LLVM module.

    Args:
        teams: of the module, which receives `void name(ptr params..., i64 symbols..., ptr team)` and its helpers; the
            function runs alone where `team` is null.
        func: its buffers of scope memory must be parameters.
        target: what the code runs on.
        name: of the function.
        stamped: the function takes one more pointer, to its record of clock readings (`stamps`).

    Raises:
        InternalError: a buffer of scope memory is allocated inside, or a loop or buffer is not well-formed.
    """
    for buffer in func.allocs:
        if buffer.scope is buffers.Scope.MEMORY:
            what = f"buffer {buffer.name!r} of scope memory must be a parameter"
            raise InternalError(what, where=f"func {func.name!r}")
    module = teams.module
    kinds: list[ir.Type] = [*[PTR] * len(func.params), *[I64] * len(func.symbols), PTR, *[PTR] * stamped]
    function = ir.Function(module, ir.FunctionType(VOID, kinds), name)
    function.linkage = "internal"
    for attribute in ("nounwind", "noinline"):
        function.attributes.add(attribute)
    pointers: dict[str, ir.Value] = {}
    for argument, buffer in zip(function.args, func.params, strict=False):
        argument.name = buffer.name
        parallel.mark_buffer(argument, buffer)
        pointers[buffer.name] = argument
    facts = FactsOf()
    scope = Scope(facts)
    for argument, symbol in zip(function.args[len(func.params) :], func.symbols, strict=False):
        argument.name = symbol.name
        scope.bind(symbol, argument)
    team, *record = function.args[len(func.params) + len(func.symbols) :]
    team.name = "team"
    # a mask is the same all over a vectorized loop, of its vectors it is not
    spare = spare_lanes(func)
    func = legal_widths(func, target)
    kernel = Kernel(module, func, target, teams, facts, spare, spilled_tiles(func, target))
    writer = Writer(kernel, function, scope, pointers, team=team, record=record[0] if stamped else None)
    writer.write(func.body)
    return function


class Writer:
    """Writes the statements of one LLVM function.

    Args:
        kernel: what is shared with the other functions of the kernel.
        function: the function, without blocks yet.
        scope: variables known at its start.
        pointers: addresses of the buffers that come from outside.
        team: pointer to the team that parallel loops use, null where they run serially; None where that is certain.
        record: where parallel loops note clock readings (`stamps`); None where they do not.
    """

    def __init__(
        self,
        kernel: Kernel,
        function: ir.Function,
        scope: Scope,
        pointers: dict[str, ir.Value],
        team: ir.Value | None,
        record: ir.Value | None = None,
    ) -> None:
        self.kernel, self.function, self.scope = kernel, function, scope
        self.pointers, self.team, self.record = pointers, team, record
        self.entry = function.append_basic_block("entry")
        body = function.append_basic_block("body")
        self.builder = ir.IRBuilder(body)
        self.values = Values(self.builder, scope, kernel.target, self.pointer)
        self._body = body
        self.control = Control(self.builder, scope)
        self.blocks = BlockWriter(self.control, self.values, kernel.target, kernel.spare)

    def write(self, body: Stmt) -> None:
        """The whole function."""
        self.statement(body)
        self.builder.ret_void()
        ir.IRBuilder(self.entry).branch(self._body)

    def write_range(self, nest: list[For], begin: ir.Value, end: ir.Value) -> None:
        """The whole function, for some iterations of a nest of parallel loops."""
        known = self.scope.bounds
        for loop in nest:
            known = known.with_loop(loop.var, loop.extent)
        inside, once = nest[-1], [x.var for x in nest if constant_value(polynomial(x.extent)) == 1]
        moving = [loop for loop in nest if loop.var not in once]
        with self.scope.knowing(known), ExitStack() as fixed:
            for var in once:
                fixed.enter_context(self.scope.fixing(var, 0))
            if len(moving) == 1:
                self.control.ranged(moving[0].var, begin, end, lambda: self._peeled(moving, inside), certain=False)
            else:
                loops = [(loop.var, self.values.value(loop.extent)) for loop in moving]
                self.control.nested(loops, begin, end, lambda: self._peeled(moving, inside))
        self.builder.ret_void()
        ir.IRBuilder(self.entry).branch(self._body)

    def _peeled(self, moving: list[For], inside: For) -> None:
        """One iteration of a nest of parallel loops. The last iteration of a loop is peeled where only there lanes have
        no work: a branch chooses a copy of the body in which the loop's variable is a constant.

        Args:
            moving: the loops of the nest that are not peeled yet.
            inside: the innermost loop of the nest.
        """
        if not moving:
            self._iteration(inside)
            return
        loop, *others = moving
        size = constant_value(polynomial(loop.extent))
        full = () if size is None else self._before_the_end(loop, inside.body)
        if size is None or not full:
            self._peeled(others, inside)
            return
        index, after = self.scope.values[loop.var], self.builder.append_basic_block("either")
        at_end, before = self.control.fork(self.builder.icmp_signed("==", index, I64(size - 1)))
        self.builder.position_at_end(before)
        with self.scope.frame(True), self.scope.deciding(full, True):
            self._peeled(others, inside)
        self.control.keep_apart()
        self.builder.branch(after)
        self.builder.position_at_end(at_end)
        del self.scope.values[loop.var]
        with self.scope.frame(True), self.scope.fixing(loop.var, size - 1), self.scope.deciding(full, None):
            self._peeled(others, inside)
        self.scope.values[loop.var] = index
        self.builder.branch(after)
        self.builder.position_at_end(after)

    def pointer(self, buffer: Buffer) -> ir.Value:
        """The address of a buffer; one that does not come from outside gets room at its first use."""
        found = self.pointers.get(buffer.name)
        if found is None:
            if buffer.scope is buffers.Scope.MEMORY:
                raise InternalError(f"buffer {buffer.name!r} has no memory", where=f"func {self.kernel.func.name!r}")
            found = self.pointers[buffer.name] = self.room(_array(buffer))
            if buffer.name in self.kernel.spilled:
                self.control.keep_in_memory(found, ir.IRBuilder(self.entry))
        return found

    def room(self, kind: ir.Type) -> ir.Value:
        """Memory of the function's frame."""
        slot = ir.IRBuilder(self.entry).alloca(kind)
        slot.align = _ALIGN
        return opaque(slot)

    # statements

    def statement(self, s: Stmt) -> None:
        """One statement."""
        match s:
            case Seq(stmts):
                for inner in stmts:
                    self.statement(inner)
            case Block():
                self.blocks.block(s)
            case For():
                self.loop(s)

    def loop(self, loop: For) -> None:
        """One loop; where something inside can be decided before it, one copy for either outcome."""
        choice = self._decision(loop)
        if choice is None:
            self._loop(loop)
            return
        after = self.builder.append_basic_block("either")
        outcomes = (True, False if choice.exact else None)
        for outcome, block in zip(outcomes, self.control.fork(self.values.value(choice.test)), strict=True):
            self.builder.position_at_end(block)
            with self.scope.frame(True), self.scope.deciding(choice.conditions, outcome):
                self.loop(loop)
            if outcome:
                self.control.keep_apart()
            self.builder.branch(after)
        self.builder.position_at_end(after)

    def _decision(self, loop: For) -> Decision | None:
        """What to decide before the loop, where that pays."""
        if loop.kind is LoopKind.PARALLEL or self.scope.lane is not None:
            return None
        inside = self._inside(loop, self.scope.bounds, {})
        if worthwhile(loop):
            return decision(inside, self.scope, self.blocks.cheap_masks)
        if loop.kind is LoopKind.VECTORIZED:
            return edge_decision(inside, self.scope, lambda inner: not self.blocks.slow_store(inner))
        return None

    def _inside(self, s: Stmt, bounds: Bounds, expanded: dict[Var, int]) -> Iterator[Inner]:
        match s:
            case Seq(stmts):
                for inner in stmts:
                    yield from self._inside(inner, bounds, expanded)
            case Block():
                with self.scope.knowing(bounds):
                    found = self.blocks.resolved(s)
                yield Inner(found, expanded, bounds)
            case For():
                size = constant_value(polynomial(s.extent))
                if s.kind is LoopKind.VECTORIZED:
                    self.scope.vector_variables.add(s.var)
                if size is not None and s.kind in (LoopKind.VECTORIZED, LoopKind.UNROLLED):
                    expanded = {**expanded, s.var: size}
                yield from self._inside(s.body, bounds.with_loop(s.var, s.extent), expanded)

    def _loop(self, loop: For) -> None:
        """One loop, by its kind."""
        size = constant_value(polynomial(loop.extent))
        with self.scope.knowing(self.scope.bounds.with_loop(loop.var, loop.extent)):
            if size is not None and size <= 0:
                return
            if size == 1:
                with self.scope.fixing(loop.var, 0):
                    self._iteration(loop)
            elif loop.kind is LoopKind.UNROLLED and size is not None:
                self._unrolled(loop, size)
            elif loop.kind is LoopKind.VECTORIZED and size is not None and self._vectorizable(loop):
                self._vectors(loop, size)
            elif loop.kind is LoopKind.PARALLEL and (team := self.team) is not None and self.scope.lane is None:
                parallel.emit(self, loop, team)
            else:
                self._serial(loop)

    def _unrolled(self, loop: For, size: int) -> None:
        """An unrolled loop."""
        inside = self._inside(loop.body, self.scope.bounds, {}) if self.scope.lane is None else ()
        apart = fills_registers(loop, inside, self.scope, self.kernel.target)
        for i in range(size):
            if apart and i:
                self.control.order_memory()
            with self.scope.fixing(loop.var, i):
                self._iteration(loop)

    def _vectors(self, loop: For, size: int) -> None:
        """A vectorized loop; vectors at its end that are known to have no work are left out."""
        with self.scope.vectorizing(loop.var, size):
            used = self.blocks.lanes_with_work(loop.body)
        if used == 0:
            return
        if isinstance(loop.body, Block) and used < size:
            shorter = first_lanes(loop, loop.body, used, self.kernel.target)
            if shorter is not loop:
                self.statement(shorter)
                return
        with self.scope.vectorizing(loop.var, size):
            self.statement(loop.body)

    def _vectorizable(self, loop: For) -> bool:
        """Whether no loop inside runs differently often in different lanes."""
        if self.scope.lane is not None:
            return False
        inner = (s for s, _ in walk(loop.body) if isinstance(s, For))
        return all(loop.var not in self.scope.facts(s.extent).variables for s in inner)

    def _serial(self, loop: For) -> None:
        row = row_reduction(loop, self.scope) if self.scope.lane is None else None
        if row is None or self.blocks.in_row(row.block):
            self.counted(loop)
        else:
            self.blocks.row(row, self.room, lambda: self.counted(loop))

    def counted(self, loop: For) -> None:
        """`for var in range(extent): body`."""
        if accumulates_alone(loop, self.kernel.spilled, self.kernel.target):
            self.control.order_memory()
        low = interval(loop.extent, self.scope.bounds)[0] or 0
        stop = self.values.value(loop.extent)
        full = self._before_the_end(loop, loop.body)
        if not full:
            self.control.ranged(loop.var, I64(0), stop, lambda: self._iteration(loop), certain=low > 0)
            return
        last = self.builder.sub(stop, I64(1), flags=("nsw",))
        with self.scope.deciding(full, True):
            self.control.ranged(loop.var, I64(0), last, lambda: self._iteration(loop), certain=low > 1)
        size = constant_value(polynomial(loop.extent))
        if size is not None:
            with self.scope.fixing(loop.var, size - 1), self.scope.deciding(full, None):
                self._iteration(loop)
            return
        with self.control.when(None if low > 0 else self.builder.icmp_signed(">", stop, I64(0))):
            self.scope.bind(loop.var, last)
            with self.scope.frame(True), self.scope.deciding(full, None):
                self._iteration(loop)
            self.scope.values.pop(loop.var, None)

    def _before_the_end(self, loop: For, body: Stmt) -> tuple[Expr, ...]:
        """Conditions of lanes that hold before the last iteration of a loop, which gets a copy of the body: in a loop
        around lanes alone always, else where the last iteration is known, so that its masks are constants."""
        if self.scope.lane is not None or loop.kind is LoopKind.VECTORIZED:
            return ()
        if not is_around_lanes(loop) and constant_value(polynomial(loop.extent)) is None:
            return ()
        inside = self._inside(body, self.scope.bounds.with_loop(loop.var, loop.extent), {})
        return before_the_end(loop, inside, self.scope)

    def _iteration(self, loop: For) -> None:
        """What one iteration of a loop does: its hints, then its body."""
        for hint in loop.prefetches:
            if not any(self.scope.by_lane(i) for i in hint.indices):  # lanes would ask one by one
                self.values.prefetch(hint)
        self.statement(loop.body)


def _array(buffer: Buffer) -> ir.Type:
    size = constant_value(polynomial(buffer.size))
    if size is None:
        raise InternalError(f"buffer {buffer.name!r} of scope {buffer.scope} needs a constant shape, has {buffer}")
    return ir.ArrayType(memory_type(buffer.dtype), size + PRIVATE_PADDING)
