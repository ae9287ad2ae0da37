"""The cache of machine code: the same bytes with it, and no trust in what others may write."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from tests.driver import models

from tilewright.driver import private_folder
from tilewright.driver.compile import make_compilation
from tilewright.driver.kernel_build import code_cache, kernel_builds
from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.kernel_build.code_cache import CodeCache
from tilewright.errors import CacheWarning, OptionError, TilewrightWarning

KEY, OTHER = "ab" * 32, "cd" * 32
VALUE = {"code": "AAAA"}


@pytest.fixture
def cache(tmp_path):
    return CodeCache(tmp_path / "cache" / "code")


@pytest.fixture(scope="module")
def without():
    """The artifact of a compilation without a cache."""
    return make_compilation(models.small_convnet()).artifact()


def compiled(cache, model=None):
    compilation = make_compilation(
        models.small_convnet() if model is None else model, resources=BuildResources(1, cache, True)
    )
    return compilation, compilation.artifact()


def path_of(cache, key=KEY):
    return cache.folder / key[:2] / key


def test_entries_come_back(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, VALUE)
    assert cache.get(KEY) == VALUE
    assert cache.get(OTHER) is None
    assert path_of(cache).stat().st_mode & 0o777 == 0o600
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def test_code_of_sources_that_have_changed_is_not_kept(cache, monkeypatch):
    answers = iter([False])
    monkeypatch.setattr(kernel_builds, "sources_have_changed", lambda: next(answers, True))
    compiled(cache, models.mlp(3))
    assert cache.usage().entries == 0


def test_where_sources_had_changed_before_nothing_is_looked_up(cache, monkeypatch, without):
    compiled(cache)
    monkeypatch.setattr(kernel_builds, "sources_have_changed", lambda: True)
    monkeypatch.setattr(CodeCache, "get", None)
    with pytest.warns(TilewrightWarning, match="no cache and no other process is used: the sources of this package"):
        compilation, artifact = compiled(cache)
    assert compilation.constructions.cached == 0
    assert artifact.code == without.code


def test_sources_are_looked_at_once_for_many_entries(cache, monkeypatch):
    calls = []
    monkeypatch.setattr(kernel_builds, "sources_have_changed", lambda: bool(calls.append(1)))
    compiled(cache)
    assert cache.usage().entries > 1
    assert len(calls) == 1 + -(-cache.usage().entries // kernel_builds.ENTRIES_AT_ONCE)


def test_a_second_compilation_constructs_nothing(cache, without):
    first, expected = compiled(cache)
    second, artifact = compiled(cache)
    assert artifact.code == expected.code == without.code
    assert artifact.manifest == expected.manifest
    assert {n: w.tobytes() for n, w in artifact.weights.items()} == {
        n: w.tobytes() for n, w in expected.weights.items()
    }
    assert (second.constructions.constructed, second.constructions.cached) == (0, len(second.kernels))
    assert first.constructions.cached == 0
    for a, b in zip(first.kernels, second.kernels, strict=True):
        assert (a.name, a.optimizer, a.func) == (b.name, b.optimizer, b.func)
        assert [(p.trace, p.scheduled) for p in a.programs] == [(p.trace, p.scheduled) for p in b.programs]


def test_equal_kernels_of_other_models_are_found(cache):
    compiled(cache)
    renamed = models.small_convnet()
    for node in renamed.graph.node:
        node.name = f"other_{node.name}"
    assert compiled(cache, renamed)[0].constructions.constructed == 0


def test_damaged_entries_are_written_again(cache):
    _, expected = compiled(cache)
    entries = [p for p in cache.folder.rglob("*") if p.is_file()]
    for k, path in enumerate(entries):
        data = path.read_bytes()
        path.write_bytes([data[: len(data) // 2], b"", data[:-1] + b"?", b"\0" * len(data)][k % 4])
    again, artifact = compiled(cache)
    assert artifact.code == expected.code
    assert again.constructions.cached == 0
    assert compiled(cache)[0].constructions.constructed == 0


def test_other_files_of_the_user_are_neither_counted_nor_removed(cache):
    cache.put(KEY, VALUE)
    folder = path_of(cache).parent
    mine = [
        cache.folder / "mine" / "main.py", folder / "notes", folder / OTHER, cache.folder / "mine" / KEY,
        folder / "f.ab", folder / f".{KEY}.old", folder / f"{KEY}.bak",
    ]  # fmt: skip
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    unfinished = folder / f".{KEY}.{'0' * 16}"
    unfinished.write_text("{")
    assert cache.usage().entries == 2
    assert cache.clear().entries == 2
    assert not path_of(cache).exists()
    assert not unfinished.exists()
    assert all(p.exists() for p in mine)


def test_an_entry_with_a_hole_at_its_end_counts_as_missing(cache):
    cache.put(KEY, VALUE)
    os.truncate(path_of(cache), 1 << 43)
    assert cache.get(KEY) is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_entries_that_others_may_write_are_not_read(cache, mode):
    cache.put(KEY, VALUE)
    path_of(cache).chmod(mode)
    assert cache.get(KEY) is None
    cache.put(KEY, VALUE)
    assert cache.get(KEY) == VALUE
    assert path_of(cache).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("which", ["folder", "inner"])
def test_folders_that_others_may_write_are_not_used(cache, which):
    cache.put(KEY, VALUE)
    folder = cache.folder if which == "folder" else path_of(cache).parent
    folder.chmod(0o770)
    assert cache.get(KEY) is None
    path_of(cache).unlink()
    message = f"{re.escape(str(folder))} can't be used .other users can write.*`chmod go-w"
    with pytest.warns(CacheWarning, match=message):
        cache.put(KEY, VALUE)
    cache.put(OTHER, VALUE)  # is no second warning
    assert not path_of(cache).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's file")
def test_entries_of_other_users_are_not_read(cache):
    cache.put(KEY, VALUE)
    os.chown(path_of(cache), 12345, -1)
    assert cache.get(KEY) is None


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_is_not_read(cache, tmp_path, kind):
    cache.put(KEY, VALUE)
    data = path_of(cache).read_bytes()
    path_of(cache).unlink()
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        path_of(cache).symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path_of(cache))
    assert cache.get(KEY) is None
    cache.put(KEY, VALUE)
    assert cache.get(KEY) == VALUE
    assert kind == "pipe" or (tmp_path / "elsewhere").read_bytes() == data


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE, errno.EDQUOT])
def test_where_nothing_can_be_written_nothing_is_kept(cache, monkeypatch, number):
    """A full or read-only disk, and a network file system that fails."""
    cache.put(KEY, VALUE)
    monkeypatch.setattr(private_folder, "replace_file", _failing(number))
    message = f"the cache folder {re.escape(str(cache.folder.parent))} can't be used .{os.strerror(number)}"
    with pytest.warns(CacheWarning, match=message):
        cache.put(OTHER, VALUE)
    cache.put(OTHER, VALUE)  # is no second warning
    assert (cache.get(OTHER), cache.usage().entries) == (None, 1)
    monkeypatch.setattr(private_folder.os, "open", _failing(number))
    assert cache.get(KEY) is None


def _failing(number):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    return fails


def test_a_compilation_whose_kernels_cannot_be_kept(cache, monkeypatch, without):
    monkeypatch.setattr(private_folder, "replace_file", _failing(errno.ENOSPC))
    message = "No space left on device.*tilewright cache clear.*TILEWRIGHT_CACHE_DIR"
    with pytest.warns(CacheWarning, match=message) as issued:
        assert compiled(cache)[1].code == without.code
    assert len(issued) == 1
    assert cache.usage().entries == 0
    assert not cache.has_added


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    cache = CodeCache(tmp_path / "file" / "code")
    with pytest.warns(CacheWarning, match=f"{re.escape(str(tmp_path / 'file'))} can't be used .Not a directory"):
        cache.put(KEY, VALUE)
    assert cache.get(KEY) is None
    assert cache.usage().entries == 0
    assert cache.clear().entries == 0


def test_file_systems_without_unnamed_files_and_links(cache, monkeypatch):
    monkeypatch.setattr(os, "O_TMPFILE", 0, raising=False)
    cache.put(KEY, VALUE)
    assert cache.get(KEY) == VALUE
    assert [p.name for p in path_of(cache).parent.iterdir()] == [KEY]


def test_pruning_removes_what_was_not_used_for_longest(cache):
    keys = [f"{k:02d}" * 32 for k in range(10)]
    for k, key in enumerate(keys):
        cache.put(key, VALUE)
        os.utime(path_of(cache, key), (1e9 + 10 * k, 1e9 + 10 * k))
    size = path_of(cache, keys[0]).stat().st_size
    # a use counts
    assert cache.get(keys[2]) == VALUE
    removed = cache.prune(4 * size)
    assert (removed.entries, removed.bytes) == (6, 6 * size)
    assert [k for k in keys if cache.get(k) is not None] == [keys[k] for k in (2, 7, 8, 9)]
    assert cache.usage().entries == 4
    assert cache.prune(4 * size).entries == 0
    assert cache.clear().entries == 4
    assert cache.usage().bytes == 0


def test_compilations_prune(cache, monkeypatch):
    monkeypatch.setattr(CodeCache.prune, "__defaults__", (1,))
    compiled(cache, models.mlp(3))
    assert cache.usage().bytes <= 1


_COMPILATIONS = """
import os
import sys
from pathlib import Path
from tests.driver import models
from tilewright.driver.compile import make_compilation
from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.kernel_build.code_cache import CodeCache
folder, results, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
children = []
for k in range(count):
    child = os.fork()
    if child == 0:
        compilation = make_compilation(models.mlp(3), resources=BuildResources(1, CodeCache(folder), True))
        (results / str(k)).write_bytes(compilation.artifact().code)
        os._exit(0)
    children.append(child)
