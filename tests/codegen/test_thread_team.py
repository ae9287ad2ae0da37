"""Thread teams: when they are started, their size, and work division with late threads.

OpenMP's functions are replaced by functions of this test, which start threads of their own.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir
from tests.codegen.native import Native

from tilewright.codegen import KernelCall, Segment, compile_object, emit_llvm
from tilewright.codegen.backoff import MAX_SERIAL_CALLS, next_backoff
from tilewright.codegen.work_stealing import MAX_PIECES
from tilewright.expr.nodes import Expr, Symbol, const
from tilewright.graph.buffer_location import InputLocation, OutputLocation
from tilewright.loops.parser import parse
from tilewright.machine import Target
from tilewright.runtime.linker import MAIN_TYPE, create_jit_linker, entry_symbols

K = Symbol("K", 1, 1000)

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
"""The same, with iterations of microseconds."""


PATIENCE = 30
"""Seconds after which a finished thread stops waiting for others: far more than a busy machine needs."""


class Team:
    """One segment of a few kernel calls, linked with recording OpenMP functions.

    Attributes:
        started: requested threads per region.
        given: threads provided instead; 0 for as many as requested.
        delays: seconds by which the threads are late, from the first on.
        last: threads that only arrive when thread 0 has finished.
        waited: whether thread 0 waited for one of these until the timeout.
    """

    def __init__(self, calls: Sequence[Expr | None], func: str = DOUBLE) -> None:
        target = Target.host()
        kernel_calls = tuple(
            KernelCall("double", (InputLocation(0), OutputLocation(0)), (K,), grains) for grains in calls
        )
        segment = Segment("tw", (K,), kernel_calls, const(0), ((K,),))
        self.calls = len(kernel_calls)
        self.started: list[int] = []
        self.given = 0
        self.delays: Sequence[float] = ()
        self.last: Sequence[int] = ()
        self.waited = False
        self._member = threading.local()
        body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

        def member(thread: int, enter: int, data: int, over: threading.Event) -> None:
            self._member.number = thread
            if thread in self.last:
                self.waited |= not over.wait(PATIENCE)
            elif thread < len(self.delays):
                time.sleep(self.delays[thread])
            body(enter)(data)
            if thread == 0:
                over.set()

        def start(enter: int, data: int, threads: int, flags: int) -> None:
            self.started.append(threads)
            over = threading.Event()
            others = range(1, self.given or threads)
            members = [threading.Thread(target=member, args=(t, enter, data, over)) for t in others]
            for running in members:
                running.start()
            member(0, enter, data, over)
            for running in members:
                running.join()

        self._kept = [
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(start),
            ctypes.CFUNCTYPE(ctypes.c_int)(lambda: self._member.number),
        ]
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._jit = create_jit_linker()
        code = compile_object(emit_llvm([parse(func)], [segment], target), target)
        library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        library.export_symbol(entry_symbols("tw")[3])
        names = ("GOMP_parallel", "omp_get_thread_num")
        for name, function in zip(names, self._kept, strict=True):
            library.import_symbol(name, ctypes.cast(function, ctypes.c_void_p).value or 0)
        self._tracker = library.link(self._jit, f"team{id(self)}")
        self._main = MAIN_TYPE(self._tracker[entry_symbols("tw")[3]])

    def __call__(self, size: int, threads: int) -> list[int]:
        """Runs the segment until it starts threads, at most as often as backoff allows, and checks every result;
        returns the number of threads per region."""
        for _ in range(MAX_SERIAL_CALLS + 1):
            started = self.once(size, threads)
            if started:
                return started
        return []

    def once(self, size: int, threads: int) -> list[int]:
        """The same for a single run."""
        self.started.clear()
        x, y = np.arange(1, size + 1, dtype=np.float32), np.zeros(size, np.float32)
        pointers = [(ctypes.c_void_p * 1)(a.ctypes.data) for a in (x, y)]
        assert self._main(*pointers, None, None, (ctypes.c_int64 * 1)(size), threads) == 0
        np.testing.assert_array_equal(y, 2 * self.calls * x)  # each element once per call
        return list(self.started)


@pytest.mark.parametrize(("threads", "asked"), [(2, 2), (3, 3), (4, 3), (5, 4), (8, 4), (9, 5), (64, 7)])
def test_more_threads_need_more_work(threads: int, asked: int) -> None:
    team = Team([K])
    assert team(asked - 1, threads) == []
    assert team(asked, threads) == [threads]


def test_constant_amount_of_work() -> None:
    assert Team([const(2)])(100, 2) == [2]
    assert Team([const(1)])(100, 2) == []


@pytest.mark.parametrize("grains", [None, K, const(0)])
def test_no_team_for_one_thread(grains: Expr | None) -> None:
    assert Team([grains])(100, 1) == []


def test_one_team_per_call() -> None:
    """Small kernels between large ones included; no team where all are small."""
    assert Team([const(0), None, const(0), K, const(0)])(100, 3) == [3]
    assert Team([const(0), const(0)])(100, 3) == []


def test_backoff_while_threads_cost_more_than_work() -> None:
    """One serial call after the first region with a large overhead, then three, and so on; late threads cause the
    overhead."""
    team = Team([None])
    team.delays = [0.0, 2e-3]
    started = [bool(team.once(100, 2)) for _ in range(12)]
    assert started == [True, False, True, False, False, False, True, *[False] * 5]
    # whatever the overhead, a region is tried again after at most this many calls
    assert any(team.once(100, 2) for _ in range(MAX_SERIAL_CALLS + 1))


@pytest.fixture
def backoff() -> Iterator[Callable[..., tuple[int, int]]]:
    """`next_backoff` on numbers: remaining, previous, overhead, work, slice -> remaining, previous."""
    i64 = ir.IntType(64)
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [*[i64] * 5, ir.PointerType()]), "pace")
    b = ir.IRBuilder(function.append_basic_block())
    left, before, lost, work, limit, out = function.args
    for k, value in enumerate(next_backoff(b, (left, before), lost, work, limit)):
        b.store(value, b.gep(out, [ir.Constant(i64, k)], source_etype=i64))
    b.ret_void()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    jit = create_jit_linker()
    tracker = llvm.JITLibraryBuilder().add_ir(str(module)).export_symbol("pace").link(jit, "pace")
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5, ctypes.c_void_p)(tracker["pace"])

    def backoff(*values: int) -> tuple[int, int]:
        result = (ctypes.c_int64 * 2)()
        run(*values, ctypes.addressof(result))
        return result[0], result[1]

    yield backoff
    del tracker, jit


def test_region_that_wakes_threads_keeps_the_backoff(backoff: Callable[..., tuple[int, int]]) -> None:
    """After serial calls the other threads sleep; the time to wake them must not cause more serial calls."""
    assert backoff(0, 0, 5, 10, 1000) == (0, 0)
    assert backoff(0, 0, 50, 10, 1000) == (1, 1)
    # the region after the serial call has the same overhead, as it wakes threads: the next one is tried, and is cheap
    assert backoff(-1, 1, 50, 10, 1000) == (0, 1)
    assert backoff(0, 1, 5, 10, 1000) == (0, 0)
    # or it has a large overhead without waking threads
    assert backoff(0, 1, 50, 10, 1000) == (3, 3)
    # a region that waited for a core, longer than any wake-up takes, is not retried at once
    assert backoff(-1, 3, 5000, 10, 1000) == (7, 7)
    assert backoff(0, 63, 50, 10, 1000) == (MAX_SERIAL_CALLS, MAX_SERIAL_CALLS)


def test_no_team_for_serial_kernels() -> None:
    assert Team([None], DOUBLE.replace("parallel", "serial"))(100, 3) == []


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 100])
def test_team_size_is_constant(size: int) -> None:
    """Even with fewer iterations than threads."""
    assert Team([None])(size, 8) == [8]


@pytest.mark.parametrize("team_size", [1, 2, 5, 8])
def test_openmp_can_provide_fewer_threads(team_size: int) -> None:
    team = Team([None, None])
    team.given = team_size
    assert team(17, 8) == [8]


@pytest.mark.parametrize("threads", [2, 8, 33, 40])
@pytest.mark.parametrize("size", [2, 17, 1000])
def test_no_stage_waits_for_late_threads(size: int, threads: int) -> None:
    """Thread 0 does all the work and ends while the others sleep."""
    team = Team([None, None])
    team.last = range(1, threads)
    assert team(size, threads) == [threads]
    assert not team.waited


@pytest.mark.parametrize("threads", [2, 3, 8, 33])
def test_each_iteration_runs_once(threads: int) -> None:
    """Threads that arrive before thread 0, during the work, or after it, on few cores."""
    team, rng = Team([None] * 4, SLOW), np.random.default_rng(threads)
    for size in (2, threads, 97, 1000):
        for _ in range(3):
            team.delays = rng.uniform(0, 4e-3, threads)
            assert team(size, threads) == [threads]


STAGES = """
func stages(X: float32[K], Y: float32[K]; K: 1..1000):
    for r in serial(40):
        for i in parallel(K):
            block Y(v: K = i, a: 40 = r):
                Y[v] = X[K - 1 - v] + X[v] * 0.5
        for j in parallel(K):
            block X(w: K = j, b: 40 = r):
                X[w] = select(w < K // 2, Y[K - 1 - w], 0.25 * Y[w])
"""
"""Each loop reads what other threads have written in the previous one."""


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 64])
def test_stages_see_earlier_writes(threads: int) -> None:
    """Equal bits for every team size, on few cores: threads sleep, wake up late and find later stages."""
    rng = np.random.default_rng(7)
    for size in (1, 2, 61, 997, 1000):
        native = Native(parse(STAGES))  # a new one, whose first call starts a team whatever the overhead
        inputs = {n: rng.standard_normal(size).astype(np.float32) for n in "XY"}
        results = [native(inputs, {"K": size}, team) for team in (threads, threads, 1)]
        x, y = (inputs[n].copy() for n in "XY")
        for _ in range(40):
            y = x[::-1] + x * np.float32(0.5)
            x = np.where(np.arange(size) < size // 2, y[::-1], np.float32(0.25) * y)
        for name, value in (("X", x), ("Y", y)):
            np.testing.assert_allclose(results[0][name], value, rtol=1e-4)
            for other in results[1:]:
                np.testing.assert_array_equal(other[name], results[0][name])


def test_pieces_of_several_iterations() -> None:
    """Very long loops are counted in pieces of several iterations."""
    func = """
func ones(Y: int8[K]; K: 1..100000000):
    for i in parallel(K):
        block Y(v: K = i):
            Y[v] = Y[v] + int8(1)
"""
    native = Native(parse(func))
    size = 2 * MAX_PIECES + 12345
    runs = native({"Y": np.zeros(size, np.int8)}, {"K": size}, 3)["Y"]
    assert runs.min() == runs.max() == 1
