"""Private buffers that exceed the stack: every thread works on a slice of the workspace, whose bytes are counted."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from threading import Thread

import numpy as np
import pytest
from tests.codegen.native import TARGETS, Native
from tests.tile.trees import TreeCase, attention, func_of, tree_of_attention, tree_of_two_products, two_products

import tilewright as tw
from tilewright.codegen import emit_llvm
from tilewright.driver.kernel_build.kernel_entry import kernel_segment
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Expr, MemoryScope, const
from tilewright.loops import private_memory
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.private_memory import workspace_buffers, workspace_of
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.machine import Target
from tilewright.measure.native_functions import NativeFunctions
from tilewright.schedule.rewrite_tree import with_buffer_replaced
from tilewright.tile.lower_tree import lower_tree

LONG = attention(70, 2100, 32)
"""Attention whose chunks of scores, 2048 x 48, exceed the stack; the tiles divide neither queries nor keys."""


def lowered(result: tw.Tensor, tree) -> Func:
    return lower_tree(tree, func_of(result)).func


def long_attention() -> Func:
    return lowered(LONG, tree_of_attention(func_of(LONG), rows=48, chunk=2048, keys=8, columns=16))


def operands(func: Func, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = {b.name: [sizes.get(str(n)) or int(str(n)) for n in b.shape] for b in func.params}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def rooms(func: Func, threads: int, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Slices of every private parameter, filled with numbers that no result contains."""
    env = {s: const(sizes[s.name]) for s in func.symbols}
    buffers = [workspace_of(func, b, const(threads)) for b in func.params if private_memory.is_private(b)]
    shapes = {b.name: [int(str(substitute(n, env))) for n in b.shape] for b in buffers}
    return {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}


def with_memory_scope(func: Func, name: str) -> Func:
    old = next(b for b in func.allocs if b.name == name)
    return with_buffer_replaced(func, old, replace(old, scope=MemoryScope.MEMORY))


@cache
def results_of_long_attention() -> dict[str, np.ndarray]:
    """By the interpreter."""
    func = long_attention()
    expected = operands(func, {})
    interpret(func, expected, {})
    return expected


@pytest.mark.parametrize("target", TARGETS)
def test_attention_over_a_long_sequence_is_the_same_for_every_team(target: str) -> None:
    func = long_attention()
    assert [str(b) for b in workspace_buffers(func)] == ["S: float32[2048, 48]"]
    exposed = expose_workspace(func)
    arrays, expected = operands(func, {}), results_of_long_attention()
    native = Native(exposed, target=target)
    results = []
    for threads in (1, 2, 3, 64):
        for at_end in (True, False):
            # the room ends, or begins, at a page that is not accessible
            actual = native({**arrays, **rooms(exposed, threads, {})}, {}, threads, at_end=at_end)
            results.append(actual["O"])
    np.testing.assert_allclose(results[0], expected["O"], rtol=2e-5, atol=2e-6)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_threads_write_to_their_own_slices() -> None:
    text = """
func f(Y: float32[400, 300]):
    alloc T: float32[70000] in stack
    for i in parallel(400):
        for t in serial(70000):
            block T(v: 400 = i, w: 70000 = t):
                T[w] = cast(float32, v * 3 + w)
        for j in vectorized(300):
            block Y(v2: 400 = i, w2: 300 = j):
                Y[v2, w2] = T[w2 * 233]
"""
    func = expose_workspace(parse(text))
    expected = np.arange(400)[:, None] * 3 + np.arange(300)[None] * 233
    native = Native(func)
    for threads in (1, 2, 7, 64):
        room = rooms(func, threads, {})["T"]
        assert room.shape == (threads, 70512)
        actual = native({"Y": np.zeros((400, 300), np.float32), "T": room}, {}, threads)
        np.testing.assert_array_equal(actual["Y"], expected)
        # every slice is that of one iteration, or of none; nothing lies between them
        used = ~np.isnan(actual["T"][:, 0])
        assert used[0] or threads > 1
        for part in actual["T"][used]:
            np.testing.assert_array_equal(part[:70000] - part[0], np.arange(70000))
            assert np.isnan(part[70000:]).all()


def test_buffers_outside_of_parallel_loops_are_the_callers() -> None:
    text = """
func f(X: float32[n], Y: float32[n]; n: 1..100000):
    alloc T: float32[n] in stack
    for i in serial(n):
        block T(v: n = i):
            T[v] = X[v] * 2.0
    for j in parallel(n):
        block Y(v2: n = j):
            Y[v2] = T[n - 1 - v2]
"""
    func = expose_workspace(parse(text))
    native = Native(func)
    for n in (1, 3, 70000):
        x = np.arange(n, dtype=np.float32)
        for threads in (1, 2, 9):
            arrays = {"X": x, "Y": np.zeros(n, np.float32), **rooms(func, threads, {"n": n})}
            np.testing.assert_array_equal(native(arrays, {"n": n}, threads)["Y"], 2 * x[::-1])


