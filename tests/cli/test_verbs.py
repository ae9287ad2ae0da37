"""The command line on small models: what it prints, writes and returns, and how it reports mistakes."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from tests.cli.command import error_of, run
from tests.driver import models

import tilewright
from tilewright.cli import bench, main
from tilewright.cli.arrays import write_npz
from tilewright.measure.engine_comparison import ComparisonResult
from tilewright.measure.interleaved_blocks import BlockTimes


def test_compile_and_run(folder, tmp_path, capsys):
    artifact, outputs = tmp_path / "m.tw", tmp_path / "y.npz"
    code, out, err = run(capsys, "compile", folder / "mlp.onnx", "-o", artifact, "--shape", "batch:1..64")
    assert (code, err) == (0, "")
    assert "functions, for x86-64" in out or "aarch64" in out
    code, out, err = run(capsys, "run", artifact, "--inputs", folder / "x.npz", "--outputs", outputs, "--threads", 1)
    assert (code, err) == (0, f"wrote {outputs}\n")
    assert "y: float32 [3, 10]" in out
    expected = tilewright.load(artifact)(np.load(folder / "x.npz")["x"])
    np.testing.assert_array_equal(np.load(outputs)["y"], expected)


def test_compile_names_the_output_after_the_model(tmp_path, capsys):
    onnx.save(models.mlp(), tmp_path / "net.onnx")
    assert run(capsys, "compile", tmp_path / "net.onnx", "-q") == (0, "", "")
    assert (tmp_path / "net.tw").exists()


def test_compile_as_json(folder, tmp_path, capsys):
    code, out, _ = run(capsys, "compile", folder / "mlp.onnx", "-o", tmp_path / "m.tw", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["inputs"] == {"x": "float32 [batch, 24]"}
    assert data["outputs"] == {"y": "float32 [batch, 10]"}
    assert data["fallbacks"] == []
    assert data["bytes"] == (tmp_path / "m.tw").stat().st_size


def test_run_on_random_inputs(folder, capsys):
    code, out, _ = run(capsys, "run", folder / "mlp.tw", "--random", "--size", "batch=5", "--json")
    assert code == 0
    assert json.loads(out)["outputs"]["y"]["shape"] == [5, 10]
    first = json.loads(out)["outputs"]
    code, out, _ = run(capsys, "run", folder / "mlp.tw", "--random", "--size", "batch=5", "--json")
    assert json.loads(out)["outputs"] == first
    code, out, _ = run(capsys, "run", folder / "mlp.tw", "--random", "--size", "batch=5", "--json", "--seed", 1)
    assert json.loads(out)["outputs"] != first


def test_outputs_with_odd_names(tmp_path, capsys):
    nodes = [models.helper.make_node("Neg", ["file"], ["a/b"])]
    onnx.save(models.model(nodes, [models.value("file", [2])], [models.value("a/b", [2])]), tmp_path / "m.onnx")
    write_npz(str(tmp_path / "x.npz"), {"file": np.float32([1, -2])})
    code, *_ = run(capsys, "run", tmp_path / "m.onnx", "--inputs", tmp_path / "x.npz", "--outputs", tmp_path / "y.npz")
    assert code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["a/b"], np.float32([-1, 2]))


def test_bench(folder, capsys):
    pytest.importorskip("onnxruntime")
    flags = ["--blocks", 2, "--seconds", 0.005, "--pause", 0]
    code, out, _ = run(capsys, "bench", folder / "mlp.onnx", *flags, "--size", "batch=4", "--json")
    data = json.loads(out)
    assert code == 0
    assert set(data["engines"]) == {"tilewright", "onnxruntime"}
    assert data["inputs"] == {"x": [4, 24]}
    assert data["ratio"] > 0
    assert data["best_peer"] == "onnxruntime"
    assert data["onnxruntime_version"] == data["engines"]["onnxruntime"]["version"]
    for engine in data["engines"].values():
        assert {"median_s", "spread", "min_s", "calls", "quiet_blocks", "blocks", "version"} == set(engine)
        assert engine["min_s"] <= engine["median_s"]
        assert 2 <= engine["blocks"] <= 6
        assert engine["quiet_blocks"] <= engine["blocks"]
    assert {"processor", "cpus", "governor", "others"} == set(data["machine"])
    assert max(data["canary"]["best_s"], data["canary"]["typical_s"]) <= data["canary"]["worst_s"]
    code, out, _ = run(capsys, "bench", folder / "mlp.tw", *flags)
    assert code == 0
    assert out.splitlines()[0].split() == ["engine", "median", "ms", "spread", "min", "ms", "calls", "quiet", "blocks"]
    assert out.splitlines()[1].startswith(f"tilewright {tilewright.__version__}")
    assert "onnxruntime" not in out


@pytest.mark.parametrize(("best", "slower"), [(1.3e-3, False), (1.0e-3, True)])
def test_bench_says_where_the_machine_was_slower_than_at_its_best(best, slower):
    standing = BlockTimes(2e-3, 0.01, 1.9e-3, 10, 5, 6)
    data = bench.comparison_data(ComparisonResult({"tilewright": standing}, best, 1.4e-3, 2e-3, 0.0))
    text = bench.comparison_text(data | {"rounds": 5, "threads": 2})
    assert ("slower than at its best" in text) == slower
    assert f"canary 1.400 ms, {best * 1e3:.3f} to 2.000" in text


def test_bench_of_several_engines_with_a_dynamic_shape(folder, capsys):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    flags = ["--rounds", 1, "--seconds", 0.005, "--pause", 0, "--threads", 1, "--shape", "batch:1..9"]
    flags += ["--size", "batch=3"]
    code, out, _ = run(capsys, "bench", folder / "mlp.onnx", *flags, "--engines", "openvino,onnxruntime", "--json")
    data = json.loads(out)
    assert code == 0
    assert list(data["engines"]) == ["tilewright", "openvino", "onnxruntime"]
    assert data["inputs"] == {"x": [3, 24]}
    best = min(("openvino", "onnxruntime"), key=lambda name: data["engines"][name]["median_s"])
    assert data["best_peer"] == best
    assert data["ratio"] == data["engines"]["tilewright"]["median_s"] / data["engines"][best]["median_s"]
    code, out, _ = run(capsys, "bench", folder / "mlp.onnx", *flags, "--no-onnxruntime")
    assert code == 0
    assert "ratio" not in out
    assert "onnxruntime" not in out


def test_engines_that_are_not_there(folder, capsys, monkeypatch):
    text = error_of(capsys, "bench", folder / "mlp.onnx", "--engines", "onnxruntime,tvm")
    assert text.startswith("tilewright bench: [option] engines: ")
    assert "there is no engine 'tvm'; there are onnxruntime, openvino" in text
    monkeypatch.setattr("tilewright.measure.engines.is_installed", lambda name: False)
    text = error_of(capsys, "bench", folder / "mlp.onnx", "--engines", "openvino")
    assert text == "tilewright bench: [option] engines: openvino is not installed; pip install openvino"
    monkeypatch.undo()
    pytest.importorskip("onnxruntime")
    text = error_of(capsys, "bench", folder / "mlp.tw", "--engines", "onnxruntime")
    assert "other engines can't run a model that is compiled already" in text


def test_profile(folder, tmp_path, capsys):
    flags = ["--seconds", 0.001, "--threads", 2]
    code, out, err = run(
        capsys,
        "profile",
        folder / "mlp.onnx",
        "--fuse",
        "unfused",
        *flags,
        "--size",
        "batch=4",
        "--html",
        tmp_path / "p.html",
    )
    assert (code, err) == (0, f"wrote {tmp_path / 'p.html'}\n")
    assert f"{folder / 'mlp.onnx'}: " in out.splitlines()[0]
    assert "2 threads, batch=4" in out.splitlines()[0]
    header = next(k for k, line in enumerate(out.splitlines()) if line.startswith("nodes"))
    # short rows of a softmax are computed by several kernels
    nodes = [line.split("  ")[0] for line in out.splitlines()[header + 1 :]]
    assert sorted(set(nodes)) == ["dense1 (Gemm) + relu1 (Relu)", "dense2 (MatMul) + bias2 (Add)", "softmax (Softmax)"]
    assert "dense1 (Gemm) + relu1 (Relu)" in out
    assert "softmax (Softmax)" in (tmp_path / "p.html").read_text()
    code, out, _ = run(capsys, "profile", folder / "mlp.onnx", "--fuse", "unfused", *flags, "--top", 1, "--in-order")
    assert len(out.splitlines()) == header + 2
    code, out, _ = run(
        capsys, "profile", folder / "mlp.onnx", "--fuse", "unfused", *flags, "--shape", "batch:7", "--json"
    )
    data = json.loads(out)
    assert code == 0
    assert data["inputs"] == {"x": [7, 24]}
    assert list(dict.fromkeys(e["nodes"] for e in data["entries"])) == [
        "dense1 (Gemm) + relu1 (Relu)", "dense2 (MatMul) + bias2 (Add)", "softmax (Softmax)",
    ]  # fmt: skip


def test_options_that_profile_rejects(folder, tmp_path, capsys):
    text = error_of(capsys, "profile", folder / "mlp.tw")
    assert "is compiled already, without clock readings" in text
    assert "give the ONNX model" in text
    text = error_of(capsys, "profile", folder / "mlp.onnx", "--seconds", "0")
    assert text == "tilewright profile: [option] --seconds: expected a finite number of seconds of more than 0, got 0.0"
    text = error_of(capsys, "profile", folder / "mlp.onnx", "--top", "0")
    assert text == "tilewright profile: [option] --top: expected at least 1, got 0"
    text = error_of(capsys, "profile", folder / "mlp.onnx", "--seconds", "0.001", "--html", tmp_path / "no" / "p.html")
    assert f"--html {tmp_path}/no/p.html: there is no folder {tmp_path}/no" in text


def test_verify(folder, capsys):
    pytest.importorskip("onnxruntime")
    code, out, _ = run(capsys, "verify", folder / "mlp.onnx", "--size", "batch=7", "--layers", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["passed"]
    assert data["first_diverging"] is None
    assert [o["name"] for o in data["outputs"]] == ["y"]
    assert all(o["error"] < 1e-5 and o["onnxruntime"] < 1e-5 for o in data["outputs"])
    assert len(data["layers"]) >= 3
    assert all(layer["error"] < 1e-5 for layer in data["layers"])


def test_verify_fails_with_its_own_exit_code(folder, capsys):
    code, out, _ = run(
        capsys, "verify", folder / "mlp.onnx", "--fuse", "unfused", "--tolerance", "0", "--no-onnxruntime"
    )
    assert code == 3
    assert "FAIL" in out
    assert out.rstrip().endswith("no tensor inside the model diverges much: errors build up")


def test_verify_names_the_first_tensor_that_diverges(folder, capsys, monkeypatch):
    from tilewright.driver.diagnostics import verification

    real = verification.relative_error

    def worse(actual, reference):
        # hidden activations have 40 columns
        return 1.0 if actual.shape[-1] == 40 else real(actual, reference)

    monkeypatch.setattr(verification, "relative_error", worse)
    code, out, _ = run(
        capsys, "verify", folder / "mlp.onnx", "--fuse", "unfused", "--tolerance", "0", "--no-onnxruntime"
    )
    assert code == 3
    assert out.rstrip().endswith("first tensor that diverges: h")


@pytest.mark.parametrize(
    ("level", "text"),
    [
        ("--graph", "h: float32[batch, 40] = Relu(h0)"),
        ("--layout-plan", "every tensor is stored row-major"),
        ("--expressions", "out"),
        ("--loops", "func k0_"),
        ("--lowered", "func k0_"),
        ("--schedule", "vectorized"),
        ("--llvm", "define"),
        ("--asm", ".text"),
        ("--memory", "workspace"),
    ],
)
def test_inspect(folder, capsys, level, text):
    code, out, _ = run(capsys, "inspect", folder / "mlp.onnx", level)
    assert code == 0
    if level == "--graph":
        assert "dense1" in out
        assert "output y" in out
    elif level == "--expressions":
        assert "sum(" in out
    else:
        assert text in out


def test_inspect_several_levels_and_one_kernel(folder, capsys):
    code, out, _ = run(capsys, "inspect", folder / "mlp.onnx", "--fuse", "unfused", "--loops", "--schedule", "--json")
    data = json.loads(out)
    assert code == 0
    assert list(data) == ["loops", "schedule"]
    assert [k["name"] for k in data["loops"]] == [k["name"] for k in data["schedule"]]
    assert all(k["optimizer"] == "gensor" and k["steps"] and "func " in k["text"] for k in data["schedule"])
    name = data["loops"][0]["name"]
    assert data["loops"][0]["text"].startswith(f"func {name}(")
    code, out, _ = run(capsys, "inspect", folder / "mlp.onnx", "--fuse", "unfused", "--loops", "--kernel", name)
    assert code == 0
    assert out.count("func ") == 1


def test_inspect_summaries(folder, capsys):
    code, out, _ = run(capsys, "inspect", folder / "mlp.onnx", "--fuse", "unfused")
    assert code == 0
    assert "model     mlp" in out
    assert "symbol    batch" in out
    code, out, _ = run(capsys, "inspect", folder / "mlp.tw")
    assert code == 0
    assert "input    x: float32 [batch, 24]" in out
    assert "step     native code: " in out
    code, out, _ = run(capsys, "inspect", folder / "mlp.onnx", "--fuse", "unfused", "--json")
    assert "model     mlp, 5 nodes" in json.loads(out)["summary"]


def test_inspect_of_single_things(tmp_path, capsys):
    nodes = [models.helper.make_node("Add", ["x", "c"], ["y"])]
    proto = models.model(nodes, [models.value("x", [3])], [models.value("y", [3])], {"c": np.float32([1, 2, 3])})
    tilewright.compile(proto).save(tmp_path / "m.tw")
    out = run(capsys, "inspect", tmp_path / "m.tw")[1].splitlines()
    assert "step     native code: 1 node" in out
    assert out[-1].endswith("in 1 array")


def test_inspect_says_which_dimension_a_symbol_is(tmp_path, capsys):
    nodes = [models.helper.make_node("Relu", ["x"], ["y"])]
    proto = models.model(nodes, [models.value("x", [None, 4])], [models.value("y", [None, 4])], {})
    models.onnx.save(proto, tmp_path / "m.onnx")
    out = run(capsys, "inspect", tmp_path / "m.onnx")[1].splitlines()
    assert "symbol    x_0: 1..16777215, the dimension x[0]" in out


def test_inspect_of_data_dependent_sizes(tmp_path, capsys):
    nodes = [models.helper.make_node("NonZero", ["x"], ["y"])]
    y = models.helper.make_tensor_value_info("y", models.onnx.TensorProto.INT64, [1, "found"])
    tilewright.compile(models.model(nodes, [models.value("x", [9])], [y], {})).save(tmp_path / "m.tw")
    out = run(capsys, "inspect", tmp_path / "m.tw")[1].splitlines()
    assert "step     data-dependent sizes: 1 node" in out


def test_doctor(capsys, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "3")
    code, out, _ = run(capsys, "doctor", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["threads"] == {"count": 3, "reason": "environment variable TILEWRIGHT_NUM_THREADS"}
    assert data["packages"]["numpy"] == np.__version__
    code, out, _ = run(capsys, "doctor")
    assert "threads     3 (environment variable TILEWRIGHT_NUM_THREADS)" in out


def test_a_module_of_its_own():
    command = [sys.executable, "-m", "tilewright", "--version"]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    assert process.stdout == f"tilewright {tilewright.__version__}\n"


@pytest.mark.parametrize("verb", ["compile", "run", "bench", "profile", "verify", "inspect", "doctor"])
def test_every_verb_has_help(verb, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([verb, "--help"])
    assert exit_.value.code == 0
    assert f"usage: tilewright {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["polish"], ["compile"], ["run", "m.tw", "--threads", "many"]])
def test_wrong_usage(arguments, capsys):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("usage: tilewright")
    assert ": error: " in err
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (2, "")
    assert json.loads(out)["error"]["code"] == "usage"


def test_wrong_usage_as_json_says_what_is_wrong(capsys):
    error = json.loads(run(capsys, "run", "m.tw", "--threads", "many", "--json")[1])["error"]
    assert error["what"] == "argument --threads: invalid int value: 'many'"
    assert error["where"] == "tilewright run"
    assert error["hint"].startswith("usage: tilewright run")


def test_fallbacks_are_a_line_on_standard_error(tmp_path, capsys):
    onnx.save(models.with_fallback(), tmp_path / "m.onnx")
    code, _, err = run(capsys, "compile", tmp_path / "m.onnx")
    assert code == 0
    assert err.startswith("warning: 1 node")
    assert "normalizer (Normalizer)" in err
    assert run(capsys, "compile", tmp_path / "m.onnx", "--quiet")[2] == ""


def test_progress_lines_appear_after_the_interval(folder, tmp_path, capsys, monkeypatch):
    from tilewright.cli import terminal_line

    monkeypatch.setattr(terminal_line, "PROGRESS_INTERVAL", -1.0)
    code, _, err = run(capsys, "compile", folder / "mlp.onnx", "-o", tmp_path / "m.tw", "--no-cache")
    assert code == 0
    assert " s: kernels 0/" in err


def test_doctor_machine_of_another_target_tells_of_all_its_cores(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    _, out, _ = run(capsys, "doctor", "--machine", "--target", "aarch64", "--json")
    cores = json.loads(out)["cores"]
    assert cores > 2
    _, out, _ = run(capsys, "doctor", "--machine", "--target", "aarch64")
    assert f" on {cores}\n" in out
    _, out, _ = run(capsys, "doctor", "--machine", "--target", "aarch64", "--threads", "2")
    assert " on 2\n" in out


def test_a_file_that_is_no_compiled_model_either(capsys, tmp_path):
    there = tmp_path / "junk.tw"
    there.write_bytes(b"\x08\x07" * 200)
    code, _, err = run(capsys, "run", str(there), "--random")
    assert code == 1
    assert "is neither a compiled model nor an ONNX model or is truncated" in err


def test_doctor_machine(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    picture = tmp_path / "roof.svg"
    code, out, _ = run(capsys, "doctor", "--machine", "--target", "aarch64", "--json", "--svg", str(picture))
    data = json.loads(out)
    assert code == 0
    assert (data["name"], data["file"]) == ("aarch64", None)
    assert [level["name"] for level in data["levels"]] == ["L1", "L2", "L3", "memory"]
    assert picture.read_text().startswith("<svg")
    code, out, _ = run(capsys, "doctor", "--machine")
    assert code == 0
    assert "GFLOP/s on one core" in out
    code, _, err = run(capsys, "doctor", "--calibrate", "--target", "x86-64-v2")
    assert code == 1
    assert "only this machine can be measured" in err
    code, _, err = run(capsys, "doctor", "--machine", "--svg", str(tmp_path / "no" / "roof.svg"))
    assert code == 1
    assert f"--svg {tmp_path}/no/roof.svg: there is no folder {tmp_path}/no" in err
