"""The library of a machine: every candidate fits its level, and is a whole multiple of its children."""

from dataclasses import replace

import numpy as np
import pytest
from tests.optimize.vortex_checks import window_use
from tests.tile.problems import two_inputs

from tilewright.machine.model import Machine
from tilewright.machine.shipped import machine_named, shipped_machines
from tilewright.optimize.construct.state_costs import max_partial_sum_bytes
from tilewright.optimize.vortex.library import (
    CAPACITY_WINDOW,
    MAX_SUM_BYTES,
    PANEL_SHARE,
    Library,
    library,
    thread_grids,
)
from tilewright.optimize.vortex.register_tiles import MIN_ROWS, RegisterTileTimes, filter_by_isa
from tilewright.optimize.vortex.static_levels import fix_cache_buffer, fix_register_tile
from tilewright.tile.program import Sketch

MACHINES = [m for m in shipped_machines().values() if m.gpu is None]
NAMES = [m.name for m in MACHINES]
IN_PLACE = Sketch(1, 16, (1, 0), 2)


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
def test_register_tiles_have_registers_and_keep_the_pipes_busy(machine: Machine) -> None:
    rows, vectors, _ = filter_by_isa(machine).T
    assert (rows * vectors + vectors <= machine.vector_registers).all()
    is_busy = rows * vectors >= machine.fma_pipes * machine.fma_cycles
    assert (is_busy | (rows < MIN_ROWS)).all()
    assert set(rows) >= {1, 2, 3}


@pytest.mark.parametrize(
    ("name", "tile", "is_there"),
    [
        ("zen5", (14, 2, 1), True),
        ("zen5", (15, 2, 1), True),
        ("zen5", (16, 2, 1), False),
        ("zen5", (30, 1, 4), True),
        ("zen5", (4, 1, 1), False),
        ("zen3", (6, 2, 1), True),
        ("zen3", (7, 2, 1), False),
        ("neoverse-n1", (7, 3, 1), True),
    ],
)
def test_the_instruction_set_decides(name: str, tile: tuple[int, int, int], is_there: bool) -> None:
    assert (tile in set(map(tuple, filter_by_isa(machine_named(name)).tolist()))) is is_there


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
def test_cache_buffers_stay_in_their_windows(machine: Machine, bits: int) -> None:
    candidates, l1, l2 = library(machine, bits), machine.levels[0], machine.levels[1]
    used = window_use(candidates, bits // 8)
    low, high = CAPACITY_WINDOW
    assert len(used) > 100
    assert (used >= low * l2.share).all()
    assert (used <= high * l2.share).all()
    rows, columns, terms = candidates.cache_buffers[candidates.links[:, 0]].T
    # the search space, which draws from the library as well, allows for as many
    assert (rows * columns * bits // 8 <= MAX_SUM_BYTES).all()
    for sketch in (IN_PLACE, replace(IN_PLACE, packed=((1, 1),))):
        assert max_partial_sum_bytes(two_inputs(512, 512, 512), sketch, machine) >= MAX_SUM_BYTES
    vectors = candidates.register_tiles[candidates.links[:, 1], 1]
    assert (terms * vectors * candidates.lanes * bits // 8 <= PANEL_SHARE * l1.share).all()


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
def test_the_table_links_multiples_to_their_children(machine: Machine) -> None:
    candidates = library(machine, 32)
    buffers, tiles = candidates.cache_buffers[candidates.links[:, 0]], candidates.register_tiles[candidates.links[:, 1]]
    tiles = tiles * [1, candidates.lanes, 1]
    assert (buffers % tiles == 0).all()
    assert len(np.unique(candidates.links, axis=0)) == len(candidates.links)
    assert set(candidates.links[:, 0]) == set(range(len(candidates.cache_buffers)))
    assert candidates.tiling_strategies == len(candidates.links) * len(candidates.grids)


def test_grids_give_every_core_the_same_number_of_tasks() -> None:
    # (0, 0) is a task per cache buffer
    assert thread_grids(1).tolist() == [[0, 0], [1, 1]]
    tasks = thread_grids(6).prod(axis=1)
    assert set(tasks) == {0, 1, 6, 12, 24}


def test_fixed_levels_have_one_candidate() -> None:
    machine = machine_named("zen5")
    every, times = library(machine, 32), RegisterTileTimes.of(machine, 32)

    def counts(x: Library) -> tuple[int, int]:
        return len(np.unique(x.links[:, 1])), len(np.unique(x.links[:, 0]))

    tile, buffer = fix_register_tile(every, times), fix_cache_buffer(every, times)
    assert counts(tile)[0] == 1
    assert counts(tile)[1] > 1
    assert counts(buffer) == (1, 1)
    assert set(buffer.links[:, 1]) == set(tile.links[:, 1])


@pytest.mark.parametrize("name", ["zen5", "zen3", "aarch64"])
def test_the_same_machine_has_the_same_library(name: str) -> None:
    first = library(machine_named(name), 32)
    library.cache_clear()
    second = library(machine_named(name), 32)
    for x, y in zip(
        (first.register_tiles, first.cache_buffers, first.links, first.grids),
        (second.register_tiles, second.cache_buffers, second.links, second.grids),
        strict=True,
    ):
        np.testing.assert_array_equal(x, y)
