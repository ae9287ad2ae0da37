"""Thread teams: one OpenMP parallel region per native call, in which every parallel loop is a *stage*.

A stage ends when its iterations are done, not when every thread has arrived.

    region(conduct, argument, threads)   starts the team; thread 0, the calling one, runs conduct(argument, team)
    stage(team, run, context, extent)    called by `conduct`: iterations 0..extent, in parts run(context, begin, end)

The other threads wait for stages and steal iterations of them (`work_stealing.py`). A stage is numbered; its
description lies in the team's memory and is overwritten by the next one. The counts of taken iterations contain the
number of their stage, so a late thread takes nothing, and only a thread that has taken iterations reads the context,
which lies on the stack of the function that waits for them. Decision 0016 explains why this is correct.

Threads that find themselves on one CPU move apart (`thread_placement.py`).

A waiting thread spins for a while and then sleeps until it is woken (Linux futex), so that threads without a core get
one. The end of a region and the start of the next one wait for all threads; where that took longer than the work, the
next calls run serially (exponential backoff).
"""

from collections.abc import Callable, Sequence
from functools import cached_property

from llvmlite import ir

from tilewright.codegen.backoff import next_backoff
from tilewright.codegen.llvm_types import (
    I1,
    I8,
    I32,
    I64,
    PTR,
    VOID,
    as_opaque_pointer,
    call_intrinsic,
    call_system,
    declare,
    shared_counter,
)
from tilewright.codegen.stage_linkage import STAGE_SYMBOL, StageLinkage
from tilewright.codegen.thread_placement import PLACES_TYPE, current_place, define_placement, store_place
from tilewright.codegen.work_stealing import (
    COUNTS_TYPE,
    MAX_PIECES,
    MAX_SHARES,
    TypedPointer,
    emit_work_stealing,
    reset_shares,
    store_atomic,
)

SPIN_TICKS = 1 << 17
"""Spinning time of a thread before it sleeps, in ticks of x86's time-stamp counter: 30 to 65 us at 2 to 4 GHz."""

_SPINS_PER_SECOND = 20_000
"""The same on AArch64, whose frequency can be read: 50 us."""

_SLICE_SPINS = 16
"""A region with an overhead of more than this many spinning times (0.5 to 1 ms) waited for a core."""

_REGION_END = I64(-1)
"""Stage number that stands for the end of the region."""

_FIELDS = (
    # written by thread 0, read by all
    ("stage", I64), ("run", PTR), ("context", PTR), ("extent", I64), ("pieces", I64), ("unit", I64), ("shares", I64),
    ("threads", I64), ("conduct", PTR), ("argument", PTR), ("began", I64), ("ended", I64), ("", ir.ArrayType(I8, 32)),
    # written by sleeping threads
    ("asleep", I32), ("", ir.ArrayType(I8, 124)),
    # written by all
    ("done", I64), ("awaited", I32), ("", ir.ArrayType(I8, 116)),
    # the CPU of each thread, written by itself
    ("places", PLACES_TYPE),
    ("counts", COUNTS_TYPE),
)  # fmt: skip
_TEAM_TYPE = ir.LiteralStructType([kind for _, kind in _FIELDS])
_COUNTS_OFFSET = 512
"""Bytes before the counts."""

RUN_TYPE = ir.FunctionType(VOID, [PTR, I64, I64])
"""Type of the functions that run iterations: context, begin, end."""

_CONDUCT_TYPE = ir.FunctionType(VOID, [PTR, PTR])
"""Type of the function that thread 0 runs: argument, team."""

_FIELD_TYPES = dict(_FIELDS)
_FIELD_INDICES = {name: k for k, (name, _) in enumerate(_FIELDS)}
_FUTEX_SYSCALL = {"x86_64": 202, "aarch64": 98}
"""Numbers of the system call."""
_WAIT, _WAKE = 0 | 128, 1 | 128
"""FUTEX_WAIT, FUTEX_WAKE, both FUTEX_PRIVATE_FLAG."""


