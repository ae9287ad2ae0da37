"""The rule's schedules: semantics, well-formedness, replay, and the loops of typical kernels."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.optimize import programs
from tests.optimize.computations import KERNELS, M, N, S, product, relu
from tests.optimize.programs import Program, axes, buffer, check, scheduled
from tests.optimize.tasks import task_of

from tilewright.errors import OptionError
from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.dtype import float16, float32, float64, int8, int32
from tilewright.expr.nodes import Const, MemoryScope, Var, const
from tilewright.expr.operations import unary
from tilewright.loops.ir import For, LoopKind, walk
from tilewright.loops.printer import show
from tilewright.machine import Target
from tilewright.optimize.interface import DEFAULT, FALLBACK, optimizer_named
from tilewright.optimize.rule import Rule
from tilewright.optimize.task import Task
from tilewright.schedule.schedule import Schedule
from tilewright.verify.verifier import verify

EXAMPLES = {"elementwise": 40, "reduction": 40, "gemm": 40, "conv": 30, "pool": 25}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_schedules_preserve_semantics(kind: str) -> None:
    @settings(max_examples=EXAMPLES[kind])
    @given(getattr(programs, kind)(), st.sampled_from(programs.TARGETS))
    def run(program: Program, target: str) -> None:
        check(program, target)

    run()


@pytest.mark.parametrize("name", KERNELS)
def test_typical_kernels(name: str, golden) -> None:
    golden(show(check(KERNELS[name], "x86-64-v3").func))


@pytest.mark.parametrize("target", programs.TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_typical_kernels_preserve_semantics(name: str, target: str) -> None:
    check(KERNELS[name], target)


def loops(s: Schedule, kind: LoopKind) -> list[For]:
    """The loops of one kind."""
    return [x for x, _ in walk(s.func.body) if isinstance(x, For) and x.kind is kind]


@pytest.mark.parametrize("target", programs.TARGETS)
def test_accumulators_of_a_contraction_fit_the_register_file(target: str) -> None:
    machine = Target.parse(target)
    for m, n in ((28, 64), (64, 28), (7, 200), (M, 64), (3, 48), (50, 50), (N, 64)):
        sizes = {v: 3 for v in (m, n) if isinstance(v, Var)}
        _, _, s = scheduled(Program([product(m, n, 8)], sizes, frozenset({"w"})), target)
        accumulators = [b for b in s.func.allocs if b.scope is MemoryScope.REGISTER]
        assert accumulators
        for b in accumulators:
            size = 1
            for extent in b.shape:
                assert isinstance(extent, Const)
                size *= int(extent.value)
            assert size * b.dtype.bits <= machine.vector_bits * (machine.vector_registers - 2)


def test_the_innermost_loop_is_vectorized_and_the_outermost_parallel() -> None:
    _, _, s = scheduled(Program([product(64, 64, 64)]), "x86-64-v4")
    assert loops(s, LoopKind.PARALLEL)
    for x, enclosing_loops in walk(s.func.body):
        if isinstance(x, For) and x.kind is LoopKind.PARALLEL:
            assert all(y.kind is LoopKind.PARALLEL for y in enclosing_loops)
        if isinstance(x, For) and x.kind is LoopKind.VECTORIZED:
            assert not isinstance(x.body, For)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_for_one_thread_stay_serial(name: str) -> None:
    task = task_of(KERNELS[name], "x86-64-v4")
    s = Rule().optimize(replace(task, threads=1))
    assert s is not None
    assert not loops(s, LoopKind.PARALLEL)


def test_contiguous_operands_are_packed_only_if_constant() -> None:
    packed = scheduled(Program([product(28, 64, 32)], {}, frozenset({"w"})), "x86-64-v4")[2]
    plain = scheduled(Program([product(28, 64, 32)]), "x86-64-v4")[2]
    assert [step.primitive for step in packed.trace].count("pack") == 1
    assert [step.primitive for step in plain.trace].count("pack") == 0


@pytest.mark.parametrize("dtype", [float64, float16, int32, int8], ids=str)
@pytest.mark.parametrize("target", programs.TARGETS)
def test_contractions_of_other_dtypes(dtype, target: str) -> None:
    check(Program([product(13, 40, 6, dtype)], {}, frozenset({"w"})), target)
    x, y = buffer("x", (M, 7), dtype), buffer("y", (M, 7), dtype)
    a, b = Var("a"), Var("b")
    check(Program([Computation(y, axes("ab", (M, 7)), (), x[a, b] + x[a, b])], {M: 11}), target)


@pytest.mark.parametrize("target", programs.TARGETS)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_symbolic_rows_smaller_than_a_tile(rows: int, target: str) -> None:
    check(Program([product(N, 40, 5), relu(product(N, 40, 5))], {N: rows}, frozenset({"w"})), target)


@pytest.mark.parametrize("target", programs.TARGETS)
@pytest.mark.parametrize("size", [16, 17, 31])
def test_all_sizes_symbolic(size: int, target: str) -> None:
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
def test_long_scalar_reduction_is_parallel_where_k_blocks_divide_it(shape: tuple[int, ...], reducer: Reducer) -> None:
    names = "ij"[: len(shape)]
    x = buffer("x", shape, int32 if reducer is Reducer.MAX else float32)
    body = x[tuple(Var(n) for n in names)]
    total = Computation(buffer("t", (), x.dtype), (), axes(names, shape), body, reducer)
    epilogue = Computation(buffer("y", (), x.dtype), (), (), unary("abs", total.output[()]))
    s = check(Program([total, epilogue]), "x86-64-v4")
    assert bool(loops(s, LoopKind.PARALLEL)) == (shape != (20483,))


def test_axes_of_extent_one() -> None:
    """The functions are not in normal form."""
    from tilewright.graph.fusion import fusion_of
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
        fusion = fusion_of([stage], {stage.output.name})
        s = Rule().optimize(Task(func, frozenset(), Target.parse("x86-64-v3"), fusion))
        assert s is not None
        verify(s.func)


def test_schedules_are_deterministic() -> None:
    first, second = (scheduled(KERNELS["convolution"], "x86-64-v4")[2] for _ in range(2))
    assert first.trace == second.trace
    assert show(first.func) == show(second.func)


def test_optimizer_registry() -> None:
    assert optimizer_named(DEFAULT).name == "gensor"
    assert optimizer_named(FALLBACK).name == "rule"
    names = "rule, roller, gensor, vortex, dietcode, vortex-static1, vortex-static2"
    message = rf"^\[option\] optimizer: there is no optimizer 'magic'; use one of {names}$"
    with pytest.raises(OptionError, match=message):
        optimizer_named("magic")
