"""Artifact files: round trip, every kind of damage, and failed saves."""

import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.models import WEIGHT, compress_artifact, count_artifact, scale_artifact

from tilewright.errors import ArtifactError, TargetError, TilewrightError
from tilewright.machine import Target
from tilewright.machine.alignment import GUARD_BYTES
from tilewright.runtime import Artifact, Executable, is_artifact, load, load_artifact, save_artifact
from tilewright.runtime.artifact import FORMAT_VERSION, MAGIC
from tilewright.runtime.manifest import Manifest, NativeStep, SymbolSpec, TensorSpec
from tilewright.runtime.manifest_json import dump_json, manifest_from_json, manifest_to_json
from tilewright.runtime.schema import Json
from tilewright.runtime.weights import make_weight_section, read_weights

HEADER = struct.Struct("<8sIIQQ32s")
FEED = np.random.default_rng(11).uniform(0.5, 2.0, (5, 3)).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.tw"
    save_artifact(scale_artifact(), path)
    return path


def sections(data: bytes) -> tuple[int, int, int]:
    """Start of manifest, code and weights."""
    length = HEADER.unpack(data[:64])[3]
    code = -(-(64 + length) // 64) * 64
    size = json.loads(data[64 : 64 + length])["code"]["length"]
    return 64, code, code + -(-size // 64) * 64


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


# --- damage ---


@pytest.mark.parametrize("size", [0, 1, 8, 63, 64, 65, 500, -1, -64, -100])
def test_truncated(file: Path, size: int) -> None:
    data = file.read_bytes()
    short = data[:size]
    file.write_bytes(short)
    with pytest.raises(ArtifactError) as error:
        load(file)
    if len(short) < 64:
        what = f"expected an artifact of at least 64 bytes, got {len(short)}"
    else:
        what = f"is truncated: expected {len(data)} bytes, got {len(short)}"
    assert str(error.value) == f"[artifact] file '{file}': {what}; the file is damaged; compile the model again"


def test_too_long(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data + b"\0")
    with pytest.raises(
        ArtifactError, match=f"is longer than it should be: expected {len(data)} bytes, got {len(data) + 1}"
    ):
        load(file)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (0, "the manifest is altered: its SHA-256 differs; the file is damaged; compile the model again"),
        (1, "the code: altered, the SHA-256 differs; the file is damaged; compile the model again"),
        (2, "the weights: altered, the SHA-256 differs; the file is damaged; compile the model again"),
    ],
)
@pytest.mark.parametrize("where", [0, 17, 100])
def test_altered_byte(file: Path, section: int, message: str, where: int) -> None:
    data = bytearray(file.read_bytes())
    data[sections(bytes(data))[section] + where] ^= 0x20
    file.write_bytes(data)
    with pytest.raises(ArtifactError) as error:
        load(file)
    assert str(error.value) == f"[artifact] file '{file}': {message}"


def test_every_altered_byte_is_detected(file: Path) -> None:
    data = file.read_bytes()
    for position in range(0, len(data), 7):
        altered = bytearray(data)
        altered[position] ^= 0xFF
        file.write_bytes(altered)
        with pytest.raises(ArtifactError):
            load_artifact(file)


def test_unverified_weights_are_not_hashed(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1 - GUARD_BYTES] ^= 0x01
    file.write_bytes(data)
    assert load_artifact(file, verify=False).weights["w"][2] != WEIGHT[2]


def test_guard_bytes_after_the_last_weight() -> None:
    """The bytes of a vector register after it; readers take them for padding."""
    arrays = {"a": np.arange(5, dtype=np.float32), "b": np.arange(7, dtype=np.int8)}
    section = b"".join(make_weight_section(arrays, "here").pieces())
    assert section.endswith(arrays["b"].tobytes() + bytes(GUARD_BYTES))
    weights = read_weights(memoryview(section), "here")
    assert list(weights) == ["a", "b"]
    np.testing.assert_array_equal(weights["b"], arrays["b"])


def test_not_an_artifact(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ArtifactError) as error:
        load(path)
    expected = "is not a tilewright artifact; give a file written by `tilewright compile`"
    assert str(error.value) == f"[artifact] file '{path}': {expected}"


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as error:
        load(tmp_path / "none.tw")
    assert str(error.value) == f"[artifact] file '{tmp_path / 'none.tw'}': can't be read: No such file or directory"


