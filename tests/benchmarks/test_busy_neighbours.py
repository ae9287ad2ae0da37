"""Tests of the benchmark beside busy processes: its table, and that its loops run only while they are wanted."""

import os
from pathlib import Path

import psutil
import pytest

from benchmarks import busy_neighbours


def test_a_row_holds_medians_of_blocks_and_the_slow_calls() -> None:
    rounds = [{"quiet": [1.0, 1.0, 9.0], "busy": [2.0, 2.0, 5.0, 5.0, 5.0], "many": [1.5]}] * 2
    rounds.append({"quiet": [3.0], "busy": [30.0], "many": [1.5]})
    row = busy_neighbours.row_of(rounds)
    assert (row.quiet, row.busy, row.many) == (1.0, 5.0, 1.5)
    assert 5.0 <= row.busy_p90 <= 30.0
    assert row.text("m", "e") == f"| m | e | 1000.00 | 5000.00 | {1e3 * row.busy_p90:.2f} | 5.00 | 1500.00 | 1.50 |"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="counts processes in /proc")
def test_busy_processes_end_with_the_context() -> None:
    def loops() -> int:
        return sum("while True: pass" in " ".join(p.cmdline()) for p in psutil.Process(os.getpid()).children())

    with busy_neighbours.busy_processes(2):
        assert loops() == 2
    assert loops() == 0
