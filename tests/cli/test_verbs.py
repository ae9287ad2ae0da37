"""The command line on small models: what it prints, writes and returns, and how it reports mistakes."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from tests.driver import models

import tilewright
from tilewright.cli import main
from tilewright.cli.arrays import write_npz


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    onnx.save(models.mlp(), path / "mlp.onnx")
    tilewright.compile(models.mlp()).save(path / "mlp.tw")
    x = np.random.default_rng(1).standard_normal((3, 24)).astype(np.float32)
    np.savez(path / "x.npz", x=x)
    return path


def run(capsys, *arguments):
    """(exit code, standard output, standard error) of a command."""
    code = main([str(a) for a in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_compile_and_run(folder, tmp_path, capsys):
    artifact, outputs = tmp_path / "m.tw", tmp_path / "y.npz"
    code, out, err = run(capsys, "compile", folder / "mlp.onnx", "-o", artifact, "--shape", "batch:1..64")
    assert (code, err) == (0, "")
    assert "functions, for x86-64" in out or "aarch64" in out
    code, out, err = run(capsys, "run", artifact, "--inputs", folder / "x.npz", "--outputs", outputs, "--threads", 1)
    assert (code, err) == (0, "")
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
    code, out, _ = run(capsys, "bench", folder / "mlp.tw", *flags)
    assert code == 0
    assert out.splitlines()[0].split() == ["engine", "median", "ms", "min", "ms", "calls"]
    assert "onnxruntime" not in out


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
    code, out, _ = run(capsys, "verify", folder / "mlp.onnx", "--tolerance", "0", "--no-onnxruntime")
    assert code == 3
    assert "FAIL" in out
    assert out.rstrip().endswith("no tensor inside the model diverges much: errors build up")


def test_verify_names_the_first_tensor_that_diverges(folder, capsys, monkeypatch):
    from tilewright.driver import verification

    real = verification.relative_error

    def worse(actual, reference):
        # hidden activations have 40 columns
        return 1.0 if actual.shape[-1] == 40 else real(actual, reference)

    monkeypatch.setattr(verification, "relative_error", worse)
    code, out, _ = run(capsys, "verify", folder / "mlp.onnx", "--tolerance", "0", "--no-onnxruntime")
    assert code == 3
    assert out.rstrip().endswith("first tensor that diverges: h")


@pytest.mark.parametrize(
    ("level", "text"),
    [
        ("--graph", "h: float32[batch, 40] = Relu(h0)"),
        ("--expressions", "out"),
        ("--loops", "func k0_"),
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
    code, out, _ = run(capsys, "inspect", folder / "mlp.onnx", "--loops", "--schedule", "--json")
    data = json.loads(out)
    assert code == 0
    assert list(data) == ["loops", "schedule"]
    name = data["loops"].split("(")[0].removeprefix("func ")
    code, out, _ = run(capsys, "inspect", folder / "mlp.onnx", "--loops", "--kernel", name)
    assert code == 0
    assert out.count("func ") == 1


def test_inspect_summaries(folder, capsys):
    code, out, _ = run(capsys, "inspect", folder / "mlp.onnx")
    assert code == 0
    assert "model     mlp" in out
    assert "symbol    batch" in out
    code, out, _ = run(capsys, "inspect", folder / "mlp.tw")
    assert code == 0
    assert "input    x: float32 [batch, 24]" in out


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
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == f"tilewright {tilewright.__version__}\n"


@pytest.mark.parametrize("verb", ["compile", "run", "bench", "verify", "inspect", "doctor"])
def test_every_verb_has_help(verb, capsys):
    with pytest.raises(SystemExit) as done:
        main([verb, "--help"])
    assert done.value.code == 0
    assert f"usage: tilewright {verb}" in capsys.readouterr().out


def test_wrong_usage():
    for arguments in ([], ["polish"], ["compile"], ["run", "m.tw", "--threads", "many"]):
        with pytest.raises(SystemExit) as done:
            main(arguments)
        assert done.value.code == 2


def mistake(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 1
    assert out == ""
    assert "Traceback" not in err
    return err.rstrip("\n")


def test_a_missing_model(capsys):
    text = "tilewright compile: [model-file] file 'nowhere.onnx': can't be read: No such file or directory"
    assert mistake(capsys, "compile", "nowhere.onnx") == text


def test_something_that_is_no_model(tmp_path, capsys):
    (tmp_path / "m.onnx").write_bytes(b"\x00\x01 no model")
    assert "[model-file]" in mistake(capsys, "compile", tmp_path / "m.onnx")


def test_compiling_twice(folder, capsys):
    expected = f"[option] file '{folder}/mlp.tw': is compiled already; give the ONNX model"
    assert mistake(capsys, "compile", folder / "mlp.tw").endswith(expected)


def test_options_without_effect(folder, capsys):
    text = mistake(capsys, "run", folder / "mlp.tw", "--random", "--shape", "batch:4")
    assert "--shape, --target and --optimizer have no effect on a model that is compiled already" in text


def test_an_output_that_cannot_be_written(folder, tmp_path, capsys):
    text = mistake(capsys, "compile", folder / "mlp.onnx", "-o", tmp_path / "missing" / "m.tw")
    assert "[artifact]" in text
    assert "can't be written: No such file or directory; choose another output path" in text


def test_no_inputs(folder, capsys):
    expected = "tilewright run: [option] inputs: the model needs inputs; give --inputs X.npz or --random"
    assert mistake(capsys, "run", folder / "mlp.tw") == expected


def test_inputs_given_twice(folder, capsys):
    text = mistake(capsys, "run", folder / "mlp.tw", "--inputs", folder / "x.npz", "--random")
    assert text == "tilewright run: [option] inputs: --inputs excludes --random and --size"


def test_inputs_that_are_missing(folder, capsys):
    text = mistake(capsys, "run", folder / "mlp.tw", "--inputs", "nowhere.npz")
    assert text == "tilewright run: [feed] file 'nowhere.npz': can't be read: No such file or directory"


def test_inputs_that_are_no_npz(folder, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.ones(3))
    text = mistake(capsys, "run", folder / "mlp.tw", "--inputs", tmp_path / "x.npy")
    assert text.endswith("expected an npz file with arrays by name")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 torn")
    assert "is not an npz file of arrays" in mistake(capsys, "run", folder / "mlp.tw", "--inputs", tmp_path / "bad.npz")


def test_inputs_of_the_wrong_type(folder, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", x=np.ones((3, 24), np.int64))
    text = mistake(capsys, "run", folder / "mlp.tw", "--inputs", tmp_path / "x.npz")
    assert "[feed] input 'x'" in text


def test_a_size_of_an_unknown_dimension(folder, capsys):
    text = mistake(capsys, "run", folder / "mlp.tw", "--random", "--size", "height=4")
    assert text == "tilewright run: [option] --size: the model has no dynamic dimension 'height'; it has: 'batch'"


def test_a_size_that_is_no_number(folder, capsys):
    text = mistake(capsys, "run", folder / "mlp.tw", "--random", "--size", "batch")
    assert text == "tilewright run: [option] --size: expected NAME=N, got 'batch'; for example --size batch=4"


def test_a_range_that_is_none(folder, capsys):
    text = mistake(capsys, "run", folder / "mlp.tw", "--random", "--ints", "9..1")
    assert text == "tilewright run: [option] --ints: expected LO..HI, got '9..1'; for example --ints 0..999"


def test_a_shape_that_is_none(folder, capsys):
    text = mistake(capsys, "compile", folder / "mlp.onnx", "--shape", "batch")
    assert "[option] --shape: expected NAME:SIZES, got 'batch'" in text


def test_an_unknown_target(folder, capsys):
    assert "[target] target 'sparc'" in mistake(capsys, "compile", folder / "mlp.onnx", "--target", "sparc")


def test_an_unknown_kernel(folder, capsys):
    text = mistake(capsys, "inspect", folder / "mlp.onnx", "--loops", "--kernel", "k99")
    assert "[option] --kernel: there is no function 'k99'; there are k0_" in text


def test_levels_of_a_compiled_model(folder, capsys):
    text = mistake(capsys, "inspect", folder / "mlp.tw", "--loops")
    assert text.endswith("a compiled file has no --loops any more; give the ONNX model")


def test_verifying_a_compiled_model(folder, capsys):
    text = mistake(capsys, "verify", folder / "mlp.tw")
    assert text.endswith("is compiled already, so there is nothing to compare it with; give the ONNX model")


def test_too_many_threads(folder, capsys):
    text = mistake(capsys, "run", folder / "mlp.tw", "--random", "--threads", "0")
    assert "argument 'threads': expected a number of threads, got 0" in text


def test_blocks_of_a_benchmark(folder, capsys):
    text = mistake(capsys, "bench", folder / "mlp.tw", "--blocks", "0")
    assert "--blocks must be at least 1" in text


def test_mistakes_as_json(capsys):
    code, out, err = run(capsys, "compile", "nowhere.onnx", "--json")
    assert (code, err) == (1, "")
    error = json.loads(out)["error"]
    assert error["code"] == "model-file"
    assert error["where"] == "file 'nowhere.onnx'"


def test_a_fault_of_the_compiler(folder, capsys, monkeypatch):
    from tilewright.driver import compile as pipeline

    def broken(program):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(pipeline, "partition", broken)
    code, out, err = run(capsys, "compile", folder / "mlp.onnx")
    assert (code, out) == (70, "")
    assert "[internal] compile: ZeroDivisionError: division by zero" in err
    assert "TILEWRIGHT_TRACEBACK=1" in err
    monkeypatch.setenv("TILEWRIGHT_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(["compile", str(folder / "mlp.onnx")])


def test_fallbacks_are_a_line_on_standard_error(tmp_path, capsys):
    onnx.save(models.with_fallback(), tmp_path / "m.onnx")
    code, _, err = run(capsys, "compile", tmp_path / "m.onnx")
    assert code == 0
    assert err.startswith("warning: 1 node")
    assert "determinant (Det)" in err
    assert run(capsys, "compile", tmp_path / "m.onnx", "--quiet")[2] == ""


def test_progress_is_told_after_a_while(folder, tmp_path, capsys, monkeypatch):
    from tilewright.cli import common

    monkeypatch.setattr(common, "_LONG", -1.0)
    code, _, err = run(capsys, "compile", folder / "mlp.onnx", "-o", tmp_path / "m.tw")
    assert code == 0
    assert "0 s: kernels 0/" in err
