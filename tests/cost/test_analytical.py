"""The analytical model: what must make a program slower does, and what can't matter does not."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tile.problems import matrix_product

from tilewright.cost.analytical import is_parallel_profitable, program_time, program_times
from tilewright.cost.packing import packing_time
from tilewright.errors import MachineError
from tilewright.machine.model import Machine
from tilewright.machine.shipped import machine_named
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem, ProblemAxis
from tilewright.tile.program import Sketch, TileProgram

MACHINE = machine_named("zen5").with_cores(2)
ZEN1 = MACHINE.with_cores(1)
SKETCH = Sketch(1, 16, (1, 0), 2, ((1, 1),))
GOOD = ((14, 32, 1), (14, 32, 256), (56, 256, 512))


def time_of(
    sizes: tuple[tuple[int, ...], ...], sketch: Sketch = SKETCH, m: int = 504, n: int = 512, k: int = 512
) -> float:
    return program_time(TileProgram(matrix_product(m, n, k), sketch, sizes), MACHINE)


def test_no_program_is_faster_than_the_peak() -> None:
    peak = 2.0 * 504 * 512 * 512 / MACHINE.gflops(2)
    assert peak < time_of(GOOD)


def test_one_task_for_two_threads_is_slower_than_many() -> None:
    assert time_of((*GOOD[:2], (504, 512, 512))) > time_of(GOOD)


def test_spills_cost_with_any_number_of_additions_per_step() -> None:
    for u in (1, 2, 4):
        assert time_of(((28, 32, u), (28, 32, 256), (56, 256, 512))) > time_of(((14, 32, u), *GOOD[1:]))


def test_masked_lanes_cost_as_much_as_others() -> None:
    tile = ((14, 32, 1), (14, 32, 256), (56, 32, 512))
    assert time_of(tile, n=17) == pytest.approx(time_of(tile, n=32), rel=0.1)


def test_transposed_stores_cost_more() -> None:
    assert time_of(GOOD, replace(SKETCH, transposed_store=True)) > time_of(GOOD)


def test_only_packing_at_run_time_costs() -> None:
    packed = replace(SKETCH, packed=((0, 0), (1, 1)))
    assert time_of(GOOD, packed) > time_of(GOOD)


def test_packing_beyond_all_caches_takes_memory_time() -> None:
    far = MACHINE.levels[-1].core_gbs
    sketch = replace(SKETCH, packed=((0, 0), (1, 1)))
    small, large = (
        packing_time(matrix_product(m, 512, 512), sketch, MACHINE) / (4.0 * m * 512) for m in (504, 504 * 512)
    )
    assert large > 3.0 / far
    assert large > small


def test_threads_that_share_a_copy_wait_for_it_and_read_the_lines_of_others() -> None:
    sketch = replace(SKETCH, packed=((0, 0),))
    one, shared = (packing_time(matrix_product(504, 512, 512), sketch, MACHINE, x) for x in (False, True))
    transfer_ns = 504 * 512 * 4 / 64 / 2 * MACHINE.cost.cache_to_cache_ns
    assert shared == pytest.approx(one / 2 + 1e3 * MACHINE.sync_us + transfer_ns)


def test_packing_rows_of_symbolic_length_takes_longer() -> None:
    static = matrix_product(504, 512, 512)
    axes = (replace(static.axes[0], is_static=False), replace(static.axes[1], is_static=False), static.axes[2])
    sketch = replace(SKETCH, packed=((1, 1),))
    run_time = replace(static, operands=(static.operands[0], replace(static.operands[1], constant=False)))
    assert packing_time(replace(run_time, axes=axes), sketch, MACHINE) > packing_time(run_time, sketch, MACHINE) > 0.0
    # elements along an axis that is not contiguous are moved one by one either way
    sketch = replace(SKETCH, packed=((0, 0),))
    assert packing_time(replace(run_time, axes=axes), sketch, MACHINE) == packing_time(run_time, sketch, MACHINE)


def stored_across(width: int, rows: int) -> float:
    """Bytes that move into the first cache: a short sum whose lanes lie along 16 planes of results, a few rows and
    columns of them at a time. The planes lie a multiple of all sets apart."""
    axes = tuple(ProblemAxis(n, size, True, n == "k") for n, size in (("c", 16), ("h", 64), ("w", 64), ("k", 8)))
    x = Operand("x", 4, False, (64, 64, 8), ((0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)), False)
    w = Operand("w", 4, True, (8, 16), ((0, 0, 0, 1), (1, 0, 0, 0)), False)
    y = Operand("y", 4, False, (16, 64, 64), ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)), True)
    p, tile = Problem("y", "y", axes, (x, w), (y,), 1, 32), (16, rows, width)
    sizes = np.array([[(*tile, 1), (*tile, 8), (*tile, 8)]])
    times = program_times(p, Sketch(0, 16, (0, 1, 2), None, ((1, 0),), True), sizes, ZEN1)
    return float(times.memory[0][0]) * ZEN1.levels[1].gbs(1)


def test_strided_stores_evict_their_lines_between_stores() -> None:
    # single columns: every element of 16 planes brings its line, which comes and goes; what is read stays
    assert stored_across(1, 8) == pytest.approx(2.0 * 64 * 16 * 64 * 64, rel=0.05)
    # runs of 16 elements bring one line for all of them
    assert stored_across(16, 1) < 0.1 * stored_across(1, 8)


def test_more_cores_are_never_slower_and_slower_memory_is_never_faster() -> None:
    problem = matrix_product(504, 512, 512)
    program = TileProgram(problem, SKETCH, GOOD)
    assert program_time(program, MACHINE.with_cores(2)) <= program_time(program, MACHINE.with_cores(1))
    slow = tuple(replace(x, core_gbs=x.core_gbs / 8, total_gbs=x.total_gbs / 8) for x in MACHINE.levels)
    assert program_time(program, replace(MACHINE, levels=slow)) > program_time(program, MACHINE)


def test_parallel_execution_does_not_pay_for_small_programs() -> None:
    problem = matrix_product(14, 64, 8)
    times = program_times(
        problem, SKETCH, np.array([[[14, 32, 1], [14, 32, 8], [14, 32, 8]]]), replace(MACHINE, sync_us=50.0)
    )
    assert times.parallel[0] == 0.0


def test_batched_times_equal_single_times() -> None:
    problem = matrix_product(504, 512, 512)
    other = ((12, 64, 2), (12, 64, 128), (504, 64, 512))
    both = program_times(problem, SKETCH, np.array([GOOD, other]), MACHINE)
    assert both.total[0] == program_time(TileProgram(problem, SKETCH, GOOD), MACHINE)
    assert both.total[1] == program_time(TileProgram(problem, SKETCH, other), MACHINE)
    assert len(both.memory) == 3


def test_remainder_rows_join_the_tasks_of_whole_tiles() -> None:
    every = ((14, 32, 1), (504, 512, 512), (504, 512, 512))
    apart = ((14, 32, 1), (504, 32, 512), (504, 32, 512))
    times = program_times(matrix_product(512, 512, 512), SKETCH, np.array([every, apart]), MACHINE)
    assert list(times.parallel > 0) == [False, True]
    assert times.total[1] < times.total[0]


def test_remainder_rows_cost_their_own_work() -> None:
    tile = ((14, 32, 1), (14, 32, 256), (14, 32, 512))
    few, none = time_of(tile, m=511), time_of(tile)
    # seven single rows have work of their own, and less than seven tiles of 14 rows
    assert none * 511 / 504 < few < none * (504 + 7 * 14) / 504


def test_parallel_execution_pays_for_large_and_symbolic_programs() -> None:
    small = TileProgram(matrix_product(14, 64, 8), SKETCH, ((14, 32, 1), (14, 32, 8), (14, 32, 8)))
    assert not is_parallel_profitable(small, MACHINE)
    assert is_parallel_profitable(TileProgram(matrix_product(504, 512, 512), SKETCH, GOOD), MACHINE)
    axes = tuple(replace(a, is_static=a.is_reduction) for a in small.problem.axes)
    unknown = TileProgram(replace(small.problem, axes=axes), SKETCH, ((14, 32, 1), (14, 32, 8), (14, 32, 8)))
    assert is_parallel_profitable(unknown, MACHINE)


def test_a_machine_without_caches_is_refused() -> None:
    program = TileProgram(matrix_product(504, 512, 512), SKETCH, GOOD)
    with pytest.raises(MachineError, match=r"machine 'h200': it has no caches, .* for nvptx64 yet; choose"):
        program_time(program, machine_named("h200"))


def windows(vectors: int, lines: int, taps: int = 3, stride: int = 1) -> float:
    """Nanoseconds of a depthwise convolution of 64 padded planes of 58 by 58, its taps written out."""
    axes = (ProblemAxis("c", 64, True, False), ProblemAxis("y", 56, True, False), ProblemAxis("x", 56, True, False),
            ProblemAxis("p", taps, True, True), ProblemAxis("q", taps, True, True))  # fmt: skip
    moved = ((1, 0, 0, 0, 0), (0, stride, 0, 1, 0), (0, 0, stride, 0, 1))
    image = Operand("x", 4, False, (64, 56 * stride + 2, 56 * stride + 2), moved, False)
    taken = ((1, 0, 0, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 0, 1))
    weights = Operand("w", 4, True, (64, taps, taps), taken, False)
    output = Operand(
        "y", 4, False, (64, 56, 56), tuple((*r[:3], 0, 0) for r in np.eye(5, dtype=int)[:3].tolist()), True
    )
    problem = Problem("y", "y", axes, (image, weights), (output,), 1, 32)
    register = (1, lines, 16 * vectors, taps, taps)
    whole = (64, 56, 64, taps, taps)
    return program_time(TileProgram(problem, Sketch(2, 16, (0, 1, 2), None), (register, register, whole)), ZEN1)


def test_rows_of_a_window_share_loads() -> None:
    assert windows(1, 1) > windows(1, 4)


def test_windows_of_step_2_take_longer() -> None:
    assert windows(1, 4, stride=2) > windows(1, 4)


def test_more_taps_take_longer() -> None:
    assert windows(1, 4, taps=5) > windows(1, 4)


def transposed(tile: tuple[int, int], near: tuple[int, int], machine: Machine = ZEN1) -> float:
    """The time of a matrix's transpose that no second cache holds, by its register and L1 tiles."""
    axes = (ProblemAxis("i", 3136, True, False), ProblemAxis("j", 256, True, False))
    read = Operand("x", 4, False, (256, 3136), ((0, 1), (1, 0)), False)
    written = Operand("y", 4, False, (3136, 256), ((1, 0), (0, 1)), True)
    problem = Problem("y", "y", axes, (read, written), (), 1, 32)
    return program_time(TileProgram(problem, Sketch(1, 16, (0, 1), None), (tile, near, near)), machine)


