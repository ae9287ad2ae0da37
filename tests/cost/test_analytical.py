"""The analytical model: what must make a program slower does, and what can't matter does not."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tile.problems import matrix_product

from tilewright.cost.analytical import is_parallel_profitable, packing_time, program_time, program_times
from tilewright.errors import MachineError
from tilewright.machine.shipped import machine_named
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Axis, Problem
from tilewright.tile.program import Sketch, TileProgram

MACHINE = machine_named("zen5").with_cores(2)
ZEN1 = MACHINE.with_cores(1)
FORM = Sketch(1, 16, (1, 0), 2, ((1, 1),))
GOOD = ((14, 32, 1), (14, 32, 256), (56, 256, 512))


def time_of(sizes: tuple[tuple[int, ...], ...], form: Sketch = FORM, m: int = 504, n: int = 512, k: int = 512) -> float:
    return program_time(TileProgram(matrix_product(m, n, k), form, sizes), MACHINE)


def test_no_program_is_faster_than_the_peak() -> None:
    peak = 2.0 * 504 * 512 * 512 / MACHINE.gflops(2)
    assert peak < time_of(GOOD) < 1.5 * peak


@pytest.mark.parametrize(
    ("worse", "reason"),
    [
        (((1, 32, 1), (14, 32, 256), (56, 256, 512)), "too few accumulators to hide the latency"),
        (((2, 16, 1), (14, 32, 256), (56, 256, 512)), "a load for every multiply-add"),
        (((28, 32, 1), (28, 32, 256), (56, 256, 512)), "more accumulators than registers"),
        (((14, 32, 1), (14, 32, 8), (56, 256, 512)), "totals that are loaded and stored again and again"),
        (((14, 32, 1), (14, 32, 256), (504, 512, 512)), "one task for two threads"),
    ],
    ids=lambda x: x.replace(" ", "_") if isinstance(x, str) else "",
)
def test_what_makes_a_program_slower(worse: tuple[tuple[int, ...], ...], reason: str) -> None:
    assert time_of(worse) > 1.1 * time_of(GOOD), reason


def test_sums_without_registers_are_not_cheaper_for_more_additions_in_a_step() -> None:
    one, four = (time_of(((28, 32, u), (28, 32, 256), (56, 256, 512))) for u in (1, 4))
    assert four > 0.9 * one
    assert four > 1.4 * time_of(((14, 32, 4), *GOOD[1:]))


def test_lanes_that_are_not_asked_for_cost_as_much_as_others() -> None:
    tile = ((14, 32, 1), (14, 32, 256), (56, 32, 512))
    assert time_of(tile, n=17) == pytest.approx(time_of(tile, n=32), rel=0.1)


def test_results_across_lanes_cost_more() -> None:
    assert time_of(GOOD, replace(FORM, transposed_store=True)) > time_of(GOOD)


def test_packing_at_run_time_costs_and_packing_before_does_not() -> None:
    packed = replace(FORM, packed=((0, 0), (1, 1)))
    assert time_of(GOOD, packed) > time_of(GOOD) + 1000


def test_packing_what_no_cache_holds_takes_the_time_of_memory() -> None:
    far = MACHINE.levels[-1].core_gbs
    form = replace(FORM, packed=((0, 0), (1, 1)))
    small, large = (
        packing_time(matrix_product(m, 512, 512), form, MACHINE) / (4.0 * m * 512) for m in (504, 504 * 512)
    )
    assert large > 3.0 / far
    assert large > small


def test_packing_rows_of_unknown_length_takes_longer() -> None:
    known = matrix_product(504, 512, 512)
    axes = (replace(known.axes[0], is_static=False), replace(known.axes[1], is_static=False), known.axes[2])
    form = replace(FORM, packed=((1, 1),))
    run_time = replace(known, operands=(known.operands[0], replace(known.operands[1], constant=False)))
    assert packing_time(replace(run_time, axes=axes), form, MACHINE) > packing_time(run_time, form, MACHINE) > 0.0
    # elements along an axis that is not contiguous are moved one by one either way
    form = replace(FORM, packed=((0, 0),))
    assert packing_time(replace(run_time, axes=axes), form, MACHINE) == packing_time(run_time, form, MACHINE)


def stored_across(width: int, rows: int) -> float:
    """Bytes that move into the first cache: a short sum whose lanes lie along 16 planes of results, a few rows and
    columns of them at a time. The planes lie a multiple of all sets apart."""
    axes = tuple(Axis(n, size, True, n == "k") for n, size in (("c", 16), ("h", 64), ("w", 64), ("k", 8)))
    x = Operand("x", 4, False, (64, 64, 8), ((0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)), False)
    w = Operand("w", 4, True, (8, 16), ((0, 0, 0, 1), (1, 0, 0, 0)), False)
    y = Operand("y", 4, False, (16, 64, 64), ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)), True)
    p, tile = Problem("y", "y", axes, (x, w), (y,), 1, 32), (16, rows, width)
    sizes = np.array([[(*tile, 1), (*tile, 8), (*tile, 8)]])
    found = program_times(p, Sketch(0, 16, (0, 1, 2), None, ((1, 0),), True), sizes, ZEN1)
    return float(found.memory[0][0]) * ZEN1.levels[1].gbs(1)


def test_results_across_planes_lose_their_lines_from_store_to_store() -> None:
    # single columns: every element of 16 planes brings its line, which comes and goes; what is read stays
    assert stored_across(1, 8) == pytest.approx(2.0 * 64 * 16 * 64 * 64, rel=0.05)
    # runs of 16 elements bring one line for all of them
    assert stored_across(16, 1) < 0.1 * stored_across(1, 8)


def test_more_cores_are_never_slower_and_slower_memory_is_never_faster() -> None:
    problem = matrix_product(504, 512, 512)
    program = TileProgram(problem, FORM, GOOD)
    assert program_time(program, MACHINE.with_cores(2)) <= program_time(program, MACHINE.with_cores(1))
    slow = tuple(replace(x, core_gbs=x.core_gbs / 8, total_gbs=x.total_gbs / 8) for x in MACHINE.levels)
    assert program_time(program, replace(MACHINE, levels=slow)) > program_time(program, MACHINE)


def test_small_programs_are_not_worth_a_second_thread() -> None:
    problem = matrix_product(14, 64, 8)
    found = program_times(
        problem, FORM, np.array([[[14, 32, 1], [14, 32, 8], [14, 32, 8]]]), replace(MACHINE, sync_us=50.0)
    )
    assert found.parallel[0] == 0.0


def test_a_batch_has_the_times_of_its_programs() -> None:
    problem = matrix_product(504, 512, 512)
    other = ((12, 64, 2), (12, 64, 128), (504, 64, 512))
    both = program_times(problem, FORM, np.array([GOOD, other]), MACHINE)
    assert both.total[0] == program_time(TileProgram(problem, FORM, GOOD), MACHINE)
    assert both.total[1] == program_time(TileProgram(problem, FORM, other), MACHINE)
    assert len(both.memory) == 3


def test_rows_that_are_left_are_no_task_of_their_own() -> None:
    every = ((14, 32, 1), (504, 512, 512), (504, 512, 512))
    apart = ((14, 32, 1), (504, 32, 512), (504, 32, 512))
    found = program_times(matrix_product(512, 512, 512), FORM, np.array([every, apart]), MACHINE)
    assert list(found.parallel > 0) == [False, True]
    assert found.total[1] < 0.65 * found.total[0]


def test_rows_that_are_left_cost_what_they_compute() -> None:
    tile = ((14, 32, 1), (14, 32, 256), (14, 32, 512))
    few, none = time_of(tile, m=511), time_of(tile)
    assert 1.01 * none < few < 1.1 * none


def test_threads_are_worth_their_start_for_large_programs_and_for_unknown_sizes() -> None:
    small = TileProgram(matrix_product(14, 64, 8), FORM, ((14, 32, 1), (14, 32, 8), (14, 32, 8)))
    assert not is_parallel_profitable(small, MACHINE)
    assert is_parallel_profitable(TileProgram(matrix_product(504, 512, 512), FORM, GOOD), MACHINE)
    axes = tuple(replace(a, is_static=a.is_reduction) for a in small.problem.axes)
    unknown = TileProgram(replace(small.problem, axes=axes), FORM, ((14, 32, 1), (14, 32, 8), (14, 32, 8)))
    assert is_parallel_profitable(unknown, MACHINE)


def test_a_machine_without_caches_is_refused() -> None:
    program = TileProgram(matrix_product(504, 512, 512), FORM, GOOD)
    with pytest.raises(MachineError, match=r"machine 'h200': it has no caches, .* for nvptx64 yet; choose"):
        program_time(program, machine_named("h200"))


def windows(vectors: int, lines: int, taps: int = 3, stride: int = 1) -> float:
    """Nanoseconds of a depthwise convolution of 64 padded planes of 58 by 58, its taps written out."""
    axes = (Axis("c", 64, True, False), Axis("y", 56, True, False), Axis("x", 56, True, False),
            Axis("p", taps, True, True), Axis("q", taps, True, True))  # fmt: skip
    moved = ((1, 0, 0, 0, 0), (0, stride, 0, 1, 0), (0, 0, stride, 0, 1))
    image = Operand("x", 4, False, (64, 56 * stride + 2, 56 * stride + 2), moved, False)
    taken = ((1, 0, 0, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 0, 1))
    weights = Operand("w", 4, True, (64, taps, taps), taken, False)
    made = Operand("y", 4, False, (64, 56, 56), tuple((*r[:3], 0, 0) for r in np.eye(5, dtype=int)[:3].tolist()), True)
    problem = Problem("y", "y", axes, (image, weights), (made,), 1, 32)
    register = (1, lines, 16 * vectors, taps, taps)
    whole = (64, 56, 64, taps, taps)
    return program_time(TileProgram(problem, Sketch(2, 16, (0, 1, 2), None), (register, register, whole)), ZEN1)


def test_lines_of_a_window_share_what_they_read() -> None:
    assert windows(1, 1) > 1.1 * windows(1, 4)


def test_windows_of_step_2_take_more_than_twice_the_loads() -> None:
    assert windows(1, 4, stride=2) > 1.3 * windows(1, 4)


def test_more_taps_take_longer() -> None:
    assert windows(1, 4, taps=5) > 1.5 * windows(1, 4)


def transposed(tile: tuple[int, int], near: tuple[int, int]) -> float:
    """The time of a matrix's transpose that no second cache holds, by its register and L1 tiles."""
    axes = (Axis("i", 3136, True, False), Axis("j", 256, True, False))
    read = Operand("x", 4, False, (256, 3136), ((0, 1), (1, 0)), False)
    written = Operand("y", 4, False, (3136, 256), ((1, 0), (0, 1)), True)
    problem = Problem("y", "y", axes, (read, written), (), 1, 32)
    return program_time(TileProgram(problem, Sketch(1, 16, (0, 1), None), (tile, near, near)), ZEN1)


def test_single_lines_are_written_more_slowly_than_whole_rows() -> None:
    assert transposed((16, 16), (3136, 16)) > 1.1 * transposed((16, 16), (3136, 64))
    # tiles that follow each other along a row write it in a row, too
    assert transposed((16, 16), (16, 16)) == pytest.approx(transposed((16, 16), (16, 32)), rel=0.05)


def test_tiles_of_very_many_pages_look_them_up_again() -> None:
    assert transposed((2, 128), (16, 128)) > 1.1 * transposed((4, 64), (16, 128))


def test_chunks_of_a_tile_by_itself_come_back_after_all_pages() -> None:
    """A chunk of 60 rows of b, each on a page of its own, is read again for the next tile of an L1 tile; a tile by
    itself reads all 2400 rows before."""
    few, many = replace(MACHINE, tlb_entries=96), replace(MACHINE, tlb_entries=1 << 20)
    plain = replace(FORM, packed=())

    def looked_up(rows: int) -> float:
        program = TileProgram(matrix_product(504, 2400, 2400), plain, ((8, 48, 1), (rows, 48, 60), (rows, 48, 2400)))
        return program_time(program, few) - program_time(program, many)

    assert looked_up(56) == 0
    assert looked_up(8) > 0
