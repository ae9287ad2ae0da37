"""Thread placement: threads of a team that find themselves on one CPU move apart, and keep their affinity masks."""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from tilewright.codegen.thread_placement import MAX_CPUS, MAX_PLACED_THREADS, define_placement
from tilewright.machine import Target
from tilewright.runtime.linker import create_jit_linker

ALLOWED = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(len(ALLOWED) < 2, reason="one CPU")


class ThreadOne:
    """The generated function, called as thread 1 of a team.

    Args:
        symbols: functions in place of the C library's.
    """

    def __init__(self, symbols: Mapping[str, Callable[..., int]] | None = None) -> None:
        module = ir.Module()
        module.triple = Target.host().triple
        define_placement(module, "place").linkage = "external"
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._jit = create_jit_linker()
        library = llvm.JITLibraryBuilder().add_ir(str(module)).add_current_process().export_symbol("place")
        self._symbols = symbols or {}
        for symbol, function in self._symbols.items():
            library.import_symbol(symbol, ctypes.cast(function, ctypes.c_void_p).value or 0)
        self._tracker = library.link(self._jit, f"placement{id(self)}")
        self.run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(self._tracker["place"])

    def __call__(self, cpu: int, taken: Sequence[int], allowed: Sequence[int]) -> int:
        """Begins on `cpu`, with threads 0, 2, ... on the CPUs `taken` (-1: unknown); returns the CPU that it stored."""
        others = [place + 1 for place in taken]
        places = (ctypes.c_int32 * MAX_PLACED_THREADS)(others[0], 0, *others[1:])
        os.sched_setaffinity(0, [cpu])
        os.sched_setaffinity(0, allowed)
        self.run(ctypes.addressof(places), 1, len(taken) + 1)
        assert os.sched_getaffinity(0) == set(allowed)
        assert [places[0], *places[2 : len(taken) + 1]] == others
        return places[1] - 1


@pytest.fixture
def place() -> Iterator[ThreadOne]:
    yield ThreadOne()
    os.sched_setaffinity(0, ALLOWED)


@needs_two_cpus
@pytest.mark.parametrize("cpu", ALLOWED[:4])
def test_a_thread_leaves_a_cpu_that_is_taken(place: ThreadOne, cpu: int) -> None:
    assert place(cpu, [cpu], ALLOWED) != cpu
    assert place(cpu, [-1, cpu], ALLOWED) != cpu


@needs_two_cpus
@pytest.mark.parametrize("cpu", ALLOWED[:4])
def test_a_thread_moves_to_a_cpu_that_nobody_has_taken(place: ThreadOne, cpu: int) -> None:
    free = next(c for c in ALLOWED if c != cpu)
    others = [c for c in ALLOWED if c != free][: MAX_PLACED_THREADS - 2]
    assert place(cpu, [cpu, *others], [*others, free]) == free


@needs_two_cpus
def test_a_thread_stays_where_no_cpu_is_free(place: ThreadOne) -> None:
    first, second = ALLOWED[:2]
    assert place(first, [first, second], [first, second]) in (first, second)


@pytest.mark.parametrize("cpu", ALLOWED[:4])
def test_a_pinned_thread_stays(place: ThreadOne, cpu: int) -> None:
    assert place(cpu, [cpu], [cpu]) == cpu
    assert place(cpu, [cpu + 1], [cpu]) == cpu


def test_threads_beyond_the_table_are_left_alone(place: ThreadOne) -> None:
    places = (ctypes.c_int32 * MAX_PLACED_THREADS)(*[c + 1 for c in ALLOWED[:MAX_PLACED_THREADS]])
    before = list(places)
    place.run(ctypes.addressof(places), MAX_PLACED_THREADS, MAX_PLACED_THREADS + 4)
    assert list(places) == before
    assert os.sched_getaffinity(0) == set(ALLOWED)


@dataclass
class Scheduler:
    """Affinity masks as Linux keeps them: a thread runs where its own mask and its cpuset allow.

    Attributes:
        cpu: where the thread runs; -1 where that can't be asked.
        cpuset: CPUs that the thread may be given.
        mask: CPUs that were asked for.
        is_readable: whether masks can be read: not where there are more CPUs than they have bits.
        is_writable: whether masks can be set.
        calls: number of system calls.
    """

    cpu: int
    cpuset: set[int]
    mask: set[int] = field(default_factory=lambda: set(range(MAX_CPUS)))
    is_readable: bool = True
    is_writable: bool = True
    calls: int = 0

    def system_call(self, number: int, thread: int, size: int, address: int) -> int:
        """sched_getaffinity and sched_setaffinity, which are told apart by their numbers: the latter is less."""
        self.calls += 1
        assert (thread, size) == (0, MAX_CPUS // 8)
        words = (ctypes.c_uint64 * (MAX_CPUS // 64)).from_address(address)
        if number in (204, 123):
            if not self.is_readable:
                return -1
            for cpu in self.mask & self.cpuset:
                words[cpu // 64] |= 1 << cpu % 64
            return 8
        mask = {c for c in range(MAX_CPUS) if words[c // 64] >> c % 64 & 1}
        if not self.is_writable or not mask & self.cpuset:
            return -1
        self.mask = mask
        self.cpu = self.cpu if self.cpu in mask & self.cpuset else min(mask & self.cpuset)
        return 0

    def place(self, taken: Sequence[int]) -> None:
        """Runs the generated function, with threads 0, 2, ... on the CPUs `taken`."""
        symbols = {
            "syscall": ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(self.system_call),
            "sched_getcpu": ctypes.CFUNCTYPE(ctypes.c_int)(lambda: self.cpu),
        }
        places = (ctypes.c_int32 * MAX_PLACED_THREADS)(taken[0] + 1, 0, *(c + 1 for c in taken[1:]))
        thread = ThreadOne(symbols)
        thread.run(ctypes.addressof(places), 1, len(taken) + 1)
        assert places[1] == self.cpu + 1


def test_a_thread_that_nobody_pinned_gets_cpus_that_are_added_later() -> None:
    kernel = Scheduler(3, {3, 200})
    kernel.place([3])
    assert kernel.cpu == 200
    assert {1, 2, MAX_CPUS - 1} <= kernel.mask


def test_a_mask_within_the_cpuset_is_restored() -> None:
    kernel = Scheduler(3, {1, 2, 3, 200}, {2, 3})
    kernel.place([3])
    assert kernel.cpu == 2
    assert kernel.mask == {2, 3}


@pytest.mark.parametrize("is_readable", [True, False])
def test_nothing_changes_where_masks_cannot_be_read_or_set(is_readable: bool) -> None:
    kernel = Scheduler(3, {3, 4}, {3, 4}, is_readable, is_writable=not is_readable)
    kernel.place([3])
    assert (kernel.cpu, kernel.mask) == (3, {3, 4})


def test_no_system_call_where_the_cpu_is_unknown() -> None:
    kernel = Scheduler(-1, {3, 4})
    kernel.place([-1, -1])
    assert kernel.calls == 0
