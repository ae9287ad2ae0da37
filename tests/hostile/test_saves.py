"""Saving over what is there already: pipes, devices, permissions; and saves that are cut off."""

import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from tests.hostile.work import compiled, model

import tilewright
from tilewright.cli.main import main
from tilewright.errors import ArtifactError
from tilewright.runtime import atomic_write

X = np.random.default_rng(2).normal(size=(3, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def executable() -> tilewright.Executable:
    return compiled(model([helper.make_node("Neg", ["x"], ["y"])], {"x": [3, 5]}))


def test_device_is_written_to(executable):
    before = os.stat("/dev/null")
    executable.save("/dev/null")
    after = os.stat("/dev/null")
    assert stat.S_ISCHR(after.st_mode)
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)


def test_compile_to_a_device(executable, tmp_path, capsys):
    import onnx

    path = tmp_path / "m.onnx"
    onnx.save(model([helper.make_node("Neg", ["x"], ["y"])], {"x": [3, 5]}), path)
    assert main(["compile", str(path), "-o", "/dev/null"]) == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert re.match(r"/dev/null: [1-9].*, 1 function,", capsys.readouterr().out)


def test_pipe_is_written_to(executable, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    executable.save(pipe)
    reader.join(10)
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    np.testing.assert_array_equal(tilewright.load(read[0])(X), -X)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_permissions_stay(executable, tmp_path, mode):
    path = tmp_path / "m.tw"
    path.touch()
    path.chmod(mode)
    executable.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    np.testing.assert_array_equal(tilewright.load(path)(X), -X)


def test_new_file_has_the_usual_permissions(executable, tmp_path):
    other = tmp_path / "other"
    other.touch()
    executable.save(tmp_path / "m.tw")
    assert (tmp_path / "m.tw").stat().st_mode == other.stat().st_mode


def test_link_to_a_file_stays(executable, tmp_path):
    (tmp_path / "m.tw").touch(0o600)
    (tmp_path / "link").symlink_to("m.tw")
    executable.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert stat.S_IMODE((tmp_path / "m.tw").stat().st_mode) == 0o600


@pytest.mark.parametrize("unnamed", [True, False])
@pytest.mark.parametrize("when", ["write", "fsync", "before", "after"])
def test_interrupted(executable, tmp_path, monkeypatch, when, unnamed):
    """Ctrl-C is Ctrl-C at any moment; the old file or the new one is there, and nothing else."""
    path = tmp_path / "m.tw"
    path.write_bytes(b"old")
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    replace = os.replace

    def interrupt(*args: object, **named: object) -> None:
        if when == "after":
            replace(*args)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic_write.os, when if when in ("write", "fsync") else "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        executable.save(path)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["m.tw"]
    assert (path.read_bytes() == b"old") == (when != "after")


def test_new_files_have_one_name(executable, tmp_path, monkeypatch):
    """Where the file system has files without a name, a new one has no other name than its own, at any moment."""
    try:
        os.close(os.open(tmp_path, os.O_WRONLY | os.O_TMPFILE))
    except (AttributeError, OSError):
        pytest.skip("the file system has no files without a name")
    names: list[list[str]] = []
    for call in ("write", "fsync", "link"):
        original = getattr(os, call)

        def recorded(*args: object, original=original, **named: object) -> object:
            result = original(*args, **named)
            names.append(os.listdir(tmp_path))
            return result

        monkeypatch.setattr(atomic_write.os, call, recorded)
    executable.save(tmp_path / "m.tw")
    assert names[-1] == ["m.tw"]
    assert not any(names[:-1])
    assert len(names) > 2


@pytest.mark.parametrize("unnamed", [True, False])
def test_no_space(executable, tmp_path, monkeypatch, unnamed):
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_write.os, "write", full)
    with pytest.raises(ArtifactError, match=r"m\.tw': can't be written: No space left on device"):
        executable.save(tmp_path / "m.tw")
    assert not os.listdir(tmp_path)


_SAVE_FOR_EVER = """
import sys
from pathlib import Path
from tilewright.runtime.atomic_write import replace_file

def pieces():
    yield b"begin"
    print("writing", flush=True)
    sys.stdin.read()

replace_file(Path(sys.argv[1]), pieces())
"""


def test_killed(tmp_path):
    """A process that is killed while it writes leaves nothing behind."""
    path = tmp_path / "m.tw"
    command = [sys.executable, "-c", _SAVE_FOR_EVER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        writer.send_signal(signal.SIGKILL)
    assert not os.listdir(tmp_path)


def test_left_over_files_go(executable, tmp_path):
    """Where files must have names while they are written, a later save removes those that nobody writes any more."""
    import fcntl

    old, locked, young, other = (
        tmp_path / name for name in (f".m.tw.{'0' * 16}", f".m.tw.{'1' * 16}", f".m.tw.{'2' * 16}", f".n.tw.{'3' * 16}")
    )
    for file in (old, locked, young, other):
        file.touch()
        if file is not young:
            os.utime(file, (time.time() - 3600,) * 2)
    with locked.open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        executable.save(tmp_path / "m.tw")
    assert {Path(f).name for f in os.listdir(tmp_path)} == {"m.tw", locked.name, young.name, other.name}