class TeamEmitter:
    """Emits those functions of teams that a module uses.

    Args:
        module: its triple names the processor.
        stage_linkage: whether the module has a `stage` of its own, defines the one of all modules, or uses that.
    """

    def __init__(self, module: ir.Module, stage_linkage: StageLinkage = StageLinkage.OWN) -> None:
        self.module = module
        self._arch = str(module.triple).partition("-")[0]
        self._stage_linkage = stage_linkage

    def emit_start(self, b: ir.IRBuilder, primary: ir.Function, values: Sequence[ir.Value], threads: ir.Value) -> None:
        """Starts a team whose thread 0 calls `primary` with these values and the team.

        Args:
            b: where the code goes.
            primary: takes the values and, as its last parameter, the team.
            values: its other arguments.
            threads: i64.
        """
        kind = ir.LiteralStructType([v.type for v in values])
        argument = as_opaque_pointer(b.alloca(kind))
        for k, value in enumerate(values):
            b.store(value, b.gep(argument, [I32(0), I32(k)], source_etype=kind))
        function, inner = self._define_function(f"{primary.name}.conduct", VOID, [PTR, PTR])
        fields, team = function.args
        inner.call(primary, [*load_fields(inner, fields, kind), team])
        inner.ret_void()
        b.call(self.region, [as_opaque_pointer(function), argument, threads])

    @cached_property
    def region(self) -> ir.Function:
        """`void region(ptr conduct, ptr argument, i64 threads)`."""
        function, b = self._define_function("team.region", VOID, [PTR, PTR, I64])
        primary, argument, threads = function.args
        slot = b.alloca(_TEAM_TYPE)
        slot.align = 128
        team = as_opaque_pointer(slot)
        # hints, so races do not matter
        serial_calls, last_backoff = (shared_counter(self.module, name) for name in ("team.alone", "team.pause"))
        remaining = b.load_atomic(serial_calls, "monotonic", 8, typ=I64)
        with b.if_then(b.icmp_signed(">", remaining, I64(0)), likely=False):
            # the other threads fall asleep meanwhile: -1 says that the next region has to wake them
            is_last = b.icmp_signed("==", remaining, I64(1))
            store_atomic(b, b.select(is_last, I64(-1), b.sub(remaining, I64(1))), serial_calls, "monotonic")
            b.call(_typed_function(b.gep(primary, [I64(0)], source_etype=I8), _CONDUCT_TYPE), [argument, PTR(None)])
            b.ret_void()
        call_intrinsic(b, "memset.p0.i64", VOID, [team, I8(0), I64(_COUNTS_OFFSET), I1(0)])
        shares = call_intrinsic(b, "smin.i64", I64, [threads, I64(MAX_SHARES)])
        for name, value in (("conduct", primary), ("argument", argument), ("threads", threads), ("shares", shares)):
            b.store(value, _field_pointer(b, team, name))
        store_place(b, _field_pointer(b, team, "places"), I64(0), current_place(b))
        start_region = declare(self.module, "GOMP_parallel", VOID, [PTR, PTR, I32, I32])
        start_ticks = self._clock(b)
        b.call(start_region, [as_opaque_pointer(self._enter), team, b.trunc(threads, I32), I32(0)])
        end_ticks, began, ended = self._clock(b), _load_field(b, team, "began"), _load_field(b, team, "ended")
        overhead = b.add(b.sub(began, start_ticks), b.sub(end_ticks, ended))
        slice_ticks = b.mul(self._spin_limit(b), I64(_SLICE_SPINS))
        previous = b.load_atomic(last_backoff, "monotonic", 8, typ=I64)
        for value, counter in zip(
            next_backoff(b, (remaining, previous), overhead, b.sub(ended, began), slice_ticks),
            (serial_calls, last_backoff),
            strict=True,
        ):
            store_atomic(b, value, counter, "monotonic")
        b.ret_void()
        return function

    def define_stage(self) -> None:
        """Defines `stage` for kernels of other modules."""
        _ = self.stage

    @cached_property
    def stage(self) -> ir.Function:
        """`void stage(ptr team, ptr run, ptr context, i64 extent)`: returns when all iterations are done."""
        if self._stage_linkage is StageLinkage.USED:
            function = declare(self.module, STAGE_SYMBOL, VOID, [PTR, PTR, PTR, I64])
            # visible to the other modules of the artifact only
            function.linkage = "hidden"
            function.attributes.add("nounwind")
            return function
        function, b = self._define_function(STAGE_SYMBOL, VOID, [PTR, PTR, PTR, I64])
        if self._stage_linkage is StageLinkage.DEFINED:
            function.linkage = "hidden"
        team, run, context, extent = function.args
        number = b.add(_load_field(b, team, "stage"), I64(1))
        shares = _load_field(b, team, "shares")
        unit = b.add(b.udiv(extent, I64(MAX_PIECES)), I64(1))
        pieces = b.udiv(b.add(extent, b.sub(unit, I64(1))), unit)
        reset_shares(b, _field_pointer(b, team, "counts"), shares, number)
        for name, value in (("run", run), ("context", context), ("extent", extent), ("pieces", pieces), ("unit", unit),
                            ("done", I64(0))):  # fmt: skip
            store_atomic(b, value, _field_pointer(b, team, name), "monotonic")
        self._announce_stage(b, team, number)
        b.call(self._work, [team, I64(0), number])
        b.call(self._await_done, [team, pieces])
        b.ret_void()
        return function

    def _announce_stage(self, b: ir.IRBuilder, team: ir.Value, number: ir.Value) -> None:
        """Publishes a stage, or the end of the region, and wakes sleeping threads."""
        # a thread that falls asleep first counts itself, then reads the number: one of the two sees the other
        store_atomic(b, number, _field_pointer(b, team, "stage"), "seq_cst")
        asleep = b.load_atomic(_field_pointer(b, team, "asleep"), "seq_cst", 4, typ=I32)
        with b.if_then(b.icmp_signed(">", asleep, I32(0)), likely=False):
            store_place(b, _field_pointer(b, team, "places"), I64(0), current_place(b))
            self._futex(b, _field_pointer(b, team, "stage"), _WAKE, I32(2**31 - 1))

    @cached_property
    def _enter(self) -> ir.Function:
        """The function that every thread of the region runs."""
        function, b = self._define_function("team.enter", VOID, [PTR])
        (team,) = function.args
        thread = b.call(declare(self.module, "omp_get_thread_num", I32, []), [])
        helps, conducts = b.append_basic_block("helps"), b.append_basic_block("conducts")
        b.cbranch(b.icmp_signed("==", thread, I32(0)), conducts, helps)
        b.position_at_end(conducts)
        b.store(self._clock(b), _field_pointer(b, team, "began"))
        b.call(
            _typed_function(_load_field(b, team, "conduct"), _CONDUCT_TYPE), [_load_field(b, team, "argument"), team]
        )
        b.store(self._clock(b), _field_pointer(b, team, "ended"))
        self._announce_stage(b, team, _REGION_END)
        b.ret_void()
        b.position_at_end(helps)
        wait_block, work_block, end_block = (b.append_basic_block(n) for n in ("look", "found", "over"))
        number = b.zext(thread, I64)
        self._leave_taken_cpu(b, team, number)
        b.branch(wait_block)
        b.position_at_end(wait_block)
        seen = b.phi(I64, name="seen")
        stage = b.call(self._await_stage, [team, number, seen])
        seen.add_incoming(I64(0), helps)
        seen.add_incoming(stage, work_block)
        b.cbranch(b.icmp_signed("==", stage, _REGION_END), end_block, work_block)
        b.position_at_end(work_block)
        b.call(self._work, [team, number, stage])
        b.branch(wait_block)
        b.position_at_end(end_block)
        b.ret_void()
        return function

    @cached_property
    def _work(self) -> ir.Function:
        """`void work(ptr team, i64 thread, i64 number)`: takes iterations of a stage until none is left."""
        function, b = self._define_function("team.work", VOID, [PTR, I64, I64])
        team, thread, number = function.args
        # the next stage may overwrite these meanwhile, but then nothing of this one is left to take
        names = ("run", "context", "extent", "pieces", "unit", "shares")
        run, context, extent, pieces, unit, shares = (
            b.load_atomic(_field_pointer(b, team, name), "monotonic", 8, typ=_FIELD_TYPES[name]) for name in names
        )

        def run_pieces(begin: ir.Value, end: ir.Value) -> None:
            first, last = b.mul(begin, unit), call_intrinsic(b, "smin.i64", I64, [b.mul(end, unit), extent])
            b.call(_typed_function(run, RUN_TYPE), [context, first, last])

        def report_done(count: ir.Value) -> None:
            done = b.add(b.atomic_rmw("add", _field_pointer(b, team, "done"), count, "seq_cst"), count)
            with b.if_then(b.icmp_signed("==", done, pieces), likely=False):
                # changed before the wake-up, so that the waiting thread does not fall asleep after it
                awaited = b.atomic_rmw("xchg", _field_pointer(b, team, "awaited"), I32(0), "seq_cst")
                with b.if_then(b.icmp_signed("!=", awaited, I32(0)), likely=False):
                    self._futex(b, _field_pointer(b, team, "awaited"), _WAKE, I32(1))

        emit_work_stealing(
            b, _field_pointer(b, team, "counts"), (thread, number, shares, pieces), run_pieces, report_done
        )
        b.ret_void()
        return function

    @cached_property
    def _await_stage(self) -> ir.Function:
        """`i64 await_stage(ptr team, i64 thread, i64 seen)`: waits for a stage other than `seen` and returns its
        number."""
        function, b = self._define_function("team.await_stage", I64, [PTR, I64, I64])
        team, thread, seen = function.args
        head = b.append_basic_block("head")
        b.branch(head)
        b.position_at_end(head)
        late = self._spin(b, _field_pointer(b, team, "stage"), lambda now: b.icmp_signed("!=", now, seen), b.ret)
        b.position_at_end(late)
        b.atomic_rmw("add", _field_pointer(b, team, "asleep"), I32(1), "seq_cst")
        # the system call compares the lower half of the number, which comes first (little-endian)
        self._futex(b, _field_pointer(b, team, "stage"), _WAIT, b.trunc(seen, I32))
        b.atomic_rmw("sub", _field_pointer(b, team, "asleep"), I32(1), "seq_cst")
        self._leave_taken_cpu(b, team, thread)
        b.branch(head)
        return function

    def _leave_taken_cpu(self, b: ir.IRBuilder, team: ir.Value, thread: ir.Value) -> None:
        """Moves the calling thread away from a CPU that another thread of the team is on."""
        b.call(self._placement, [_field_pointer(b, team, "places"), thread, _load_field(b, team, "threads")])

    @cached_property
    def _placement(self) -> ir.Function:
        return define_placement(self.module, "team.place")

    @cached_property
    def _await_done(self) -> ir.Function:
        """`void await_done(ptr team, i64 pieces)`: returns when all pieces of the stage are done."""
        function, b = self._define_function("team.await_done", VOID, [PTR, I64])
        team, pieces = function.args
        awaited = _field_pointer(b, team, "awaited")
        head, doze, awake = (b.append_basic_block(n) for n in ("head", "doze", "awake"))
        b.branch(head)
        b.position_at_end(head)
        late = self._spin(
            b, _field_pointer(b, team, "done"), lambda now: b.icmp_signed("==", now, pieces), lambda _: b.ret_void()
        )
        b.position_at_end(late)
        # the last thread first counts its pieces, then reads `awaited`: one of the two sees the other
        store_atomic(b, I32(1), awaited, "seq_cst")
        done = b.load_atomic(_field_pointer(b, team, "done"), "seq_cst", 8, typ=I64)
        b.cbranch(b.icmp_signed("==", done, pieces), awake, doze)
        b.position_at_end(doze)
        self._futex(b, awaited, _WAIT, I32(1))
        b.branch(awake)
        b.position_at_end(awake)
        store_atomic(b, I32(0), awaited, "monotonic")
        b.branch(head)
        return function

    def _spin(
        self,
        b: ir.IRBuilder,
        pointer: ir.Value,
        holds: Callable[[ir.Value], ir.Value],
        then: Callable[[ir.Value], object],
    ) -> ir.Block:
        """Polls an i64 until a condition holds of it, then emits `then`, which returns from the function.

        Returns:
            The block that is reached when the spinning time is over.
        """
        poll, success, failure, late = (b.append_basic_block(n) for n in ("look", "good", "bad", "late"))
        start = self._clock(b)
        b.branch(poll)
        b.position_at_end(poll)
        now = b.load_atomic(pointer, "acquire", 8, typ=I64)
        b.cbranch(holds(now), success, failure)
        b.position_at_end(success)
        then(now)
        b.position_at_end(failure)
        self._relax(b)
        spent = b.sub(self._clock(b), start)
        b.cbranch(b.icmp_unsigned("<", spent, self._spin_limit(b)), poll, late)
        return late

    def _relax(self, b: ir.IRBuilder) -> None:
        """Tells the processor that the thread is spinning."""
        if self._arch == "x86_64":
            b.call(declare(self.module, "llvm.x86.sse2.pause", VOID, []), [])
        else:
            call_intrinsic(b, "aarch64.hint", VOID, [I32(1)])

    def _clock(self, b: ir.IRBuilder) -> ir.Value:
        """A counter that user programs may read."""
        if self._arch == "x86_64":
            return call_intrinsic(b, "readcyclecounter", I64, [])
        return self._read_register(b, "cntvct_el0")

    def _spin_limit(self, b: ir.IRBuilder) -> ir.Value:
        """Ticks that a thread spins."""
        if self._arch == "x86_64":
            return I64(SPIN_TICKS)
        return b.udiv(self._read_register(b, "cntfrq_el0"), I64(_SPINS_PER_SECOND))

    def _read_register(self, b: ir.IRBuilder, name: str) -> ir.Value:
        read = declare(self.module, "llvm.read_volatile_register.i64", I64, [ir.MetaDataType()])
        return b.call(read, [self.module.add_metadata([name])])

    def _futex(self, b: ir.IRBuilder, pointer: ir.Value, operation: int, value: ir.Value) -> None:
        """The system call that puts the thread to sleep while an i32 has a value, or wakes that many sleeping
        threads."""
        call_system(b, _FUTEX_SYSCALL[self._arch], [pointer, I64(operation), b.zext(value, I64), *[I64(0)] * 3])

    def _define_function(self, name: str, result: ir.Type, kinds: list[ir.Type]) -> tuple[ir.Function, ir.IRBuilder]:
        function = ir.Function(self.module, ir.FunctionType(result, kinds), self.module.get_unique_name(name))
        function.linkage = "internal"
        for attribute in ("nounwind", "noinline"):
            function.attributes.add(attribute)
        return function, ir.IRBuilder(function.append_basic_block("entry"))


def load_fields(b: ir.IRBuilder, context: ir.Value, kind: ir.LiteralStructType) -> list[ir.Value]:
    """Loads of all fields of the structure of type `kind` that `context` points to, in order."""
    return [b.load(b.gep(context, [I32(0), I32(i)], source_etype=kind), typ=element)
            for i, element in enumerate(kind.elements)]  # fmt: skip


def _typed_function(pointer: ir.Value, kind: ir.FunctionType) -> ir.Value:
    """A function pointer in the form that llvmlite can call."""
    setattr(pointer, "type", TypedPointer(kind))  # noqa: B010 - the attribute is read-only only in the type stubs
    return pointer


def _field_pointer(b: ir.IRBuilder, team: ir.Value, name: str) -> ir.Value:
    return as_opaque_pointer(b.gep(team, [I32(0), I32(_FIELD_INDICES[name])], source_etype=_TEAM_TYPE))


def _load_field(b: ir.IRBuilder, team: ir.Value, name: str) -> ir.Value:
    """A field that no other thread writes."""
    return b.load(_field_pointer(b, team, name), typ=_FIELD_TYPES[name])
