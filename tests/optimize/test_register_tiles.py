"""Local searches go on from better register tiles, by edges of the state graph."""

from itertools import pairwise

import numpy as np
import pytest
from tests.tile.problems import matrix_product

from tilewright.cost.analytical import mean_time
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.exchange_register_tiles import best_by_sketch, exchange_register_tiles
from tilewright.optimize.construct.local_search import LocalSearch, search_locally
from tilewright.optimize.construct.lock_step import run
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.tile_lattice import Indices
from tilewright.tile.program import REGISTER, Sketch

MACHINE = machine_named("sapphire-rapids").with_cores(2)
SKETCH = Sketch(1, 16, (1, 0), 2, ((1, 1),))
SPACE = SearchSpace.of(matrix_product(207, 263, 443), SKETCH, MACHINE)


def state(rows: int, columns: int) -> Indices:
    """A state with this register tile, and cache tiles of the same size."""
    k_block = SPACE.initial_state()[2]
    return np.array([SPACE.lattices[0].closest(rows, 1, 1), SPACE.lattices[1].closest(columns, 1, 1), k_block])


def climbed(rows: int, columns: int) -> LocalSearch:
    """The search from such a state."""
    (search,) = run(search_locally(SPACE, SKETCH, state(rows, columns)[None]))
    return search


def exchanged(search: LocalSearch) -> LocalSearch:
    """The search that goes on from it."""
    return run(exchange_register_tiles(search))


def register_tile(search: LocalSearch) -> tuple[int, ...]:
    """The register tile at its end."""
    return tuple(int(x) for x in search.sizes[0, REGISTER])


def test_tiles_of_equal_area_are_reached_from_each_other() -> None:
    """No single edge improves 4 x 96; the end is as good as from next to 9 x 48."""
    start = climbed(4, 96)
    assert register_tile(start)[:2] == (4, 96)
    end = exchanged(start)
    assert register_tile(end)[:2] == (9, 48)
    assert end.nanoseconds < start.nanoseconds
    assert end.nanoseconds <= exchanged(climbed(9, 48)).nanoseconds


def test_steps_are_edges_and_the_time_is_that_of_the_end() -> None:
    search = exchanged(climbed(4, 96))
    assert len(search.states) == len(search.edges) + 1
    for (before, after), (axis, edge) in zip(pairwise(search.states), search.edges, strict=True):
        expected = before.copy()
        expected[axis] = SPACE.lattices[axis].successor(before[axis : axis + 1], np.array([edge]))[0]
        assert (after == expected).all()
    assert search.nanoseconds == pytest.approx(mean_time(SPACE.problem, SKETCH, search.sizes, MACHINE)[0])
    assert len(search.trajectory_steps()) == len(search.edges)


@pytest.mark.parametrize("tile", [(1, 16), (4, 96), (14, 32)])
def test_a_search_that_went_on_stays_where_it_is(tile: tuple[int, int]) -> None:
    end = exchanged(climbed(*tile))
    assert exchanged(end) is end


def test_the_best_search_of_each_sketch() -> None:
    first, second = climbed(4, 96), exchanged(climbed(4, 96))
    assert best_by_sketch([first, second], 3) == [second]
    assert best_by_sketch([], 3) == []