print(*children, flush=True)
sys.stdin.readline()  # the numbers stay those of these processes
print(*(os.waitpid(child, 0)[1] for child in children))
"""


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}


@contextmanager
def ended_group(process):
    """Ends a process that leads a group, and what it started, where a test fails."""
    with process:
        try:
            yield process
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def test_compilations_at_once_and_killed_ones(cache, tmp_path):
    count, killed = 16, range(0, 16, 4)
    expected = make_compilation(models.mlp(3)).artifact().code
    command = [sys.executable, "-c", _COMPILATIONS, str(cache.folder), str(tmp_path), str(count)]
    with ended_group(subprocess.Popen(command, **PIPES)) as process:
        children = [int(text) for text in process.stdout.readline().split()]
        assert len(children) == count
        deadline = time.monotonic() + 200
        while not any(p.is_file() for p in cache.folder.rglob("*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        # now some are compiling and writing
        for k in killed:
            os.kill(children[k], signal.SIGKILL)
            time.sleep(0.2)
        statuses = [int(text) for text in process.communicate("", timeout=300)[0].split()]
    assert len(statuses) == count
    for k in (k for k in range(count) if k not in killed):
        assert statuses[k] == 0
        assert (tmp_path / str(k)).read_bytes() == expected
    for path in (p for p in cache.folder.rglob("*") if p.is_file()):
        assert not path.name.startswith(".")
        assert cache.get(path.name) is not None
    assert compiled(cache, models.mlp(3))[0].constructions.constructed == 0
    cache.clear()
    assert not any(path.is_file() for path in cache.folder.rglob("*"))


def test_settings(tmp_path):
    environ = {"TILEWRIGHT_CACHE_DIR": str(tmp_path)}
    default = code_cache.code_cache(environ=environ)
    assert default is not None
    assert default.folder == tmp_path / "code"
    assert code_cache.code_cache(environ={"XDG_CACHE_HOME": "/x"}).folder.as_posix() == "/x/tilewright/code"
    assert code_cache.code_cache(environ={**environ, "TILEWRIGHT_CACHE": "off"}) is None
    assert code_cache.code_cache(False, environ) is None
    assert code_cache.code_cache(True, {**environ, "TILEWRIGHT_CACHE": "off"}) is not None
    with pytest.raises(OptionError, match=r"^\[option\] TILEWRIGHT_CACHE: expected on or off, got 'no'$"):
        code_cache.code_cache(environ={"TILEWRIGHT_CACHE": "no"})


def test_entries_are_json_behind_their_hash(cache):
    cache.put(KEY, VALUE)
    digest, _, content = path_of(cache).read_bytes().partition(b"\n")
    assert len(digest) == 64
    assert json.loads(content) == VALUE
