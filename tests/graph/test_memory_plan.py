"""The memory planner: buffers that live at the same time never overlap, outputs are computed in place, memory is
reused."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import InternalError
from tilewright.expr.computation import View
from tilewright.expr.dtype import float32, int8
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Buffer, Expr, Symbol, const
from tilewright.graph.buffer_location import ConstantLocation, InputLocation, OutputLocation, WorkspaceLocation
from tilewright.graph.memory_plan import KernelAccess, MemoryPlan, byte_size, plan_memory

N, M = Symbol("n", 1, 512), Symbol("m", 1, None)
SIZES: list[Expr] = [const(1), const(40), const(1000), N, N * 4, M * N, (M + 1) // 2 * N, M * 3 + 5]


def buffer(name: str, size: Expr | int = 16) -> Buffer:
    return Buffer(name, (const(size) if isinstance(size, int) else size,), float32)


def value(e: Expr, n: int, m: int) -> int:
    return int(evaluate_expr(e, Environment({N: np.int64(n), M: np.int64(m)}, {})))


@st.composite
def programs(draw: st.DrawFn):
    """Random straight-line programs: (steps, inputs, outputs, constants)."""
    size = st.sampled_from(SIZES)
    inputs = [buffer(f"x{k}", draw(size)) for k in range(draw(st.integers(0, 2)))]
    constants = [buffer(f"w{k}", draw(size)) for k in range(draw(st.integers(0, 2)))]
    buffers, steps = [*inputs, *constants], []
    for k in range(draw(st.integers(1, 14))):
        if buffers and draw(st.integers(0, 3)) == 0:
            source = draw(st.sampled_from(buffers))
            new = Buffer(f"v{k}", (const(1), *source.shape), source.dtype)
            steps.append(View(new, source))
        else:
            reads = draw(st.lists(st.sampled_from(buffers), max_size=3)) if buffers else []
            new = Buffer(f"b{k}", (draw(size),), draw(st.sampled_from([float32, int8])))
            scratch = (buffer(f"s{k}", draw(size)),) if draw(st.booleans()) else ()
            steps.append(KernelAccess(tuple(reads), (new,), scratch))
        buffers.append(new)
    outputs = draw(st.lists(st.sampled_from(buffers), min_size=1, max_size=4))
    return steps, inputs, outputs, constants


def assert_nothing_live_is_overwritten(steps, plan: MemoryPlan, reads_of, n: int, m: int):
    """Runs the program on names instead of data: checks that every read finds what was written there last."""
    memory: dict[object, tuple[int, int, str]] = {}
    roots: dict[str, str] = {}

    def span(b: Buffer):
        place = plan.locations[b.name]
        if isinstance(place, WorkspaceLocation):
            start = value(place.offset, n, m)
            return "workspace", start, start + value(b.size * b.dtype.bytes, n, m)
        return place, 0, value(b.size * b.dtype.bytes, n, m)

    def write(b: Buffer, busy: list[Buffer]) -> None:
        where, start, stop = span(b)
        for other in busy:
            other_where, other_start, other_stop = span(other)
            assert where != other_where or stop <= other_start or other_stop <= start, (b.name, other.name)
        for key in [k for k, (s, e, _) in memory.items() if k[0] == where and s < stop and start < e]:
            del memory[key]
        memory[(where, b.name)] = (start, stop, b.name)
        if where == "workspace":
            assert start % 64 == 0
            assert stop <= value(plan.total, n, m)

    def check(b: Buffer) -> None:
        root = roots[b.name]
        where, start, _ = span(b)
        if isinstance(where, InputLocation | ConstantLocation):
            return
        assert memory[(where, root)][0] == start, f"{b.name} was overwritten"

    for b in reads_of["given"]:
        roots[b.name] = b.name
    for step in steps:
        if isinstance(step, View):
            roots[step.output.name] = roots[step.source.name]
            assert plan.locations[step.output.name] == plan.locations[step.source.name]
            continue
        for b in step.reads:
            check(b)
        for b in (*step.writes, *step.scratch):
            roots[b.name] = b.name
            write(b, [*step.reads, *(x for x in (*step.writes, *step.scratch) if x is not b)])
    for k, b in enumerate(reads_of["outputs"]):
        if plan.locations[b.name] != OutputLocation(k):
            check(b)
            assert k in {c.index for c in plan.copies}


@given(programs(), st.integers(1, 512), st.integers(1, 3000))
def test_live_buffers_never_overlap(program, n, m):
    steps, inputs, outputs, constants = program
    plan = plan_memory(steps, inputs, outputs, constants)
    assert_nothing_live_is_overwritten(steps, plan, {"given": [*inputs, *constants], "outputs": outputs}, n, m)


def test_overlap_check_detects_overlaps():
    buffers, steps = chain(4, N)
    plan = plan_memory(steps, buffers[:1], buffers[-1:], ())
    roles = {"given": buffers[:1], "outputs": buffers[-1:]}
    assert_nothing_live_is_overwritten(steps, plan, roles, 5, 1)
    assert plan.locations["b1"] != plan.locations["b2"]
    both = replace(plan, locations={**plan.locations, "b2": plan.locations["b1"]})
    with pytest.raises(AssertionError, match=r"\('b2', 'b1'\)"):
        assert_nothing_live_is_overwritten(steps, both, roles, 5, 1)


def chain(length: int, size: Expr | int):
    buffers = [buffer(f"b{k}", size) for k in range(length)]
    return buffers, [KernelAccess((a,), (b,)) for a, b in itertools.pairwise(buffers)]


def test_linear_sequence_needs_two_slots():
    buffers, steps = chain(10, N * 100)
    plan = plan_memory(steps, buffers[:1], buffers[-1:], ())
    assert len(plan.slots) == 2
    assert plan.total is byte_size(buffers[0]) * 2
    assert plan.locations["b9"] == OutputLocation(0)


def test_output_is_computed_in_place_through_views():
    x, a = buffer("x"), buffer("a")
    y = Buffer("y", (const(4), const(4)), float32)
    plan = plan_memory([KernelAccess((x,), (a,)), View(y, a)], [x], [y], ())
    assert plan.locations["a"] == plan.locations["y"] == OutputLocation(0)
    assert plan.copies == ()
    assert plan.total is const(0)


def test_outputs_located_elsewhere_are_copied():
    x, w, a = buffer("x"), buffer("w"), buffer("a")
    v = Buffer("v", (const(16), const(1)), float32)
    plan = plan_memory([KernelAccess((x, w), (a,)), View(v, x)], [x], [x, w, v, a, a], [w])
    assert [(c.index, c.source.name) for c in plan.copies] == [(0, "x"), (1, "w"), (2, "v"), (4, "a")]
    assert plan.locations["a"] == OutputLocation(3)


def test_dominated_sizes_are_dropped_from_the_maximum():
    small, large = buffer("small", N), buffer("large", N * 2)
    x, y = buffer("x", N), buffer("y", N)
    steps = [
        KernelAccess((x,), (small,)),
        KernelAccess((small,), (y,)),
        KernelAccess((y,), (large,)),
        KernelAccess((large,), (buffer("z", N),)),
    ]
    plan = plan_memory(steps, [x], [], ())
    assert {s.size for s in plan.slots} <= {byte_size(small), byte_size(large)}


def test_read_before_write_is_an_error():
    with pytest.raises(InternalError, match="buffer 'a' is read before it is written"):
        plan_memory([KernelAccess((buffer("a"),), (buffer("b"),))], (), (), ())


def test_second_write_is_an_error():
    x = buffer("x")
    with pytest.raises(InternalError, match="buffer 'x' is written twice"):
        plan_memory([KernelAccess((x,), (x,))], [x], (), ())


def test_unwritten_output_is_an_error():
    with pytest.raises(InternalError, match="output 'y' is written by no step"):
        plan_memory((), (), [buffer("y")], ())
