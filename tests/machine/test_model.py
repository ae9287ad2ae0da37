"""Descriptions of machines: reading, checking, choosing."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tilewright.errors import MachineError
from tilewright.machine import Target
from tilewright.machine.model import Level, Machine, parse_machine, read_machine, to_json
from tilewright.machine.shipped import (
    generic_machine,
    machine_named,
    machine_of_processor,
    processor_signature,
    shipped_machines,
    with_reported_caches,
)


def described(**changes: object) -> str:
    """The JSON of a shipped machine with some fields changed."""
    return json.dumps({**json.loads(to_json(machine_named("zen5"))), **changes})


def with_level(index: int, **changes: object) -> str:
    """The JSON of a shipped machine with one memory level changed."""
    data = json.loads(to_json(machine_named("zen5")))
    data["levels"][index] |= changes
    return json.dumps(data)


def with_ways(*ways: int) -> str:
    """The JSON of a shipped machine with other associativities."""
    data = json.loads(described())
    for level, count in zip(data["levels"], ways, strict=True):
        level["ways"] = count
    return json.dumps(data)


@pytest.mark.parametrize("name", sorted(shipped_machines()))
def test_every_shipped_description_reads_back_to_itself(name: str) -> None:
    machine = machine_named(name)
    assert parse_machine(to_json(machine), "here") == machine
    assert machine.gflops() > 0
    assert machine.levels[-1].name == "memory"


def test_processors_are_described_by_one_file_each() -> None:
    signs = [sign for machine in shipped_machines().values() for sign in machine.identify]
    assert len(signs) == len(set(signs)) > 30


def test_peak_is_lanes_times_pipes_times_clock() -> None:
    zen5 = machine_named("zen5")
    assert zen5.gflops() == pytest.approx(16 * 2 * 2 * 4.1)
    assert zen5.gflops(2) == pytest.approx(2 * zen5.gflops())
    assert zen5.gflops(100) == pytest.approx(8 * zen5.gflops())
    assert zen5.gflops(1, bits=64) == pytest.approx(zen5.gflops() / 2)


def test_levels_share_their_bandwidth() -> None:
    memory = machine_named("zen5").level("memory")
    assert memory.gbs(1) == 40.0
    assert memory.gbs(2) == 60.0


@pytest.mark.parametrize(
    ("target", "name"),
    [("x86-64", "x86-64"), ("x86-64-v2", "x86-64"), ("x86-64-v3", "x86-64-v3"), ("x86-64-v4", "x86-64-v4"),
     ("x86-64-v2+avx", "x86-64"), ("aarch64", "aarch64")],
)  # fmt: skip
def test_every_instruction_set_has_a_generic_machine(target: str, name: str) -> None:
    assert generic_machine(Target.parse(target)).name == name


def test_signatures_of_processors() -> None:
    intel = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\nprocessor\t: 1\nmodel : 7\n"
    arm = "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd40\n"
    assert processor_signature(intel) == "GenuineIntel/6/143"
    assert processor_signature(arm) == "0x41/0xd40"
    assert processor_signature("nothing") == ""
    machines = machine_of_processor("GenuineIntel/6/143"), machine_of_processor("0x41/0xd40"), machine_of_processor("")
    assert [m.name if m else None for m in machines] == ["sapphire-rapids", "neoverse-v1", None]


def cpu(folder: Path, **sizes: tuple[int, str, str, str]) -> Path:
    """A processor's sysfs folder with caches: level, kind, size, CPUs."""
    for name, (level, kind, size, cpus) in sizes.items():
        (folder / "cache" / name).mkdir(parents=True)
        for file, text in (("level", str(level)), ("type", kind), ("size", size), ("coherency_line_size", "64"),
                           ("shared_cpu_list", cpus)):  # fmt: skip
            (folder / "cache" / name / file).write_text(text)
    return folder


def test_sizes_of_caches_come_from_the_system(tmp_path: Path) -> None:
    folder = cpu(tmp_path, index0=(1, "Data", "32K", "0"), index1=(1, "Instruction", "64K", "0"),
                 index2=(2, "Unified", "4096K", "0-1"), index3=(3, "Unified", "64M", "0-31"))  # fmt: skip
    machine = with_reported_caches(machine_named("zen5"), 2, folder)
    assert [x.bytes for x in machine.levels[:3]] == [32 << 10, 4 << 20, 64 << 20]
    assert [x.shared_by for x in machine.levels] == [1, 2, 2, 2]
    assert machine.cores == 2
    assert machine.level("L1").total_gbs == pytest.approx(2 * 490)


