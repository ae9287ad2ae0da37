"""Artifact files: round trip, every kind of damage, and failed saves."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
from tests.runtime.artifact_files import assign, rewrite
from tests.runtime.models import WEIGHT, compress_artifact, count_artifact, scale_artifact

from tilewright.errors import ArtifactError, TargetError, TilewrightError
from tilewright.machine import Target
from tilewright.runtime import Artifact, Executable, is_artifact, load, load_artifact, save_artifact
from tilewright.runtime.manifest import Manifest, NativeStep, SymbolSpec, TensorSpec
from tilewright.runtime.manifest_json import dump_json, manifest_from_json, manifest_to_json
from tilewright.runtime.schema import Json
from tilewright.runtime.weights import make_weight_section, read_weights

FEED = np.random.default_rng(11).uniform(0.5, 2.0, (5, 3)).astype(np.float32)


@pytest.mark.parametrize("make", [scale_artifact, count_artifact, compress_artifact])
def test_round_trip(make: Callable[[], Artifact], tmp_path: Path) -> None:
    artifact = make()
    save_artifact(artifact, tmp_path / "a.tw")
    back = load_artifact(tmp_path / "a.tw")
    assert back.manifest == artifact.manifest
    assert back.code == artifact.code
    assert back.weights.keys() == artifact.weights.keys()
    for name, data in artifact.weights.items():
        np.testing.assert_array_equal(back.weights[name], data)
        assert back.weights[name].__array_interface__["data"][0] % 64 == 0
        assert not back.weights[name].flags.writeable
    save_artifact(back, tmp_path / "b.tw")
    assert (tmp_path / "a.tw").read_bytes() == (tmp_path / "b.tw").read_bytes()


def test_loaded_model_computes(file: Path) -> None:
    np.testing.assert_array_equal(load(file, threads=1)(FEED), FEED * WEIGHT)
    np.testing.assert_array_equal(load(str(file), verify=False)(FEED), FEED * WEIGHT)


def test_artifact_in_memory(file: Path) -> None:
    data = file.read_bytes()
    np.testing.assert_array_equal(load(data)(FEED), FEED * WEIGHT)
    with pytest.raises(ArtifactError) as error:
        load(data[:-3])
    expected = (
        f"is truncated: expected {len(data)} bytes, got {len(data) - 3}; the file is damaged; compile the model again"
    )
    assert str(error.value) == f"[artifact] artifact in memory: {expected}"
    with pytest.raises(ArtifactError, match="artifact in memory: expected an artifact of at least 64 bytes, got 0"):
        load(b"")


def test_loaded_model_survives_its_file(file: Path) -> None:
    exe = load(file)
    exe.save(file)  # onto itself
    file.unlink()
    np.testing.assert_array_equal(exe(FEED), FEED * WEIGHT)


def test_saved_through_a_link(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.tw"
    link.symlink_to(file)
    save_artifact(count_artifact(), link)
    assert link.is_symlink()
    assert load(file).outputs[0].name == "threads"


def test_file_permissions_follow_the_mask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        save_artifact(scale_artifact(), tmp_path / "a.tw")
    finally:
        os.umask(old)
    assert (tmp_path / "a.tw").stat().st_mode & 0o777 == 0o640


def test_is_artifact(file: Path) -> None:
    assert is_artifact(file.read_bytes())
    assert not is_artifact(b"\x08\x07onnx")
    assert not is_artifact(b"")


WEIGHTS = {
    "half": np.arange(7, dtype=np.float16),
    "brain": np.arange(5, dtype=np.float32).astype(ml_dtypes.bfloat16),
    "flags": np.array([True, False, True]),
    "nothing": np.zeros((0, 4), np.int32),
    "scalar": np.array(2.5),
    "matrix": np.arange(12, dtype=np.int64).reshape(3, 4),
    "turned": np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)),
    'name "quoted" \u00e9': np.arange(3, dtype=np.uint64),
}


def test_weights_are_a_safetensors_section() -> None:
    data = b"".join(bytes(chunk) for chunk in make_weight_section(WEIGHTS, "here").pieces())
    theirs = dict(safetensors.deserialize(data))
    assert {name for name in theirs if not name.startswith("__pad__")} == WEIGHTS.keys()
    for name, array in WEIGHTS.items():
        assert bytes(theirs[name]["data"]) == np.ascontiguousarray(array).tobytes()
        assert theirs[name]["shape"] == list(array.shape)
    back = read_weights(memoryview(data), "here")
    for name, array in WEIGHTS.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"w": np.zeros(3, np.complex64)}, "[artifact] here: weight 'w' has the type <c8, which can't be stored"),
        ({"w": np.zeros(3, ">f4")}, "[artifact] here: weight 'w' has the type >f4, which can't be stored"),
        ({"__metadata__": np.zeros(3)}, "[artifact] here: weight name '__metadata__' is reserved"),
    ],
)
def test_weights_that_cannot_be_stored(weights: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ArtifactError) as error:
        make_weight_section(weights, "here")
    assert str(error.value) == message


# --- machines ---


def test_other_cpu_features(file: Path) -> None:
    rewrite(file, assign("target/required", ["avx2", "quantum1", "zz512"]))
    with pytest.raises(TargetError) as error:
        load(file)
    lacking = [f for f in ("avx2", "quantum1", "zz512") if f in Target.host().missing_on_host() or f != "avx2"]
    assert str(error.value).startswith(
        f"[target] file '{file}': this machine lacks the CPU features {', '.join(lacking)}; compile with --target "
    )


def test_other_architecture(file: Path) -> None:
    rewrite(file, assign("target/triple", "riscv64-unknown-linux-gnu"))
    with pytest.raises(TargetError) as error:
        load(file)
    here = Target.host().arch
    expected = f"[target] file '{file}': code for riscv64, this machine is {here}; compile for this machine"
    assert str(error.value) == expected


# --- saves that fail ---


@pytest.mark.parametrize("place", ["no/such/folder/a.tw", "file.txt/a.tw"])
def test_unwritable_path(tmp_path: Path, place: str) -> None:
    (tmp_path / "file.txt").write_text("a file, not a folder")
    with pytest.raises(
        ArtifactError, match=r"can't be written: (No such file or directory|Not a directory); choose another"
    ):
        save_artifact(scale_artifact(), tmp_path / place)


def test_output_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as error:
        save_artifact(scale_artifact(), tmp_path)
    expected = f"[artifact] file '{tmp_path}': can't be written: is a folder; choose another output path"
    assert str(error.value) == expected


def test_failed_save_keeps_the_old_artifact(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError) as error:
        save_artifact(count_artifact(), file)
    expected = f"[artifact] file '{file}': can't be written: No space left on device; choose another output path"
    assert str(error.value) == expected
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["model.tw"]


def test_interrupted_save_keeps_the_old_artifact(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def interrupted(source: object, target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_artifact(count_artifact(), file)
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["model.tw"]


def test_artifact_without_a_weight_is_not_saved(file: Path) -> None:
    before, artifact = file.read_bytes(), scale_artifact()
    with pytest.raises(ArtifactError, match="weight 'w' is missing"):
        save_artifact(Artifact(artifact.manifest, artifact.code, {}), file)
    assert file.read_bytes() == before


# --- manifest ---


def test_manifest_bytes_are_equal_across_processes() -> None:
    manifest = compress_artifact().manifest
    assert dump_json(manifest_to_json(manifest)) == dump_json(
        manifest_to_json(manifest_from_json(manifest_to_json_text(manifest), "x"))
    )


def manifest_to_json_text(manifest: Manifest) -> Json:
    return json.loads(dump_json(manifest_to_json(manifest)))


def test_manifest_problems_are_listed_together() -> None:
    good = scale_artifact().manifest
    step = good.steps[0]
    assert isinstance(step, NativeStep)
    bad = dataclasses.replace(
        good,
        inputs=(*good.inputs, TensorSpec("x", "float32", (-2,))),
        symbols=(SymbolSpec("n", 5, 4), SymbolSpec("n", 0, 1)),
        steps=(step, step),
    )
    assert bad.problems() == [
        "symbol 'n' appears twice",
        "input 'x' appears twice",
        "symbol 'n' has the empty range 5..4",
        "input 'x' has the negative size -2",
        "step input 'x' is read as float32 [n, 3], but computed as float32 [-2]",
        "step input 'x' is read as float32 [n, 3], but computed as float32 [-2]",
        "entry prefix 'tw' appears twice",
    ]


def test_executable_checks_its_manifest() -> None:
    artifact = scale_artifact()
    bad = dataclasses.replace(artifact.manifest, steps=())
    with pytest.raises(TilewrightError, match="output 'y' is computed by no earlier step"):
        Executable(Artifact(bad, artifact.code, artifact.weights))
