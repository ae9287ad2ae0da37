"""Stores of records: what is added comes back and is ranked, whoever else writes."""

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.measure.records.examples import (
    GENERATOR,
    MACHINE,
    OLD_GENERATOR,
    OTHER_CALIBRATION,
    OTHER_MACHINE,
    all_kinds,
    dynamic_task,
    filled,
    random_record,
    record,
    small_task,
    split_by,
    timing,
)

from tilewright.codegen.generator_version import generator_version
from tilewright.errors import RecordError
from tilewright.expr.nodes import const
from tilewright.expr.operations import select
from tilewright.measure.records.record import Proximity, Record, RecordKind
from tilewright.measure.records.store import RecordStore, open_store
from tilewright.optimize.constructions import Estimate
from tilewright.optimize.interface import ProgramEstimate


def test_records_of_every_kind_come_back(path: Path) -> None:
    with open_store(filled(path, all_kinds())) as store:
        assert list(store) == all_kinds()
        assert [r.kind for r in store] == list(RecordKind)
        assert store.count() == len(RecordKind)
        assert store.count(RecordKind.FAILURE) == 1
        assert list(store.records(optimizer="gensor")) == all_kinds()[2:4]
        assert list(store.records(small_task().hash, kinds=[RecordKind.CHOICE])) == all_kinds()[:1]
        assert list(store.records("0" * 64)) == []


