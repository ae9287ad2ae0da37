"""Parameters of the cost model as part of a machine's description."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import MachineError
from tilewright.machine.choice import MachineChoice, Origin
from tilewright.machine.cost_parameters import DEFAULT_COST, CostParameters, parameter_fields
from tilewright.machine.model import parse_machine, to_json
from tilewright.machine.shipped import machine_named

ZEN5 = machine_named("zen5")
PAGE = Path(__file__).parents[2] / "docs" / "cost-model.md"


def described(cost: object) -> str:
    """The JSON of a machine with this object `cost`."""
    return json.dumps({**json.loads(to_json(ZEN5)), "cost": cost})


def test_a_description_without_parameters_has_the_defaults() -> None:
    data = json.loads(to_json(ZEN5))
    del data["cost"]
    assert parse_machine(json.dumps(data), "here").cost == DEFAULT_COST


def test_parameters_that_are_left_out_have_their_defaults() -> None:
    machine = parse_machine(described({"load_cycles": 1, "min_long_reduction": 40}), "here")
    assert machine.cost == CostParameters(load_cycles=1.0, min_long_reduction=40)


def test_a_description_states_every_parameter_and_reads_back() -> None:
    values: dict[str, Any] = {}
    for f in parameter_fields():
        values[f.name] = int(f.least) if f.is_integer else (f.least + f.default) / 2
    machine = replace(ZEN5, cost=CostParameters(**values))
    assert json.loads(to_json(machine))["cost"] == values
    assert parse_machine(to_json(machine), "here") == machine


@pytest.mark.parametrize("name", [f.name for f in parameter_fields()])
def test_the_recorded_hash_includes_every_parameter(name: str) -> None:
    field = next(f for f in parameter_fields() if f.name == name)
    value = field.least if field.default != field.least else field.most
    changed = replace(DEFAULT_COST, **{name: int(value) if field.is_integer else value})
    assert MachineChoice(replace(ZEN5, cost=changed), Origin.FILE).sha256 != MachineChoice(ZEN5, Origin.FILE).sha256


def test_all_problems_of_parameters_are_listed() -> None:
    cost = {
        "load_cycles": "one",
        "usable_cache_fraction": 1.5,
        "colour": 1,
        "max_streams": 0,
        "min_long_reduction": 2.5,
    }
    with pytest.raises(MachineError) as error:
        parse_machine(described(cost), "machine file 'x'")
    text = str(error.value)
    assert "machine file 'x': 5 problems" in text
    for line in ("field 'cost.colour': is not known; fields are issue_width, ",
                 "field 'cost.load_cycles': expected a number, got 'one'",
                 "field 'cost.usable_cache_fraction': must be between 0.01 and 1, got 1.5 (fraction of a cache)",
                 "field 'cost.max_streams': must be between 1 and 65536, got 0.0 (streams)",
                 "field 'cost.min_long_reduction': expected a whole number, got 2.5"):  # fmt: skip
        assert line in text


@pytest.mark.parametrize("cost", [None, 3, [], "fast"])
def test_parameters_are_an_object(cost: object) -> None:
    with pytest.raises(MachineError, match="field 'cost': expected an object, got"):
        parse_machine(described(cost), "here")


def test_every_default_is_within_its_bounds() -> None:
    assert [f.name for f in parameter_fields() if not f.least <= f.default <= f.most] == []
    assert {f.name for f in parameter_fields()} == {f.name for f in fields(CostParameters)}


def test_the_page_has_a_section_for_every_parameter_with_its_default() -> None:
    headings = [line for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    stated = {name: float(value) for line in headings for name, value in re.findall(r"`([a-z]\w*)` = ([\d.e-]+)", line)}
    assert stated == {f.name: f.default for f in parameter_fields()}
