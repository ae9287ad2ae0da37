"""Commands that are rejected: the message names the argument, file or input, without a traceback."""

import json
import zipfile

import numpy as np
import onnx
import pytest
from tests.cli.command import error_of, run
from tests.driver import models

import tilewright
from tilewright.cli import main
from tilewright.errors import ModelError, ModelFileError


def test_a_missing_model(capsys):
    text = "tilewright compile: [model-file] file 'nowhere.onnx': can't be read: No such file or directory"
    assert error_of(capsys, "compile", "nowhere.onnx") == text


def test_something_that_is_no_model(tmp_path, capsys):
    (tmp_path / "m.onnx").write_bytes(b"\x00\x01 no model")
    assert "[model-file]" in error_of(capsys, "compile", tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("kept", "command"),
    [
        ("m.onnx", "compile m.onnx -o m.onnx"),
        ("m.onnx", "compile m.onnx --output ./m.onnx"),
        ("m.onnx", "run m.onnx --random --outputs m.onnx"),
        ("m.tw", "run m.tw --random --outputs m.tw"),
        ("x.npz", "run m.tw --inputs x.npz --outputs x.npz"),
        ("m.onnx", "profile m.onnx --html m.onnx"),
        ("m.onnx", "inspect m.onnx --construction --svg m.onnx"),
        ("m.onnx", "tune m.onnx --budget 1s --report m.onnx"),
        ("m.onnx", "records export --records s.db --model m.onnx -o m.onnx"),
    ],
)
def test_what_a_command_reads_is_not_written_over(folder, tmp_path, monkeypatch, capsys, kept, command):
    (tmp_path / "m.onnx").write_bytes((folder / "mlp.onnx").read_bytes())
    (tmp_path / "m.tw").write_bytes((folder / "mlp.tw").read_bytes())
    np.savez(tmp_path / "x.npz", x=np.ones((2, 24), np.float32))
    before = (tmp_path / kept).read_bytes()
    monkeypatch.chdir(tmp_path)
    assert error_of(capsys, *command.split()).endswith(": is a file that this command reads; give another file")
    assert (tmp_path / kept).read_bytes() == before


def test_compiling_twice(folder, capsys):
    expected = f"[option] file '{folder}/mlp.tw': is compiled already; give the ONNX model"
    assert error_of(capsys, "compile", folder / "mlp.tw").endswith(expected)


def test_compiling_a_compiled_model_from_python(folder):
    with pytest.raises(ModelFileError, match=r"mlp\.tw': is compiled already; load it with `tilewright\.load`"):
        tilewright.compile(folder / "mlp.tw")


@pytest.mark.parametrize("cache", [False, True])
def test_shapes_that_do_not_match_name_the_file(tmp_path, cache):
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")]
    wrong = models.model(
        nodes, [models.value("x", ["batch", 24])], [models.value("y", ["batch", 4])], {"w": models.array(1, 25, 4)}
    )
    onnx.save(wrong, tmp_path / "wrong.onnx")
    with pytest.raises(ModelError, match=r"(?s)file '.*wrong\.onnx': 1 problem.*node fc"):
        tilewright.compile(tmp_path / "wrong.onnx", cache=cache)


def test_options_without_effect(folder, capsys):
    text = error_of(capsys, "run", folder / "mlp.tw", "--random", "--shape", "batch:4")
    assert "--shape has no effect on a model that is compiled already" in text


def test_an_output_that_cannot_be_written(folder, tmp_path, capsys):
    text = error_of(capsys, "compile", folder / "mlp.onnx", "-o", tmp_path / "missing" / "m.tw")
    place = tmp_path / "missing"
    expected = f"[option] --output {place}/m.tw: there is no folder {place}; make it, or give another file"
    assert text == f"tilewright compile: {expected}"