def softmax_of_any_width() -> tw.Workbench:
    """Rows of symbolic width, which every thread keeps for itself."""
    return softmax(tw.symbol("n", 1, 200000))


def softmax(n: Expr | int) -> tw.Workbench:
    """Rows of a width, which every thread keeps for itself."""
    m = tw.symbol("m", 1, 300)
    a, k = tw.placeholder((m, n), name="A"), tw.reduce_axis(n, "k")
    largest = tw.compute((m,), lambda i: tw.max(a[i, k], k), "M")
    x = tw.compute((m, n), lambda i, j: tw.exp(a[i, j] - largest[i]), "X")
    total = tw.compute((m,), lambda i: tw.sum(x[i, k], k), "S")
    s = tw.create_schedule(tw.compute((m, n), lambda i, j: x[i, j] / total[i], "Y"), name="softmax")
    row = s.loops("Y")[0]
    for block in ("S", "X", "M"):
        s.compute_at(block, row)
    for buffer in ("S", "X", "M"):
        s.set_scope(buffer, "stack")
    s.parallel(row)
    for block in ("X", "Y"):
        _, lane = s.split(s.loops(block)[-1], 16)
        s.vectorize(lane)
    return s


def test_rows_of_symbolic_width_are_private() -> None:
    s = softmax_of_any_width()
    assert [str(b) for b in workspace_buffers(s.func)] == ["X: float32[n]"]
    s.check(threads=2)
    s.check({"m": 5, "n": 70001}, threads=2)
    _, segment = kernel_segment(s.func)
    assert str(private_memory.THREADS) in str(segment.workspace_bytes)
    assert segment.symbols == s.func.symbols


@pytest.fixture
def no_stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All private buffers are in the workspace."""
    monkeypatch.setattr(private_memory, "MAX_STACK_BYTES", 0)
    return


@pytest.mark.parametrize("threads", [1, 2])
def test_all_private_buffers_in_slices(no_stack: None, threads: int) -> None:
    cases = [
        (two_products(70, 130, 33, 50), lambda f: tree_of_two_products(f)),
        (attention(tw.symbol("N", 1, 90), tw.symbol("T", 1, 300), 40), lambda f: tree_of_attention(f)),
    ]
    for result, make_tree in cases:
        func = func_of(result)
        case = TreeCase(result, make_tree(func), {})
        s = tw.create_schedule(result)
        s.apply_tree(case.tree)
        assert len(workspace_buffers(s.func)) >= 2
        s.check(threads=threads)


def test_several_callers_have_workspaces_of_their_own() -> None:
    s = tw.create_schedule(LONG)
    s.apply_tree(tree_of_attention(s.func, rows=48, chunk=2048, keys=8, columns=16))
    kernel = s.build(threads=2)
    rng = np.random.default_rng(0)
    feeds = [[rng.standard_normal([int(str(n)) for n in b.shape]).astype(np.float32) for b in s.func.inputs]
             for _ in range(6)]  # fmt: skip
    expected = [kernel(*f).copy() for f in feeds]
    actual: dict[int, list[np.ndarray]] = {}

    def call(k: int) -> None:
        actual[k] = [kernel(*feeds[k]).copy() for _ in range(10)]

    callers = [Thread(target=call, args=(k,)) for k in range(len(feeds))]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    for k, reference in enumerate(expected):
        for result in actual[k]:
            np.testing.assert_array_equal(result, reference)


def test_slices_are_stored_whole_and_loaded_under_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier kernels left in inactive lanes may be denormal numbers, which arithmetic is slow on; a vector that
    is stored under a mask is not forwarded to the load after it. A softmax of rows of 50 takes 3 to 5 times as long
    with the first, 1.2 times with the second."""
    func, target = softmax(50).func, Target.of("x86-64-v4")
    assert expose_workspace(func) == func
    on_stack = emit_llvm([func], [], target)
    shared = emit_llvm([expose_workspace(with_memory_scope(func, "X"))], [], target)
    monkeypatch.setattr(private_memory, "MAX_STACK_BYTES", 0)
    slices = emit_llvm([expose_workspace(func)], [], target)
    loads, stores = (
        [len(re.findall(rf'call .*@"?llvm\.masked\.{what}', text)) for text in (slices, shared, on_stack)]
        for what in ("load", "store")
    )
    assert loads[0] == loads[1] > loads[2]
    assert stores[0] < stores[1]


def test_native_functions_take_slices_of_so_many_threads() -> None:
    func = long_attention()
    native = NativeFunctions([func], Target.host())
    exposed = native.funcs[func.name]
    arrays = operands(func, {}) | rooms(exposed, 2, {})
    native.call(func.name, [arrays[b.name] for b in exposed.params], threads=2)
    with pytest.raises(tw.errors.OptionError, match=r"expected shape \[3, 98816\], got \[2, 98816\]"):
        native.call(func.name, [arrays[b.name] for b in exposed.params], threads=3)