def test_folder_and_pipe_are_not_artifacts(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="can't be read: Is a directory"):
        load(tmp_path)
    with pytest.raises(ArtifactError, match="is not a regular file"):
        load("/dev/zero")


def reheader(data: bytes, **changes: int) -> bytes:
    fields = dict(
        zip(("magic", "version", "zero", "manifest", "file", "digest"), HEADER.unpack(data[:64]), strict=True)
    )
    return HEADER.pack(*{**fields, **changes}.values()) + data[64:]


def test_newer_format(file: Path) -> None:
    file.write_bytes(reheader(file.read_bytes(), version=FORMAT_VERSION + 1))
    with pytest.raises(ArtifactError) as error:
        load(file)
    assert str(error.value) == (
        f"[artifact] file '{file}': expected format 1 or older, got format 2; "
        "update tilewright, or compile the model with this version"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 0}, "the header is altered"),
        ({"zero": 1}, "the header is altered"),
        ({"manifest": 2**62}, "the manifest lies outside the file"),
        ({"manifest": 2**64 - 1}, "the manifest lies outside the file"),
        ({"manifest": 3}, "the manifest is altered"),
        ({"file": 2**63}, "is truncated"),
    ],
)
def test_altered_header(file: Path, changes: dict[str, int], message: str) -> None:
    file.write_bytes(reheader(file.read_bytes(), **changes))
    with pytest.raises(ArtifactError, match=message):
        load(file)


def rewrite(file: Path, change: Callable[[Json], None], section: bytes | None = None) -> None:
    """Changes the manifest (and the weights) and recomputes all hashes and lengths, as an attacker would."""
    data = file.read_bytes()
    manifest, code, weights = sections(data)
    obj = json.loads(data[manifest : manifest + HEADER.unpack(data[:64])[3]])
    section = data[weights:] if section is None else section
    obj["weights"] = {"length": len(section), "sha256": [hashlib.sha256(section).hexdigest()] if section else []}
    change(obj)
    text = dump_json(obj)
    body = text + bytes(-(64 + len(text)) % 64) + data[code:weights] + section
    head = HEADER.pack(MAGIC, FORMAT_VERSION, 0, len(text), 64 + len(body), hashlib.sha256(text).digest())
    file.write_bytes(head + body)


