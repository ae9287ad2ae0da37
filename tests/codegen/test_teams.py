"""When threads are started, how many, and that they divide the work however late each is: OpenMP's functions are stood
in for by functions of this test, which run the members of a team one after the other or all at once."""

import ctypes
import threading
from collections.abc import Sequence

import llvmlite.binding as llvm
import numpy as np
import pytest

from tilewright.codegen import Call, Input, Output, Segment, compile_object, emit_llvm
from tilewright.expr.nodes import Expr, Var, const
from tilewright.loops.parser import parse
from tilewright.machine import Target
from tilewright.runtime.loader import MAIN, entry_names

K = Var("K", 1, 1000)

DOUBLE = """
func double(X: float32[K], Y: float32[K]; K: 1..1000):
    for i in parallel(K):
        block Y(v: K = i):
            Y[v] = Y[v] + X[v] * 2.0
"""

SLOW = """
func double(X: float32[K], Y: float32[K]; K: 1..1000):
    for i in parallel(K):
        for j in serial(2000):
            block Y(v: K = i, w: 2000 = j):
                Y[v] = Y[v] + X[v] * select(w == 1000, 2.0, sin(cast(float32, v)) * 0.0)
"""
"""The same, each iteration in microseconds."""


class Team:
    """One segment that calls the kernel once, linked with functions that note what they are asked for."""

    def __init__(self, grains: Expr | None, func: str = DOUBLE) -> None:
        target = Target.host()
        call = Call("double", (Input(0), Output(0)), (K,), grains)
        segment = Segment("tw", (K,), (call,), const(0), ((K,),))
        self.started: list[int] = []
        self.given = 0
        self.order: Sequence[int] = ()
        self.at_once = False
        self.left: list[int] = []
        self._member, self._together = threading.local(), threading.Barrier(1)
        body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

        def member(thread: int, enter: int, data: int) -> None:
            self._member.number = thread
            body(enter)(data)
            self.left.append(int(np.count_nonzero(self._results == 0)))

        def start(enter: int, data: int, threads: int, flags: int) -> None:
            self.started.append(threads)
            given = self.given or threads
            self._together = threading.Barrier(given)
            order = self.order or range(given)
            members = [threading.Thread(target=member, args=(t, enter, data)) for t in order]
            for running in members:
                running.start()
                if not self.at_once:
                    running.join()
            for running in members:
                running.join()

        self._kept = [
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(start),
            ctypes.CFUNCTYPE(ctypes.c_int)(self._number),
        ]
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._jit = llvm.create_lljit_compiler()
        code = compile_object(emit_llvm([parse(func)], [segment], target), target)
        library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        library.export_symbol(entry_names("tw")[3])
        names = ("GOMP_parallel", "omp_get_thread_num")
        for name, function in zip(names, self._kept, strict=True):
            library.import_symbol(name, ctypes.cast(function, ctypes.c_void_p).value or 0)
        self._results = np.zeros(0, np.float32)
        self._tracker = library.link(self._jit, f"team{id(self)}")
        self._main = MAIN(self._tracker[entry_names("tw")[3]])

    def _number(self) -> int:
        if self.at_once:
            self._together.wait()
        return self._member.number

    def __call__(self, size: int, threads: int) -> list[int]:
        """Runs the kernel once, checks its result, and returns how many threads were started, if any."""
        self.started.clear()
        self.left.clear()
        x, y = np.arange(1, size + 1, dtype=np.float32), np.zeros(size, np.float32)
        self._results = y
        pointers = [(ctypes.c_void_p * 1)(a.ctypes.data) for a in (x, y)]
        assert self._main(*pointers, None, None, (ctypes.c_int64 * 1)(size), threads) == 0
        np.testing.assert_array_equal(y, 2 * x)  # each element once
        return list(self.started)


@pytest.mark.parametrize(("threads", "asked"), [(2, 2), (3, 3), (4, 3), (5, 4), (8, 4), (9, 5), (64, 7)])
def test_more_threads_ask_for_more_work(threads: int, asked: int) -> None:
    team = Team(K)
    assert team(asked - 1, threads) == []
    assert team(asked, threads) == [threads]


def test_work_that_is_known_at_compile_time() -> None:
    assert Team(const(2))(100, 2) == [2]
    assert Team(const(1))(100, 2) == []


@pytest.mark.parametrize("grains", [None, K, const(0)])
def test_one_thread_starts_nothing(grains: Expr | None) -> None:
    assert Team(grains)(100, 1) == []


@pytest.mark.parametrize("size", [2, 3, 7, 8, 9, 100])
def test_teams_are_of_one_size(size: int) -> None:
    """Even with fewer iterations than threads."""
    assert Team(None)(size, 8) == [8]


def test_one_iteration_runs_on_the_calling_thread() -> None:
    assert Team(None)(1, 8) == []


@pytest.mark.parametrize("given", [1, 2, 5, 8])
def test_openmp_may_give_fewer_threads(given: int) -> None:
    team = Team(None)
    team.given = given
    assert team(17, 8) == [8]


@pytest.mark.parametrize(("first", "threads"), [(0, 8), (1, 8), (6, 8), (37, 40)])
@pytest.mark.parametrize("size", [2, 17, 100, 1000])
def test_iterations_do_not_wait_for_threads_that_come_late(size: int, first: int, threads: int) -> None:
    """The first thread to arrive does all the work while the others sleep."""
    team = Team(None)
    team.order = [first, *(t for t in range(threads) if t != first)]
    team(size, threads)
    assert team.left == [0] * threads


@pytest.mark.parametrize("threads", [2, 3, 32, 33, 40])
def test_each_iteration_runs_once_where_threads_run_at_once(threads: int) -> None:
    """With more threads than shares too. That counts are exchanged in one step is in the golden text of a module: what
    went wrong otherwise would go wrong within nanoseconds, too rarely for a test."""
    team = Team(None, SLOW)
    team.at_once = True
    for size in (2, threads, 97, 1000):
        for _ in range(3):
            assert team(size, threads) == [threads]
