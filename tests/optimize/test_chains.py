"""Construction of chains, windows, element-wise work: meaning is kept, and what the rule chooses is a program too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import TARGETS
from tests.optimize import programs
from tests.optimize.native import same
from tests.optimize.programs import Program, axes, buffer, check, scheduled
from tests.optimize.test_construct import MACHINES, optimizers, task_of
from tests.optimize.test_rows import COLUMNS, ROWS, normalised, some_windows, windows
from tests.optimize.test_rule import KERNELS
from tests.tile.test_lower import check_same_results

from tilewright.cost.analytical import CALL_NS
from tilewright.cost.rowwise import rowwise_time
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Symbol, Var
from tilewright.loops.ir import LoopKind
from tilewright.loops.printer import show
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import Gensor
from tilewright.optimize.construct.rowwise_programs import (
    RowwiseProblem,
    best_rowwise_programs,
    lower_rowwise,
    rows_per_block_options,
    rowwise_problem,
    scored_stages,
)
from tilewright.optimize.interface import Task
from tilewright.schedule.trace import replay
from tilewright.tile.rowwise import RowwiseProgram
from tilewright.verify.verifier import verify

ZEN5 = machine_named("zen5")
V4 = Target.parse("x86-64-v4")


def chain_of(program: Program, target: str = "x86-64-v4") -> tuple[Task, RowwiseProblem]:
    """The task of a program that is a chain."""
    task = task_of(program, target)
    found = rowwise_problem(task)
    assert found is not None
    return task, found


def test_rows_of_unknown_number_are_judged_by_samples_as_tile_programs_are() -> None:
    some = Symbol("R", 8, 512)
    _, found = chain_of(Program(normalised(some, 80), {some: 9}))
    time, program = best_rowwise_programs(found, V4, ZEN5, 1)[0]
    sizes = [p.axes[0].extent for p in found.problems[0].samples]
    assert len(sizes) == 3
    total: list[float] = []
    for rows in sizes:
        at = chain_of(Program(normalised(rows, 80), {}))[1]
        cut, steps = scored_stages(at, V4, ZEN5, 1)
        own = tuple(next(p for _, p in s if (p.sketch, p.sizes) == (x.sketch, x.sizes))
                    for s, x in zip(steps, program.stages, strict=True))  # fmt: skip
        total.append(float(rowwise_time(RowwiseProgram(cut, own), ZEN5).total[0]))
    assert time == pytest.approx(float(np.exp(np.mean(np.log(np.array(total) + CALL_NS)))) - CALL_NS)


def drawn(c: RowwiseProblem, target: str, rng: np.random.Generator) -> RowwiseProgram:
    """Any program of a chain."""
    choices = rows_per_block_options(c)
    together = choices[int(rng.integers(len(choices)))]
    rows, steps = scored_stages(c, Target.parse(target), machine_named(MACHINES[target]), together)
    return RowwiseProgram(rows, tuple(s[int(rng.integers(len(s)))][1] for s in steps))


@settings(max_examples=30)
@given(some_windows(), st.sampled_from(programs.TARGETS), st.integers(0, 1 << 20))
def test_any_program_of_windows_keeps_the_meaning(program: Program, target: str, seed: int) -> None:
    task = task_of(program, target)
    found = rowwise_problem(task)
    if found is None:
        return
    rng = np.random.default_rng(seed)
    made = lower_rowwise(drawn(found, target, rng), task, bool(rng.integers(2)))
    verify(made.func)
    assert replay(task.func, made.trace) == made.func
    check_same_results(task.func, made.func, program, rng)


@settings(max_examples=20)
@given(st.sampled_from([1, 3, 64, ROWS]), st.integers(2, 90), st.sampled_from(programs.TARGETS), st.integers(0, 99))
def test_any_program_of_rows_keeps_the_meaning(rows: int | Var, columns: int, target: str, seed: int) -> None:
    program = Program(normalised(rows, columns), {ROWS: 5} if rows is ROWS else {})
    task, found = chain_of(program, target)
    rng = np.random.default_rng(seed)
    made = lower_rowwise(drawn(found, target, rng), task, bool(rng.integers(2)))
    verify(made.func)
    check_same_results(task.func, made.func, program, rng)


@pytest.mark.parametrize("kind", ["elementwise", "reduction", "pool"])
def test_what_is_constructed_keeps_the_meaning(kind: str) -> None:
    @settings(max_examples=20)
    @given(getattr(programs, kind)(), st.sampled_from(programs.TARGETS))
    def run(program: Program, target: str) -> None:
        for optimizer in optimizers(target):
            check(program, target, optimizer, any_kind=True)  # some have no affine accesses, or one point

    run()


@pytest.mark.parametrize("size", [1, 5, 17, 40])
def test_rows_of_unknown_length_and_number(size: int) -> None:
    for optimizer in optimizers("x86-64-v3"):
        check(Program(normalised(ROWS, 40), {ROWS: size}), "x86-64-v3", optimizer)
        check(Program(normalised(ROWS, COLUMNS)[:2], {ROWS: 3, COLUMNS: size}), "x86-64-v3", optimizer)


@pytest.mark.parametrize("target", TARGETS)
def test_native_chains(target: str) -> None:
    for program in (Program(normalised(9, 1000)), Program(windows(24, (7, 7), (3, 3), 1, 1, weighted=True))):
        same(program, target, optimizers(target)[1])


@pytest.mark.parametrize("name", KERNELS)
def test_every_typical_kernel_is_constructed(name: str) -> None:
    assert optimizers("x86-64-v4")[1].optimize(task_of(KERNELS[name])) is not None


def test_the_tile_of_the_rule_is_one_of_the_programs() -> None:
    program = Program(windows(64, (56, 56), (3, 3), 1, 1, weighted=True))
    task, found = chain_of(program)
    by_rule = scheduled(program, "x86-64-v4")[2].func
    rows, steps = scored_stages(found, V4, ZEN5, 1)
    every = (RowwiseProgram(rows, (pad, tile)) for _, pad in steps[0] for _, tile in steps[1])
    assert show(by_rule) in (show(lower_rowwise(p, task, True).func) for p in every)


def test_the_best_program_is_no_slower_than_any_other_by_the_model() -> None:
    task, found = chain_of(Program(windows(64, (28, 28), (3, 3), 2, 1, weighted=True)))
    best = best_rowwise_programs(found, V4, ZEN5, 1)[0]
    assert best[0] == pytest.approx(float(rowwise_time(best[1], ZEN5).total[0]))
    rng = np.random.default_rng(3)
    assert all(float(rowwise_time(drawn(found, "x86-64-v4", rng), ZEN5).total[0]) >= best[0] for _ in range(50))
    lower_rowwise(best[1], task, True)


def test_groups_of_images_that_crowd_the_first_cache_take_longer() -> None:
    machine = machine_named("sapphire-rapids").with_cores(1)
    _, found = chain_of(Program(windows(192, (28, 28), (3, 3), 2, 1, weighted=True)))

    def fastest(together: int) -> float:
        rows, steps = scored_stages(found, V4, machine, together)
        drawn = (RowwiseProgram(rows, (pad, tile)) for _, pad in steps[0] for _, tile in steps[1])
        return min(float(rowwise_time(p, machine).total[0]) for p in drawn)

    one, two, six, twelve = map(fastest, (1, 2, 6, 12))
    assert two == pytest.approx(one, rel=0.05)
    assert 1.1 * one < six < twelve < 1.5 * one


@pytest.mark.parametrize(("channels", "side", "waits"), [(144, 56, True), (16, 56, False), (144, 64, False)])
def test_parts_of_several_rows_wait_for_lines_that_no_near_cache_holds(channels: int, side: int, waits: bool) -> None:
    machine = machine_named("sapphire-rapids").with_cores(1)
    _, found = chain_of(Program(windows(channels, (side, side), (3, 3), 1, 1, weighted=True)))
    rows, steps = scored_stages(found, V4, machine, 1)

    def time(lines: int, lanes: int) -> float:
        """By the size of the tiles."""
        tile = next(p for _, p in steps[1] if p.sizes[0][1:3] == (lines, lanes))
        return float(rowwise_time(RowwiseProgram(rows, (steps[0][0][1], tile)), machine).total[0])

    # rows of 56 elements begin anywhere in lines, those of 64 do not; whole rows go on where the last one was
    assert (time(4, 16) > 1.05 * time(2, 64)) == waits
    assert (time(4, 16) > time(1, 16)) == waits


def test_small_chains_start_no_threads() -> None:
    gensor = optimizers("x86-64-v4")[1]
    _, _, s = scheduled(Program(normalised(2, 8)), "x86-64-v4", gensor)
    assert str(LoopKind.PARALLEL) not in show(s.func)
    _, _, s = scheduled(Program(normalised(4096, 1000)), "x86-64-v4", gensor)
    assert str(LoopKind.PARALLEL) in show(s.func)


def test_a_transposition_stores_along_lanes() -> None:
    a, b = Var("a"), Var("b")
    for rows, columns in ((1000, 777), (1024, 1024)):
        x = buffer("x", (columns, rows))
        turned = Computation(buffer("y", (rows, columns)), axes("ab", (rows, columns)), (), x[b, a])
        found = Gensor(ZEN5).construct(task_of(Program([turned])))
        assert found is not None
        best = found.programs[0]
        assert not isinstance(best, RowwiseProgram)
        # stores of single elements would wait for their lines one after the other
        assert best.sketch.lane == 1
