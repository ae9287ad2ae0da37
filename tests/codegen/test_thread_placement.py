"""Thread placement: threads of a team that find themselves on one CPU move apart, and keep their affinity masks."""

import ctypes
import os
from collections.abc import Iterator, Sequence

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from tilewright.codegen.thread_placement import MAX_PLACED_THREADS, define_placement
from tilewright.machine import Target
from tilewright.runtime.linker import create_jit_linker

ALLOWED = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(len(ALLOWED) < 2, reason="one CPU")


class ThreadOne:
    """The generated function, called as thread 1 of a team."""

    def __init__(self) -> None:
        module = ir.Module()
        module.triple = Target.host().triple
        define_placement(module, "place").linkage = "external"
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._jit = create_jit_linker()
        library = llvm.JITLibraryBuilder().add_ir(str(module)).add_current_process().export_symbol("place")
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
