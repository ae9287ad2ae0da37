"""Memory of outputs: reused when nothing references it, never before; aligned; released for other sizes."""

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from ctypes import c_void_p
from dataclasses import replace
from sys import getrefcount
from typing import Any

import numpy as np
import pytest
from tests.runtime.models import WEIGHT, compress_artifact, scale_artifact

from tilewright.runtime import Artifact, Executable
from tilewright.runtime.call_frame import CAN_REUSE_OUTPUTS, MAX_REUSED_BYTES, OutputMemory, address_of
from tilewright.runtime.manifest import SymbolSpec
from tilewright.runtime.native_call import MAX_FRAMES

pytestmark = pytest.mark.skipif(not CAN_REUSE_OUTPUTS, reason="this interpreter's references can't be counted")


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (n, 3)).astype(np.float32)


@pytest.fixture(name="exe")
def fixture_exe() -> Executable:
    return Executable(scale_artifact(), threads=1)


def from_interface(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


READ_ONLY = np.arange(4)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "array",
    [np.zeros(()), np.zeros((0, 3)), np.arange(12)[3:], np.arange(12)[::-2], READ_ONLY, np.array(["a"], object)],
    ids=["scalar", "empty", "tail", "backwards", "read-only", "objects"],
)
def test_address_of(array: np.ndarray) -> None:
    assert address_of(array) == from_interface(array)


def test_outputs_are_aligned(exe: Executable) -> None:
    outputs = [exe(rows(n)) for n in (1, 2, 3, 50)]
    assert [from_interface(y) % 64 for y in outputs] == [0] * 4


def test_dropped_outputs_are_reused(exe: Executable) -> None:
    addresses: set[int] = set()
    for k in range(20):
        y = exe(rows(7, k))
        np.testing.assert_array_equal(y, rows(7, k) * WEIGHT)
        addresses.add(from_interface(y))
    assert len(addresses) == 2


def test_referenced_outputs_are_not_reused(exe: Executable) -> None:
    results = [exe(rows(7, k)) for k in range(30)]
    assert len({from_interface(y) for y in results}) == 30
    for k, y in enumerate(results):
        np.testing.assert_array_equal(y, rows(7, k) * WEIGHT)


HOLDERS: dict[str, Callable[[np.ndarray], object]] = {
    "itself": lambda y: y,
    "view": lambda y: y[2:],
    "view of a view": lambda y: y.T[1:][:, 1:],
    "other type": lambda y: y.view(np.int32),
    "row": lambda y: next(iter(y)),
    "memoryview": lambda y: _memoryview(y),
    "slice of a memoryview": lambda y: _memoryview(y)[1:],
    "iterator": lambda y: y.flat,
    "dlpack": lambda y: np.from_dlpack(y),
    "capsule": lambda y: y.__dlpack__(),
    "interface": lambda y: np.asarray(_Interface(y)),
    "ctypes": lambda y: y.ctypes.data_as(c_void_p),
    "subclass": lambda y: y.view(np.ma.MaskedArray),
    "buffer": lambda y: np.frombuffer(y, np.uint8),
    "base": lambda y: y.base,
}
"""Ways to keep a reference to the memory of an output after the output itself is gone."""


def _memoryview(y: Any) -> memoryview:
    return memoryview(y)


class _Interface:
    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_behind_any_reference_is_not_reused(exe: Executable, holder: str) -> None:
    y = exe(rows(7, 1))
    place, held = from_interface(y), HOLDERS[holder](y)
    del y
    gc.collect()
    for k in range(6):
        again = exe(rows(7, 2 + k))
        assert from_interface(again) != place
    del held


def test_changes_to_an_output_do_not_persist(exe: Executable) -> None:
    for _ in range(4):
        y = exe(rows(7))
        assert (y.shape, y.dtype, y.flags.writeable) == ((7, 3), np.dtype("float32"), True)
        y[...] = 5
        y.shape = (21,)
        y.dtype = np.int32
        y.flags.writeable = False