def assign(path: str, value: object) -> Callable[[Json], None]:
    """Assignment to a path such as "steps/0/weights"."""

    def change(obj: Json) -> None:
        *folders, last = path.split("/")
        place: object = obj
        for name in folders:
            place = place[int(name)] if isinstance(place, list) else place[name]
        if value is KeyError:
            del place[last]
        else:
            place[int(last) if isinstance(place, list) else last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("steps", KeyError, "manifest field 'steps' is missing"),
        ("meta", 3, "manifest field 'meta': expected an object, got 3"),
        ("inputs", "x", "manifest field 'inputs': expected a list, got 'x'"),
        ("inputs/0", 1, "manifest field 'inputs'[0]: expected an object, got 1"),
        ("inputs/0/name", 1, "manifest field 'name': expected a string, got 1"),
        ("inputs/0/dims/1", -1, "manifest field 'dims'[1]: expected an integer >= 0, got -1"),
        ("inputs/0/dims/1", 1.5, "manifest field 'dims'[1]: expected an integer >= 0, got 1.5"),
        ("inputs/0/dims/1", True, "manifest field 'dims'[1]: expected an integer >= 0, got True"),
        ("inputs/0/dims/1", 2**63, "manifest field 'dims'[1]: expected an integer >= 0, got 9223372036854775808"),
        ("inputs/0/dims/0", "q", "input 'x' has the undeclared symbol 'q'"),
        ("inputs/0/dtype", "float31", "input 'x' has the unknown type 'float31'"),
        ("inputs/0/dtype", "float64", "step input 'x' is read as float32 [n, 3], but computed as float64 [n, 3]"),
        ("outputs/0/name", "q", "output 'q' is computed by no earlier step"),
        ("outputs/0/dims", [3], "output 'y' is read as float32 [3], but computed as float32 [n, 3]"),
        ("symbols", [], "input 'x' has the undeclared symbol 'n'"),
        ("symbols/0/hi", "many", "manifest field 'symbols'[0].hi: expected an integer >= 0, got 'many'"),
        ("symbols/0/lo", 2000, "symbol 'n' has the empty range 2000..1000"),
        ("steps/0/kind", "magic", "manifest field 'steps'[0]: unknown kind of step 'magic'"),
        ("steps/0/symbols", ["m"], "symbol 'm' is bound by no input"),
        ("steps/0/inputs/0/name", "q", "step input 'q' is computed by no earlier step"),
        ("steps/0/inputs/0/dtype", "string", "step input 'x' has the unknown type 'string'"),
        ("steps/0/weights", ["v"], "weight 'v' is missing"),
        ("steps/0/prefix", "zz", "the code can't be linked: "),
        ("meta/custom", [["a"]], "manifest field 'custom'[0]: expected a pair of strings, got 1"),
        ("code/length", 10**9, "the sections do not fill the file: "),
        ("code/length", -5, "manifest field 'length': expected an integer >= 0, got -5"),
        ("weights/sha256", [], "expected 1 hashes of the weights, got 0"),
    ],
)
def test_invalid_manifest(file: Path, path: str, value: object, message: str) -> None:
    rewrite(file, assign(path, value))
    with pytest.raises(ArtifactError) as error:
        load(file)
    assert str(error.value).startswith(f"[artifact] file '{file}': {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "the manifest is not JSON"),
        (b"\xff\xfe", "the manifest is not JSON"),
        (b"[" * 100_000, "the manifest is not JSON"),
        (b"[]", r"the manifest: expected an object, got \[\]"),
    ],
)
def test_manifest_is_not_json(file: Path, text: bytes, message: str) -> None:
    body = text + bytes(-(64 + len(text)) % 64)
    file.write_bytes(
        HEADER.pack(MAGIC, FORMAT_VERSION, 0, len(text), 64 + len(body), hashlib.sha256(text).digest()) + body
    )
    with pytest.raises(ArtifactError, match=message):
        load(file)


def tensors(entries: dict[str, object], data: bytes) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


ENTRY = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (b"", "the weights' header is cut off"),
        (b"\xff" * 8, "the weights' header is cut off"),
        (tensors({"w": ENTRY}, b"")[:20], "the weights' header is cut off"),
        ((5).to_bytes(8, "little") + b"{nono", "the weights' header is not JSON"),
        (tensors({"w": {**ENTRY, "dtype": "F99"}}, bytes(12)), "weight 'w' has the unknown type 'F99'"),
        (tensors({"w": {**ENTRY, "shape": [4]}}, bytes(12)), "weight 'w' expected 16 bytes for its shape, got 12"),
        (tensors({"w": {**ENTRY, "shape": [2**40, 2**40]}}, bytes(12)), "weight 'w' expected "),
        (tensors({"w": {**ENTRY, "shape": [-3]}}, bytes(12)), "weight 'w' shape[0]: expected an integer >= 0, got -3"),
        (tensors({"w": {**ENTRY, "data_offsets": [4, 16]}}, bytes(12)), "weight 'w' lies outside the file"),
        (tensors({"w": {**ENTRY, "data_offsets": [12, 0]}}, bytes(12)), "weight 'w' lies outside the file"),
        (tensors({"w": {**ENTRY, "data_offsets": [0]}}, bytes(12)), "weight 'w' lies outside the file"),
        (tensors({"w": [1]}, b""), "weight 'w': expected an object, got [1]"),
        (tensors({"v": ENTRY}, bytes(12)), "weight 'w' is missing"),
    ],
)
def test_invalid_weights(file: Path, section: bytes, message: str) -> None:
    rewrite(file, lambda obj: None, section)
    with pytest.raises(ArtifactError) as error:
        load_artifact(file)
    assert str(error.value).startswith(f"[artifact] file '{file}': {message}")


@given(st.binary(max_size=300))
def test_random_bytes_raise_a_typed_error(data: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(MAGIC + data)
        file.flush()
        with pytest.raises(ArtifactError):
            load_artifact(file.name)


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