@pytest.mark.parametrize("cores", [1, 2, 16])
def test_the_third_level_is_no_cache_of_one_core(cores: int, tmp_path: Path) -> None:
    """A container or an affinity mask of one CPU leaves L3 where it is."""
    folder = cpu(tmp_path, index0=(1, "Data", "48K", "0"), index2=(2, "Unified", "2048K", "0"),
                 index3=(3, "Unified", "64M", "0-15"))  # fmt: skip
    machine = with_reported_caches(machine_named("sapphire-rapids"), cores, folder)
    assert [x.name for x in machine.private_caches] == ["L1", "L2"]
    assert machine.level("L3").shared_by == cores


def test_a_second_level_that_cores_share_is_not_private(tmp_path: Path) -> None:
    folder = cpu(tmp_path, index0=(1, "Data", "32K", "0"), index2=(2, "Unified", "4096K", "0-1"))
    machine = with_reported_caches(machine_named("zen5"), 2, folder)
    assert [x.name for x in machine.private_caches] == ["L1"]
    levels = [replace(x, shared_by=4) for x in machine.levels]
    assert replace(machine, levels=tuple(levels)).private_caches == ()


def test_two_threads_of_a_core_share_its_caches_as_one(tmp_path: Path) -> None:
    folder = cpu(tmp_path, index0=(1, "Data", "48K", "0,32"), index2=(2, "Unified", "2048K", "0,32"),
                 index3=(3, "Unified", "64M", "0-63"))  # fmt: skip
    (folder / "topology").mkdir()
    (folder / "topology" / "thread_siblings_list").write_text("0,32\n")
    machine = with_reported_caches(machine_named("sapphire-rapids"), 32, folder)
    assert [x.shared_by for x in machine.levels[:3]] == [1, 1, 32]
    assert machine.level("L1").share == 48 << 10


def test_caches_that_contradict_each_other_are_not_believed(tmp_path: Path) -> None:
    folder = cpu(tmp_path, index0=(1, "Data", "64M", "0"))
    assert with_reported_caches(machine_named("zen5"), 4, folder).levels == machine_named("zen5").levels


def test_all_problems_of_a_file_are_listed(tmp_path: Path) -> None:
    data = json.loads(to_json(machine_named("zen5")))
    del data["ghz"]
    data["cores"] = 0
    data["fma_pipes"] = "two"
    data["colour"] = "red"
    data["levels"][1]["bytes"] = -1
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    with pytest.raises(MachineError) as error:
        read_machine(path)
    text = str(error.value)
    assert f"machine file '{path}': 5 problems" in text
    for line in ("field 'ghz': is missing", "field 'cores': must be more than 0, got 0",
                 "field 'fma_pipes': expected a whole number, got 'two'", "field 'colour': is not known",
                 "field 'levels[1].bytes': must be more than 0, got -1"):  # fmt: skip
        assert line in text


def test_impossible_values_do_not_hide_other_problems() -> None:
    data = json.loads(with_level(0, bytes=1 << 40, line=48, core_gbs=-3.0))
    data["arch"], data["cores"], data["levels"][2]["name"] = "vax", 0, "L2"
    del data["levels"][3]["ways"]
    with pytest.raises(MachineError) as error:
        parse_machine(json.dumps(data), "machine file 'x'")
    # levels that could not be read are compared with no other
    assert str(error.value).splitlines() == [
        "[machine] machine file 'x': 6 problems",
        "  field 'levels[0].line': expected a power of two, got 48",
        "  field 'levels[0].core_gbs': must be more than 0, got -3.0",
        "  field 'levels[3].ways': is missing",
        "  field 'cores': must be more than 0, got 0",
        "  field 'levels': 2 levels are called 'L2'",
        "  field 'arch': expected one of x86_64, aarch64, nvptx64, got 'vax'"
        "; see docs/how-to/add-a-machine.md for every field",
    ]


def test_only_graphics_processors_have_no_translations() -> None:
    assert parse_machine(to_json(machine_named("h200")), "here").tlb_entries == 0
    with pytest.raises(MachineError, match="field 'tlb_entries': must be more than 0, got 0"):
        parse_machine(described(tlb_entries=0), "here")


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    text = to_json(machine_named("zen5"))
    for length in (0, 1, len(text) // 2, len(text) - 3):
        (tmp_path / "cut.json").write_text(text[:length])
        with pytest.raises(MachineError, match=r"machine file '.*cut\.json': is not JSON"):
            read_machine(tmp_path / "cut.json")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MachineError, match=r"machine file '.*binary\.json': cannot be read"):
        read_machine(tmp_path / "binary.json")


OPTIONAL = ("gpu", "identify", "features", "cost", "register_tiles")


@pytest.mark.parametrize("field", [f.name for f in fields(Machine) if f.name not in OPTIONAL])
def test_every_field_must_be_there(field: str) -> None:
    data = json.loads(described())
    del data[field]
    with pytest.raises(MachineError, match=f"field '{field}': (is missing|expected a list)"):
        parse_machine(json.dumps(data), "here")


