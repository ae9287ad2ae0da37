"""Which machine counts for a compilation, and what is recorded of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import MachineError, OptionError
from tilewright.machine import Target
from tilewright.machine.calibration_store import save_calibration
from tilewright.machine.choice import MachineChoice, choose_machine
from tilewright.machine.model import to_json
from tilewright.machine.origin import Origin
from tilewright.machine.shipped import describe_host, generic_machine, host_machine, machine_named

V3 = Target.parse("x86-64-v3")


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


def test_by_default_the_description_of_the_target() -> None:
    assert choose_machine(None, Target.host()) == MachineChoice(*describe_host())
    assert describe_host()[0] == host_machine()
    other = Target.parse("aarch64" if Target.host().arch == "x86_64" else "x86-64-v3")
    assert choose_machine(None, other) == MachineChoice(generic_machine(other), Origin.GENERIC)


def test_a_calibration_counts_first() -> None:
    mine = replace(host_machine(), name="mine", ghz=1.25)
    save_calibration(mine)
    assert choose_machine(None, Target.host()) == MachineChoice(mine, Origin.STORED)


@pytest.mark.parametrize(
    ("name", "origin"), [("zen5", Origin.SHIPPED), ("haswell", Origin.SHIPPED), ("x86-64-v3", Origin.GENERIC)]
)
def test_by_name(name: str, origin: Origin) -> None:
    assert choose_machine(name, V3) == MachineChoice(machine_named(name), origin)


def test_by_file_and_as_an_object(tmp_path: Path) -> None:
    mine = replace(machine_named("zen3"), name="mine")
    path = tmp_path / "mine.json"
    path.write_text(to_json(mine))
    choice = choose_machine(path, V3)
    assert choice == choose_machine(str(path), V3) == MachineChoice(mine, Origin.FILE)
    assert choose_machine(mine, V3) == MachineChoice(mine, Origin.ARGUMENT)
    assert choice.sha256 == choose_machine(mine, V3).sha256
    assert choice.sha256 != choose_machine("zen3", V3).sha256


def test_the_machine_has_no_more_vectors_than_the_target() -> None:
    machine = choose_machine("zen5", V3).for_target(V3)
    assert (machine.vector_bits, machine.vector_registers) == (256, 16)
    assert machine == replace(machine_named("zen5"), vector_bits=256, vector_registers=16)
    assert choose_machine("haswell", Target.parse("x86-64-v4")).for_target(Target.parse("x86-64-v4")).vector_bits == 256


def test_half_width_rate_is_in_the_ports_of_narrower_targets() -> None:
    zen4 = machine_named("zen4")
    machine = choose_machine(zen4, V3).for_target(V3)
    assert (machine.fma_pipes, machine.load_ports) == (2 * zen4.fma_pipes, 2 * zen4.load_ports)
    assert machine.gflops() == zen4.gflops()
    assert machine.with_ports_for(128) == machine, "narrower vectors are no faster"
    per_broadcast = [x.cost.broadcast_load_factor / x.load_ports for x in (zen4, machine)]
    assert per_broadcast[0] == per_broadcast[1], "nor are elements"


@pytest.mark.parametrize(("machine", "arch"), [("neoverse-v1", "aarch64"), ("h200", "nvptx64")])
def test_another_architecture(machine: str, arch: str) -> None:
    message = f"machine '{machine}': it is of architecture {arch}, the target x86-64-v3 of x86_64"
    with pytest.raises(MachineError, match=message):
        choose_machine(machine, V3)


def test_names_and_files_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"there is no machine 'z80'; use one of aarch64.*or a file such as ./z80"):
        choose_machine("z80", V3)
    with pytest.raises(MachineError, match=r"there is no machine ''"):
        choose_machine("", V3)
    for path in (str(tmp_path / "none"), "none.json", tmp_path):
        with pytest.raises(MachineError, match=r"machine file '.*': cannot be read"):
            choose_machine(path, V3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ghz": 0.0}, r"^\[machine\] argument 'machine': 1 problem\n  field 'ghz': must be more than 0, got 0.0"),
        ({"levels": ()}, "argument 'machine': 1 problem\n  field 'levels': expected a list of at least one memory"),
        ({"cores": range(2)}, "argument 'machine': holds what is no plain value: .*; its fields are texts, Python"),
    ],
)
def test_an_object_is_checked_as_a_file_is(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MachineError, match=message):
        choose_machine(replace(machine_named("zen5"), **changes), V3)


def test_something_else() -> None:
    with pytest.raises(OptionError, match="argument 'machine': expected a name, a file or a Machine, got int"):
        choose_machine(3, V3)  # pyright: ignore[reportArgumentType]