@pytest.mark.parametrize("output", ["new/", "here/", "here"])
def test_an_output_that_is_a_folder(folder, tmp_path, capsys, output):
    (tmp_path / "here").mkdir()
    place = f"{tmp_path}/{output}"
    text = error_of(capsys, "compile", folder / "mlp.onnx", "-o", place)
    expected = f"tilewright compile: [option] --output {place}: is a folder; name the file to write in it"
    assert text == expected
    assert [p.name for p in tmp_path.rglob("*")] == ["here"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "mlp.onnx", "--random", "--outputs"),
        ("profile", "mlp.onnx", "--html"),
        ("inspect", "mlp.onnx", "--construction", "--svg"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(folder, tmp_path, capsys, arguments, monkeypatch):
    monkeypatch.setattr("tilewright.driver.compile.lower_graph", None)
    verb, model, *options = arguments
    text = error_of(capsys, verb, folder / model, *options, tmp_path / "missing" / "file")
    assert f"{options[-1]} {tmp_path}/missing/file: there is no folder {tmp_path}/missing" in text


@pytest.mark.parametrize("verb", ["run", "bench", "profile", "verify"])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--inputs", "missing.npz", "file 'missing.npz': can't be read: No such file or directory"),
        ("--size", "batch", "--size: expected NAME=N, got 'batch'"),
        ("--ints", "9..1", "--ints: expected LO..HI, got '9..1'"),
        ("--ints", "-1..-5", "--ints: expected LO..HI, got '-1..-5'"),
        ("--seed", "-1", "--seed: expected a number of at least 0, got -1"),
    ],
)
def test_inputs_are_refused_before_the_model_is_compiled(folder, capsys, verb, option, value, message, monkeypatch):
    monkeypatch.setattr("tilewright.driver.compile.lower_graph", None)
    chosen = () if option == "--inputs" else ("--random",)
    assert message in error_of(capsys, verb, folder / "mlp.onnx", option, value, *chosen)


