"""The hash of the sources is that of what a process runs, or there is none."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tilewright

PROGRAM = """
import os, subprocess, sys, time
import tilewright.version as v
early = v.source_hash() if "early" in sys.argv else ""
EDIT
print(early, v.source_hash(), v.sources_have_changed())
"""
"""Imports the package, and may ask for the hash; the sources are edited; then it asks."""


@pytest.fixture
def package(tmp_path):
    """The module in a package of a few files, which are older than a process that is started next."""
    folder = tmp_path / "tilewright"
    (folder / "inner").mkdir(parents=True)
    shutil.copy(Path(tilewright.__file__).parent / "version.py", folder)
    for name in ("__init__.py", "other.py", "inner/__init__.py"):
        (folder / name).write_text("x = 1\n")
    time.sleep(0.02)
    return folder


def hashes(package, edit="", *arguments):
    command = [sys.executable, "-c", PROGRAM.replace("EDIT", edit), *arguments]
    environ = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=package.parent, env=environ)
    return result.stdout.rstrip("\n").split(" ")


def test_the_hash_is_that_of_the_content(package):
    first = hashes(package, "", "early")
    assert first == [first[0], first[0], "False"]
    assert len(first[0]) == 16
    (package / "other.py").write_text("x = 2\n")
    time.sleep(0.02)
    assert hashes(package)[1] not in (first[1], "None")
    (package / "other.py").write_text("x = 1\n")
    time.sleep(0.02)
    assert hashes(package)[1] == first[1]


EDITS = {
    "in place, with the old time": "t = os.stat('tilewright/other.py').st_mtime_ns\n"
    "open('tilewright/other.py', 'w').write('x = 2\\n'); os.utime('tilewright/other.py', ns=(t, t))",
    "replaced by an old file": "open('new', 'w').write('x = 2\\n'); os.utime('new', (1, 1))\n"
    "os.replace('new', 'tilewright/other.py')",
    "a new file": "open('tilewright/inner/new.py', 'w').close()",
}


@pytest.mark.parametrize("name", EDITS)
def test_a_source_that_changes_after_the_import(package, name):
    """What a process runs is not what the sources are by the time it asks for their hash."""
    assert hashes(package, EDITS[name])[1:] == ["None", "True"]


def test_an_edit_that_is_taken_back_is_a_change(package):
    """A module may have been imported between the two."""
    edit = "f = open('tilewright/other.py', 'r+'); text = f.read(); f.seek(0); f.write('y = 1\\n')"
    early, late, changed = hashes(package, f"{edit}\nf.seek(0); f.write(text); f.close()", "early")
    assert early == late != "None"
    assert changed == "True"


@pytest.mark.parametrize("name", EDITS)
def test_a_source_that_changes_after_the_hash_is_known(package, name):
    early, late, changed = hashes(package, EDITS[name], "early")
    assert early == late != "None"
    assert changed == "True"


def test_another_version_in_the_place_of_the_package(package):
    """Links to the current version are switched; all its files are older than the process."""
    link = package.parent / "current"
    shutil.copytree(package, package.parent / "second" / "tilewright")
    (package.parent / "first").mkdir()
    package.rename(package.parent / "first" / "tilewright")
    link.symlink_to("first")
    (package.parent / "next").symlink_to("second")
    time.sleep(0.02)
    environ = {**os.environ, "PYTHONPATH": str(link), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PROGRAM.replace("EDIT", "os.replace('next', 'current')")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=package.parent, env=environ)
    assert result.stdout.split() == ["None", "True"]


def test_hard_links_change_nothing(package):
    """Installers link files of their caches, which changes the times of their status."""
    edit = "subprocess.run(['cp', '-al', 'tilewright', 'elsewhere'], check=True)"
    early, late, changed = hashes(package, edit, "early")
    assert early == late != "None"
    assert changed == "False"


def test_files_that_are_no_modules(package):
    """Emacs marks a file that is being edited by a link to nothing beside it."""
    expected = hashes(package)
    (package / ".#other.py").symlink_to("me@host.1234:1700000000")
    (package / "broken.py").symlink_to("nowhere")
    (package / "#other.py#").write_text("x = 3\n")
    time.sleep(0.02)
    assert hashes(package) == expected


def test_a_source_that_is_removed_while_it_is_read(monkeypatch, tmp_path):
    from tilewright import version

    (tmp_path / "a.py").write_text("")
    sources = list(version._sources(str(tmp_path)))
    monkeypatch.setattr(version, "_sources", lambda: iter(sources))
    (tmp_path / "a.py").unlink()
    assert version._content_hash() is None
    assert version._may_have_changed()


def test_an_import_looks_at_no_source(package):
    code = "import os; os.scandir = None; import tilewright.version"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=package.parent)
