"""Damaged artifact files are rejected: truncated, altered, with an invalid header, manifest or weights."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.artifact_files import HEADER, assign, rewrite, sections
from tests.runtime.models import WEIGHT

from tilewright.errors import ArtifactError
from tilewright.machine.alignment import GUARD_BYTES
from tilewright.runtime import load, load_artifact
from tilewright.runtime.artifact import FORMAT_VERSION, MAGIC
from tilewright.runtime.weights import make_weight_section, read_weights

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
    hint = "give a file written by `tilewright compile`; ONNX models are for `tilewright.compile`"
    assert str(error.value) == f"[artifact] file '{path}': is not a tilewright artifact; {hint}"


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
        f"[artifact] file '{file}': expected format 3 or older, got format 4; "
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
