"""Measured register tiles: one plausible time per tile, with the keys of this machine."""

from tilewright.machine import Target
from tilewright.machine.model import parse_machine, to_json
from tilewright.machine.shipped import host_machine
from tilewright.measure.parameter_kernels import RegisterTile
from tilewright.measure.register_tile_times import measure_register_tiles

TILES = (RegisterTile(1, 1, 1, 32), RegisterTile(4, 2, 2, 32))


def test_every_tile_has_a_time() -> None:
    machine = host_machine()
    measured = measure_register_tiles(machine, Target.host(), TILES)
    assert [(x.rows, x.vectors, x.unroll) for x in measured] == [(1, 1, 1), (4, 2, 2)]
    assert all(x.vector_bits == machine.vector_bits and x.element_bits == 32 for x in measured)
    # no tile multiplies faster than the pipes allow on a clock that is twice the described one
    assert all(x.cycles > x.rows * x.vectors / machine.fma_pipes / 2 for x in measured)
    described = parse_machine(to_json(machine), "here")
    assert described.register_tiles == machine.register_tiles
