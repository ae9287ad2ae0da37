"""Records of small kernels, with programs that fit them."""

import random
from pathlib import Path
from typing import Any

from tilewright.measure.records.record import Record
from tilewright.measure.records.store import open_store
from tilewright.optimize import task_json
from tilewright.optimize.constructions import Estimate
from tilewright.optimize.measurer import Failure, FailureKind, Timing
from tilewright.optimize.task import Task
from tilewright.schedule.step import Step

MACHINE = "zen5, 2 cores, 0123456789abcdef"
OTHER_CALIBRATION = "zen5, 2 cores, fedcba9876543210"
OTHER_MACHINE = "haswell, 4 cores, 0123456789abcdef"
GENERATOR, OLD_GENERATOR = "1.0 llvmlite 1 LLVM 1", "0.9 llvmlite 1 LLVM 1"


def small_task(size: int = 64, target: str = "x86-64-v4") -> Task:
    """The kernel out[i] = a[i] * b[i] of a fixed size."""
    func = (
        f"func kernel(a0: float32[{size}], a1: float32[{size}], out: float32[{size}]):\n"
        f"    for i0 in serial({size}):\n"
        f"        block out(v_i0: {size} = i0):\n"
        "            out[v_i0] = a0[v_i0] * a1[v_i0]\n"
    )
    return _task(func, 1, target)


def dynamic_task() -> Task:
    """The kernel out[i, j] = a[i, j] * b[j] of n0 x 8."""
    func = (
        "func kernel(a0: float32[n0, 8], a1: float32[8], out: float32[n0, 8]; n0: 1..64):\n"
        "    for i0 in serial(n0):\n"
        "        for i1 in serial(8):\n"
        "            block out(v_i0: n0 = i0, v_i1: 8 = i1):\n"
        "                out[v_i0, v_i1] = a0[v_i0, v_i1] * a1[v_i1]\n"
    )
    return _task(func, 2, "x86-64-v4")


def _task(func: str, rank: int, target: str) -> Task:
    fusion = {"pattern": "element-wise", "outer_rank": rank, "stages": [["element-wise", None]]}
    return task_json.decode({
        "format": "tilewright-task", "version": task_json.VERSION, "func": func, "constants": [], "fusion": fusion,
        "samples": None, "threads": None, "target": target,
    })  # fmt: skip


def split_by(factor: int, loop: str = "i0") -> tuple[Step, ...]:
    """The steps of a program with a split loop."""
    return (Step.of("split", loop, factor, names=[f"{loop}_o", f"{loop}_i"]),)


def timing(nanoseconds: float, **changed: Any) -> Timing:
    """Times of a quiet machine."""
    values: dict[str, Any] = {
        "nanoseconds": nanoseconds, "spread": 0.02, "fastest": 0.9 * nanoseconds, "blocks": 10, "undisturbed": 9,
        "others": 0.0, "is_disturbed": False, "incumbent": None,
    }  # fmt: skip
    return Timing(**{**values, **changed})


def record(task: Task | None = None, nanoseconds: float = 1000.0, factor: int = 4, **changed: Any) -> Record:
    """A timed program of a kernel."""
    values: dict[str, Any] = {
        "optimizer": "search", "machine": MACHINE, "generator": GENERATOR, "created": 1.7e9,
        "result": timing(nanoseconds),
    }  # fmt: skip
    return Record(task or small_task(), (split_by(factor),), **{**values, **changed})


def all_kinds() -> list[Record]:
    """A record of every kind."""
    failure = Failure(FailureKind.CRASH, "signal 11")
    constructed = {"optimizer": "gensor", "settings": "gensor, seed 0"}
    return [
        record(is_choice=True),
        record(factor=8),
        record(factor=2, result=Estimate((12.5, 13.0)), **constructed),
        Record(small_task(), (), Estimate((), "no tiling fits"), "gensor", MACHINE, GENERATOR, "gensor, seed 0"),
        record(factor=16, result=failure),
    ]


def filled(path: Path, records: list[Record]) -> Path:
    """A store of records, all of them distinct."""
    with open_store(path, "write") as store:
        assert store.add(records) == len(records)
    return path


def random_record(rng: random.Random) -> Record:
    """A timed program with random numbers."""
    result = timing(
        rng.uniform(1, 1e9), spread=rng.random(), incumbent=rng.choice([None, rng.uniform(1, 1e9)]),
        is_disturbed=rng.random() < 0.5,
    )  # fmt: skip
    return record(
        small_task(rng.choice([32, 64])), factor=rng.choice([2, 4, 8]), result=result, created=rng.uniform(0, 2e9)
    )
