"""What a key of machine code depends on."""

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from tests.optimize.computations import KERNELS
from tests.optimize.tasks import task_of

from tilewright.codegen.generator_version import generator_version
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.machine.shipped import machine_named
from tilewright.measure.machine_code_key import machine_code_key
from tilewright.optimize import task_json
from tilewright.optimize.task import Task
from tilewright.schedule import trace_json
from tilewright.schedule.step import Step

TASK = task_of(KERNELS["matmul_of_symbolic_rows"], "x86-64-v4")
MACHINE = machine_named("zen5")
TRACE = trace_json.dumps((Step.of("parallel", "i0"),))
KEY = machine_code_key(TASK, MACHINE, TRACE)


def key_of_target(**changes: object) -> str:
    return machine_code_key(replace(TASK, target=replace(TASK.target, **changes)), MACHINE, TRACE)


@pytest.mark.parametrize(
    "other",
    [
        lambda: machine_code_key(task_of(KERNELS["matmul"], "x86-64-v4"), MACHINE, TRACE),
        lambda: machine_code_key(replace(TASK, constants=TASK.constants ^ {"a1"}), MACHINE, TRACE),
        lambda: machine_code_key(replace(TASK, threads=2), MACHINE, TRACE),
        lambda: machine_code_key(replace(TASK, target=Target.parse("x86-64-v3")), MACHINE, TRACE),
        lambda: machine_code_key(TASK, replace(MACHINE, sync_us=2 * MACHINE.sync_us), TRACE),
        lambda: machine_code_key(TASK, None, TRACE),
        lambda: machine_code_key(TASK, MACHINE, trace_json.dumps(())),
        lambda: machine_code_key(TASK, MACHINE, TRACE, "another"),
        *(lambda f=f: key_of_target(**{f.name: None}) for f in fields(Target)),
    ],
    ids=["loops", "constants", "threads", "target", "machine", "no machine", "program", "generator",
         *(f"target's {f.name}" for f in fields(Target))],
)  # fmt: skip
def test_keys_differ(other: Callable[[], str]) -> None:
    assert other() != KEY


def test_every_figure_of_a_machine_counts() -> None:
    numbers = [f.name for f in fields(Machine) if isinstance(getattr(MACHINE, f.name), int | float)]
    assert len(numbers) >= 10
    changed = [replace(MACHINE, **{name: getattr(MACHINE, name) + 1}) for name in numbers]
    costs = [f.name for f in fields(MACHINE.cost) if isinstance(getattr(MACHINE.cost, f.name), int | float)]
    changed += [replace(MACHINE, cost=replace(MACHINE.cost, **{n: getattr(MACHINE.cost, n) + 1})) for n in costs]
    keys = {machine_code_key(TASK, m, TRACE) for m in changed}
    assert len(keys | {KEY}) == len(changed) + 1


def test_keys_are_those_of_the_task_however_it_came() -> None:
    travelled = task_json.loads(task_json.dumps(TASK))
    assert machine_code_key(travelled, machine_named("zen5"), TRACE, generator_version()) == KEY
    renamed = Task(replace(TASK.func, name="other"), TASK.constants, TASK.target, TASK.fusion)
    assert machine_code_key(renamed, MACHINE, TRACE) == KEY


def test_generator_names_package_sources_and_llvm() -> None:
    assert generator_version().split()[1::2] == ["llvmlite", "LLVM"]
    assert "+" in generator_version()
