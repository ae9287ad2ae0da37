"""Thread placement: a thread of a team moves to another CPU when it finds itself on one that another thread has taken.

Linux wakes a thread on the CPU of the thread that wakes it unless it searches for an idle one, and it searches fewer
CPUs the busier those are that share a last-level cache: of two, where the other thread computes, none at all. Both
threads then stay on one CPU for many calls, each of which takes as long as on one thread, while the other CPU idles.

A thread that finds its CPU taken excludes the taken CPUs from its affinity mask, which moves it at once, and then
restores the mask. Where the mask has no other CPU (pinned threads), nothing is done. A thread that nobody has pinned
gets a mask of all CPUs instead of the one that was read: Linux keeps a mask that is set, and a thread with the CPUs
that its cpuset had once would get no CPUs that are added to the cpuset later. Decision 0047.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import reduce

from llvmlite import ir

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
)
from tilewright.codegen.work_stealing import store_atomic

MAX_PLACED_THREADS = 32
"""Threads whose CPUs are compared; further ones stay where they are."""

MAX_CPUS = 1024
"""CPUs of an affinity mask, as in glibc's `cpu_set_t`."""

PLACES_TYPE = ir.ArrayType(I32, MAX_PLACED_THREADS)
"""The CPU of each thread, plus 1; 0 where it is unknown."""

