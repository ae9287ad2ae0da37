"""Results beyond L2: which runs of memory stores begin, and how programs that differ in them are ranked on Zen 4."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.tile.problems import matrix_product

from tilewright.cost.analytical import program_times
from tilewright.cost.breakdown import cost_breakdown
from tilewright.cost.caches import CacheHierarchy
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.footprint import separate_runs
from tilewright.cost.hw_prefetch import ramp_factors
from tilewright.cost.learned.part_features import CORE_TERMS
from tilewright.cost.shape_family import ShapeFamily
from tilewright.cost.store_starts import store_start_ns
from tilewright.machine.shipped import machine_named
from tilewright.tile.operand import Operand
from tilewright.tile.program import Sketch

ZEN4 = machine_named("zen4").with_cores(1)
PANELS = Sketch(1, 16, (0, 1), 2, ((1, 1),))
"""Row by row over packed columns."""


def product(
    rows: int, columns: int, tile: tuple[int, int], near: tuple[int, int] | None = None
) -> tuple[ShapeFamily, CandidateBatch]:
    """A product of three terms in register tiles, all columns of a row of them or blocks `near`."""
    family = ShapeFamily.of(matrix_product(rows, columns, 3))
    outer = near or (tile[0], -(-columns // tile[1]) * tile[1])
    sizes = np.array([[[*tile, 3], [*outer, 3], [*outer, 3]]])
    return family, CandidateBatch.of(family, PANELS, sizes)


def starts(rows: int, columns: int, tile: tuple[int, int], near: tuple[int, int] | None = None) -> float:
    """Runs that the product begins."""
    # with 4 GHz a start of four cycles is a nanosecond
    machine = replace(ZEN4, ghz=4.0, cost=replace(ZEN4.cost, store_start_cycles=4.0))
    return float(np.broadcast_to(store_start_ns(PANELS, product(rows, columns, tile, near)[1], machine), 1)[0])


def slowdown(rows: int, columns: int, tile: tuple[int, int], near: tuple[int, int] | None = None) -> float:
    """By what the penalties of alternating stores slow down the result's traffic."""
    family, batch = product(rows, columns, tile, near)
    plain = replace(ZEN4.cost, alternating_store_penalty=0.0, same_page_store_penalty=0.0)
    with_, without = (
        ramp_factors(family.problem, PANELS, batch, replace(CacheHierarchy.of(ZEN4), cost=cost))[-1].memory[0]
        for cost in (ZEN4.cost, plain)
    )
    return float(with_ / without)


