"""Hardware prefetcher: pages are tracked from one register tile to the next as long as they are few."""

import numpy as np
import pytest
from tests.tile.problems import matrix_product

from tilewright.cost.caches import CacheHierarchy
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.hw_prefetch import ramp_factors
from tilewright.cost.shape_family import ShapeFamily
from tilewright.machine.cost_parameters import CostParameters
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem, ProblemAxis
from tilewright.tile.program import Sketch

COST, LINE, ONE_STREAM = CostParameters(), 64, CostParameters().single_stream_penalty
CACHES = CacheHierarchy([49152.0, 2097152.0], LINE, tlb_entries=112)
"""Of which nothing aliases."""
ALONG_ROWS = Sketch(0, 16, (0, 1), 2, ((0, 0),))
"""Lanes along the rows of the first matrix; of the second one a register tile reads a piece of every row of a chunk."""


def growth(n: int, chunk: int, sketch: Sketch = ALONG_ROWS, held: bool = False, far: float = 1.0) -> float:
    """By what reading the second matrix, of `n` columns, takes longer than its bytes; where a cache holds it or not."""
    p = matrix_product(16, n, 4096)
    sizes = np.array([[[16, 16, 1], [16, 512, chunk], [16, 512, 4096]]])
    factors = ramp_factors(p, sketch, CandidateBatch.of(ShapeFamily.of(p), sketch, sizes), CACHES, far)[1]
    return float((factors.cache if held else factors.memory)[0])


def test_register_tiles_of_a_row_continue_in_few_pages() -> None:
    assert (
        growth(4096, 8) == growth(4096, int(COST.max_prefetch_pages)) < growth(4096, 2 * int(COST.max_prefetch_pages))
    )


def test_register_tiles_ramp_up_again_with_too_many_pages() -> None:
    # at most a ramp for each line
    assert growth(4096, 32) < growth(4096, 64) < growth(4096, 128) <= 1.0 + COST.page_ramp_bytes / LINE


def test_rows_in_shared_pages_are_one_stream() -> None:
    # a row of 512 columns is half a page
    assert growth(512, 48) == pytest.approx(growth(512, 32), rel=0.01)
    assert growth(512, 128) > growth(512, 48)


@pytest.mark.parametrize(("rows", "is_ahead"), [(16, True), (4, True), (2, False)])
def test_rows_that_are_prefetched_leave_a_share_of_the_ramp(rows: int, is_ahead: bool) -> None:
    """Only tiles of several rows have slots for prefetches to spare."""
    p, sizes = matrix_product(16, 4096, 4096), np.array([[[rows, 16, 1], [16, 16, 256], [16, 4096, 4096]]])
    plain, ahead = (
        ramp_factors(p, s, CandidateBatch.of(ShapeFamily.of(p), s, sizes), CACHES)[1].cache[0] - 1.0
        for s in (Sketch(1, 16, (1, 0), 2), Sketch(1, 16, (1, 0), 2, prefetched_operands=(1,)))
    )
    assert plain > 0.5
    assert ahead == pytest.approx(plain * (COST.prefetched_ramp_fraction if is_ahead else 1.0))


@pytest.mark.parametrize("columns", [1, 2, 8])
def test_rows_that_lane_reductions_prefetch_leave_a_share_of_the_ramp(columns: int) -> None:
    """With any number of columns."""
    p, sizes = matrix_product(4096, columns, 512), np.array([[[2, columns, 16], [2, columns, 512], [2, columns, 512]]])
    plain, ahead = (
        ramp_factors(p, s, CandidateBatch.of(ShapeFamily.of(p), s, sizes), CACHES)[0].cache[0] - 1.0
        for s in (Sketch(2, 16, (0, 1), None, ((1, 2),), prefetched_operands=x) for x in ((), (0,)))
    )
    assert plain > 0.01
    assert ahead == pytest.approx(plain * COST.prefetched_ramp_fraction)


