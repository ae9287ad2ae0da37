"""Candidates of the library as tile programs: legal, whole multiples of their children, and right."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.optimize.programs import Program, axes, buffer, check, conv, gemm
from tests.optimize.tasks import MACHINES, task_of
from tests.optimize.vortex_checks import NthCandidate, is_multiple_of_child, states_of

from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Symbol
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.program_tree import lower_kernel_program
from tilewright.optimize.construct.reduction_sketches import reduction_sketches
from tilewright.optimize.vortex.analyser import Analyser
from tilewright.optimize.vortex.candidates import candidate_sizes
from tilewright.optimize.vortex.library import library
from tilewright.tile.problem import extract_problem
from tilewright.tile.program import L1, REGISTER, TileProgram, is_legal
from tilewright.verify.verifier import verify


@settings(max_examples=8, deadline=None)
@given(st.one_of(gemm(), conv()), st.sampled_from(sorted(MACHINES)))
def test_every_candidate_is_a_legal_program(program: Program, target: str) -> None:
    machine = machine_named(MACHINES[target])
    states = states_of(task_of(program, target), machine)
    if states is None:
        return
    problem, by_sketch = states
    for sketch, sizes in by_sketch[:2]:
        assert is_legal(problem, sketch, sizes).all()
        assert is_multiple_of_child(sizes).all()
        sums = sizes[:, REGISTER, list(problem.spatial)].prod(axis=1) / sketch.lanes
        if not problem.axes[sketch.lane].is_reduction:
            # accumulators fit the register file, or the axes are shorter than a tile
            assert (sums <= machine.vector_registers).all()
        times = Analyser(machine).times(problem, sketch, sizes)
        assert np.isfinite(times).all()
        assert (times > 0).all()


@settings(max_examples=8, deadline=None)
@given(st.one_of(gemm(), conv()), st.sampled_from(sorted(MACHINES)), st.integers(0, 1 << 30))
def test_candidates_compute_what_their_kernel_means(program: Program, target: str, number: int) -> None:
    check(program, target, NthCandidate(machine_named(MACHINES[target]), number), any_kind=True)


@pytest.mark.parametrize("rows", [Symbol("rows", 1, 2000), 500])
@pytest.mark.parametrize("window", [1, 3])
def test_candidates_of_large_kernels_can_be_lowered(rows: Symbol | int, window: int) -> None:
    n, o, y, i, k = axes("noyik", [rows, 250, 60, 96, window])
    image = buffer("x", [rows, 96, 60 + window - 1])[n.var, i.var, y.var + k.var]
    weights = buffer("w", [250, 96, window])[o.var, i.var, k.var]
    stage = Computation(buffer("y", [rows, 250, 60]), (n, o, y), (i, k), image * weights, Reducer.SUM)
    sizes = {rows: 40} if isinstance(rows, Symbol) else {}
    task = task_of(Program([stage], sizes, frozenset({"w"})))
    problem, rng, machine = extract_problem(task.func, task.constants), np.random.default_rng(), machine_named("zen5")
    assert problem is not None
    sketches = reduction_sketches(problem, task.target, machine)
    sketch = sketches[rng.integers(len(sketches))]
    every = candidate_sizes(library(machine, 32), problem, sketch, machine)
    program = TileProgram.of(problem, sketch, every[rng.integers(len(every))])
    verify(lower_kernel_program(program, task, parallel=False).func)


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
