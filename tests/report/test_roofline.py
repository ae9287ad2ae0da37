"""The roofline picture: well-formed, and its lines lie where the figures say."""

import re
from xml.etree import ElementTree

import pytest

from tilewright.machine.shipped import machine_named, shipped_machines
from tilewright.report.roofline import roofline

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", sorted(shipped_machines()))
def test_every_machine_has_a_picture(name: str) -> None:
    machine = machine_named(name)
    root = ElementTree.fromstring(roofline(machine, machine.cores))
    lines = root.findall(f"{SVG}polyline")
    assert len(lines) == len(machine.levels)
    for line in lines:
        for x, y in (map(float, p.split(",")) for p in line.attrib["points"].split()):
            assert 69.9 <= x <= 760
            assert 39.9 <= y <= 480


def test_lines_end_at_the_peak_and_ridges_are_in_order() -> None:
    machine = machine_named("zen5")
    points = [re.findall(r"[\d.]+", p) for p in re.findall(r'points="([^"]+)"', roofline(machine, 1))]
    ends = {p[-1] for p in points}
    assert len(ends) == 1
    ridges = [float(p[2]) for p in points]
    assert ridges == sorted(ridges)


def test_names_are_escaped() -> None:
    from dataclasses import replace

    assert "a &lt;b&gt;" in roofline(replace(machine_named("zen5"), name="a <b>"), 2)