@pytest.mark.parametrize("chunk", [32, 128])
def test_packed_panels_have_no_ramp(chunk: int) -> None:
    assert growth(4096, chunk, Sketch(0, 16, (0, 1), 2, ((0, 0), (1, 1)))) == 1.0


@pytest.mark.parametrize(
    ("lanes", "rows", "width", "ahead", "expected"),
    [
        (8, 1, 16, True, ONE_STREAM), (8, 1, 24, True, ONE_STREAM), (8, 1, 56, True, ONE_STREAM),
        (8, 1, 32, True, 1.0), (8, 1, 48, True, 1.0), (16, 1, 48, True, 1.0), (16, 1, 16, True, ONE_STREAM),
        (8, 4, 24, True, 1.0), (8, 1, 56, False, 1.0),
    ],
)  # fmt: skip
def test_a_single_row_with_one_panel_pays_the_single_stream_penalty(
    lanes: int, rows: int, width: int, ahead: bool, expected: float
) -> None:
    p, sketch = (
        matrix_product(16, 4096, 4096),
        Sketch(1, lanes, (0, 1), 2, ((1, 1),), prefetched_operands=(1,) if ahead else ()),
    )
    sizes = np.array([[[rows, width, 1], [rows, width, 256], [16, width, 4096]]])
    factors = ramp_factors(p, sketch, CandidateBatch.of(ShapeFamily.of(p), sketch, sizes), CACHES)[1]
    assert (float(factors.memory[0]), float(factors.cache[0])) == (expected, 1.0)


@pytest.mark.parametrize("chunk", [8, 32, 64, 128])
def test_untracked_pages_are_as_slow_from_the_last_cache(chunk: int) -> None:
    """Its latency, 50 ns on a Xeon, is far more than instructions hide (docs/cost-model.md, `max_prefetch_pages`)."""
    assert growth(4096, chunk, held=True) == growth(4096, chunk)


@pytest.mark.parametrize("chunk", [8, 128])
def test_what_private_caches_hold_has_no_ramp(chunk: int) -> None:
    """Earlier kernels have just used it."""
    far, near = (growth(4096, chunk, held=True, far=x) for x in (1.0, 0.0))
    assert far > near == 1.0
    assert growth(4096, chunk, held=True, far=0.5) == pytest.approx((far + near) / 2)


def test_what_exceeds_private_caches_leaves_them_without_a_jump() -> None:
    caches = CacheHierarchy([49152.0, 2097152.0, 1e8], LINE, (64, 2048))
    shares = [caches.far_fraction(x) for x in (1.5e6, 1.6e6, 2097152.0, 3.2e6)]
    assert shares == [0.0, pytest.approx(0.034, abs=1e-3), pytest.approx(0.5), 1.0]
    assert CACHES.far_fraction(1.0) == 1.0


def stores(rows: int, lanes: int) -> float:
    """By what writing tiles of a product of matrices takes longer than their bytes."""
    p, sketch = matrix_product(4096, 4096, 256), Sketch(1, 16, (0, 1), 2, ((1, 1),))
    sizes = np.array([[[rows, lanes, 1], [rows, 512, 256], [rows, 512, 256]]])
    return float(ramp_factors(p, sketch, CandidateBatch.of(ShapeFamily.of(p), sketch, sizes), CACHES)[2].memory[0])


def test_taller_tiles_store_longer_segments() -> None:
    assert stores(28, 16) > stores(16, 16)
    assert stores(28, 16) > stores(28, 48)


def test_stores_of_many_streams_are_ranked_as_measured() -> None:
    """A 1x1 convolution of 128 images of 28 x 28, by (streams, elements of each) that a register tile writes."""
    measured_ms = {(8, 48): 150.0, (24, 16): 430.0}  # docs/cost-model.md, `max_write_streams`; one core of a Xeon
    predicted = {tile: stores(*tile) for tile in measured_ms}
    assert sorted(predicted, key=predicted.__getitem__) == sorted(measured_ms, key=measured_ms.__getitem__)
    assert len(set(predicted.values())) == 2