@pytest.mark.parametrize("seed", range(3))
def test_random_records_come_back(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    records = [random_record(rng) for _ in range(40)]
    with open_store(filled(path, records)) as store:
        assert list(store) == records


def test_a_set_of_programs_is_one_record(path: Path) -> None:
    task = dynamic_task()
    n = task.func.symbols[0]
    traces = (split_by(4, "i1"), split_by(2, "i1"))
    choice = Record(
        task, traces, timing(100.0), "search", MACHINE, GENERATOR, selector=select(n < 9, const(0), const(1)),
        sizes={"n0": 60},         worst_ratio=1.07, is_choice=True, created=5.0,
        estimates=(ProgramEstimate("a", n * 5 + 1), ProgramEstimate("b", n * 3 // 2)),
    )  # fmt: skip
    with open_store(filled(path, [choice])) as store:
        (only,) = store.best(task, MACHINE, GENERATOR)
        assert only.record == choice
        assert only.record.selector is choice.selector


def test_equal_records_are_kept_once(path: Path) -> None:
    constructed = record(result=Estimate((5.0,)), settings="gensor, seed 0")
    again = record(result=Estimate((5.0,)), settings="gensor, seed 0", created=2e9)
    with open_store(path, "write") as store:
        assert store.add([record(), constructed]) == 2
        assert store.add([record(), record(created=1.0), again]) == 1, "a measurement at another time is another one"
        assert store.count() == 3


def test_the_file_is_private(path: Path) -> None:
    filled(path, [record()])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_look_up_ranks_by_closeness_then_kind_then_time(path: Path) -> None:
    ranked = [
        (record(nanoseconds=900, factor=2, is_choice=True, created=3e9), Proximity.EXACT),
        (record(nanoseconds=800, factor=4, is_choice=True, created=2e9), Proximity.EXACT),
        (record(nanoseconds=300, factor=8), Proximity.EXACT),
        (record(nanoseconds=400, factor=8), Proximity.EXACT),
        (record(factor=8, result=timing(100.0, is_disturbed=True)), Proximity.EXACT),
        (record(nanoseconds=50, generator=OLD_GENERATOR), Proximity.OTHER_VERSION),
        (record(nanoseconds=60, machine=OTHER_CALIBRATION), Proximity.OTHER_VERSION),
        (record(nanoseconds=1, machine=OTHER_MACHINE), Proximity.OTHER_MACHINE),
        (record(small_task(target="x86-64-v3"), 2), Proximity.OTHER_MACHINE),
    ]
    constructed = record(nanoseconds=1, result=Estimate((1.0,)))
    records = [r for r, _ in ranked] + [constructed, all_kinds()[3], all_kinds()[4], record(small_task(32), 1)]
    random.Random(0).shuffle(records)
    with open_store(filled(path, records)) as store:
        answers = store.best(small_task(), MACHINE, GENERATOR, limit=20)
        own = [(x.record, x.proximity) for x in answers]
        # the task of a record is that of the look-up
        assert own[:-2] == ranked[:-1]
        assert [x.record.nanoseconds for x in answers] == [900, 800, 300, 400, 100, 50, 60, 1, 2, 1]
        assert answers[-1].record == constructed
        assert [x.record.nanoseconds for x in store.best(small_task(), MACHINE, GENERATOR, limit=3)] == [900, 800, 300]
        assert store.best(small_task(128), MACHINE, GENERATOR) == []


def test_times_of_dynamic_kernels_are_no_choice(path: Path) -> None:
    task = dynamic_task()
    trials = [record(task, t, sizes={"n0": n}) for t, n in ((10.0, 1), (900.0, 64))]
    with open_store(filled(path, trials), "write") as store:
        assert store.best(task, MACHINE, GENERATOR) == []
        store.add([record(task, 900.0, is_choice=True, sizes={"n0": 64})])
        assert [x.record.is_choice for x in store.best(task, MACHINE, GENERATOR)] == [True]


def test_constructed_programs_are_for_their_settings_alone(path: Path) -> None:
    constructed = record(result=Estimate((5.0,)), settings="gensor, seed 0", generator=generator_version())
    with open_store(filled(path, [constructed, record()])) as store:
        assert store.constructed(small_task(), MACHINE, "gensor, seed 0") == constructed
        assert store.constructed(small_task(), MACHINE, "gensor, seed 1") is None
        assert store.constructed(small_task(), OTHER_CALIBRATION, "gensor, seed 0") is None
        assert store.constructed(small_task(32), MACHINE, "gensor, seed 0") is None
        assert store.constructed(small_task(), MACHINE, "gensor, seed 0", RecordKind.ESTIMATE) is None


def test_impossible_records_are_not_added(path: Path) -> None:
    with open_store(path, "write") as store:
        for bad in (record(nanoseconds=float("nan")), record(nanoseconds=-1.0), record(sizes={"n0": 0})):
            with pytest.raises(RecordError, match=r"\[record\]"):
                store.add([record(), bad])
        assert store.count() == 0


_WRITER = """
import sys
from tests.measure.records.examples import record
from tilewright.measure.records.store import open_store
with open_store(sys.argv[1], "write") as store:
    for k in range(int(sys.argv[3])):
        store.add([record(nanoseconds=1 + 1000 * int(sys.argv[2]) + k)])
        print(k, flush=True)
"""


def _writer(path: Path, number: int, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _WRITER, str(path), str(number), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])


def test_eight_processes_write_one_store(path: Path) -> None:
    writers = [_writer(path, number, 12) for number in range(8)]
    assert [w.communicate()[0].count("\n") for w in writers] == [12] * 8
    assert [w.returncode for w in writers] == [0] * 8
    with open_store(path) as store:
        times = sorted(r.nanoseconds or 0 for r in store)
    assert times == [1 + 1000 * number + k for number in range(8) for k in range(12)]


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_writer_loses_nothing_that_was_acknowledged(path: Path, seed: int) -> None:
    writer = _writer(path, 0, 100_000)
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(random.Random(seed).randrange(1, 60))]
    os.kill(writer.pid, signal.SIGKILL)
    acknowledged = len(lines) + writer.communicate()[0].count("\n")
    with open_store(path, "write") as store:
        assert store.count() >= acknowledged
        assert [r.nanoseconds for r in store] == [1 + k for k in range(store.count())]
        assert store.add([record()]) == 1


def test_a_store_in_memory() -> None:
    with open_store(None) as store:
        assert isinstance(store, RecordStore)
        assert store.add(all_kinds()) == len(RecordKind)
        assert list(store) == all_kinds()


def test_several_threads_use_one_store(path: Path) -> None:
    with open_store(path, "write") as store, ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda k: store.add([record(nanoseconds=1 + k)]), range(24))) == 24
        assert store.count() == 24
