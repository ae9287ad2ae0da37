"""Measured register tiles in descriptions of machines: written, read back, checked."""

import json
from dataclasses import replace

import pytest

from tilewright.errors import MachineError
from tilewright.machine.model import parse_machine, to_json
from tilewright.machine.register_tile_cycles import RegisterTileCycles
from tilewright.machine.shipped import machine_named, shipped_machines

TILES = (RegisterTileCycles(512, 32, 12, 2, 4, 14.7), RegisterTileCycles(512, 32, 1, 8, 1, 7.25))


def test_measured_tiles_read_back() -> None:
    machine = replace(machine_named("zen5"), register_tiles=TILES)
    text = to_json(machine)
    assert json.loads(text)["register_tiles"] == {"512/32 12x2x4": 14.7, "512/32 1x8x1": 7.25}
    assert parse_machine(text, "here") == machine


@pytest.mark.parametrize("name", sorted(shipped_machines()))
def test_a_description_without_measurements_does_not_mention_them(name: str) -> None:
    assert "register_tiles" not in json.loads(to_json(machine_named(name)))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "expected an object"),
        ({"512/32 12x2": 1.0}, "expected a name such as"),
        ({"512/32 0x2x4": 1.0}, "expected a name such as"),
        ({"512/32 12x2x4": 0}, "must be more than 0"),
        ({"512/32 12x2x4": True}, "must be more than 0"),
        ({"512/32 12x2x4": 1e9}, "must be more than 0 and at most"),
        ({"512/32 12x2x4": float("nan")}, "must be more than 0"),
        ({"512/32 12x2x4": "3"}, "must be more than 0"),
    ],
)
def test_a_wrong_measurement_is_named(value: object, problem: str) -> None:
    data = json.loads(to_json(machine_named("zen5"))) | {"register_tiles": value}
    with pytest.raises(MachineError, match=problem) as error:
        parse_machine(json.dumps(data), "here")
    assert "register_tiles" in str(error.value)
