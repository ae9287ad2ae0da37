"""Number of threads: argument, variables, affinity, control groups."""

import os
from pathlib import Path

import pytest

from tilewright.errors import OptionError
from tilewright.machine import team_size, thread_count
from tilewright.machine.host import read_caches
from tilewright.machine.threads import available_cpus, cgroup_quota, core_count, parse_cpu_list


@pytest.fixture(autouse=True)
def machine_with_eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.machine.threads.available_cpus", lambda: frozenset(range(8)))
    monkeypatch.setattr("tilewright.machine.threads.core_count", len)
    monkeypatch.setattr("tilewright.machine.threads.cgroup_quota", lambda: None)


@pytest.mark.parametrize(
    ("argument", "environ", "expected"),
    [
        (3, {"TILEWRIGHT_NUM_THREADS": "5", "OMP_NUM_THREADS": "6"}, 3),
        (None, {"TILEWRIGHT_NUM_THREADS": "5", "OMP_NUM_THREADS": "6"}, 5),
        (None, {"OMP_NUM_THREADS": "6"}, 6),
        (None, {"OMP_NUM_THREADS": " 4,2 "}, 4),
        (None, {"TILEWRIGHT_NUM_THREADS": "", "OMP_NUM_THREADS": ""}, 8),
        (None, {}, 8),
        (1024, {}, 1024),
    ],
)
def test_order(argument: int | None, environ: dict[str, str], expected: int) -> None:
    assert thread_count(argument, environ) == expected


@pytest.mark.parametrize(("quota", "expected"), [(0.5, 1), (1.9, 1), (3.0, 3), (64.0, 8)])
def test_quota_limits(monkeypatch: pytest.MonkeyPatch, quota: float, expected: int) -> None:
    monkeypatch.setattr("tilewright.machine.threads.cgroup_quota", lambda: quota)
    assert thread_count(None, {}) == expected
    assert thread_count(None, {"OMP_NUM_THREADS": "7"}) == 7


@pytest.mark.parametrize("name", ["TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS"])
@pytest.mark.parametrize("value", ["0", "-2", "two", "1.5", "1025", "0x4"])
def test_bad_variable(name: str, value: str) -> None:
    with pytest.raises(OptionError) as error:
        thread_count(None, {name: value})
    actual = value if value.lstrip("-").isdigit() else repr(value)
    assert str(error.value) == (
        f"[option] environment variable {name}={value}: expected a number of threads, got {actual}; "
        "give an integer from 1 to 1024"
    )


def test_bad_variable_is_not_read_when_there_is_an_argument() -> None:
    assert thread_count(2, {"OMP_NUM_THREADS": "rubbish"}) == 2


def test_affinity_of_this_process() -> None:
    assert available_cpus() == os.sched_getaffinity(0)


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_two_cpus_of_a_core_count_once(tmp_path: Path) -> None:
    for c in range(8):
        put(tmp_path / f"cpu{c}/topology/thread_siblings_list", f"{c % 4},{c % 4 + 4}\n")
    assert core_count(frozenset(range(8)), tmp_path) == 4
    assert core_count(frozenset({1, 5, 6}), tmp_path) == 2
    assert core_count(frozenset({1, 9, 10}), tmp_path) == 3  # nothing is known of the last two


def test_cgroup_version_2_takes_the_smallest_limit_above(tmp_path: Path) -> None:
    put(tmp_path / "self", "0::/pod/container\n")
    put(tmp_path / "fs/cpu.max", "max 100000\n")
    put(tmp_path / "fs/pod/cpu.max", "150000 100000\n")
    put(tmp_path / "fs/pod/container/cpu.max", "400000 100000\n")
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") == 1.5


def test_cgroup_version_2_inside_a_container(tmp_path: Path) -> None:
    put(tmp_path / "self", "0::/not/visible/here\n")
    put(tmp_path / "fs/cpu.max", "200000 100000\n")
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") == 2.0


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_cgroup_version_1(tmp_path: Path, mount: str) -> None:
    put(tmp_path / "self", "4:memory:/x\n3:cpu,cpuacct:/x\n")
    put(tmp_path / "fs" / mount / "x/cpu.cfs_quota_us", "250000\n")
    put(tmp_path / "fs" / mount / "x/cpu.cfs_period_us", "100000\n")
    put(tmp_path / "fs" / mount / "cpu.cfs_quota_us", "-1\n")
    put(tmp_path / "fs" / mount / "cpu.cfs_period_us", "100000\n")
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") == 2.5


@pytest.mark.parametrize("text", ["max 100000", "", "100000", "x y", "100000 0", "-1 100000"])
def test_cgroup_without_a_limit(tmp_path: Path, text: str) -> None:
    put(tmp_path / "self", "0::/\n")
    put(tmp_path / "fs/cpu.max", text)
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") is None
    assert cgroup_quota(tmp_path / "missing", tmp_path / "fs") is None


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-3,8\n") == (0, 1, 2, 3, 8)
    assert parse_cpu_list("5") == (5,)


def test_caches(tmp_path: Path) -> None:
    for index, (level, kind, size) in enumerate(
        [("2", "Unified", "1024K"), ("1", "Data", "48K"), ("3", "Unified", "32M")]
    ):
        folder = tmp_path / f"index{index}"
        put(folder / "level", level)
        put(folder / "type", kind + "\n")
        put(folder / "size", size + "\n")
        put(folder / "coherency_line_size", "64")
        put(folder / "shared_cpu_list", "0-1")
    put(tmp_path / "index9/level", "4")
    assert [(c.level, c.kind, c.bytes, c.line, c.shared_by) for c in read_caches(tmp_path)] == [
        (1, "Data", 48 * 1024, 64, 2),
        (2, "Unified", 1024 * 1024, 64, 2),
        (3, "Unified", 32 * 1024 * 1024, 64, 2),
    ]
    assert read_caches(tmp_path / "none") == ()


@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (7, 7), (8, 8), (9, 8), (1024, 8)])
def test_a_team_is_no_larger_than_there_are_cpus(monkeypatch: pytest.MonkeyPatch, threads: int, expected: int) -> None:
    monkeypatch.setattr("tilewright.machine.threads.available_cpus", lambda: frozenset(range(8)))
    assert team_size(threads) == expected
