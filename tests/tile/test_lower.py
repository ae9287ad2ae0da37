"""Lowering of tile programs: states of random walks keep the meaning of random kernels; others are refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.assembly_text import hot_loop
from tests.optimize import programs
from tests.optimize.computations import product, products_of_pictures
from tests.optimize.programs import Program
from tests.optimize.tasks import MACHINES, task_of
from tests.tile.results import check_same_results

from tilewright.codegen import assembly, emit_llvm
from tilewright.errors import ScheduleError
from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Var, const
from tilewright.loops.ir import Block, For, LoopKind, walk
from tilewright.loops.printer import show
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.gensor import Annealing, run_walks
from tilewright.optimize.construct.optimizer import search_spaces
from tilewright.schedule.step import replay
from tilewright.tile.lower import lower_program
from tilewright.tile.problem import extract_problem
from tilewright.tile.program import Sketch, TileProgram, check_program, is_legal
from tilewright.tile.schedule_helpers import loop_extent
from tilewright.verify.verifier import verify


@pytest.mark.parametrize("kind", ["reduction", "gemm", "conv", "pool", "elementwise"])
def test_lowered_states_compute_the_same(kind: str) -> None:
    @settings(max_examples=12)
    @given(getattr(programs, kind)(), st.sampled_from(programs.TARGETS), st.integers(0, 1 << 20))
    def run(program: Program, target: str, seed: int) -> None:
        task = task_of(program, target)
        problem = extract_problem(task.func, task.constants)
        if problem is None or not problem.spatial:
            return
        rng = np.random.default_rng(seed)
        choices = list(search_spaces(problem, task, machine_named(MACHINES[target])).items())
        if not choices:
            return
        space, forms = choices[rng.integers(len(choices))]
        states = run_walks(space, Annealing(walks=1), seed).recorded_sizes()
        chain = states[rng.integers(len(states))]
        sizes = tuple(tuple(int(x) for x in level) for level in chain)
        sketch = forms[rng.integers(len(forms))]
        lowered = lower_program(TileProgram(problem, sketch, sizes), task.func, bool(rng.integers(2)))
        verify(lowered.func)
        assert replay(task.func, lowered.trace) == lowered.func
        check_same_results(task.func, lowered.func, program, rng)

    run()


def a_product(sizes: tuple[tuple[int, ...], ...]) -> tuple[TileProgram, Program]:
    """A program for a product of 28 x 64 x 48."""
    program = Program([product(28, 64, 48)], {}, frozenset({"w"}))
    task = task_of(program)
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    return TileProgram(problem, Sketch(1, 16, (0, 1), 2, ((1, 1),)), sizes), program


def test_every_level_becomes_loops(golden) -> None:
    tiled, program = a_product(((2, 16, 2), (4, 32, 24), (28, 64, 48)))
    golden(show(lower_program(tiled, task_of(program).func).func))


def test_remainder_rows_are_peeled(golden) -> None:
    tiled, program = a_product(((6, 32, 1), (12, 32, 48), (24, 64, 48)))
    golden(show(lower_program(tiled, task_of(program).func, parallel=False).func))


def test_remainder_rows_share_tasks_where_one_l2_tile_has_all_rows(golden) -> None:
    tiled, program = a_product(((6, 32, 1), (24, 32, 48), (24, 32, 48)))
    golden(show(lower_program(tiled, task_of(program).func).func))


@pytest.mark.parametrize("near", [48, 16])
@pytest.mark.parametrize("rows", [1, 6, 7])
def test_row_panels_and_prefetches_compute_the_same(rows: int, near: int) -> None:
    sizes = ((rows, 32, 2), (28 // rows * rows, 32, near), (28 // rows * rows, 32, 48))
    tiled, program = a_product(sizes)
    tiled = replace(tiled, sketch=replace(tiled.sketch, packed=((1, 1), (0, 0)), prefetched_operands=(0, 1)))
    lowered = lower_program(tiled, task_of(program).func)
    verify(lowered.func)
    steps = [step.primitive for step in lowered.trace]
    assert steps.count("pack") == 2
    # a single row has no use for hints of the lanes' panels; six leave a part of four behind
    assert steps.count("prefetch") == {1: 1, 6: 4, 7: 2}[rows]
    check_same_results(task_of(program).func, lowered.func, program, np.random.default_rng(7))

@pytest.mark.parametrize(("rows", "hints"), [(2, 0), (7, 1)])
def test_constants_are_prefetched_where_a_register_tile_has_loads_to_spare(rows: int, hints: int) -> None:
    sizes = ((rows, 32, 2), (28, 32, 48), (28, 64, 48))
    tiled, program = a_product(sizes)
    lowered = lower_program(tiled, task_of(program).func)
    assert [step.primitive for step in lowered.trace].count("prefetch") == hints
    at_run_time = replace(tiled.problem.operands[1], constant=False)
    problem = replace(tiled.problem, operands=(tiled.problem.operands[0], at_run_time))
    lowered = lower_program(replace(tiled, problem=problem), task_of(program).func)
    assert "prefetch" not in [step.primitive for step in lowered.trace]


@pytest.mark.parametrize("ahead", [(), (1,)])
@pytest.mark.parametrize(("rows", "columns"), [(2, 64), (2, 70), (3, 48), (3, 81), (3, 5)])
def test_panels_from_beyond_l2_are_one_line_wide(rows: int, columns: int, ahead: tuple[int, ...]) -> None:
    """At widths that end inside a tile or inside a vector too."""
    program = Program([product(rows, columns, 40)], {}, frozenset({"w"}))
    task = task_of(program)
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    tile = min(48, -(-columns // 16) * 16)
    whole = -(-columns // tile) * tile
    sizes = ((rows, tile, 2), (rows, whole, 40), (rows, whole, 40))
    lowered = lower_program(
        TileProgram(problem, Sketch(1, 16, (0, 1), 2, ((1, 1),), prefetched_operands=ahead), sizes), task.func
    )
    verify(lowered.func)
    (step,) = (step for step in lowered.trace if step.primitive == "pack")
    assert step.args[3] == (16 if ahead else tile)
    check_same_results(task.func, lowered.func, program, np.random.default_rng(columns))


@pytest.mark.parametrize(("tile", "panel"), [(8, 8), (16, 16), (24, 24), (32, 16), (48, 16), (56, 56)])
def test_panels_are_whole_lines_or_as_wide_as_the_tile(tile: int, panel: int) -> None:
    """Vectors of half a line: panels have whole lines, or as many columns as the register tile."""
    program = Program([product(3, 112, 40)], {}, frozenset({"w"}))
    task = task_of(program, "x86-64-v3")
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    whole = -(-112 // tile) * tile
    sizes = ((3, tile, 2), (3, whole, 40), (3, whole, 40))
    lowered = lower_program(
        TileProgram(problem, Sketch(1, 8, (0, 1), 2, ((1, 1),), prefetched_operands=(1,)), sizes), task.func
    )
    verify(lowered.func)
    (step,) = (step for step in lowered.trace if step.primitive == "pack")
    assert step.args[3] == panel
    check_same_results(task.func, lowered.func, program, np.random.default_rng(tile))


@pytest.mark.parametrize("rows", [2, 5, 6])
def test_adjacent_narrow_panels_are_filled_together(rows: int) -> None:
    x, w, out = programs.buffer("x", (40, 70)), programs.buffer("w", (40, 32)), programs.buffer("t", (70, 32))
    a, b, i = Var("a"), Var("b"), Var("i")
    turned = Computation(out, programs.axes("ab", (70, 32)), programs.axes("i", (40,)), x[i, a] * w[i, b], Reducer.SUM)
    program = Program([turned], {}, frozenset({"w"}))
    task = task_of(program)
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    whole = 70 // rows * rows
    sizes = ((rows, 32, 2), (whole, 32, 40), (whole, 32, 40))
    lowered = lower_program(TileProgram(problem, Sketch(1, 16, (0, 1), 2, ((1, 1), (0, 0))), sizes), task.func)
    verify(lowered.func)
    loops = lowered.loops("a0_packed_pack")
    assert len(loops) == 4, "groups of panels, the reduction, panels of a group, the inside of a panel"
    assert loop_extent(lowered, loops[2]) == const(min(256 // (4 * rows), -(-70 // rows)))
    check_same_results(task.func, lowered.func, program, np.random.default_rng(rows))


def batched(count: int, rows: int, terms: int, columns: int) -> Program:
    """out[a, b, c] = sum over i of x[a, b, i] * w[a, i, c]"""
    x, w = programs.buffer("x", (count, rows, terms)), programs.buffer("w", (count, terms, columns))
    a, b, c, i = map(Var, "abci")
    out, sizes = programs.buffer("t", (count, rows, columns)), (count, rows, columns)
    body = x[a, b, i] * w[a, i, c]
    return Program([Computation(out, programs.axes("abc", sizes), programs.axes("i", (terms,)), body, Reducer.SUM)], {})


@pytest.mark.parametrize(
    ("program", "tile", "packed"),
    [
        # 24 sums, three vectors and one element fit, but not 24 sums, a vector and eight elements
        (products_of_pictures(3, 64, 32, 8), (3, 8, 16), 0),
        # 27 sums, a vector and an element fit, but not 27 sums, nine vectors and an element
        (batched(9, 6, 64, 32), (9, 3, 16), 1),
    ],
)
def test_loads_of_a_register_tile_do_not_spill_accumulators(
    program: Program, tile: tuple[int, int, int], packed: int
) -> None:
    task = task_of(program, "x86-64-v4")
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    whole = (*(a.extent for a in problem.axes[:3]), 64)
    sizes = ((*tile, 2), (*tile, 64), whole)
    lowered = lower_program(
        TileProgram(problem, Sketch(2, 16, (0, 1, 2), 3, ((packed, 2),)), sizes), task.func, False
    ).func
    verify(lowered)
    loop = hot_loop(assembly(emit_llvm([expose_workspace(lowered)], [], task.target), task.target), "vfmadd")
    assert sum("vfmadd" in x for x in loop) == tile[0] * tile[1] * 2
    assert not any("(%rsp" in x for x in loop), loop
    check_same_results(task.func, lowered, program, np.random.default_rng(3))


def test_an_operand_is_packed_along_axes_that_index_it_alone() -> None:
    tiled, program = a_product(((2, 16, 2), (4, 32, 24), (28, 64, 48)))
    tiled = replace(tiled, sketch=replace(tiled.sketch, packed=((0, 1),)))
    with pytest.raises(ScheduleError, match="'a0' can't be packed along v_i1"):
        lower_program(tiled, task_of(program).func)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (((2, 16, 1), (3, 32, 24), (6, 64, 48)), "every size is a multiple of the one below"),
        (((2, 16, 1), (4, 32, 24), (12, 64, 48)), "fills the one above"),
        (((2, 24, 1), (4, 24, 24), (4, 24, 48)), "the register tile has whole vectors"),
        (((2, 16, 1), (4, 32, 24), (4, 64, 24)), "at most one reduction axis is split"),
        (((2, 16, 5), (4, 32, 5), (4, 64, 48)), "every size is a multiple of the one below"),
    ],
)
def test_illegal_programs_are_refused(sizes: tuple[tuple[int, ...], ...], message: str) -> None:
    tiled, program = a_product(sizes)
    with pytest.raises(ScheduleError, match=message):
        lower_program(tiled, task_of(program).func)
    assert not is_legal(tiled.problem, tiled.sketch, tiled.array[None]).all()


def test_a_program_prints_its_tile_sizes() -> None:
    tiled, _ = a_product(((6, 32, 1), (12, 32, 48), (24, 64, 48)))
    check_program(tiled)
    assert str(tiled) == (
        "v_i0 28: 24 > 12 > 6; v_i1| 64: 64 > 32 > 32; v_r0+ 48: 48 > 48 > 1; order v_i0 v_i1; packed a1"
    )


def test_threads_share_the_rows_of_packed_panels() -> None:
    """Three panels of 64 columns on two threads would be two rounds."""
    program, computed = a_product(((6, 64, 1), (6, 64, 48), (6, 64, 48)))
    sketch = replace(program.sketch, packed=((1, 1),))
    variable = replace(program.problem, operands=tuple(replace(o, constant=False) for o in program.problem.operands))
    task = task_of(computed, "x86-64-v4")
    func = lower_program(replace(program, problem=variable, sketch=sketch), task.func, True, 2).func
    copy = next(s for s, _ in walk(func.body) if isinstance(s, For))
    assert isinstance(copy.body, For)
    assert [copy.kind, copy.body.kind] == [LoopKind.PARALLEL, LoopKind.PARALLEL]


@pytest.mark.parametrize(("reducer", "order"), [(Reducer.PROD, ["v_r0", "v_r1"]), (Reducer.SUM, ["v_r1", "v_r0"])])
def test_products_keep_the_order_of_axes_of_which_an_outer_one_is_unrolled(reducer: Reducer, order: list[str]):
    i, j, outer, inner = programs.axes("ijkn", (16, 64, 2, 200))
    body = programs.buffer("x", (2, 16, 200, 64))[outer.var, i.var, inner.var, j.var]
    program = Program([Computation(programs.buffer("y", (16, 64)), (i, j), (outer, inner), body, reducer)], {})
    task = task_of(program)
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    sizes = ((2, 64, 2, 1), (16, 64, 2, 200), (16, 64, 2, 200))
    lowered = lower_program(TileProgram(problem, Sketch(1, 16, (0, 1), None), sizes), task.func)
    verify(lowered.func)
    (around,) = (loops for s, loops in walk(lowered.func.body) if isinstance(s, Block) and s.name == problem.block)
    assert [x.var.name[:4] for x in around if x.var.name.startswith("v_r")] == order
    check_same_results(task.func, lowered.func, program, np.random.default_rng())
