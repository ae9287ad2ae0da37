"""Machines on the command line: reproducible builds, what artifacts say about them, wrong descriptions."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from tests.cli.command import error_of, run
from tests.driver import models

import tilewright
from tilewright.cli import doctor
from tilewright.machine import Target
from tilewright.machine.calibration_store import save_calibration
from tilewright.machine.choice import choose_machine
from tilewright.machine.model import to_json
from tilewright.machine.shipped import host_machine
from tilewright.runtime import load_artifact
from tilewright.runtime.manifest_meta import BuildSpec, MachineSpec

V3, RULE = ["--target", "x86-64-v3", "--optimizer", "gensor"], ["--optimizer", "rule"]


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path) -> Path:
    onnx.save(models.mlp(3), tmp_path / "mlp.onnx")
    return tmp_path / "mlp.onnx"


def test_equal_machines_give_equal_bytes_in_any_process(model, tmp_path):
    """Whatever was measured on the host: here two hosts are two cache folders."""
    artifacts = []
    for seed, ghz in (("1", 1.0), ("77", 9.0)):
        out, cache = tmp_path / f"{seed}.tw", tmp_path / f"cache{seed}"
        mine = replace(host_machine(), name="mine", ghz=ghz)
        environment = os.environ | {"PYTHONHASHSEED": seed, "TILEWRIGHT_CACHE_DIR": str(cache)}
        script = "import sys; from tilewright.machine.model import parse_machine; "
        script += "from tilewright.machine.calibration_store import save_calibration;"
        subprocess.run(
            [sys.executable, "-c", f"{script} save_calibration(parse_machine(sys.argv[1], 'test'))", to_json(mine)],
            env=environment, check=True,
        )  # fmt: skip
        command = [sys.executable, "-m", "tilewright", "compile", str(model), "-q", "-o", str(out), *V3]
        subprocess.run([*command, "--machine", "haswell"], env=environment, check=True)
        artifacts.append(out.read_bytes())
    assert artifacts[0] == artifacts[1]


def test_artifacts_say_how_they_were_made(model, tmp_path, capsys):
    artifact = tmp_path / "m.tw"
    code, out, _ = run(capsys, "compile", model, "-o", artifact, *V3, "--machine", "zen5")
    digest = choose_machine("zen5", Target.parse("x86-64-v3")).sha256
    line = f"optimizer gensor (seed 0), machine zen5 (shipped, sha256 {digest[:16]}), convolutions safe, fusion mcfuser"
    line += ", at most 8 variants"
    assert code == 0
    assert out.splitlines()[1] == line
    machine = MachineSpec("zen5", "shipped", digest)
    expected = BuildSpec(tilewright.__version__, "gensor", 0, machine, "safe", "mcfuser", 8)
    assert load_artifact(artifact).manifest.build == expected
    assert f"build    tilewright {tilewright.__version__}, {line}" in run(capsys, "inspect", artifact)[1]
    data = json.loads(run(capsys, "inspect", artifact, "--json")[1])
    assert data["build"]["machine"] == {"name": "zen5", "origin": "shipped", "sha256": digest}


def test_a_calibration_is_recorded(model, tmp_path, capsys):
    mine = replace(host_machine(), name="mine")
    save_calibration(mine)
    data = json.loads(run(capsys, "compile", model, "-o", tmp_path / "m.tw", "--optimizer", "roller", "--json")[1])
    assert data["build"] == {
        "version": tilewright.__version__, "optimizer": "roller", "seed": None,
        "machine": {"name": "mine", "origin": "stored", "sha256": choose_machine(mine, Target.host()).sha256},
        "convolutions": "safe",
        "fusion": "mcfuser",
        "variants": 1,
    }  # fmt: skip
    assert f"description mine (stored, sha256 {data['build']['machine']['sha256'][:16]})" in run(capsys, "doctor")[1]


def test_the_rule_depends_on_no_machine(model, tmp_path):
    # without the cache, whose keys would make both the same code
    plain = tilewright.compile(model, optimizer="rule", cache=False)
    assert plain.manifest.build == BuildSpec(tilewright.__version__, "rule")
    save_calibration(replace(host_machine(), ghz=9.0))
    tilewright.compile(model, optimizer="rule", cache=False).save(tmp_path / "b.tw")
    plain.save(tmp_path / "a.tw")
    assert (tmp_path / "a.tw").read_bytes() == (tmp_path / "b.tw").read_bytes()


def test_a_saved_description_rebuilds_what_the_calibration_built(model, tmp_path, capsys):
    save_calibration(replace(host_machine(), name="mine", sync_us=123.0))
    here, there = tilewright.compile(model, optimizer="gensor", cache=False), tmp_path / "machine.json"
    code, _, err = run(capsys, "doctor", "--machine", "--save", there)
    assert (code, err) == (0, f"wrote {there}\n")
    again = tilewright.compile(model, optimizer="gensor", machine=there, cache=False)
    first, second = here.manifest.build, again.manifest.build
    assert (first.machine.origin, second.machine.origin) == ("stored", "file")
    assert first.machine.sha256 == second.machine.sha256
    assert here.artifact.code == again.artifact.code


@pytest.mark.parametrize("verb", ["compile", "run", "bench", "verify", "inspect"])
def test_every_verb_that_compiles_refuses_a_wrong_machine(verb, model, tmp_path, capsys):
    path = tmp_path / "mine.json"
    data = json.loads(to_json(host_machine()))
    data["cores"], data["levels"][0]["core_gbs"] = 0, -1
    path.write_text(json.dumps(data))
    inputs = ["--random"] if verb == "run" else []
    code, _, err = run(capsys, verb, model, *inputs, "--optimizer", "gensor", "--machine", path)
    assert code == 1
    assert f"tilewright {verb}: [machine] machine file '{path}': 2 problems" in err
    assert "field 'levels[0].core_gbs': must be more than 0, got -1.0" in err
    assert "field 'cores': must be more than 0, got 0" in err
    assert not (tmp_path / "mlp.tw").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*RULE, "--machine", "zen5"], "[option] --machine: the optimizer 'rule' reads no description of a machine"),
        (["--optimizer", "gensor", "--machine", "z80"], "[machine] --machine: there is no machine 'z80'; use one of"),
        (["--optimizer", "gensor", "--machine", "no.json"], "[machine] machine file 'no.json': cannot be read"),
        ([*V3, "--machine", "h200"], "[machine] machine 'h200': it is of architecture nvptx64"),
    ],
)
def test_machines_that_do_not_fit(options, message, model, tmp_path, capsys):
    code, _, err = run(capsys, "compile", model, "-o", tmp_path / "m.tw", *options)
    assert code == 1
    assert message in err


def test_a_machine_for_a_compiled_model(model, tmp_path, capsys):
    tilewright.compile(model).save(tmp_path / "m.tw")
    code, _, err = run(capsys, "run", tmp_path / "m.tw", "--random", "--machine", "zen5")
    assert code == 1
    assert "--machine has no effect on a model that is compiled already" in err


def test_artifacts_of_older_versions_do_not_say_how_they_were_made(model, tmp_path):
    from tilewright.runtime.manifest_json import dump_json, manifest_from_json, manifest_to_json

    manifest = tilewright.compile(model).manifest
    data = json.loads(dump_json(manifest_to_json(manifest)))
    assert manifest_from_json(data, "here") == manifest
    del data["build"]
    assert manifest_from_json(data, "here").build is None
    data["build"] = {"version": "1", "optimizer": "gensor", "seed": "one", "machine": None}
    with pytest.raises(tilewright.ArtifactError, match="manifest field 'seed': expected an integer"):
        manifest_from_json(data, "here")


def test_inspect_construction(model, tmp_path, capsys):
    picture = tmp_path / "walk.svg"
    options = ["--construction", *V3, "--machine", "zen3"]
    code, out, _ = run(capsys, "inspect", model, *options)
    assert code == 0
    assert out.startswith("k0_")
    assert " by gensor for zen3: " in out
    names = [line.split()[0] for line in out.splitlines() if " by gensor for " in line]
    code, out, _ = run(capsys, "inspect", model, *options, "--kernel", names[0], "--svg", picture, "--json")
    assert code == 0
    (construction,) = json.loads(out)["construction"]
    assert (construction["kernel"], construction["machine"], construction["constructed"]) == (names[0], "zen3", True)
    assert picture.read_text().startswith("<svg")
    node = construction["nodes"][0].split(" (")[0]
    code, out, _ = run(capsys, "inspect", model, *options, "--node", node, "--json")
    assert names[0] in [c["kernel"] for c in json.loads(out)["construction"]]


def test_inspect_cost(model, capsys):
    options = ["--cost", *V3, "--machine", "zen3"]
    code, out, _ = run(capsys, "inspect", model, *options)
    assert code == 0
    assert " by gensor for zen3: " in out
    assert "\ntotal  " in out
    code, out, _ = run(capsys, "inspect", model, *options, "--construction", "--json")
    assert code == 0
    fields = json.loads(out)
    assert [c["kernel"] for c in fields["cost"]] == [c["kernel"] for c in fields["construction"]]
    assert all(c["machine"] == "zen3" and c["total_ns"] > 0 and c["shapes"] for c in fields["cost"] if c["constructed"])
    node = fields["cost"][0]["nodes"][0].split(" (")[0]
    code, out, _ = run(capsys, "inspect", model, *options, "--node", node, "--json")
    assert fields["cost"][0]["kernel"] in [c["kernel"] for c in json.loads(out)["cost"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cost", *RULE], "[option] construction: the optimizer 'rule' chooses by rule"),
        (["--construction", *RULE], "[option] construction: the optimizer 'rule' chooses by rule"),
        (["--construction", *V3, "--node", "x"], "[option] --node: the model has no node 'x'; there are "),
        (["--construction", *V3, "--svg", "a.svg"], "[option] --svg: a picture shows one kernel, "),
        (["--construction", *V3, "--kernel", "x"], "[option] --kernel: there is no function 'x'"),
        (["--svg", "a.svg"], "[option] --svg: it draws --construction or --fusion; choose one of the two"),
        (["--node", "a"], "[option] --node: it belongs to --construction"),
    ],
)
def test_constructions_that_do_not_exist(options, message, model, capsys):
    code, _, err = run(capsys, "inspect", model, *options)
    assert code == 1
    assert message in err


@pytest.mark.parametrize("option", ["--save", "--svg"])
def test_a_description_that_cannot_be_written_is_refused_before_the_calibration(option, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tilewright.cli.machine._calibrate", None)
    text = error_of(capsys, "doctor", "--calibrate", option, tmp_path / "missing" / "file")
    assert f"{option} {tmp_path}/missing/file: there is no folder {tmp_path}/missing" in text


def test_doctor_says_that_a_description_of_the_package_has_the_cores_of_this_machine(capsys, monkeypatch):
    facts = doctor.facts()
    facts["machine"]["cpus"] = 1
    facts["description"] = {"name": "zen5", "origin": "shipped", "cores": 1, "sha256": "0123456789abcdef" * 4}
    monkeypatch.setattr(doctor, "facts", lambda threads: facts)
    out = run(capsys, "doctor")[1]
    assert ", 1 CPU, " in out
    described = "zen5 (shipped with this machine's caches and 1 core, sha256 0123456789abcdef)"
    assert f"description {described}\n" in out