def moved(
    rows: int, columns: int, read: tuple[int, int], sketch: Sketch, sizes: tuple[tuple[int, int], ...]
) -> tuple[float, float]:
    """By what reading and writing a matrix of so many rows takes longer than its bytes; `read` gives the axes by which
    the source is indexed."""
    axes = (ProblemAxis("i", rows, True, False), ProblemAxis("j", columns, True, False))
    shape, index = (rows, columns), ((1, 0), (0, 1))
    source = Operand("x", 4, False, (shape[read[0]], shape[read[1]]), (index[read[0]], index[read[1]]), False)
    p = Problem("y", "y", axes, (source, Operand("y", 4, False, shape, index, True)), (), 1, 32)
    factors = ramp_factors(p, sketch, CandidateBatch.of(ShapeFamily.of(p), sketch, np.array([sizes])), CACHES)
    return float(factors[0].memory[0]), float(factors[1].memory[0])


ROW_BY_ROW = Sketch(1, 16, (0, 1), None)


def transposed(rows: int, columns: int, tile: tuple[int, int], near: tuple[int, int]) -> tuple[float, float]:
    """The same of a transpose, row by row of L1 tiles."""
    return moved(rows, columns, (1, 0), ROW_BY_ROW, (tile, near, (rows, near[1])))


def test_loads_from_few_pages_are_prefetched() -> None:
    few, many = (transposed(1024, 1024, (4, 16), (256, lanes))[0] for lanes in (32, 64))
    assert few < 1.01
    assert many == pytest.approx(1.0 + COST.unprefetched_penalty, rel=0.1)
    # column by column: pages are left after a few bytes, and come back to after very many others
    assert transposed(1024, 1024, (4, 16), (1024, 1024))[0] > many


def copied(rows: int, columns: int, near: int) -> float:
    """By what reading takes longer than its bytes in a copy of a matrix, row by row in L1 tiles of so many."""
    return moved(rows, columns, (0, 1), ROW_BY_ROW, ((1, 64), (near, columns), (rows, columns)))[0]


@pytest.mark.parametrize("rows", [100, 112, 113, 400])
def test_pages_read_as_a_whole_are_prefetched_whatever_their_number(rows: int) -> None:
    assert copied(rows, 1024, 4) == copied(rows, 1024, 64) == pytest.approx(1.0, abs=0.01)


def test_split_stores_to_alternating_pages_stall() -> None:
    # rows of 1008 elements are whole lines, those of 1000 begin in the middle of one
    assert transposed(768, 1008, (4, 16), (4, 144))[1] < transposed(768, 1000, (4, 16), (4, 144))[1]
    one, *more = (transposed(768, 1000, (h, 16), (h, 144))[1] for h in (1, 2, 4, 8))
    # row by row, a run goes on in the same lines
    assert 1.0 < one < min(more)
    # a store of a line's length, begun anywhere in lines, needs two of them nearly always
    assert more == pytest.approx([1.0 + COST.split_store_ramp_bytes / 128.0] * 3, rel=0.05)
    # a little more or less than a page from row to row is much alike
    assert transposed(768, 1000, (4, 16), (4, 144))[1] == pytest.approx(
        transposed(768, 1030, (4, 16), (4, 144))[1], rel=0.2
    )
    # short rows share pages
    short, long = transposed(768, 56, (4, 16), (4, 64))[1], transposed(768, 1000, (4, 16), (4, 16))[1]
    assert short < long


def test_rows_shorter_than_a_line_are_contiguous() -> None:
    def storing(rows: int, columns: int) -> float:
        """By what parts of planes take longer to write than their bytes, in tiles of many planes."""
        axes = (
            ProblemAxis("c", 32, True, False),
            ProblemAxis("i", rows, True, False),
            ProblemAxis("j", columns, True, False),
        )
        index = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
        out = Operand("y", 4, False, (32, rows, columns), index, True)
        x = Operand("x", 4, False, (rows, columns, 32), (*index[1:], index[0]), False)
        p, sketch = Problem("y", "y", axes, (x, out), (), 1, 32), Sketch(0, 16, (0, 1, 2), None)
        sizes = np.array([[[16, 8, 2], [16, 8, 2], [32, 8, 2]]])
        return float(ramp_factors(p, sketch, CandidateBatch.of(ShapeFamily.of(p), sketch, sizes), CACHES)[1].memory[0])

    whole = storing(504, 2)
    assert whole == 2.0, "planes are whole lines, whose rows follow each other"
    assert storing(500, 2) > whole, "planes begin in the middle of lines"
    assert storing(504, 50) > whole, "rows do"


