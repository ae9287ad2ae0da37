"""What the sizes of a call select: the same program as in native code, from the artifact alone."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.cli.command import run
from tests.driver.models import array, model, value

import tilewright
from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.errors import ArtifactError
from tilewright.lower.kernel_variants import KernelVariants
from tilewright.machine.shipped import machine_named
from tilewright.report import shape_choice
from tilewright.runtime.manifest_json import manifest_from_json, manifest_to_json
from tilewright.runtime.manifest_meta import VariantsSpec
from tilewright.tile.shape_samples import value_of


def dense() -> onnx.ModelProto:
    """The product of rows, "number of rows" of them, with constant weights."""
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    sizes = ["number of rows", 768]
    weights = {"w": array(3, 768, 768)}
    return model([node], [value("x", sizes)], [value("y", ["number of rows", 768])], weights)


@pytest.fixture(scope="module", params=["gensor", "vortex"])
def compilation(request: pytest.FixtureRequest) -> Compilation:
    """The product with several programs."""
    machine, shapes = machine_named("zen5").with_cores(2), {"number of rows": (1, 500)}
    options = CompileOptions(machine=machine, target="x86-64-v4", optimizer=request.param, shapes=shapes)
    return make_compilation(dense(), options)


def test_the_artifact_says_which_program_runs(compilation: Compilation) -> None:
    (code,) = [k.func for k in compilation.kernels if isinstance(k.func, KernelVariants)]
    (spec,) = compilation.manifest.variants
    assert spec.nodes == ("product (MatMul)",)
    assert spec.symbols == ("number of rows",)
    assert len(spec.programs) == len(spec.picoseconds) == len(code.programs)
    for rows in (1, 2, 5, 33, 250, 500):
        (choice,) = shape_choice.shape_choices([spec], {"number of rows": rows})
        assert choice.program == value_of(code.selector, dict.fromkeys(code.symbols, rows))
        # both forms are rounded
        assert choice.microseconds[choice.program] == pytest.approx(min(choice.microseconds), rel=0.02)
        assert 0 < choice.microseconds[choice.program] < 1e5
        assert f"number of rows {rows}: program {choice.program} of {len(spec.programs)}" in shape_choice.text([choice])
        assert shape_choice.data(choice)["predicted_us"] == list(choice.microseconds)


def test_nodes_with_one_program_are_named(compilation: Compilation) -> None:
    manifest = compilation.manifest
    assert shape_choice.nodes_with_one_program(manifest) == ()
    fixed = replace(manifest, variants=())
    assert shape_choice.nodes_with_one_program(fixed) == ("product (MatMul)",)
    choices = shape_choice.shape_choices(manifest.variants, {"number of rows": 5})
    assert "one program" not in shape_choice.text(choices)
    assert shape_choice.text(choices, ["a", "b"]).endswith("\none program for all shapes: a, b")
    assert shape_choice.text(choices, list("abcdefghij")).endswith("shapes: a, b, c, d, e, f, g, h and 2 others")
    assert shape_choice.text((), ["a"]) == "no kernel has several programs: one program for all shapes"


def test_it_survives_the_artifact(compilation: Compilation) -> None:
    manifest = compilation.manifest
    written = json.loads(json.dumps(manifest_to_json(manifest)))
    assert manifest_from_json(written, "here") == manifest
    assert "variants" not in manifest_to_json(replace(manifest, variants=()))
    del written["variants"][0]["selector"]
    with pytest.raises(ArtifactError, match="selector"):
        manifest_from_json(written, "here")


def test_sizes_that_appear_during_the_call_are_named() -> None:
    spec = VariantsSpec("k0_matmul", ("product",), ("rows", "found rows"), "s0 % 2", ("a", "b"), ())
    (choice,) = shape_choice.shape_choices([spec], {"rows": 3})
    assert choice.program is None
    assert "found rows is known only during the call" in shape_choice.text([choice])
    (complete,) = shape_choice.shape_choices([spec], {"rows": 3, "found rows": 1})
    assert complete.program == 1
    assert shape_choice.data(complete)["predicted_us"] == []


def test_the_command_explains_the_sizes_of_its_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, compiled = tmp_path / "dense.onnx", tmp_path / "dense.tw"
    onnx.save(dense(), source)
    code, _, err = run(capsys, "compile", source, "-o", compiled)
    assert code == 0, err
    np.savez(tmp_path / "x.npz", x=np.ones((37, 768), np.float32))
    code, out, err = run(capsys, "run", compiled, "--inputs", tmp_path / "x.npz", "--explain-shape", "--json")
    assert code == 0, err
    (choice,) = json.loads(out)["shape_choices"]
    assert choice["sizes"] == {"number of rows": 37}
    executable = tilewright.load(compiled)
    assert choice["program"] in range(len(executable.manifest.variants[0].programs))
    code, out, _ = run(capsys, "run", compiled, "--inputs", tmp_path / "x.npz", "--explain-shape")
    assert code == 0
    assert f"> {choice['program']} " in out
    assert "one program for all shapes" not in out
    code, out, _ = run(capsys, "run", source, "--size", "number of rows=5", "--random")
    assert "program" not in out
