"""Random programs of a search: register tiles of all sizes are among them, and all of them are legal."""

import numpy as np
import pytest
from tests.optimize.search_tasks import MACHINE, search_task

from tilewright.optimize.search.tile_programs import TilePrograms, with_drawn_register_tiles
from tilewright.tile.program import REGISTER, is_legal


def tile_programs(kind: str) -> TilePrograms:
    programs = TilePrograms.of(search_task(kind), MACHINE)
    assert programs is not None
    return programs


@pytest.mark.parametrize("kind", ["product", "convolution", "ranged product"])
def test_register_tiles_of_every_size_are_drawn(kind: str) -> None:
    programs = tile_programs(kind)
    drawn = [programs.program(g) for g in programs.random(1024, np.random.default_rng(0))]
    for space, sketches in programs.spaces:
        own = [p for p in drawn if p.sketch in sketches]
        for k in space.problem.spatial:
            assert {p.sizes[REGISTER][k] for p in own} == set(space.lattices[k].rules.register_sizes)


@pytest.mark.parametrize("kind", ["product", "convolution", "sums", "ranged product"])
def test_drawn_register_tiles_are_legal_and_leave_reductions_alone(kind: str) -> None:
    programs = tile_programs(kind)
    for space, sketches in programs.spaces:
        initial = np.repeat(space.initial_state()[None], 64, axis=0)
        states = with_drawn_register_tiles(space, initial, np.random.default_rng(1))
        sizes = space.sizes(states)
        assert (is_legal(space.problem, sketches[0], sizes) & space.are_lowerable(sizes)).all()
        assert len(np.unique(states, axis=0)) > 3
        for k in space.problem.reduce:
            assert k == space.sketch.lane or (states[:, k] == initial[:, k]).all()