_MASK_WORDS = MAX_CPUS // 64
_MASK_BYTES = I64(MAX_CPUS // 8)
_MASK_TYPE = ir.ArrayType(I64, _MASK_WORDS)
_SET_AFFINITY = {"x86_64": 203, "aarch64": 122}
_GET_AFFINITY = {"x86_64": 204, "aarch64": 123}
"""Numbers of the system calls."""


def current_place(b: ir.IRBuilder) -> ir.Value:
    """The CPU of the calling thread as an element of `PLACES_TYPE`."""
    return b.add(b.call(declare(b.module, "sched_getcpu", I32, []), []), I32(1))


def store_place(b: ir.IRBuilder, places: ir.Value, thread: ir.Value, place: ir.Value) -> None:
    """Stores the CPU of a thread below `MAX_PLACED_THREADS`; a hint, so it has no order."""
    store_atomic(b, place, _place_pointer(b, places, thread), "monotonic")


def define_placement(module: ir.Module, name: str) -> ir.Function:
    """Defines `void name(ptr places, i64 thread, i64 threads)`, which a thread other than 0 calls where it begins and
    whenever it has been woken; `threads` is the size of the team.

    Args:
        module: its triple names the processor.
        name: of the function.
    """
    function, b = _define_function(module, name)
    places, thread, threads = function.args
    with b.if_then(b.icmp_signed(">=", thread, I64(MAX_PLACED_THREADS)), likely=False):
        b.ret_void()
    threads = call_intrinsic(b, "smin.i64", I64, [threads, I64(MAX_PLACED_THREADS)])
    place = current_place(b)
    store_place(b, places, thread, place)
    with b.if_then(b.icmp_signed("==", place, I32(0)), likely=False):
        b.ret_void()
    with _other_threads(b, thread, threads) as other:
        is_taken = b.icmp_signed("==", _load_place(b, places, other), place)
        with b.if_then(is_taken, likely=False):
            b.call(_define_move(module, f"{name}.move"), [places, thread, threads])
            b.ret_void()
    b.ret_void()
    return function


def _define_move(module: ir.Module, name: str) -> ir.Function:
    """`void move(ptr places, i64 thread, i64 threads)`: moves to an allowed CPU that no other thread has taken."""
    function, b = _define_function(module, name)
    places, thread, threads = function.args
    allowed, free = (as_opaque_pointer(b.alloca(_MASK_TYPE)) for _ in range(2))
    with b.if_then(b.icmp_signed("<=", _read_mask(b, allowed), I64(0)), likely=False):
        b.ret_void()
    call_intrinsic(b, "memcpy.p0.p0.i64", VOID, [free, allowed, _MASK_BYTES, I1(0)])
    with _other_threads(b, thread, threads) as other:
        cpu = b.zext(b.sub(_load_place(b, places, other), I32(1)), I64)
        with b.if_then(b.icmp_unsigned("<", cpu, I64(MAX_CPUS))):
            word = _word_pointer(b, free, b.lshr(cpu, I64(6)))
            bit = b.shl(I64(1), b.and_(cpu, I64(63)))
            b.store(b.and_(b.load(word, typ=I64), b.not_(bit)), word)
    with b.if_then(b.icmp_signed("!=", reduce(b.or_, _words(b, free)), I64(0))):
        _set_mask(b, free)
        _restore_mask(b, allowed, free)
        store_place(b, places, thread, current_place(b))
    b.ret_void()
    return function


def _restore_mask(b: ir.IRBuilder, allowed: ir.Value, other: ir.Value) -> None:
    """Sets the mask to all CPUs where that allows what was allowed before, else to what was allowed.

    Args:
        b: where the code goes.
        allowed: the mask before.
        other: memory of another one.
    """
    call_intrinsic(b, "memset.p0.i64", VOID, [other, I8(-1), _MASK_BYTES, I1(0)])
    _set_mask(b, other)
    _read_mask(b, other)
    differences = [b.xor(x, y) for x, y in zip(_words(b, allowed), _words(b, other), strict=True)]
    with b.if_then(b.icmp_signed("!=", reduce(b.or_, differences), I64(0))):
        _set_mask(b, allowed)


def _read_mask(b: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    """Reads the thread's affinity mask; returns bytes of it, negative after errors, among them more than `MAX_CPUS`."""
    call_intrinsic(b, "memset.p0.i64", VOID, [mask, I8(0), _MASK_BYTES, I1(0)])
    return call_system(b, _GET_AFFINITY[_arch(b)], [I64(0), _MASK_BYTES, mask])


def _set_mask(b: ir.IRBuilder, mask: ir.Value) -> None:
    """Sets the thread's affinity mask; a thread on a CPU outside moves at once."""
    call_system(b, _SET_AFFINITY[_arch(b)], [I64(0), _MASK_BYTES, mask])


def _arch(b: ir.IRBuilder) -> str:
    return str(b.module.triple).partition("-")[0]


@contextmanager
def _other_threads(b: ir.IRBuilder, thread: ir.Value, threads: ir.Value) -> Generator[ir.Value]:
    """A loop over the threads below `threads` (at least one) except `thread`."""
    preheader, header, latch, exit_block = (b.block, *(b.append_basic_block(n) for n in ("thread", "next", "placed")))
    b.branch(header)
    b.position_at_end(header)
    other = b.phi(I64, name="other")
    other.add_incoming(I64(0), preheader)
    with b.if_then(b.icmp_signed("!=", other, thread)):
        yield other
    b.branch(latch)
    b.position_at_end(latch)
    following = b.add(other, I64(1))
    other.add_incoming(following, latch)
    b.cbranch(b.icmp_signed("<", following, threads), header, exit_block)
    b.position_at_end(exit_block)


def _load_place(b: ir.IRBuilder, places: ir.Value, thread: ir.Value) -> ir.Value:
    return b.load_atomic(_place_pointer(b, places, thread), "monotonic", 4, typ=I32)


def _place_pointer(b: ir.IRBuilder, places: ir.Value, thread: ir.Value) -> ir.Value:
    return as_opaque_pointer(b.gep(places, [I64(0), thread], source_etype=PLACES_TYPE))


def _words(b: ir.IRBuilder, mask: ir.Value) -> list[ir.Value]:
    return [b.load(_word_pointer(b, mask, I64(k)), typ=I64) for k in range(_MASK_WORDS)]


def _word_pointer(b: ir.IRBuilder, mask: ir.Value, word: ir.Value) -> ir.Value:
    return as_opaque_pointer(b.gep(mask, [I64(0), word], source_etype=_MASK_TYPE))


def _define_function(module: ir.Module, name: str) -> tuple[ir.Function, ir.IRBuilder]:
    function = ir.Function(module, ir.FunctionType(VOID, [PTR, I64, I64]), module.get_unique_name(name))
    function.linkage = "internal"
    for attribute in ("nounwind", "noinline"):
        function.attributes.add(attribute)
    return function, ir.IRBuilder(function.append_basic_block("entry"))
