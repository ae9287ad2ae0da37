"""Candidates of the library as tile programs: legal, whole multiples of their children, and right."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.optimize.programs import Program, axes, buffer, check, conv, gemm
from tests.optimize.tasks import MACHINES, task_of
from tests.optimize.vortex_checks import NthCandidate, is_multiple_of_child, states_of

from tilewright.expr.computation import Computation, Reducer
from tilewright.machine.shipped import machine_named
from tilewright.optimize.vortex.analyser import Analyser
from tilewright.tile.program import L1, REGISTER, is_legal


@settings(max_examples=12, deadline=None)
@given(st.one_of(gemm(), conv()), st.sampled_from(sorted(MACHINES)))
def test_every_candidate_is_a_legal_program(program: Program, target: str) -> None:
    machine = machine_named(MACHINES[target])
    states = states_of(task_of(program, target), machine)
    if states is None:
        return
    problem, by_sketch = states
    for sketch, sizes in by_sketch:
        assert is_legal(problem, sketch, sizes).all()
        assert len(np.unique(sizes, axis=0)) == len(sizes)
        assert is_multiple_of_child(sizes).all()
        sums = sizes[:, REGISTER, list(problem.spatial)].prod(axis=1) / sketch.lanes
        if not problem.axes[sketch.lane].is_reduction:
            # accumulators fit the register file, or the axes are shorter than a tile
            assert (sums <= machine.vector_registers).all()
        times = Analyser(machine).times(problem, sketch, sizes)
        assert np.isfinite(times).all()
        assert (times > 0).all()


@settings(max_examples=12, deadline=None)
@given(st.one_of(gemm(), conv()), st.sampled_from(sorted(MACHINES)), st.integers(0, 1 << 30))
def test_candidates_compute_what_their_kernel_means(program: Program, target: str, number: int) -> None:
    check(program, target, NthCandidate(machine_named(MACHINES[target]), number), any_kind=True)


@pytest.mark.parametrize("rows", [3, 64, 1000])
def test_a_product_has_tiles_of_every_height_that_it_has_rows_for(rows: int) -> None:
    m, n, k = axes("mnk", [rows, 512, 256])
    body = buffer("x", [rows, 256])[m.var, k.var] * buffer("w", [256, 512])[k.var, n.var]
    stage = Computation(buffer("y", [rows, 512]), (m, n), (k,), body, Reducer.SUM)
    states = states_of(task_of(Program([stage], constants=frozenset({"w"}))), machine_named("zen5"))
    assert states is not None
    for sketch, sizes in states[1]:
        if sketch.lane == 1:
            assert set(sizes[:, REGISTER, 0]) >= set(range(1, min(rows, 15) + 1))
            covered = -(-512 // sizes[:, REGISTER, 1]) * sizes[:, REGISTER, 1]
            assert (covered % sizes[:, L1, 1] == 0).all()
