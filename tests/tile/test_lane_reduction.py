"""Tile programs with lanes along the reduction: meaning for any size, their loops, and when they are proposed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.optimize import programs
from tests.optimize.computations import relu
from tests.optimize.programs import Program, axes, buffer
from tests.optimize.tasks import MACHINES, task_of
from tests.tile.results import check_same_results

from tilewright.errors import ScheduleError
from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Expr, Symbol, Var
from tilewright.loops.ir import For, LoopKind, walk
from tilewright.loops.printer import show
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.gensor import Annealing, run_walks
from tilewright.optimize.construct.optimizer import Gensor, search_spaces
from tilewright.optimize.construct.reduction_sketches import MIN_PACK_REUSE
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import replay
from tilewright.tile.lower import lower_program
from tilewright.tile.packing import MAX_LANE_REDUCTION_COLUMNS
from tilewright.tile.problem import extract_problem
from tilewright.tile.program import TileProgram
from tilewright.verify.verifier import verify

K = Symbol("K", 1, 500)
ROWS, COLUMNS = Symbol("R", 1, 50), Symbol("C", 1, 50)


def rows_by_rows(m: Expr | int, n: Expr | int, k: Expr | int, turned: bool = False) -> list[Computation]:
    """x[m, k] * w[n, k], or w[k, n] where it is turned, with an epilogue."""
    i, j, r = axes("ijr", (m, n, k))
    x, w = buffer("x", (m, k)), buffer("w", (k, n) if turned else (n, k))
    body = x[i.var, r.var] * w[(r.var, j.var) if turned else (j.var, r.var)]
    first = Computation(buffer("t", (m, n)), (i, j), (r,), body, Reducer.SUM)
    return [first, relu(first)]


def along_lanes(program: Program, seed: int, target: str = "x86-64-v4") -> list[TileProgram]:
    """States of a walk through the programs with lanes along the reduction; none where there are no such programs."""
    task = task_of(program, target)
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    programs: list[TileProgram] = []
    for space, forms in search_spaces(problem, task, machine_named(MACHINES[target])).items():
        if problem.axes[space.sketch.lane].is_reduction:
            for chain in run_walks(space, Annealing(walks=1), seed).recorded_sizes():
                sizes = tuple(tuple(int(x) for x in level) for level in chain)
                programs.append(TileProgram(problem, forms[seed % len(forms)], sizes))
    return programs


def check_lowered(program: Program, tiled: TileProgram, seed: int, target: str = "x86-64-v4") -> Schedule:
    """Lowers a program and compares with the untransformed loops."""
    task = task_of(program, target)
    lowered = lower_program(tiled, task.func, bool(seed % 2))
    verify(lowered.func)
    assert replay(task.func, lowered.trace) == lowered.func
    check_same_results(task.func, lowered.func, program, np.random.default_rng(seed))
    return lowered


@settings(max_examples=20)
@given(
    st.sampled_from([1, 2, 7, 13, 24, ROWS]),
    st.sampled_from([1, 3, 4, 17, COLUMNS]),
    st.sampled_from([16, 17, 31, 64, 96, 131, K]),
    st.booleans(),
    st.sampled_from(programs.TARGETS),
    st.integers(0, 1 << 20),
)
@example(1, 17, 16, True, "x86-64-v4", 0)
@example(7, COLUMNS, K, True, "x86-64-v3", 0)
@example(24, 3, 131, True, "x86-64-v4", 3)
@example(ROWS, 4, K, True, "x86-64-v3", 3)
def test_lane_reductions_of_any_state_compute_the_same(
    m: Expr | int, n: Expr | int, k: Expr | int, turned: bool, target: str, seed: int
) -> None:
    assume((m, n) != (1, 1))
    rng = np.random.default_rng(seed)
    sizes = {v: int(rng.integers(1, min(v.hi or 1, 100))) for v in (m, n, k) if isinstance(v, Var)}
    constants = frozenset({"w"}) if seed % 3 else frozenset[str]()
    program = Program(rows_by_rows(m, n, k, turned), sizes, constants)
    tile_programs = along_lanes(program, seed, target)
    if not turned:
        assert tile_programs
    elif not isinstance(n, int) or n > MAX_LANE_REDUCTION_COLUMNS:
        # packed along the reduction, columns must all be in one register tile
        assert not tile_programs
    elif constants or isinstance(m, int):
        # packed at run time only where every element of w is used by many rows
        assert bool(tile_programs) == bool(constants or (isinstance(m, int) and m >= MIN_PACK_REUSE))
    if tile_programs:
        check_lowered(program, tile_programs[rng.integers(len(tile_programs))], seed, target)


@pytest.mark.parametrize("kind", ["reduction", "gemm", "conv"])
def test_random_kernels_keep_their_meaning(kind: str) -> None:
    @settings(max_examples=12)
    @given(getattr(programs, kind)(), st.sampled_from(programs.TARGETS), st.integers(0, 1 << 20))
    def run(program: Program, target: str, seed: int) -> None:
        task = task_of(program, target)
        problem = extract_problem(task.func, task.constants)
        if problem is None or not problem.reduce or not problem.spatial:
            return
        tile_programs = along_lanes(program, seed, target)
        if tile_programs:
            check_lowered(program, tile_programs[seed % len(tile_programs)], seed, target)

    run()


def test_only_the_last_step_is_masked(golden) -> None:
    program = Program(rows_by_rows(8, 3, 100), {}, frozenset({"w"}))
    tiled = along_lanes(program, 0)[0]
    sizes = ((4, 3, 32), (8, 3, 128), (8, 3, 128))
    lowered = check_lowered(program, replace(tiled, sketch=replace(tiled.sketch, order=(0, 1)), sizes=sizes), 1)
    golden(show(lowered.func))


@pytest.mark.parametrize(("rows", "columns", "packs_columns"), [(400, 7, True), (119, 40, False), (8, 7, False)])
def test_few_columns_are_packed_along_the_reduction(rows: int, columns: int, packs_columns: bool) -> None:
    """A vector of results would leave most lanes empty; the columns are copied once and used by every row."""
    task = task_of(Program(rows_by_rows(rows, columns, 1309, turned=True)))
    construction = Gensor(machine_named("x86-64-v4")).construct(task)
    assert construction is not None
    best = construction.programs[0]
    assert isinstance(best, TileProgram)
    assert best.problem.axes[best.sketch.lane].is_reduction == packs_columns
    assert bool(best.sketch.packed) or not packs_columns


@pytest.mark.parametrize(("k", "parts"), [(96, 1), (100, 2), (7, 1), (K, 2)])
def test_the_tail_is_peeled_unless_no_step_is_whole(k: Expr | int, parts: int) -> None:
    program = Program(rows_by_rows(4, 2, k), {K: 37} if k is K else {})
    task = task_of(program)
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    sketch = along_lanes(Program(rows_by_rows(4, 2, 96)), 0)[0].sketch
    cover = -(-problem.axes[2].extent // 32) * 32
    lowered = check_lowered(program, TileProgram(problem, sketch, ((2, 2, 32), (4, 2, cover), (4, 2, cover))), 0)
    loops = [s for s, _ in walk(lowered.func.body) if isinstance(s, For)]
    assert sum("v_r0_o" in x.var.name and x.kind is LoopKind.SERIAL for x in loops) == parts


def test_lane_reductions_need_operands_contiguous_along_the_reduction() -> None:
    assert along_lanes(Program(rows_by_rows(8, 4, 64)), 0)
    assert along_lanes(Program(rows_by_rows(8, 4, 64, turned=True), {}, frozenset({"w"})), 0)
    assert not along_lanes(Program(rows_by_rows(8, 4, 64, turned=True)), 0)
    assert not along_lanes(Program(rows_by_rows(8, 4, 15)), 0)


def test_lane_reductions_are_chosen_for_narrow_results() -> None:
    def lane(m: int, n: int, k: int) -> int:
        program = Program(rows_by_rows(m, n, k, turned=True), {}, frozenset({"w"}))
        construction = Gensor(machine_named("zen5")).construct(task_of(program))
        assert construction is not None
        best = construction.programs[0]
        assert isinstance(best, TileProgram)
        return best.sketch.lane

    assert lane(4096, 4, 1024) == 2
    assert lane(4096, 3, 1000) == 2
    assert lane(512, 512, 512) == 1


@pytest.mark.parametrize("name", ["zen5", "sapphire-rapids", "x86-64-v4"])
def test_streaming_lane_reductions_read_several_rows(name: str) -> None:
    program = Program(rows_by_rows(4096, 1, 4096), {}, frozenset({"w"}))
    construction = Gensor(machine_named(name).with_cores(2)).construct(task_of(program))
    assert construction is not None
    best = construction.programs[0]
    # not as a chain of blocks, which reads one row after the other
    assert isinstance(best, TileProgram)
    assert best.problem.axes[best.sketch.lane].is_reduction
    assert best.sizes[0][0] > 1


def test_no_whole_vector_is_beyond_the_extent() -> None:
    tiled = along_lanes(Program(rows_by_rows(8, 3, 100)), 0)[0]
    task = task_of(Program(rows_by_rows(8, 3, 100)))
    with pytest.raises(ScheduleError, match="fills the one above"):
        lower_program(replace(tiled, sizes=((1, 3, 32), (8, 3, 96), (8, 3, 96))), task.func)
    with pytest.raises(ScheduleError, match="at most one reduction axis is split"):
        lower_program(replace(tiled, sizes=((1, 3, 32), (8, 3, 64), (8, 3, 128))), task.func)
    with pytest.raises(ScheduleError, match="the register tile has whole vectors"):
        lower_program(replace(tiled, sizes=((1, 3, 20), (8, 3, 100), (8, 3, 100))), task.func)
