"""Tasks: what their hash depends on, their JSON form, and that another process constructs the same code from it."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops.disguise import disguised, plain
from tests.optimize import programs
from tests.optimize.computations import KERNELS
from tests.optimize.programs import Program
from tests.optimize.tasks import MACHINES, QUICK, task_of

from tilewright.codegen import compile_object, emit_llvm
from tilewright.errors import TaskError
from tilewright.graph.fusion import fusion_of
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.lower.prepack_constants import prepack_constants
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize import task_json
from tilewright.optimize.construct.optimizer import Gensor
from tilewright.optimize.task import Task, renamed_samples
from tilewright.tile.shape_samples import ShapeSamples

ROOT = Path(__file__).parents[2]
TARGET = "x86-64-v4"

KERNEL = (
    "func kernel(a0: float32[n0, 8], a1: float32[8], out: float32[n0, 8]; n0: 1..64):\n"
    "    for i0 in serial(n0):\n"
    "        for i1 in serial(8):\n"
    "            block out(v_i0: n0 = i0, v_i1: 8 = i1):\n"
    "                out[v_i0, v_i1] = a0[v_i0, v_i1] * a1[v_i1]\n"
)
SAMPLES = {"representative": {"n0": 8}, "shapes": [{"n0": 1}, {"n0": 60}], "grid": [{"n0": 3}]}
FUSION = {"pattern": "element-wise", "outer_rank": 2, "stages": [["element-wise", None]]}
STORED: dict[str, Any] = {
    "format": "tilewright-task", "version": 2, "func": KERNEL, "constants": ["a1"], "fusion": FUSION,
    "samples": SAMPLES, "threads": 2, "target": TARGET,
}  # fmt: skip


def sampled(task: Task) -> Task:
    return replace(task, samples=ShapeSamples.of(task.func.symbols), threads=2)


@pytest.mark.parametrize("name", KERNELS)
def test_round_trip(name: str) -> None:
    for task in (task_of(KERNELS[name], TARGET), sampled(task_of(KERNELS[name], TARGET))):
        text = task_json.dumps(task)
        read = task_json.loads(text)
        assert read == task.canonical()
        assert read.hash == task.hash
        assert task_json.dumps(read) == text
        assert json.loads(text) == task_json.encode(task)


@given(st.one_of(programs.gemm(), programs.pool()), st.randoms(use_true_random=False))
def test_hashes_do_not_depend_on_names(program: Program, rng: random.Random) -> None:
    func, symbols = disguised(program.stages, rng)
    fusion = fusion_of(program.stages, {program.stages[-1].output.name})
    one = sampled(Task(plain(program.stages), frozenset(), Target.parse(TARGET), fusion))
    assert one.samples is not None
    renamed = ShapeSamples(
        {symbols[v]: n for v, n in one.samples.representative.items()},
        *(
            tuple({symbols[v]: n for v, n in shape.items()} for shape in shapes)
            for shapes in (one.samples.shapes, one.samples.grid)
        ),
    )
    other = Task(func, frozenset(), one.target, fusion, renamed, 2)
    assert other.hash == one.hash
    assert task_json.dumps(other) == task_json.dumps(one)
    assert renamed_samples(renamed, other, one) == one.samples


def test_hash_depends_on_everything_but_the_target() -> None:
    task = task_json.decode(STORED)
    (n,) = task.func.symbols
    assert task.samples is not None
    others = [
        task_json.decode({**STORED, "func": KERNEL.replace("1..64", "1..63")}),
        replace(task, constants=frozenset({"a0"})),
        replace(task, samples=ShapeSamples({n: 8}, ({n: 1},))),
        replace(task, samples=replace(task.samples, grid=())),
        replace(task, samples=None),
        replace(task, threads=1),
        replace(task, fusion=replace(task.fusion, outer_rank=1)),
        task_json.decode({**STORED, "func": KERNEL.replace("float32", "float64")}),
        task_json.decode({**STORED, "func": KERNEL.replace("*", "+")}),
    ]
    hashes = [task.hash, *(t.hash for t in others)]
    assert len(set(hashes)) == len(hashes)
    assert replace(task, target=Target.parse("x86-64")).hash == task.hash


def test_hash_is_pinned() -> None:
    """Records and caches refer to it; a change of the canonical form needs a new `IDENTITY_VERSION`."""
    assert task_json.decode(STORED).hash == "e8f077e222dbcb3311d743038decdc49279cd8da5351a59d3effb6627fd9f6ac"


CONSTRUCT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.optimize.test_task import object_hash
from tilewright.optimize import task_json
print(object_hash(task_json.loads(sys.stdin.read())))
"""


