"""Archives of object files."""

import shutil
import subprocess

import pytest

from tilewright.errors import ArtifactError
from tilewright.runtime.object_archive import is_archive, make_archive, read_archive


@pytest.mark.parametrize("files", [(), (b"",), (b"odd", b"", b"even", b"\n"), (bytes(range(256)) * 300,)])
def test_files_come_back(files):
    archive = make_archive(files)
    assert is_archive(archive)
    assert len(archive) % 2 == 0
    assert read_archive(archive, "a test") == files


def test_object_files_are_no_archives():
    assert not is_archive(b"\x7fELF")
    with pytest.raises(ArtifactError, match=r"^\[artifact\] a test: the code is no archive of object files; compile"):
        read_archive(b"\x7fELF", "a test")


@pytest.mark.parametrize("missing", [1, 5, 6, 7, 60, 65])
def test_truncated_archives_are_refused(missing):
    archive = make_archive([b"first", b"second"])
    with pytest.raises(ArtifactError, match=r"object file 1 is (damaged|truncated)"):
        read_archive(archive[:-missing], "a test")


def test_damaged_headers_are_refused():
    archive = bytearray(make_archive([b"first"]))
    archive[8 + 48 : 8 + 50] = b"xy"
    with pytest.raises(ArtifactError, match="the header of object file 0 is damaged"):
        read_archive(bytes(archive), "a test")


@pytest.mark.skipif(shutil.which("ar") is None, reason="there is no ar")
def test_ar_reads_them(tmp_path):
    (tmp_path / "a").write_bytes(make_archive([b"first", b"second"]))
    listed = subprocess.run(["ar", "t", "a"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert listed.split() == ["0.o", "1.o"]
    printed = subprocess.run(["ar", "p", "a", "1.o"], cwd=tmp_path, check=True, capture_output=True).stdout
    assert printed == b"second"
