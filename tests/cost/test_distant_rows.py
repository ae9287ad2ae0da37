"""Pieces of rows from memory: many where tiles compute whole sums, few where K-blocks are around many columns."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tile.problems import batched_product, two_inputs

from tilewright.cost.analytical import program_times
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.distant_rows import row_starts
from tilewright.cost.shape_family import ShapeFamily
from tilewright.machine.shipped import machine_named
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem, ProblemAxis
from tilewright.tile.program import Sketch

XEON = machine_named("sapphire-rapids").with_cores(1)
L1, L2, L3, MEMORY = XEON.levels
VIRTUAL = replace(XEON, levels=(L1, L2, replace(L3, bytes=300 << 20, shared_by=2), MEMORY))
"""As a virtual machine reports it that shares L3 with others."""

IN_PLACE = Sketch(1, 16, (1, 0), 2)


def sizes_of(l1_columns: int, k_block: int, terms: int) -> np.ndarray:
    """A candidate of 32 rows in register tiles of 8 x 32."""
    return np.array([[[8, 32, 1], [32, l1_columns, k_block], [32, l1_columns, terms]]])


def all_starts(terms: int, l1_columns: int, columns: int = 4096, sketch: Sketch = IN_PLACE) -> float:
    """Starts of all register tiles together, in K-blocks of 64 terms."""
    machine = replace(XEON, cost=replace(XEON.cost, usable_cache_fraction=0.75, contended_cache_bytes=10 << 20))
    p = two_inputs(32, columns, terms)
    batch = CandidateBatch.of(ShapeFamily.of(p), sketch, sizes_of(l1_columns, 64, terms))
    tiles = (32 // 8) * (columns // 32) * (terms // 64)
    return float(row_starts(p, sketch, batch, machine)[0]) * tiles


def test_every_tile_of_columns_starts_all_rows() -> None:
    assert all_starts(4096, 32) == pytest.approx(128 * 4096)
    assert all_starts(4096, 512) == pytest.approx(8 * 4096)


@pytest.mark.parametrize(("terms", "share"), [(448, 0.0), (640, 0.5), (1024, 1.0), (4096, 1.0)])
def test_memory_holds_a_share_that_grows_with_the_operand(terms: int, share: float) -> None:
    """The last cache has 10 MiB for operands of 7, 10, 16 and 64 MiB."""
    assert all_starts(terms, 32) / (128 * terms) == pytest.approx(share, abs=0.02)


def starts_of(p: Problem, sketch: Sketch, sizes: list[list[int]]) -> float:
    """Starts of a register tile over a K-block."""
    batch = CandidateBatch.of(ShapeFamily.of(p), sketch, np.array([sizes]))
    return float(row_starts(p, sketch, batch, VIRTUAL)[0])


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_a_small_operand_beside_large_ones_is_not_charged(order: tuple[int, int]) -> None:
    """256 KiB, which L2 holds while 20,000 rows pass."""
    p, sketch = two_inputs(20_000, 256, 256), replace(IN_PLACE, order=order)
    assert starts_of(p, sketch, [[10, 32, 1], [50, 32, 256], [50, 32, 256]]) == 0.0


@pytest.mark.parametrize(("order", "passes"), [((1, 0), 1), ((0, 1), 40)])
def test_rows_that_are_read_again_soon_come_from_memory_once(order: tuple[int, int], passes: int) -> None:
    """Tiles of 50 rows: inside a loop over columns they read 512 KiB again, inside one over rows 40 MiB."""
    one, forty = (
        starts_of(
            two_inputs(m, 2560, 4096), replace(IN_PLACE, order=order), [[10, 32, 1], [50, 32, 64], [50, 32, 4096]]
        )
        for m in (50, 2000)
    )
    assert one > 0
    assert forty == pytest.approx(one * passes / 40)


@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize(("heads", "share"), [(12, 0.0), (256, 1 / 16)])
def test_a_batch_element_is_read_again_from_caches(heads: int, share: float, tokens_first: bool) -> None:
    """128 KiB a head: 1.5 MiB stay for the next call, 32 MiB come from memory in the first of 16 tiles of rows."""
    sketch = Sketch(2, 16, (0, 2, 1), 3)
    few, many = (
        starts_of(batched_product(heads, m, 64, 512, tokens_first), sketch, [[1, 8, 32, 1], *2 * [[1, 32, 32, 512]]])
        for m in (32, 512)
    )
    assert (few > 0) is (share > 0)
    assert many == pytest.approx(few * share)


def test_short_rows_share_streams() -> None:
    # 256 bytes each: four in a stream
    assert all_starts(1 << 16, 32, columns=64) == pytest.approx(2 * (1 << 16) / 4, rel=0.1)


def test_panels_have_no_rows() -> None:
    assert all_starts(4096, 32, sketch=replace(IN_PLACE, packed=((1, 1),))) == 0.0


@pytest.mark.parametrize(("terms", "is_better"), [(512, False), (2560, True)])
def test_k_blocks_around_many_columns_pay_where_rows_come_from_memory(terms: int, is_better: bool) -> None:
    """50 x 512 x 2559 in tiles of 10 x 32 takes 1.08 ms with K-blocks around one tile of columns and around ten,
    50 x 2560 x 2559 8.1 and 5.8 (one core of a Xeon)."""
    p, sketch = two_inputs(50, 2559, terms), replace(IN_PLACE, prefetched_operands=(1,))
    one, ten = (
        float(program_times(p, sketch, np.array([[[10, 32, 1], [50, n, 64], [50, n, terms]]]), VIRTUAL).total[0])
        for n in (32, 320)
    )
    assert (ten < 0.9 * one) is is_better


def test_a_sum_of_all_elements_has_no_rows() -> None:
    axes = (ProblemAxis("k", 4, True, True),)
    x, y = Operand("x", 4, False, (4,), ((1,),), False), Operand("y", 4, False, (1,), ((0,),), True)
    assert starts_of(Problem("y", "y", axes, (x,), (y,), 1, 32), Sketch(0, 16, (), None), [[16]] * 3) == 0.0