def object_hash(task: Task) -> str:
    """SHA-256 of the object code that `gensor` constructs for a task."""
    schedule = Gensor(machine_named(MACHINES[TARGET]), QUICK).optimize(task)
    assert schedule is not None
    func = expose_workspace(prepack_constants(schedule.func, task.constants).func)
    return sha256(compile_object(emit_llvm([func], [], task.target), task.target)).hexdigest()


@pytest.mark.parametrize("name", ["convolution", "matmul_of_symbolic_rows"])
def test_another_process_constructs_the_same_bytes(name: str) -> None:
    task = sampled(task_of(KERNELS[name], TARGET))
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", CONSTRUCT], input=task_json.dumps(task), capture_output=True, text=True, env=environment
    )
    assert done.stderr == ""
    assert done.stdout.strip() == object_hash(task.canonical())


def test_code_of_a_static_kernel_is_that_of_the_model() -> None:
    task = task_of(KERNELS["matmul"], TARGET)
    assert object_hash(task_json.loads(task_json.dumps(task))) == object_hash(task)


def problems_of(data: object) -> list[str]:
    with pytest.raises(TaskError) as error:
        task_json.decode(data)
    return [f"{p.where}: {p.what}" for p in error.value.problems]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("format", "x", "format: expected 'tilewright-task', got 'x'"),
        ("version", 1, "version: expected 2, got 1"),
        ("func", 3, "func: expected text, got 3"),
        ("func", "func f(:", "func, line 1, column 8: expected the name of a parameter, got ':'"),
        ("constants", "a1", "constants: expected a list of names, got 'a1'"),
        ("constants", ["b"], "constants: there is no parameter 'b'"),
        ("constants", [["b"]], "constants: there is no parameter ['b']"),
        ("samples", 3, "samples: expected null or an object with `representative`, `shapes` and `grid`, got 3"),
        ("samples", {**SAMPLES, "shapes": []}, "samples, shapes: expected a list of shapes, got []"),
        ("samples", {**SAMPLES, "shapes": [{"n1": 1}]},
         "samples, shapes, shape 0: expected sizes of n0, got {'n1': 1}"),
        ("samples", {**SAMPLES, "grid": 5}, "samples, grid: expected a list of shapes, got 5"),
        ("samples", {**SAMPLES, "grid": [{"n0": 0}]},
         "samples, grid, shape 0: expected a size within 1..281474976710656 for 'n0', got 0"),
        ("samples", {**SAMPLES, "representative": {"n0": True}},
         "samples, representative: expected a size within 1..281474976710656 for 'n0', got True"),
        ("threads", 0, "threads: expected null or a number within 1..65536, got 0"),
        ("target", "host", "target: expected the canonical name of a target, got 'host'"),
        ("target", "z80", "target: unknown target, expected one of host, x86-64, x86-64-v2, x86-64-v3, x86-64-v4, "
         "aarch64"),
        ("fusion", {**FUSION, "pattern": "x"},
         "fusion, pattern: expected one of element-wise, reduction, row-wise, chain, sequence, got 'x'"),
        ("fusion", {**FUSION, "outer_rank": 3}, "fusion, outer_rank: expected a number within 0..2, got 3"),
        ("fusion", {**FUSION, "stages": []}, "fusion, stages: expected a list of 1, one per block, got []"),
        ("fusion", {**FUSION, "stages": [["element-wise", 0]]},
         "fusion, stage 0: expected a role and null or the position of a later stage, got ['element-wise', 0]"),
        ("extra", 1, "'extra': there is no such field; there are format, version, func, constants, fusion, samples, "
         "threads, target"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(field: str, value: object, expected: str) -> None:
    assert problems_of({**STORED, field: value}) == [expected]


def test_loops_of_a_task_are_verified() -> None:
    (problem,) = problems_of({**STORED, "func": KERNEL.replace("a1[v_i1]", "a1[v_i1 + 1]")})
    assert problem.startswith("func")
    assert "a1" in problem


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(TaskError) as error:
        task_json.loads(json.dumps({**STORED, "threads": -1, "constants": [], "samples": [], "target": None}))
    assert len(error.value.problems) == 3
    assert "3 problems" in str(error.value)
    assert [p.partition(":")[0] for p in problems_of({})] == [
        "format",
        "version",
        "samples",
        "threads",
        "func",
        "target",
    ]
    with pytest.raises(TaskError, match="it is not JSON"):
        task_json.loads("{")
    with pytest.raises(TaskError, match="expected an object, got list"):
        task_json.loads("[]")
    with pytest.raises(TaskError, match="it exceeds"):
        task_json.loads(" " * (task_json.MAX_BYTES + 1))
    with pytest.raises(TaskError, match="nested too deep"):
        task_json.loads("[" * 100_000)
    deep = KERNEL.replace("a0[v_i0, v_i1] *", "neg(" * 5000 + "a0[v_i0, v_i1]" + ")" * 5000 + " *")
    assert problems_of({**STORED, "func": deep}) == ["func: its loops or expressions are nested too deep"]
