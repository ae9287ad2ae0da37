"""Constructions that are kept: one per task, whatever its names are."""

import random
from dataclasses import replace

from tests.driver.models import array
from tests.graph.convolutions import convolution
from tests.graph.running import program_of
from tests.loops.disguise import disguised, plain

from tilewright.expr.computation import Computation
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import Roller
from tilewright.optimize.constructions import ConstructingOptimizer, Constructions
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
    first, second = tasks()
    assert first.func != second.func
    constructions = Constructions(Roller(MACHINE))
    assert constructions.representative(second) is second
    time = constructions.estimate(first)
    assert time is not None
    assert constructions.estimate(second) == time
    assert (constructions.constructed, constructions.reused) == (1, 0)
    same = constructions.representative(second)
    assert same is first
    named = replace(same, func=replace(same.func, name="k0_conv"))
    programs = constructions.schedule_programs(named)
    assert (constructions.constructed, constructions.reused) == (1, 1)
    assert programs is not None
    (schedule,) = programs.schedules
    assert programs.selector is None
    assert schedule.func.name == "k0_conv"
    verify(schedule.func)
    assert schedule.trace == Roller(MACHINE).optimize(named).trace


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
    assert constructions.estimate(first) is None
    assert constructions.constructed == 0
    assert constructions.schedule_programs(first) is not None
    assert (constructions.constructed, constructions.reused) == (1, 0)
    assert constructions.representative(first) is first
