"""`tilewright cache`, and what `compile` says of it."""

import json

import pytest
from tests.cli.command import error_of, run

import tilewright


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_CACHE", "on")
    return tmp_path


def compiled(capsys, folder, home, *options):
    code, out, _ = run(capsys, "compile", folder / "mlp.onnx", "-o", home / "m.tw", "--json", *options)
    assert code == 0
    return json.loads(out)


def test_show_prune_and_clear(capsys, folder, home):
    first = compiled(capsys, folder, home)
    code = (home / "m.tw").read_bytes()
    second = compiled(capsys, folder, home, "--jobs", "2")
    assert (home / "m.tw").read_bytes() == code
    assert (first["cached_kernels"], second["cached_kernels"]) == (0, second["functions"])
    assert second["constructed_kernels"] == 0
    assert compiled(capsys, folder, home, "--no-cache")["cached_kernels"] == 0
    assert (home / "m.tw").read_bytes() == code
    status, out, _ = run(capsys, "cache", "--json")
    shown = json.loads(out)
    assert status == 0
    assert shown["entries"] >= first["functions"]
    assert (shown["used"], shown["folder"]) == (True, str(home / "cache" / "code"))
    status, out, _ = run(capsys, "cache", "prune", "--max-mb", "0")
    assert out.startswith(f"removed {shown['entries']} files, ")
    assert f"{home / 'cache' / 'code'}: 0 files, 0 B\n" in out
    status, out, _ = run(capsys, "cache", "clear")
    assert out.startswith("removed 0 files, 0 B\n")


def test_models_are_shown_and_cleared(capsys, folder, home):
    tilewright.compile(folder / "mlp.onnx", records=False)
    _, out, _ = run(capsys, "cache", "--json")
    shown = json.loads(out)["models"]
    assert (shown["entries"], shown["folder"]) == (1, str(home / "cache" / "models"))
    _, out, _ = run(capsys, "cache")
    assert f"{home / 'cache' / 'models'}: 1 file, " in out
    _, out, _ = run(capsys, "cache", "clear", "--json")
    assert (json.loads(out)["models"]["removed_entries"], json.loads(out)["models"]["entries"]) == (1, 0)


def test_a_cache_that_is_off(capsys, folder, home, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    assert compiled(capsys, folder, home)["cached_kernels"] == 0
    _, out, _ = run(capsys, "cache")
    assert out.splitlines()[-1] == "TILEWRIGHT_CACHE turns it off"
    assert not (home / "cache").exists()


def test_rejected(capsys, folder, home):
    assert error_of(capsys, "cache", "clear", "--max-mb", "3") == (
        "tilewright cache: [option] --max-mb: it has no effect on 'clear'; leave it out"
    )
    assert error_of(capsys, "cache", "prune", "--max-mb", "-3") == (
        "tilewright cache: [option] --max-mb: expected a number of at least 0, got -3"
    )
    assert error_of(capsys, "compile", folder / "mlp.onnx", "-o", home / "m.tw", "--jobs", "0") == (
        "tilewright compile: [option] --jobs: expected a number within 1..256, got 0; give a number of"
        " processes, or nothing for one per core"
    )