@pytest.mark.parametrize("field", [f.name for f in fields(Level)])
def test_every_field_of_a_level_must_be_there(field: str) -> None:
    data = json.loads(described())
    del data["levels"][1][field]
    with pytest.raises(MachineError, match=f"1 problem\n.*field 'levels\\[1\\].{field}': is missing"):
        parse_machine(json.dumps(data), "here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        (with_level(1, line=48), "field 'levels\\[1\\].line': expected a power of two, got 48"),
        (with_level(2, name="L1"), "field 'levels': 2 levels are called 'L1'"),
        (with_level(3, total_gbs=-4), "field 'levels\\[3\\].total_gbs': must be more than 0, got -4"),
        (with_level(0, colour="red"), "field 'levels\\[0\\].colour': is not known; fields are name, bytes"),
        (with_level(0, bytes=1 << 60), "field 'levels\\[0\\].bytes': must be at most 9007199254740992"),
        (with_level(0, bytes="32K"), "field 'levels\\[0\\].bytes': expected a whole number, got '32K'"),
        (with_level(0, bytes=64 << 20), "levels \\(L1, L2\\)': the farther level holds less"),
        (described(cores=0), "field 'cores': must be more than 0, got 0"),
        (described(ghz=-1), "field 'ghz': must be more than 0, got -1.0"),
        (described(name=""), "field 'name': expected a text, got ''"),
        (described(gpu=False), "field 'gpu': expected an object, got False"),
        ("[]", "expected an object, got list"),
        ("[]", "give a file that `tilewright doctor --machine --save FILE` wrote"),
        (described().replace('"format": 1, ', ""), "1 problem\n  field 'format': is missing"),
        (described(format=2), "field 'format': expected 1, got 2"),
        (described(levels=[]), "field 'levels': expected a list of at least one memory level"),
        (with_ways(0, 0, 0, 0), "field 'levels': expected at least one cache, with `ways` of 1 or more, and main mem"),
        (with_ways(8, 0, 16, 0), "levels \\(L2\\)': expected a cache, with `ways` of 1 or more: only the last level"),
        (described(levels=json.loads(described())["levels"][3:]), "field 'levels': expected at least one cache"),
        (described(levels=[3]), "field 'levels\\[0\\]': expected an object, got 3"),
        (described(arch="vax"), "field 'arch': expected one of x86_64, aarch64, nvptx64, got 'vax'"),
        (described(vector_bits=100), "field 'vector_bits': expected a multiple of 64, got 100"),
        (described(ghz=float("nan")), "field 'ghz': expected a number, got nan"),
        (described(ghz=True), "field 'ghz': expected a number, got True"),
        (described(cores=1.5), "field 'cores': expected a whole number, got 1.5"),
        (described(identify="AMD"), "field 'identify': expected a list of texts, got 'AMD'"),
        (described(features=[1]), "field 'features': expected a list of texts, got \\[1\\]"),
        (with_level(1, bytes=1024), "levels \\(L1, L2\\)': the farther level holds less"),
        (with_level(2, latency_ns=0.5), "levels \\(L2, L3\\)': the farther level is nearer"),
        (with_level(3, core_gbs=1e4, total_gbs=2e4), "levels \\(L3, memory\\)': the farther level is faster"),
        (with_level(0, total_gbs=1.0), "levels \\(L1\\)': all cores read less than one"),
        (with_level(0, bytes=32), "levels \\(L1\\)': 32 bytes hold not even "),
        (with_level(0, ways=1 << 20), "levels \\(L1\\)': .* hold not even 1048576 ways of lines of 64 bytes"),
        (described(vector_bits=1 << 20), "field 'vector_bits': must be at most 65536, got 1048576"),
        (described(ghz=4_400_000_000), "field 'ghz': must be at most 100, got 4400000000.0"),
        (with_level(3, total_gbs=1e30), "field 'levels\\[3\\].total_gbs': must be at most 1000000000, got 1e\\+30"),
    ],
)
def test_impossible_descriptions(text: str, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        parse_machine(text, "machine file 'x'")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"nowhere\.json'.*cannot be read"):
        read_machine(tmp_path / "nowhere.json")


def test_unknown_names() -> None:
    with pytest.raises(MachineError, match=r"there is no machine 'z80'; use one of aarch64"):
        machine_named("z80")
    with pytest.raises(MachineError, match=r"there is no memory level 'L9'; there are L1, L2, L3, memory"):
        machine_named("zen5").level("L9")


def test_fewer_cores() -> None:
    machine: Machine = machine_named("zen5").with_cores(2)
    assert machine.cores == 2
    assert machine.with_cores(50).cores == 2


def test_fewer_threads_are_started_sooner() -> None:
    machine = replace(machine_named("zen5"), cores=16, sync_us=4.0)
    assert [machine.with_cores(n).sync_us for n in (16, 4, 2, 1)] == [4.0, 2.0, 1.0, 1.0]
    assert machine.with_cores(2).sync_of(16) == 4.0
    assert with_reported_caches(machine, 2, Path("none")).sync_us == 1.0