def test_transposed_stores_to_aligned_rows_touch_single_lines() -> None:
    across, sizes = Sketch(0, 16, (0, 1), None), ((16, 16), (16, 1024), (1024, 1024))
    assert moved(1024, 1024, (1, 0), across, sizes)[1] < moved(1024, 1000, (1, 0), across, sizes)[1]


def summed(columns: int, lanes: int, chunk: int, near: CacheHierarchy) -> tuple[float, float]:
    """By what sums over the columns of 1024 rows grow that come into the nearest cache, and into others."""
    axes = (ProblemAxis("j", columns, True, False), ProblemAxis("k", 1024, True, True))
    x = Operand("x", 4, False, (1024, columns), ((0, 1), (1, 0)), False)
    y = Operand("y", 4, False, (columns,), ((1, 0),), True)
    p, sketch = Problem("y", "y", axes, (x,), (y,), 1, 32, is_plain_sum=True), Sketch(0, 8, (0,), 1)
    sizes = np.array([[[lanes, 1], [columns, chunk], [columns, 1024]]])
    factors = ramp_factors(p, sketch, CandidateBatch.of(ShapeFamily.of(p), sketch, sizes), near)[0]
    return float(factors.l1[0]), float(factors.cache[0])


def test_aliased_rows_evict_prefetched_lines() -> None:
    """Into 8 ways of 64 sets."""
    near = CacheHierarchy([32768.0, 2097152.0], LINE, (64,), tlb_entries=112)
    few, more, many = (summed(1024, 16, chunk, near)[0] for chunk in (8, 16, 32))
    assert (few, more, many) == pytest.approx((1.0, 1.0 + COST.refetch_factor / 2, 1.0 + COST.refetch_factor * 3 / 4))
    # runs of four lines come while their first ones are read
    assert 1.0 < summed(1024, 64, 32, near)[0] < many
    # rows that are spread over all sets, and where nothing is known of them
    assert summed(1040, 16, 32, near)[0] == summed(1024, 16, 32, CACHES)[0] == 1.0
    assert summed(1024, 16, 32, near)[1] == summed(1024, 16, 32, CACHES)[1]


def test_copies_to_unaligned_rows_prefer_single_rows() -> None:
    def stored(columns: int, height: int, read: tuple[int, int] = (0, 1)) -> tuple[float, float]:
        axes = (ProblemAxis("i", 64, True, False), ProblemAxis("j", columns, True, False))
        shape, index = (64, columns), ((1, 0), (0, 1))
        source = Operand("x", 4, False, (shape[read[0]], shape[read[1]]), (index[read[0]], index[read[1]]), False)
        p = Problem("y", "y", axes, (source, Operand("y", 4, False, shape, index, True)), (), 1, 32)
        sizes = np.array([[[height, 8], [height, 8], [64, columns]]])
        factors = ramp_factors(
            p,
            Sketch(1, 8, (0, 1), None),
            CandidateBatch.of(ShapeFamily.of(p), Sketch(1, 8, (0, 1), None), sizes),
            CacheHierarchy(CACHES.capacities, LINE, tlb_entries=64),
        )
        return float(factors[1].cache[0]), float(factors[1].memory[0])

    for height in (1, 2, 4):
        cache, memory = stored(194, height)
        assert cache / memory == pytest.approx(1.0 + COST.interleaved_store_penalty * (1.0 - 1.0 / height))
        assert stored(192, height)[0] == stored(192, height)[1], "rows are whole lines"
        assert stored(194, height, (1, 0))[0] == stored(194, height, (1, 0))[1], "what is turned needs rows"
