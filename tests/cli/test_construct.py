"""Bad and odd input for the constructing optimizers, from the command line to the answer."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.cli.command import run
from tests.driver import models

import tilewright
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.errors import MachineError
from tilewright.machine import Target
from tilewright.machine import target as targets
from tilewright.machine.calibration_store import calibration_path
from tilewright.machine.model import to_json
from tilewright.machine.shipped import describe_host, generic_machine, machine_named
from tilewright.measure import calibrate

OPTIMIZERS = ["gensor", "roller"]


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


def product(path, m, k, n):
    """A matrix product of two inputs."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
    inputs = [models.value("x", [m, k]), models.value("w", [k, n])]
    onnx.save(models.model([node], inputs, [models.value("y", [m, n])]), path)
    return path


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("empty", ["m", "k", "n"])
def test_dimensions_of_size_zero(optimizer, empty, tmp_path, capsys):
    sizes = {"m": 5, "k": 7, "n": 9} | {empty: 0}
    shapes = [a for name, size in sizes.items() for a in ("--shape", f"{name}:{size}")]
    model, out = product(tmp_path / "m.onnx", "m", "k", "n"), tmp_path / "m.tw"
    code, _, err = run(capsys, "compile", model, "-o", out, "--optimizer", optimizer, *shapes)
    assert (code, err) == (0, "")
    code, text, _ = run(capsys, "run", out, "--random", "--outputs", tmp_path / "y.npz", "--json")
    assert code == 0
    assert json.loads(text)["outputs"]["y"]["shape"] == [sizes["m"], sizes["n"]]
    assert not np.load(tmp_path / "y.npz")["y"].any()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_symbol_that_may_be_zero(optimizer, tmp_path, capsys):
    model, out = product(tmp_path / "m.onnx", "m", "k", 9), tmp_path / "m.tw"
    ranges = ["--shape", "m:0..64", "--shape", "k:0..64"]
    assert run(capsys, "compile", model, "-o", out, "--optimizer", optimizer, *ranges)[0] == 0
    compiled, rng = tilewright.load(out), np.random.default_rng(2)
    for m, k in ((0, 3), (3, 0), (0, 0), (3, 5), (1, 1), (64, 63)):
        x, w = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, 9)))
        np.testing.assert_allclose(compiled(x, w), x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "rule"])
@pytest.mark.parametrize(("size", "bits"), [(1 << 24, 50), (1 << 40, 82), ((1 << 63) - 1, 127)])
def test_tensors_beyond_the_address_space_are_errors(optimizer, size, bits, tmp_path, capsys):
    model, out = product(tmp_path / "m.onnx", size, size, size), tmp_path / "m.tw"
    code, _, err = run(capsys, "compile", model, "-o", out, "--optimizer", optimizer)
    assert code == 1
    expected = f"float32 [{size}, {size}] with at least 2^{bits}; no machine can hold it"
    assert f"[shape] value 'x': expected at most 2^47 bytes, got {expected}" in err
    assert not out.exists()


def test_oversized_inputs_are_named_before_derived_values(tmp_path, capsys):
    # the product of two sizes that are flattened wraps to 0
    nodes = [helper.make_node("Flatten", ["x"], ["rows"]), helper.make_node("Gemm", ["rows", "w"], ["y"])]
    inputs = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["m", 1 << 40, 1 << 40]),
        helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [8, 9]),
    ]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["m", 9])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)]
    )
    onnx.save(model, tmp_path / "m.onnx")
    code, _, err = run(capsys, "compile", tmp_path / "m.onnx", "-o", tmp_path / "m.tw")
    assert code == 1
    assert f"value 'x': expected at most 2^47 bytes, got float32 [m, {1 << 40}, {1 << 40}]" in err


def test_a_size_beyond_all_ranges(tmp_path, capsys):
    model, out = product(tmp_path / "m.onnx", "m", 8, 9), tmp_path / "m.tw"
    code, _, err = run(capsys, "compile", model, "-o", out, "--shape", "m:0..99999999999999999999")
    assert code == 1
    assert "dimension 'm': expected sizes from 0 to 2147483647, got 99999999999999999999" in err


def test_a_machine_without_caches(tmp_path, capsys):
    model, out, mine = product(tmp_path / "m.onnx", 8, 16, 32), tmp_path / "m.tw", tmp_path / "mine.json"
    data = json.loads(to_json(machine_named("zen5")))
    for level in data["levels"]:
        level["ways"] = 0
    mine.write_text(json.dumps(data))
    code, _, err = run(capsys, "compile", model, "-o", out, "--target", "x86-64-v3", "--machine", mine)
    assert code == 1
    assert f"[machine] machine file '{mine}': 1 problem\n  field 'levels': expected at least one cache, with " in err
    assert not out.exists()
    with pytest.raises(MachineError, match=r"argument 'machine': 1 problem\n  field 'ghz': must be more than 0"):
        tilewright.compile(model, target="x86-64-v3", machine=replace(machine_named("zen5"), ghz=0.0))


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v2", "x86-64-v3", "aarch64"])
def test_every_instruction_set_has_a_machine_to_construct_for(target, tmp_path):
    compilation = make_compilation(product(tmp_path / "m.onnx", "m", 16, 32), CompileOptions(target=target))
    assert {k.optimizer for k in compilation.kernels} == {"gensor"}
    machine = compilation.manifest.build.machine
    if Target.parse(target) == Target.host():  # then the host's own microarchitecture, where it is known
        here, origin = describe_host()
        assert (machine.name, machine.origin) == (here.name, origin)
    else:
        assert (machine.name, machine.origin) == (generic_machine(Target.parse(target)).name, "generic")
    assert compilation.artifact().code


