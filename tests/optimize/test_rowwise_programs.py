"""Construction of row-wise programs, windows and element-wise work; the rule's choices are in the search space."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import TARGETS
from tests.optimize import programs
from tests.optimize.computations import COLUMNS, KERNELS, ROWS, normalised, some_windows, windows
from tests.optimize.native import same
from tests.optimize.programs import Program, axes, buffer, check, scheduled
from tests.optimize.tasks import MACHINES, optimizers, task_of
from tests.tile.results import check_same_results

from tilewright.cost.rowwise import rowwise_time, stage_cycles
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Symbol, Var
from tilewright.loops.ir import LoopKind
from tilewright.loops.printer import show
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import Gensor
from tilewright.optimize.construct.program_tree import lower_kernel_program
from tilewright.optimize.construct.rowwise_programs import (
    RowwiseProblem,
    best_rowwise_programs,
    rows_per_block_options,
    rowwise_problem,
    scored_stages,
)
from tilewright.optimize.task import Task
from tilewright.schedule.step import replay
from tilewright.tile.rowwise import RowwiseProgram
from tilewright.verify.verifier import verify

ZEN5 = machine_named("zen5")
V4 = Target.parse("x86-64-v4")


def rowwise_task(program: Program, target: str = "x86-64-v4") -> tuple[Task, RowwiseProblem]:
    """The task of a row-wise program."""
    task = task_of(program, target)
    problem = rowwise_problem(task)
    assert problem is not None
    return task, problem


def test_symbolic_rows_are_scored_by_shape_samples() -> None:
    some = Symbol("R", 8, 512)
    _, problem = rowwise_task(Program(normalised(some, 80), {some: 9}))
    time, program = best_rowwise_programs(problem, V4, ZEN5, 1)[0]
    sizes = [p.axes[0].extent for p in problem.problems[0].samples]
    assert len(sizes) == 3
    total: list[float] = []
    for rows in sizes:
        at = rowwise_task(Program(normalised(rows, 80), {}))[1]
        blocking, steps = scored_stages(at, V4, ZEN5, 1)
        stages = tuple(next(p for _, p in s if (p.sketch, p.sizes) == (x.sketch, x.sizes))
                    for s, x in zip(steps, program.stages, strict=True))  # fmt: skip
        total.append(float(rowwise_time(RowwiseProgram(blocking, stages), ZEN5).total[0]))
    call = ZEN5.cost.call_ns
    assert time == pytest.approx(float(np.exp(np.mean(np.log(np.array(total) + call)))) - call)


def random_program(c: RowwiseProblem, target: str, rng: np.random.Generator) -> RowwiseProgram:
    """A random row-wise program."""
    choices = rows_per_block_options(c)
    rows_per_block = choices[int(rng.integers(len(choices)))]
    blocking, steps = scored_stages(c, Target.parse(target), machine_named(MACHINES[target]), rows_per_block)
    return RowwiseProgram(blocking, tuple(s[int(rng.integers(len(s)))][1] for s in steps))


@settings(max_examples=15)
@given(some_windows(), st.sampled_from(programs.TARGETS), st.integers(0, 1 << 20))
def test_all_window_programs_preserve_semantics(program: Program, target: str, seed: int) -> None:
    task = task_of(program, target)
    problem = rowwise_problem(task)
    if problem is None:
        return
    rng = np.random.default_rng(seed)
    schedule = lower_kernel_program(random_program(problem, target, rng), task, bool(rng.integers(2)))
    verify(schedule.func)
    assert replay(task.func, schedule.trace) == schedule.func
    check_same_results(task.func, schedule.func, program, rng)


@settings(max_examples=20)
@given(st.sampled_from([1, 3, 64, ROWS]), st.integers(2, 90), st.sampled_from(programs.TARGETS), st.integers(0, 99))
def test_all_rowwise_programs_preserve_semantics(rows: int | Var, columns: int, target: str, seed: int) -> None:
    program = Program(normalised(rows, columns), {ROWS: 5} if rows is ROWS else {})
    task, problem = rowwise_task(program, target)
    rng = np.random.default_rng(seed)
    schedule = lower_kernel_program(random_program(problem, target, rng), task, bool(rng.integers(2)))
    verify(schedule.func)
    check_same_results(task.func, schedule.func, program, rng)


@pytest.mark.parametrize("kind", ["elementwise", "reduction", "pool"])
def test_constructed_programs_preserve_semantics(kind: str) -> None:
    @settings(max_examples=20)
    @given(getattr(programs, kind)(), st.sampled_from(programs.TARGETS))
    def run(program: Program, target: str) -> None:
        for optimizer in optimizers(target):
            check(program, target, optimizer, any_kind=True)  # some have no affine accesses, or one point

    run()


@pytest.mark.parametrize("size", [1, 5, 17, 40])
def test_symbolic_row_length_and_count(size: int) -> None:
    for optimizer in optimizers("x86-64-v3"):
        check(Program(normalised(ROWS, 40), {ROWS: size}), "x86-64-v3", optimizer)
        check(Program(normalised(ROWS, COLUMNS)[:2], {ROWS: 3, COLUMNS: size}), "x86-64-v3", optimizer)


@pytest.mark.parametrize("target", TARGETS)
def test_native_rowwise_programs(target: str) -> None:
    for program in (Program(normalised(9, 1000)), Program(windows(24, (7, 7), (3, 3), 1, 1, weighted=True))):
        same(program, target, optimizers(target)[1])


@pytest.mark.parametrize("name", KERNELS)
def test_every_typical_kernel_is_constructed(name: str) -> None:
    assert optimizers("x86-64-v4")[1].optimize(task_of(KERNELS[name])) is not None


def test_search_space_contains_the_rules_tile() -> None:
    program = Program(windows(64, (56, 56), (3, 3), 1, 1, weighted=True))
    task, problem = rowwise_task(program)
    by_rule = scheduled(program, "x86-64-v4")[2].func
    blocking, steps = scored_stages(problem, V4, ZEN5, 1)
    every = (RowwiseProgram(blocking, (pad, tile)) for _, pad in steps[0] for _, tile in steps[1])
    assert show(by_rule) in (show(lower_kernel_program(p, task, True).func) for p in every)


@pytest.mark.parametrize(("side", "lanes"), [(3, 4), (4, 4), (7, 8), (9, 16), (20, 16)])
def test_windows_of_short_rows_have_narrow_vectors(side: int, lanes: int) -> None:
    task, problem = rowwise_task(Program(windows(96, (side, side), (3, 3), 1, 1, weighted=True)))
    _, program = best_rowwise_programs(problem, V4, ZEN5, 1)[0]
    assert program.stages[-1].sketch.lanes == lanes
    text = show(lower_kernel_program(program, task, False).func)
    *_, stored = re.findall(r"vectorized\((\d+)\)", text)
    # as many lanes as the row has points where that is a vector's length
    assert min(int(stored), 16) == lanes, text


@pytest.mark.parametrize(
    ("side", "taps", "waits"),
    [(4, 3, True), (4, 5, False), (6, 3, True), (7, 3, True), (14, 3, False)],
    ids=["6, masked", "8, loads of 4", "8, loads of 8 span two", "9, masked", "16, several stores"],
)
def test_windows_wait_for_stored_rows_that_are_not_forwarded(side: int, taps: int, waits: bool) -> None:
    problem = rowwise_task(Program(windows(8, (side, side), (taps, taps), 1, taps // 2, weighted=True)))[1]
    blocking, stages = scored_stages(problem, V4, ZEN5, 1)
    _, p = stages[-1][0]
    stalls = stage_cycles(p.problem, p.sketch, p.array[None], blocking, ZEN5).store_forward_stalls
    assert (stalls > 0) == waits


def test_best_program_is_the_cost_models_minimum() -> None:
    task, problem = rowwise_task(Program(windows(64, (28, 28), (3, 3), 2, 1, weighted=True)))
    best = best_rowwise_programs(problem, V4, ZEN5, 1)[0]
    assert best[0] == pytest.approx(float(rowwise_time(best[1], ZEN5).total[0]))
    rng = np.random.default_rng(3)
    samples = (random_program(problem, "x86-64-v4", rng) for _ in range(50))
    assert all(float(rowwise_time(other, ZEN5).total[0]) >= best[0] for other in samples)
    lower_kernel_program(best[1], task, True)


def test_row_blocks_beyond_the_l1_cache_cost_more() -> None:
    machine = machine_named("sapphire-rapids").with_cores(1)
    _, problem = rowwise_task(Program(windows(192, (28, 28), (3, 3), 2, 1, weighted=True)))

    def fastest(rows_per_block: int) -> float:
        blocking, steps = scored_stages(problem, V4, machine, rows_per_block)
        random_program = (RowwiseProgram(blocking, (pad, tile)) for _, pad in steps[0] for _, tile in steps[1])
        return min(float(rowwise_time(p, machine).total[0]) for p in random_program)

    one, two, six, twelve = map(fastest, (1, 2, 6, 12))
    assert two == pytest.approx(one, rel=0.05)
    assert 1.1 * one < six < twelve < 1.5 * one


@pytest.mark.parametrize(("channels", "side", "waits"), [(144, 56, True), (16, 56, False), (144, 64, False)])
def test_interleaved_rows_wait_for_lines_beyond_the_private_caches(channels: int, side: int, waits: bool) -> None:
    machine = machine_named("sapphire-rapids").with_cores(1)
    _, problem = rowwise_task(Program(windows(channels, (side, side), (3, 3), 1, 1, weighted=True)))
    blocking, steps = scored_stages(problem, V4, machine, 1)

    def time(lines: int, lanes: int) -> float:
        """By the size of the tiles."""
        tile = next(p for _, p in steps[1] if p.sizes[0][1:3] == (lines, lanes))
        return float(rowwise_time(RowwiseProgram(blocking, (steps[0][0][1], tile)), machine).total[0])

    # rows of 56 elements are not aligned to cache lines, rows of 64 are; whole rows continue the previous one
    assert (time(4, 16) > 1.05 * time(2, 64)) == waits
    assert (time(4, 16) > time(1, 16)) == waits


def test_small_rowwise_kernels_stay_serial() -> None:
    gensor = optimizers("x86-64-v4")[1]
    _, _, s = scheduled(Program(normalised(2, 8)), "x86-64-v4", gensor)
    assert str(LoopKind.PARALLEL) not in show(s.func)
    _, _, s = scheduled(Program(normalised(4096, 1000)), "x86-64-v4", gensor)
    assert str(LoopKind.PARALLEL) in show(s.func)


def test_transposition_stores_contiguously_along_lanes() -> None:
    a, b = Var("a"), Var("b")
    for blocking, columns in ((1000, 777), (1024, 1024)):
        x = buffer("x", (columns, blocking))
        turned = Computation(buffer("y", (blocking, columns)), axes("ab", (blocking, columns)), (), x[b, a])
        problem = Gensor(ZEN5).construct(task_of(Program([turned])))
        assert problem is not None
        best = problem.programs[0]
        assert not isinstance(best, RowwiseProgram)
        # single-element stores would wait for one cache line after the other
        assert best.sketch.lane == 1