def test_an_output_can_be_the_next_input(exe: Executable) -> None:
    y = rows(7)
    for _ in range(5):
        expected = y * WEIGHT
        y = exe(y)
        np.testing.assert_array_equal(y, expected)


def test_copies_are_independent(exe: Executable) -> None:
    y = exe(rows(7))
    copies = [copy.copy(y), copy.deepcopy(y), pickle.loads(pickle.dumps(y)), y.copy()]
    expected = rows(7) * WEIGHT
    del y
    for _ in range(4):
        exe(rows(7, 9))
    for c in copies:
        np.testing.assert_array_equal(c, expected)


def test_threads_do_not_share_memory(exe: Executable) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        held: list[tuple[np.ndarray, np.ndarray]] = []
        for k in range(300):
            x = rows(7, 1000 * seed + k)
            held = [*held[-(seed % 3) :], (exe(x), x * WEIGHT)] if seed % 3 else [(exe(x), x * WEIGHT)]
            wrong.extend(seed for y, expected in held if not np.array_equal(y, expected))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_memory_serves_other_sizes(exe: Executable) -> None:
    places = {from_interface(exe(rows(n))) for n in (1000, 900)}
    assert len(places) == 2
    for n in (7, 900, 450, 1, 0, 899):
        y = exe(rows(n))
        np.testing.assert_array_equal(y, rows(n) * WEIGHT)
        assert from_interface(y) in places
        del y


def test_memory_in_use_does_not_serve_other_sizes(exe: Executable) -> None:
    kept = [exe(rows(n)) for n in (1000, 900)]
    for n in (7, 800, 450):
        exe(rows(n))
    for n, y in zip((1000, 900), kept, strict=True):
        np.testing.assert_array_equal(y, rows(n) * WEIGHT)


def test_kept_outputs_do_not_hold_the_memory_of_large_ones(exe: Executable) -> None:
    kept: list[np.ndarray] = []
    for _ in range(12):
        exe(rows(1000))
        exe(rows(999))
        kept.append(exe(rows(3)))
    large = [y for y in kept if isinstance(y.base, np.ndarray) and y.base.nbytes >= rows(999).nbytes]
    assert len(large) <= MAX_FRAMES
    for y in kept:
        np.testing.assert_array_equal(y, rows(3) * WEIGHT)


def test_too_large_memory_of_other_sizes_is_released(exe: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.call_frame.MAX_SPARE_BYTES", 4096)
    y = exe(rows(1000))
    owner = y.base
    assert owner is not None
    ref = weakref.ref(owner)
    del y, owner
    assert ref() is not None
    for _ in range(3):
        exe(rows(2))
    assert ref() is None


def test_large_outputs_and_intermediates_are_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 1 << 20
    assert most < MAX_REUSED_BYTES
    monkeypatch.setattr("tilewright.runtime.native_call.MAX_REUSED_BYTES", most)
    artifact = scale_artifact()
    unlimited = replace(artifact.manifest, symbols=(SymbolSpec("n", 0, None),))
    large = Executable(Artifact(unlimited, artifact.code, artifact.weights), threads=1)
    y = large(np.zeros((most // 12 + 1, 3), np.float32))
    ref = weakref.ref(y.base)
    del y
    assert ref() is None
    several = Executable(compress_artifact(), threads=1)
    out = several(rows(4), np.ones(4, np.bool_))[0]
    ref = weakref.ref(out if out.base is None else out.base)
    del out
    assert ref() is None


def test_idle_reference_count() -> None:
    m = OutputMemory((2, 3), np.dtype(np.float32))
    counts = [getrefcount(m.owner)]
    view = m.array.view()
    counts.append(getrefcount(m.owner))
    del view
    counts.append(getrefcount(m.owner))
    assert counts == [m.idle_references, m.idle_references + 1, m.idle_references]