def test_isolated_lines_are_stored_more_slowly_than_whole_rows() -> None:
    assert transposed((16, 16), (3136, 16)) > transposed((16, 16), (3136, 64))
    # tiles that follow each other along a row write it in a row, too
    assert transposed((16, 16), (16, 16)) == pytest.approx(transposed((16, 16), (16, 32)), rel=0.05)


def test_tiles_with_more_pages_than_the_tlb_miss_in_it() -> None:
    free_lookups = replace(ZEN1.cost, overlapped_tlb_miss_cycles=0.0)

    def lookup_time(machine: Machine) -> float:
        without = replace(machine, cost=free_lookups)
        return transposed((2, 128), (16, 128), machine) - transposed((2, 128), (16, 128), without)

    assert lookup_time(ZEN1) > 0
    assert lookup_time(replace(ZEN1, tlb_entries=1 << 20)) == 0


def test_a_sole_tile_returns_to_its_pages_after_all_k_blocks() -> None:
    """A chunk of 60 rows of b, each on a page of its own, is read again for the next tile of an L1 tile; a tile by
    itself reads all 2400 rows before."""
    few, many = replace(MACHINE, tlb_entries=96), replace(MACHINE, tlb_entries=1 << 20)
    plain = replace(SKETCH, packed=())

    def looked_up(rows: int) -> float:
        program = TileProgram(matrix_product(504, 2400, 2400), plain, ((8, 48, 1), (rows, 48, 60), (rows, 48, 2400)))
        return program_time(program, few) - program_time(program, many)

    assert looked_up(56) == 0
    assert looked_up(8) > 0


@pytest.mark.parametrize("n", [40, 48, 144])
def test_a_candidate_has_the_same_time_in_every_batch(n: int) -> None:
    # searches score a state once, among others: 40 columns are three vectors, so that tiles of two exceed the axis
    problem = matrix_product(504, n, 8192)
    lanes = [w for w in (16, 32, 48) if w <= -(-n // 16) * 16]
    tiles = [(rows, width, unroll) for rows in (1, 4, 7) for width in lanes for unroll in (1, 2)]
    sizes = np.array(
        [
            (tile, (tile[0] * inner, tile[1], 8192), (504, -(-n // tile[1]) * tile[1] // outer, 8192))
            for tile in tiles for inner in (1, 18) for outer in (1, -(-n // tile[1]))
        ],
        np.int64,
    )  # fmt: skip
    together = program_times(problem, SKETCH, sizes, MACHINE).total
    alone = [program_times(problem, SKETCH, sizes[k : k + 1], MACHINE).total[0] for k in range(len(sizes))]
    np.testing.assert_array_equal(together, alone)