@pytest.mark.parametrize(("height", "columns"), [(1, 768), (1, 1536), (4, 768), (8, 96)])
def test_blocks_of_columns_begin_every_row_of_theirs(height: int, columns: int) -> None:
    assert starts(2400, 3072, (height, 32), (2400, columns)) == pytest.approx(2400 * 3072 // columns, rel=0.01)


@pytest.mark.parametrize("height", [1, 4, 12])
@pytest.mark.parametrize("columns", [3072, 3042, 16, 15])
def test_whole_rows_continue_in_each_other(height: int, columns: int) -> None:
    assert starts(7_372_800 // columns, columns, (height, min(32, -(-columns // 16) * 16))) == 0.0


@pytest.mark.parametrize(("rows", "share"), [(512, 0.0), (853, 0.5), (2400, 1.0)])
def test_what_the_last_cache_holds_of_a_result_has_no_starts(rows: int, share: float) -> None:
    """6, 10 and 28 MiB: all of 7.5 MiB are held, nothing of 15."""
    assert starts(rows, 3072, (1, 96), (rows, 768)) / (4 * rows) == pytest.approx(share, abs=0.01)


def test_more_runs_than_write_streams_are_tracked_in_part() -> None:
    """A block of rows is stored column by column of its tiles, which go on in its runs."""
    columns_outside = replace(PANELS, order=(1, 0))
    machine = replace(ZEN4, ghz=4.0, cost=replace(ZEN4.cost, store_start_cycles=4.0))
    counts = list[float]()
    for rows in (12, 16, 20, 40, 80):
        sizes = np.array([[[4, 32, 3], [rows, 3072, 3], [rows, 3072, 3]]])
        batch = CandidateBatch.of(ShapeFamily.of(matrix_product(2400, 3072, 3)), columns_outside, sizes)
        counts.append(float(np.broadcast_to(store_start_ns(columns_outside, batch, machine), 1)[0]))
    assert counts[0] == counts[1] == 0.0
    assert 0.0 < counts[2] < counts[3] < counts[4] <= 2400 * 96


def test_rows_stored_one_after_the_other_do_not_alternate() -> None:
    assert slowdown(2400, 3072, (1, 96)) == slowdown(2400, 3042, (1, 96)) == 1.0
    # short rows, all of which a tile covers
    assert slowdown(262_140, 16, (12, 16)) == slowdown(262_140, 15, (12, 16)) == 1.0


def test_the_fewer_rows_the_slower_are_alternating_stores() -> None:
    one, *others = (slowdown(2400, 3072, (h, 32)) for h in (1, 2, 4, 8, 12))
    assert one == 1.0
    assert others == sorted(others, reverse=True)
    assert others[0] == pytest.approx(1.0 + ZEN4.cost.alternating_store_penalty / 2)
    jumping = slowdown(2400, 3072, (1, 32), (2400, 768))
    assert jumping == pytest.approx(1.0 + ZEN4.cost.alternating_store_penalty)


def test_rows_in_one_page_are_no_streams_of_their_own() -> None:
    assert slowdown(30_000, 150, (6, 32)) > slowdown(30_000, 150, (2, 32)) > slowdown(2400, 3072, (2, 32))


Y3 = Operand("y", 4, False, (500, 500, 64), ((1, 0, 0), (0, 1, 0), (0, 0, 1)), True)
STEPS = Operand("y", 4, False, (4096,), ((16,),), True)
BORDER = Operand("y", 4, False, (64, 30, 30), ((1, 0, 0), (0, 1, 0), (0, 0, 1)), True)


@pytest.mark.parametrize(
    ("operand", "box", "gap", "expected"),
    [
        (Y3, (1, 1, 64), 64, 1), (Y3, (1, 9, 64), 64, 1), (Y3, (3, 500, 64), 64, 1), (Y3, (3, 9, 64), 64, 3),
        (Y3, (3, 1, 64), 64, 3), (Y3, (1, 9, 16), 64, 9), (Y3, (1, 9, 16), 1024, 1), (Y3, (2, 9, 16), 1024, 2),
        (BORDER, (1, 28, 28), 64, 1), (BORDER, (2, 28, 28), 64, 2), (BORDER, (2, 28, 28), 1024, 1),
        (BORDER, (1, 28, 8), 64, 28), (STEPS, (8,), 64, 1), (STEPS, (8,), 60, 8),
    ],
)  # fmt: skip
def test_runs_closer_than_a_gap_count_as_one(operand: Operand, box: Sequence[int], gap: int, expected: int) -> None:
    assert separate_runs(operand, [np.array([float(x)]) for x in box], gap) == [expected]


def test_the_breakdown_names_starts() -> None:
    problem, sizes = matrix_product(2400, 3072, 3), np.array([[[1, 96, 3], [2400, 768, 3], [2400, 768, 3]]])
    (part,) = cost_breakdown(problem, PANELS, sizes, ZEN4).parts
    assert part.exposed["store_starts"][0] == pytest.approx(9600 * ZEN4.cost.store_start_cycles / ZEN4.ghz, rel=0.01)
    assert {*part.overlapping, *part.exposed} <= {*CORE_TERMS}


MEASURED_US: Mapping[tuple[int, int, int], Mapping[tuple[int, int, int], float]] = {
    (1593, 5, 3042): {(1, 96, 0): 1966, (2, 96, 0): 1686, (6, 64, 0): 1294, (12, 32, 0): 1137},
    (3900, 2, 1457): {(2, 32, 0): 1594, (4, 32, 0): 1431, (2, 32, 736): 1971, (12, 16, 0): 1073, (1, 64, 0): 1104},
    (2829, 3, 1532): {(1, 96, 768): 1890, (2, 96, 768): 1577, (4, 32, 768): 1253, (8, 32, 0): 941, (12, 16, 0): 872},
    (30_000, 7, 150): {(2, 32, 0): 1948, (6, 32, 0): 2581, (12, 16, 0): 2714, (1, 80, 0): 942},
}
"""By rows, terms and columns the microseconds of programs by their register tiles and the columns of a block, 0 where
tiles are over whole rows; results from memory, one core of an EPYC of Zen 4 (docs/cost-model.md,
`alternating_store_penalty`)."""

ORDER: Mapping[tuple[int, int, int], Sequence[tuple[int, int, int]]] = {
    (3900, 2, 1457): ((1, 64, 0), (4, 32, 0), (2, 32, 0), (2, 32, 736), (1, 32, 736)),
    (30_000, 7, 150): ((1, 80, 0), (2, 32, 0), (6, 32, 0)),
    (860, 22, 2770): ((4, 32, 0), (2, 32, 96)),
}
"""Of further measured programs those that differ by a tenth and more, from the fastest one on."""


def predicted(size: tuple[int, int, int], tiles: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Nanoseconds of programs of a product of so many rows, terms and columns."""
    m, k, n = size
    outer = [(m // h * h, block) if block else (h, -(-n // w) * w) for h, w, block in tiles]
    programs = [[[h, w, k], [*near, k], [*near, k]] for (h, w, _), near in zip(tiles, outer, strict=True)]
    return program_times(matrix_product(m, n, k), PANELS, np.array(programs), ZEN4).total


@pytest.mark.parametrize("size", MEASURED_US)
def test_the_fastest_of_measured_programs_is_ranked_first(size: tuple[int, int, int]) -> None:
    measured = MEASURED_US[size]
    fastest = list(measured.values())[int(predicted(size, [*measured]).argmin())]
    assert fastest <= 1.1 * min(measured.values())


@pytest.mark.parametrize("size", ORDER)
def test_alternating_and_jumping_stores_are_ordered_as_measured(size: tuple[int, int, int]) -> None:
    times = predicted(size, ORDER[size])
    assert (np.diff(times) > 0).all()
