"""The experiments of Vortex' paper: cases within their limits, tasks that mean them, programs that agree, tables."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.common.result_store import ResultStore
from benchmarks.one_thread import one_thread_machine
from benchmarks.paper_vortex import tables
from benchmarks.paper_vortex.cases import MAX_ELEMENTS, MAX_MULTIPLY_ADDS, Case, Conv, Gemm, all_cases, draw_cases
from benchmarks.paper_vortex.duel import chosen_program, oracle_candidates, ratios
from benchmarks.paper_vortex.kernels import case_kernel
from benchmarks.paper_vortex.timer import CaseTimer, Entrant

from tilewright.optimize.vortex.optimizer import Vortex
from tilewright.tile.shape_samples import value_of


def test_cases_fit_their_limits_and_are_drawn_by_a_seed() -> None:
    cases = all_cases()
    assert len(cases) > 200
    assert all(c.multiply_adds <= MAX_MULTIPLY_ADDS and c.largest <= MAX_ELEMENTS for c in cases)
    drawn = draw_cases(20, 3)
    assert drawn == draw_cases(20, 3)
    assert drawn != draw_cases(20, 4)
    assert len({c.name for c in drawn}) == 20
    assert sum(isinstance(c, Gemm) for c in drawn) == 10


@pytest.mark.parametrize("case", [Gemm(19, 48, 40, 64), Conv(2, 5, 9, 11, 20, 3, 3, 1, 1, 2, 2)], ids=str)
def test_programs_of_a_case_agree(case: Case) -> None:
    machine = one_thread_machine()
    dynamic, exact = case_kernel(case, True), case_kernel(case, False)
    (out,) = dynamic.task.func.outputs
    (expected,) = exact.task.func.outputs
    sizes = [value_of(n, dynamic.sizes) for n in out.shape]
    assert int(np.prod(sizes)) == int(np.prod([value_of(n, {}) for n in expected.shape]))
    program = chosen_program(Vortex(machine).construct(dynamic.task), dynamic)
    assert program is not None
    candidates = dict(list(oracle_candidates(exact, machine, 0.1, 0).items())[:3])
    assert len(candidates) == 3
    timer = CaseTimer({"vortex": Entrant(dynamic.task, program, dynamic.sizes), **candidates})
    assert set(timer.names) == {"vortex", *candidates}
    timer.check()
    assert all(ns > 0 for ns in timer.quick(0.0, 1).values())


def test_ratios_are_speeds_over_the_oracles() -> None:
    assert ratios({"oracle": 50.0, "ns": {"vortex": 100.0, "gensor": 50.0}}) == {"vortex": 0.5, "gensor": 1.0}


def test_tables_show_what_was_measured(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "r.json")
    assert tables.markdown(store) == ""
    for name, oracle, ns in (("gemm 1", "best 1", 100.0), ("gemm 2", "random 3", 400.0), ("conv 1", "best 2", 50.0)):
        store.put("cases", name, {"oracle": 50.0, "oracle_is": oracle, "ns": {"vortex": ns}})
    for rows, slowdown in ((8, 2.0), (100, 8.0), (200, 1.5)):
        store.put("sweep", f"{rows} rows", {"m": rows, "vortex": 10.0, "dietcode": 10.0 * slowdown})
    lines = tables.markdown(store).splitlines()
    rest = " - |" * (len(tables.NAMES) - 1)
    assert f"| products | 2 | 0.25 (0.12) |{rest}" in lines
    assert f"| convolutions | 1 | 1.00 (1.00) |{rest}" in lines
    assert "| 1..127 | 2 | 4.00 | 2.00 | 8.00 |" in lines
    assert "| 128..255 | 1 | 1.50 | 1.50 | 1.50 |" in lines
    assert lines.count("Geometric mean and, in brackets, the lowest. The oracle was: best 2, random 1.") == 1
