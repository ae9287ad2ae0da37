"""Constructions that are kept: one per task, whatever its names are."""

import random

from tests.driver.models import array
from tests.graph.convolutions import convolution
from tests.graph.running import program_of
from tests.loops.disguise import disguised, plain

from tilewright.expr.computation import Axis, Computation
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Buffer, Load, Var, const
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import Roller
from tilewright.optimize.constructions import ConstructingOptimizer, Constructions, Estimate, construction_key
from tilewright.optimize.interface import optimizer_named
from tilewright.optimize.task import Task
from tilewright.verify.verifier import verify

TARGET = Target.parse("x86-64-v4")
MACHINE = machine_named("x86-64-v4")


def tasks():
    """A task of a convolution, and the same one under other names."""
    program = program_of(convolution((1, 8, 9, 9), array(1, 8, 8, 3, 3)))
    stages = [s for s in program.steps if isinstance(s, Computation) and s.is_reduction]
    other, _ = disguised(stages, random.Random(3))
    return tuple(Task(f, frozenset(), TARGET, make_kernel(stages).fusion) for f in (plain(stages), other))


def test_equal_tasks_are_constructed_once():
    first, second = (t.canonical() for t in tasks())
    assert first.func == second.func
    constructions = Constructions(Roller(MACHINE))
    assert not constructions.has_estimate(second)
    estimate = constructions.estimate(first)
    assert estimate.nanoseconds
    assert constructions.has_estimate(second)
    assert constructions.estimate(second) == estimate
    assert (constructions.constructed, constructions.reused) == (1, 0)
    programs = constructions.schedule_programs(second)
    assert (constructions.constructed, constructions.reused) == (1, 1)
    assert programs is not None
    (schedule,) = programs.schedules
    assert programs.selector is None
    verify(schedule.func)
    alone = Roller(MACHINE).optimize(first)
    assert alone is not None
    assert schedule.trace == alone.trace


def scaled_task(offset: float) -> Task:
    """A task of a convolution whose result a literal is added to."""
    program = program_of(convolution((1, 8, 9, 9), array(1, 8, 8, 3, 3)))
    (stage,) = (s for s in program.steps if isinstance(s, Computation) and s.is_reduction)
    shifted = Buffer("shifted", stage.output.shape, stage.output.dtype)
    axes = tuple(Axis(Var(f"x{k}"), n) for k, n in enumerate(stage.output.shape))
    body = Load(stage.output, tuple(a.var for a in axes)) + const(offset, float32)
    stages = [stage, Computation(shifted, axes, (), body)]
    return Task(plain(stages), frozenset(), TARGET, make_kernel(stages).fusion).canonical()


def test_tasks_of_other_literals_are_constructed_once():
    first, second = scaled_task(0.25), scaled_task(-1.5e-7)
    assert first.hash != second.hash
    assert construction_key(first) == construction_key(second)
    constructions = Constructions(Roller(MACHINE))
    estimate = constructions.estimate(first)
    assert constructions.estimate(second) == estimate
    assert constructions.constructed == 1
    programs, own = constructions.schedule_programs(second), Roller(MACHINE).optimize(second)
    assert programs is not None
    assert own is not None
    assert programs.schedules[0].func == own.func


def test_learned_estimates_are_not_constructed():
    task = tasks()[0].canonical()
    here, elsewhere = Constructions(Roller(MACHINE)), Constructions(Roller(MACHINE))
    here.learn(task, elsewhere.estimate(task))
    assert here.has_estimate(task)
    assert not here.has_constructed(construction_key(task))
    assert here.estimate(task) == elsewhere.estimate(task)
    assert here.constructed == 0
    # a schedule needs the program
    programs, expected = here.schedule_programs(task), elsewhere.schedule_programs(task)
    assert programs is not None
    assert expected is not None
    assert (here.constructed, programs.schedules[0].trace) == (1, expected.schedules[0].trace)


def test_schedules_without_an_estimate_are_constructions():
    constructions = Constructions(Roller(MACHINE))
    first, _ = tasks()
    assert constructions.schedule_programs(first) is not None
    assert (constructions.constructed, constructions.reused) == (1, 0)


def test_optimizers_that_do_not_estimate_are_asked_for_schedules_only():
    rule = optimizer_named("rule")
    assert not isinstance(rule, ConstructingOptimizer)
    constructions = Constructions(rule)
    first, _ = tasks()
    assert constructions.estimate(first) == Estimate((), "rule constructs no program for it")
    assert constructions.constructed == 0
    assert constructions.schedule_programs(first) is not None
    assert (constructions.constructed, constructions.reused) == (1, 0)
