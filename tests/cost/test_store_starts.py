"""Results in memory: which pieces of rows stores begin, and how programs that differ in them are ranked on Zen 4."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from tests.tile.problems import matrix_product

from tilewright.cost.analytical import program_times
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.shape_family import ShapeFamily
from tilewright.cost.store_starts import store_start_ns
from tilewright.machine.shipped import machine_named
from tilewright.tile.program import Sketch

ZEN4 = machine_named("zen4").with_cores(1)
PANELS = Sketch(1, 16, (0, 1), 2, ((1, 1),))
"""Row by row over packed columns."""


def starts(
    rows: int, columns: int, tile: tuple[int, int], near: tuple[int, int] | None = None, store_start_cycles: float = 4.0
) -> float:
    """Pieces that a product of three terms begins in register tiles, all columns of a row of them or L1 tiles."""
    p = matrix_product(rows, columns, 3)
    outer = near or (tile[0], columns)
    sizes = np.array([[[*tile, 3], [*outer, 3], [*outer, 3]]])
    batch = CandidateBatch.of(ShapeFamily.of(p), PANELS, sizes)
    cost = replace(ZEN4.cost, store_start_cycles=store_start_cycles)
    # with 4 GHz a start of four cycles is a nanosecond
    return float(np.broadcast_to(store_start_ns(PANELS, batch, replace(ZEN4, ghz=4.0, cost=cost)), 1)[0])


@pytest.mark.parametrize("height", [2, 4, 8, 12])
def test_tall_tiles_begin_every_row_once(height: int) -> None:
    assert starts(2400, 3072, (height, 32)) == pytest.approx(2400)


@pytest.mark.parametrize(("height", "columns"), [(1, 768), (1, 1536), (4, 768), (8, 96)])
def test_blocks_of_columns_begin_every_row_of_theirs(height: int, columns: int) -> None:
    assert starts(2400, 3072, (height, 32), (2400, columns)) == pytest.approx(2400 * 3072 // columns)


def test_rows_stored_one_after_the_other_are_a_single_piece() -> None:
    assert starts(2400, 3072, (1, 96)) == 0.0


@pytest.mark.parametrize(("rows", "share"), [(512, 0.0), (853, 0.5), (2400, 1.0)])
def test_what_the_last_cache_holds_of_a_result_has_no_starts(rows: int, share: float) -> None:
    """6, 10 and 28 MiB, of which a program finds about 10 MiB in the last cache."""
    assert starts(rows, 3072, (8, 32)) / rows == pytest.approx(share, abs=0.01)


def test_machines_without_the_parameter_have_no_starts() -> None:
    assert starts(2400, 3072, (8, 32), store_start_cycles=0.0) == 0.0


MEASURED_US: Mapping[tuple[int, int, int], Mapping[tuple[int, int], float]] = {
    (1593, 5, 3042): {(1, 96): 1966, (2, 96): 1686, (6, 64): 1294, (12, 32): 1137},
    (3900, 2, 1457): {(2, 32): 1594, (4, 32): 1431, (8, 32): 1152, (1, 64): 1104},
    (1952, 6, 3646): {(1, 96): 3184, (2, 32): 2512, (6, 32): 1682, (12, 16): 1505},
    (2829, 3, 1532): {(2, 32): 1283, (4, 32): 1120, (8, 32): 941, (12, 16): 872},
}
"""By rows, terms and columns the microseconds of programs by their register tiles over whole rows; results from memory,
one core of an EPYC of Zen 4 (docs/cost-model.md, `alternating_store_penalty`)."""


@pytest.mark.parametrize("size", MEASURED_US)
def test_the_fastest_of_measured_programs_is_ranked_first(size: tuple[int, int, int]) -> None:
    m, k, n = size
    measured = MEASURED_US[size]
    programs = [[[h, w, k], [h, -(-n // w) * w, k], [h, -(-n // w) * w, k]] for h, w in measured]
    times = program_times(matrix_product(m, n, k), PANELS, np.array(programs), ZEN4).total
    fastest = list(measured.values())[int(times.argmin())]
    assert fastest <= 1.1 * min(measured.values())
