"""The rule's schedules: meaning, well-formedness, replay, and what they look like for typical kernels."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.optimize import programs
from tests.optimize.programs import Program, axes, buffer, check, scheduled

from tilewright.errors import OptionError
from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.dtype import float16, float32, float64, int8, int32
from tilewright.expr.nodes import Const, Expr, MemoryScope, Symbol, Var, as_expr, const
from tilewright.expr.operations import cast, maximum, unary
from tilewright.loops.ir import For, LoopKind, walk
from tilewright.loops.printer import show
from tilewright.machine import Target
from tilewright.optimize.interface import DEFAULT, FALLBACK, Task, optimizer_named
from tilewright.optimize.rule import Rule
from tilewright.schedule.trace import Schedule
from tilewright.verify.verifier import verify

EXAMPLES = {"elementwise": 40, "reduction": 40, "gemm": 40, "conv": 30, "pool": 25}

M, N, S = Symbol("M", 1, 512), Symbol("N", 1, 4), Symbol("S", 16, 512)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_meaning_is_kept(kind: str) -> None:
    @settings(max_examples=EXAMPLES[kind])
    @given(getattr(programs, kind)(), st.sampled_from(programs.TARGETS))
    def run(program: Program, target: str) -> None:
        check(program, target)

    run()


def product(m: Expr | int, n: Expr | int, k: Expr | int, dtype=None) -> Computation:
    """t = x @ w"""
    x, w = buffer("x", (m, k)), buffer("w", (k, n))
    out = buffer("t", (m, n))
    a, b, i = Var("a"), Var("b"), Var("i")
    body: Expr = x[a, i] * w[i, b]
    if dtype is not None:
        x, w, out = (buffer(p.name, p.shape, dtype) for p in (x, w, out))
        body = x[a, i] * w[i, b]
        if dtype is int8:
            out = buffer("t", (m, n), int32)
            body = cast(int32, x[a, i]) * cast(int32, w[i, b])
    return Computation(out, axes("ab", (m, n)), axes("i", (k,)), body, Reducer.SUM)


def relu(first: Computation, name: str = "y") -> Computation:
    """max(first + bias, 0), where the bias has one value per column"""
    fresh = axes("efgh"[: len(first.axes)], [a.extent for a in first.axes])
    index = tuple(a.var for a in fresh)
    bias = buffer("bias", (first.axes[1].extent,))
    value = maximum(first.output[index] + bias[index[1]], const(0, first.output.dtype))
    return Computation(buffer(name, first.output.shape), fresh, (), value)


def image(n: Expr | int, c: int, o: int, h: Expr | int, k: int) -> Computation:
    """A convolution with k x k weights."""
    outs = as_expr(h) - k + 1
    x, w = buffer("x", (n, c, h, h)), buffer("w", (o, c, k, k))
    b, f, y, z, i, p, q = (Var(v) for v in "bfyzipq")
    return Computation(
        buffer("t", (n, o, outs, outs)), axes("bfyz", (n, o, outs, outs)), axes("ipq", (c, k, k)),
        x[b, i, y + p, z + q] * w[f, i, p, q], Reducer.SUM,
    )  # fmt: skip


def row_sums(rows: Expr | int, columns: Expr | int) -> Computation:
    """One sum per row."""
    x = buffer("x", (rows, columns))
    out = buffer("t", (rows,))
    return Computation(out, axes("a", (rows,)), axes("i", (columns,)), x[Var("a"), Var("i")], Reducer.SUM)


def column_maxima(rows: Expr | int, columns: Expr | int) -> Computation:
    """One maximum per column."""
    x = buffer("x", (rows, columns))
    out = buffer("t", (columns,))
    return Computation(out, axes("a", (columns,)), axes("i", (rows,)), x[Var("i"), Var("a")], Reducer.MAX)


KERNELS = {
    "matmul": Program([product(28, 64, 5), relu(product(28, 64, 5))], {}, frozenset({"w"})),
    "matmul_of_symbolic_rows": Program([product(M, 40, 5)], {M: 21}, frozenset({"w"})),
    "matvec": Program([product(1, 40, 5)], {}, frozenset({"w"})),
    "convolution": Program([image(1, 3, 20, 9, 3), relu(image(1, 3, 20, 9, 3))], {}, frozenset({"w"})),
    "elementwise": Program([relu(product(M, 30, 1))], {M: 9}),
    "row_sums": Program([row_sums(M, 100)], {M: 7}),
    "column_maxima": Program([column_maxima(M, 40)], {M: 9}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_typical_kernels(name: str, golden) -> None:
    golden(show(check(KERNELS[name], "x86-64-v3").func))


@pytest.mark.parametrize("target", programs.TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_typical_kernels_keep_their_meaning(name: str, target: str) -> None:
    check(KERNELS[name], target)


def loops(s: Schedule, kind: LoopKind) -> list[For]:
    """The loops of one kind."""
    return [x for x, _ in walk(s.func.body) if isinstance(x, For) and x.kind is kind]


@pytest.mark.parametrize("target", programs.TARGETS)
def test_the_accumulators_of_a_contraction_fit_the_registers(target: str) -> None:
    machine = Target.parse(target)
    for m, n in ((28, 64), (64, 28), (7, 200), (M, 64), (3, 48), (50, 50), (N, 64)):
        sizes = {v: 3 for v in (m, n) if isinstance(v, Var)}
        _, _, s = scheduled(Program([product(m, n, 8)], sizes, frozenset({"w"})), target)
        kept = [b for b in s.func.allocs if b.scope is MemoryScope.REGISTER]
        assert kept
        for b in kept:
            size = 1
            for extent in b.shape:
                assert isinstance(extent, Const)
                size *= int(extent.value)
            assert size * b.dtype.bits <= machine.vector_bits * (machine.vector_registers - 2)


def test_the_innermost_loop_is_vectorized_and_the_outermost_parallel() -> None:
    _, _, s = scheduled(Program([product(64, 64, 64)]), "x86-64-v4")
    assert loops(s, LoopKind.PARALLEL)
    for x, around in walk(s.func.body):
        if isinstance(x, For) and x.kind is LoopKind.PARALLEL:
            assert all(y.kind is LoopKind.PARALLEL for y in around)
        if isinstance(x, For) and x.kind is LoopKind.VECTORIZED:
            assert not isinstance(x.body, For)


def test_small_kernels_start_no_threads() -> None:
    _, _, s = scheduled(Program([product(4, 16, 5)]), "x86-64-v4")
    assert not loops(s, LoopKind.PARALLEL)


def test_only_constants_are_packed_where_their_rows_are_contiguous_already() -> None:
    packed = scheduled(Program([product(28, 64, 32)], {}, frozenset({"w"})), "x86-64-v4")[2]
    plain = scheduled(Program([product(28, 64, 32)]), "x86-64-v4")[2]
    assert [step.primitive for step in packed.trace].count("pack") == 1
    assert [step.primitive for step in plain.trace].count("pack") == 0


@pytest.mark.parametrize("dtype", [float64, float16, int32, int8], ids=str)
@pytest.mark.parametrize("target", programs.TARGETS)
def test_other_types(dtype, target: str) -> None:
    check(Program([product(13, 40, 6, dtype)], {}, frozenset({"w"})), target)
    x, y = buffer("x", (M, 7), dtype), buffer("y", (M, 7), dtype)
    a, b = Var("a"), Var("b")
    check(Program([Computation(y, axes("ab", (M, 7)), (), x[a, b] + x[a, b])], {M: 11}), target)


@pytest.mark.parametrize("target", programs.TARGETS)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_symbolic_number_of_rows_smaller_than_a_tile(rows: int, target: str) -> None:
    check(Program([product(N, 40, 5), relu(product(N, 40, 5))], {N: rows}, frozenset({"w"})), target)


@pytest.mark.parametrize("target", programs.TARGETS)
@pytest.mark.parametrize("size", [16, 17, 31])
def test_every_size_symbolic(size: int, target: str) -> None:
    check(Program([product(S, S, S), relu(product(S, S, S))], {S: size}), target)


def test_scalars() -> None:
    x = buffer("x", (37,))
    total = Computation(buffer("t", ()), (), axes("i", (37,)), x[Var("i")], Reducer.SUM)
    check(Program([total]), "x86-64-v3")
    check(Program([Computation(buffer("y", ()), (), (), buffer("s", ())[()] + const(1, x.dtype))]), "x86-64-v3")
    epilogue = Computation(buffer("y", ()), (), (), unary("abs", total.output[()]))
    check(Program([total, epilogue]), "x86-64-v3")


@pytest.mark.parametrize("reducer", [Reducer.SUM, Reducer.MAX])
@pytest.mark.parametrize("shape", [(20480,), (64, 640), (20483,)], ids=str)
def test_threads_share_a_long_reduction_to_one_value_where_it_divides(shape: tuple[int, ...], reducer: Reducer) -> None:
    names = "ij"[: len(shape)]
    x = buffer("x", shape, int32 if reducer is Reducer.MAX else float32)
    body = x[tuple(Var(n) for n in names)]
    total = Computation(buffer("t", (), x.dtype), (), axes(names, shape), body, reducer)
    epilogue = Computation(buffer("y", (), x.dtype), (), (), unary("abs", total.output[()]))
    s = check(Program([total, epilogue]), "x86-64-v4")
    assert bool(loops(s, LoopKind.PARALLEL)) == (shape != (20483,))


def test_functions_with_axes_of_one_element() -> None:
    """Not in normal form, as nothing forces a function to be."""
    from tilewright.loops.lowering import lower_to_loops

    x = buffer("x", (1, 30, 1))
    a, b, i = Var("a"), Var("b"), Var("i")
    for stage in (
        Computation(buffer("t", (1, 30)), axes("ab", (1, 30)), axes("i", (1,)), x[a, b, i], Reducer.SUM),
        Computation(buffer("t", (30, 1)), axes("ba", (30, 1)), axes("i", (1,)), x[i, b, a], Reducer.MAX),
        Computation(buffer("t", (1, 1)), axes("ab", (1, 1)), axes("i", (30,)), x[a, i, b], Reducer.MAX),
        Computation(buffer("t", (1, 30)), axes("ab", (1, 30)), (), x[a, b, a]),
        product(1, 1, 1),
        product(1, 30, 1),
        product(30, 1, 4),
    ):
        func = lower_to_loops("f", [stage], (*stage.inputs, stage.output), ())
        s = Rule().optimize(Task(func, frozenset(), Target.parse("x86-64-v3")))
        assert s is not None
        verify(s.func)


def test_equal_tasks_give_equal_traces() -> None:
    first, second = (scheduled(KERNELS["convolution"], "x86-64-v4")[2] for _ in range(2))
    assert first.trace == second.trace
    assert show(first.func) == show(second.func)


def test_the_registry() -> None:
    assert optimizer_named(DEFAULT).name == "gensor"
    assert optimizer_named(FALLBACK).name == "rule"
    message = r"^\[option\] optimizer: there is no optimizer 'magic'; use one of rule, roller, gensor$"
    with pytest.raises(OptionError, match=message):
        optimizer_named("magic")