def test_kernels_that_are_not_affine_are_left_to_the_rule(tmp_path, capsys):
    """In silence, kernel by kernel."""
    nodes = [helper.make_node("Gather", ["x", "i"], ["g"], axis=1), helper.make_node("MatMul", ["g", "w"], ["y"])]
    inputs = [models.value("x", [8, 40]), models.value("i", [16], TensorProto.INT64)]
    proto = models.model(nodes, inputs, [models.value("y", [8, 9])], {"w": models.array(1, 16, 9)})
    onnx.save(proto, tmp_path / "m.onnx")
    code, text, err = run(capsys, "inspect", tmp_path / "m.onnx", "--schedule", "--json")
    assert (code, err) == (0, "")
    assert [k["optimizer"] for k in json.loads(text)["schedule"]] == ["rule", "gensor"]


def test_sizes_that_this_machine_has_not(tmp_path, capsys):
    model, out = product(tmp_path / "m.onnx", "m", 1 << 20, 16), tmp_path / "m.tw"
    assert run(capsys, "compile", model, "-o", out, "--optimizer", "gensor")[0] == 0
    code, _, err = run(capsys, "run", out, "--random", "--size", "m=4194304")
    assert code == 1
    assert "[option] input 'x': there is no memory for random values of shape [4194304, 1048576]" in err


def test_a_target_whose_features_the_host_lacks(tmp_path, capsys, monkeypatch):
    model, out = product(tmp_path / "m.onnx", 8, 16, 32), tmp_path / "m.tw"
    few = frozenset(Target.parse("x86-64-v2").required)
    monkeypatch.setattr(targets, "host_features", lambda: few)
    monkeypatch.setattr(targets, "host_arch", lambda: "x86_64")
    targets._host_target.cache_clear()
    try:
        code, text, err = run(capsys, "compile", model, "-o", out, "--optimizer", "gensor", "--target", "x86-64-v4")
        assert (code, err) == (0, "")
        assert "machine x86-64-v4 (generic, sha256 " in text
        code, _, err = run(capsys, "run", out, "--random")
        assert code == 1
        assert f"[target] file '{out}': this machine lacks the CPU features " in err
        assert "avx512f" in err
        assert "compile with --target x86-64-v2 or for the machine it runs on" in err
        with pytest.raises(tilewright.TargetError, match=r"lacks the CPU features .*avx512f"):
            tilewright.load(out)
    finally:
        targets._host_target.cache_clear()


def test_a_calibration_on_a_busy_machine_is_not_stored(capsys, monkeypatch):
    def measured(threads, report):
        report("peak of fused multiply-adds")
        start = {"all": 0.0, "own": 0.0, "wall": 0.0, "cpus": 2.0}
        calibrate.check_quiet(start, {"all": 12.0, "own": 2.0, "wall": 10.0, "cpus": 2.0}, [100.0] * 8)
        raise AssertionError("a busy machine was believed")

    monkeypatch.setattr(calibrate, "calibrate", measured)
    code, _, err = run(capsys, "doctor", "--calibrate")
    assert code == 1
    assert "[machine] calibration: other programs used 50% of the processors" in err
    assert "stop other programs and calibrate again; nothing was stored" in err
    assert not calibration_path().exists()


def test_a_damaged_calibration_stops_construction_and_not_the_rule(tmp_path, capsys):
    model, out = product(tmp_path / "m.onnx", 8, 16, 32), tmp_path / "m.tw"
    calibration_path().parent.mkdir(parents=True)
    calibration_path().write_text("{")
    for chosen in ([], ["--optimizer", "gensor"]):
        code, _, err = run(capsys, "compile", model, "-o", out, *chosen)
        assert code == 1
        assert f"[machine] calibration '{calibration_path()}': is not JSON" in err
        assert "run `tilewright doctor --calibrate` again, or remove the file" in err
    assert run(capsys, "compile", model, "-o", out, "--optimizer", "rule")[0] == 0
    with pytest.raises(MachineError, match="is not JSON"):
        tilewright.compile(model, optimizer="roller")
    assert f"description [machine] calibration '{calibration_path()}'" in run(capsys, "doctor")[1]


def test_a_node_that_is_not_there_is_told_before_compiling(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tilewright.driver.compile.make_compilation", None)
    path = product(tmp_path / "m.onnx", 4, 5, 6)
    status, _, err = run(capsys, "inspect", path, "--construction", "--node", "mn")
    assert status == 1
    assert "--node: the model has no node 'mn'; there are mm" in err


def test_undeclared_sizes_are_reported(tmp_path, capsys):
    path = product(tmp_path / "m.onnx", "batch", 16, 24)
    assumption = "assumed   batch = 1 12 16 192, as no range is declared; --shape NAME:LO..HI declares one"
    for option, count in (((), 1), (("--shape", "batch:1..64"), 0)):
        status, out, _ = run(capsys, "inspect", path, "--construction", "--optimizer", "roller", *option)
        assert status == 0
        assert out.count(assumption) == count