@pytest.mark.parametrize("verb", ["run", "bench", "profile", "verify"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--random", "--size", "height=3"), "--size: the model has no dynamic dimension 'height'"),
        (("--random", "--size", "batch=5"), "--size: batch is within 1..4, got 5"),
        (("--inputs", "{}/wide.npz"), "input 'x': expected shape [batch, 24], got [3, 25]"),
        (("--inputs", "{}/many.npz"), "input 'x' axis 0: expected a size for 'batch' within 1..4, got 9"),
        (("--inputs", "{}/double.npz"), "input 'x': expected float32 [batch, 24], got float64 [3, 24]"),
    ],
)
def test_inputs_that_do_not_fit_the_model_are_refused_before_kernels_are_built(
    folder, tmp_path, capsys, verb, arguments, message, monkeypatch
):
    np.savez(tmp_path / "wide.npz", x=np.ones((3, 25), np.float32))
    np.savez(tmp_path / "many.npz", x=np.ones((9, 24), np.float32))
    np.savez(tmp_path / "double.npz", x=np.ones((3, 24)))
    monkeypatch.setattr("tilewright.driver.compile.KernelBuilds", None)
    given = [a.format(tmp_path) for a in arguments]
    text = error_of(capsys, verb, folder / "mlp.onnx", "--shape", "batch:1..4", "--no-cache", *given)
    assert message in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("compile", "m.onnx", "--layout", "x"),
            "tilewright compile: error: unrecognized arguments: --layout x; did you mean --layouts?",
        ),
        (
            ("records", "list", "--record", "x"),
            "records list: error: unrecognized arguments: --record x; did you mean --records?",
        ),
        (("run", "m.tw", "more"), "tilewright run: error: unrecognized arguments: more\n"),
        (("run", "m.tw", "--bogus"), "tilewright run: error: unrecognized arguments: --bogus\n"),
    ],
)
def test_unknown_options_name_the_verb_and_the_option_that_may_be_meant(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert (code, message in err) == (2, True)


@pytest.mark.parametrize("size", ["²", "٣", "9" * 5000, "1e3", "-1", ""])
def test_sizes_that_are_no_numbers(folder, capsys, size):
    assert "--size: expected NAME=N" in error_of(
        capsys, "run", folder / "mlp.tw", "--random", "--size", f"batch={size}"
    )
    text = error_of(capsys, "compile", folder / "mlp.onnx", "--shape", f"batch:1..{size}x")
    assert "[option] --shape, dimension 'batch': " in text


def test_a_size_that_is_given_twice(folder, capsys):
    text = error_of(capsys, "run", folder / "mlp.tw", "--random", "--size", "batch=8", "--size", "batch=9")
    assert text == "tilewright run: [option] --size: 'batch' is given twice"


def test_outputs_to_a_device_and_to_a_name_that_is_too_long(folder, tmp_path, capsys):
    command = ("run", folder / "mlp.tw", "--random", "--outputs")
    assert run(capsys, *command, "/dev/null")[0] == 0
    text = error_of(capsys, *command, tmp_path / ("x" * 300))
    assert text.endswith(": cannot be written: File name too long")
    assert run(capsys, *command, tmp_path / "y.npz")[0] == 0
    with np.load(tmp_path / "y.npz") as file:
        assert file.files


def test_a_size_beyond_the_range(folder, capsys):
    text = error_of(capsys, "run", folder / "mlp.tw", "--random", "--size", "batch=9999999999")
    assert "[option] --size: batch is within 1.." in text
    assert "got 9999999999; give a size in this range" in text


def test_no_inputs(folder, capsys):
    expected = "tilewright run: [option] inputs: the model needs inputs; give --inputs X.npz or --random"
    assert error_of(capsys, "run", folder / "mlp.tw") == expected


def test_inputs_given_twice(folder, capsys):
    text = error_of(capsys, "run", folder / "mlp.tw", "--inputs", folder / "x.npz", "--random")
    assert text == "tilewright run: [option] inputs: --inputs excludes --random and --size"


def test_inputs_that_are_missing(folder, capsys):
    text = error_of(capsys, "run", folder / "mlp.tw", "--inputs", "nowhere.npz")
    assert text == "tilewright run: [feed] file 'nowhere.npz': can't be read: No such file or directory"


def test_inputs_that_are_no_npz(folder, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.ones(3))
    text = error_of(capsys, "run", folder / "mlp.tw", "--inputs", tmp_path / "x.npy")
    assert text.endswith("expected an npz file with arrays by name; write it with numpy.savez")


@pytest.mark.parametrize("content", [b"junk", b"", b"PK\x03\x04 torn", b"\x80\x04K\x01.", b"\x93NUMPY torn"])
def test_inputs_that_are_junk(folder, tmp_path, capsys, content):
    (tmp_path / "bad.npz").write_bytes(content)
    text = error_of(capsys, "run", folder / "mlp.tw", "--inputs", tmp_path / "bad.npz")
    expected = f"file '{tmp_path}/bad.npz': is not an npz file of arrays; write it with numpy.savez"
    assert text == f"tilewright run: [feed] {expected}"


def test_inputs_of_python_objects(folder, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", x=np.array([{}, None], object))
    text = error_of(capsys, "run", folder / "mlp.tw", "--inputs", tmp_path / "x.npz")
    assert text.endswith("'x' is damaged, or an array of Python objects, which are not read; write it with numpy.savez")


def test_inputs_with_something_that_is_no_array(folder, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    text = error_of(capsys, "run", folder / "mlp.tw", "--inputs", tmp_path / "x.npz")
    assert text.endswith("'readme.txt' is not an array; write it with numpy.savez")


def test_a_negative_seed(folder, capsys):
    text = error_of(capsys, "run", folder / "mlp.tw", "--random", "--seed", "-1")
    assert text == "tilewright run: [option] --seed: expected a number of at least 0, got -1"


def test_inputs_of_the_wrong_type(folder, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", x=np.ones((3, 24), np.int64))
    text = error_of(capsys, "run", folder / "mlp.tw", "--inputs", tmp_path / "x.npz")
    assert "[feed] input 'x'" in text


def test_a_size_of_an_unknown_dimension(folder, capsys):
    text = error_of(capsys, "run", folder / "mlp.tw", "--random", "--size", "height=4")
    assert text == "tilewright run: [option] --size: the model has no dynamic dimension 'height'; it has batch"


def test_a_size_that_is_no_number(folder, capsys):
    text = error_of(capsys, "run", folder / "mlp.tw", "--random", "--size", "batch")
    assert text == "tilewright run: [option] --size: expected NAME=N, got 'batch'; for example --size batch=4"


def test_a_range_that_is_none(folder, capsys):
    text = error_of(capsys, "run", folder / "mlp.tw", "--random", "--ints", "9..1")
    assert text == "tilewright run: [option] --ints: expected LO..HI, got '9..1'; for example --ints 0..999"


def test_a_shape_that_is_none(folder, capsys):
    text = error_of(capsys, "compile", folder / "mlp.onnx", "--shape", "batch")
    assert "[option] --shape: expected NAME:SIZES, got 'batch'" in text


def test_an_unknown_target(folder, capsys):
    assert "[target] target 'sparc'" in error_of(capsys, "compile", folder / "mlp.onnx", "--target", "sparc")


def test_an_unknown_kernel(folder, capsys):
    text = error_of(capsys, "inspect", folder / "mlp.onnx", "--loops", "--kernel", "k99")
    assert "[option] --kernel: there is no function 'k99'; there are k0_" in text


def test_levels_of_a_compiled_model(folder, capsys):
    text = error_of(capsys, "inspect", folder / "mlp.tw", "--loops")
    assert text.endswith("a compiled file has no --loops any more; give the ONNX model")


def test_verifying_a_compiled_model(folder, capsys):
    text = error_of(capsys, "verify", folder / "mlp.tw")
    assert text.endswith("is compiled already, so there is nothing to compare it with; give the ONNX model")


@pytest.mark.parametrize(
    "arguments", [["compile"], ["verify"], ["inspect", "--loops"], ["inspect"], ["run", "--random"]]
)
def test_damaged_artifacts(folder, tmp_path, capsys, arguments):
    whole = (folder / "mlp.tw").read_bytes()
    (tmp_path / "m.tw").write_bytes(whole[:-100])
    text = error_of(capsys, arguments[0], tmp_path / "m.tw", *arguments[1:])
    truncated = f"is truncated: expected {len(whole)} bytes, got {len(whole) - 100}"
    assert f"tilewright {arguments[0]}: [artifact] file '{tmp_path}/m.tw': {truncated}" in text
    (tmp_path / "m.tw").write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
    text = error_of(capsys, arguments[0], tmp_path / "m.tw", *arguments[1:])
    assert "[artifact]" in text
    assert "the manifest is altered: its SHA-256 differs" in text


@pytest.mark.parametrize("value", ["nan", "-1"])
def test_a_tolerance_that_is_none(folder, capsys, value):
    text = error_of(capsys, "verify", folder / "mlp.onnx", "--tolerance", value)
    assert text == f"tilewright verify: [option] --tolerance: expected a number of at least 0, got {float(value)}"


def test_too_many_threads(folder, capsys):
    text = error_of(capsys, "run", folder / "mlp.tw", "--random", "--threads", "0")
    assert "[option] --threads: expected a number of threads, got 0" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-variants", "0"), "[option] --max-variants: expected 1 to 64, got 0"),
        (("--machine", "pdp11"), "[machine] --machine: there is no machine 'pdp11'"),
        (("--no-records", "--frozen"), "[option] --frozen: without records there is"),
        (("--fuse", "chimera", "--optimizer", "rule"), "[option] --fuse: the optimizer 'rule' reads no"),
    ],
)
def test_errors_name_flags_and_not_arguments_of_python(folder, capsys, arguments, message):
    assert message in error_of(capsys, "compile", folder / "mlp.onnx", *arguments)


def test_blocks_of_a_benchmark(folder, capsys):
    text = error_of(capsys, "bench", folder / "mlp.tw", "--blocks", "0")
    assert text == "tilewright bench: [option] --rounds: expected at least 1, got 0"


@pytest.mark.parametrize("option", ["--seconds", "--pause"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-0.5"])
def test_times_of_a_benchmark(folder, capsys, option, value):
    text = error_of(capsys, "bench", folder / "mlp.tw", f"{option}={value}")
    expected = f"expected a finite number of seconds of at least 0, got {float(value)}"
    assert text == f"tilewright bench: [option] {option}: {expected}"


def test_errors_as_json(capsys):
    code, out, err = run(capsys, "compile", "nowhere.onnx", "--json")
    assert (code, err) == (1, "")
    error = json.loads(out)["error"]
    assert error["code"] == "model-file"
    assert error["where"] == "file 'nowhere.onnx'"
    assert "problems" not in error


def test_problems_of_a_model_as_json(tmp_path, capsys):
    nodes = [models.helper.make_node("Add", ["x", "missing"], ["y"], name="sum")]
    graph = models.helper.make_graph(nodes, "g", [models.value("x", [3])], [models.value("y", [3])])
    opset = [models.helper.make_opsetid("", 18)]
    onnx.save(models.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "m.onnx")
    code, out, _ = run(capsys, "compile", tmp_path / "m.onnx", "--json")
    error = json.loads(out)["error"]
    assert (code, error["code"]) == (1, "model")
    (problem,) = error["problems"]
    assert set(problem) == {"code", "where", "what", "hint"}
    assert "sum" in problem["where"]
    assert "missing" in problem["what"]


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
