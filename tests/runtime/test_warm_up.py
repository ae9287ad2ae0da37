"""One-time work at load: the first call finds code, threads and memory ready."""

import ctypes
import mmap
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.runtime.process import page_faults, python

import tilewright
from tilewright.machine.alignment import GUARD_BYTES
from tilewright.runtime import call_frame, executable
from tilewright.runtime.call_frame import address_of
from tilewright.runtime.pages import HUGE_PAGE_BYTES, populate, populate_read
from tilewright.runtime.workspace import WorkspaceBlock


def chain(size: object) -> onnx.ModelProto:
    """Softmax along rows, then along columns: 8 MiB of input, workspace and output each for a size of 1024."""
    kind = [size, 2048]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, kind) for name in ("x", "y")]
    nodes = [helper.make_node("Softmax", ["x"], ["h"], axis=1), helper.make_node("Softmax", ["h"], ["y"], axis=0)]
    return helper.make_model(
        helper.make_graph(nodes, "chain", value[:1], value[1:]), opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )  # fmt: skip


def test_first_call_of_a_loaded_model_faults_few_pages(tmp_path: Path) -> None:
    """8 MiB of workspace and as much of outputs are 4096 pages."""
    tilewright.compile(chain(1024)).save(tmp_path / "m.tw")
    process = python(f"""
        import numpy as np, tilewright
        from tests.runtime.process import page_faults
        from tilewright.runtime import fast_call
        model = tilewright.load({str(tmp_path / "m.tw")!r})
        x = np.random.default_rng(0).standard_normal((1024, 2048)).astype(np.float32)
        linked, before = fast_call._link_once.cache_info().currsize, page_faults()
        y = model(x)
        print(linked, page_faults() - before)
    """)
    assert process.returncode == 0, process.stderr
    linked, mapped = map(int, process.stdout.split())
    assert linked == 1
    assert mapped < 400


def test_first_calls_of_declared_sizes_fault_few_pages(tmp_path: Path) -> None:
    tilewright.compile(chain("n"), shapes={"n": "1..1024"}).save(tmp_path / "m.tw")
    process = python(f"""
        import numpy as np, tilewright
        from tests.runtime.process import page_faults
        model = tilewright.load({str(tmp_path / "m.tw")!r})
        inputs = [np.ones((n, 2048), np.float32) for n in (700, 1024, 3, 900, 512)]
        before = page_faults()
        for x in inputs:
            model(x)
        print(page_faults() - before)
    """)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) < 400


def test_sizes_without_a_maximum_map_no_memory_ahead() -> None:
    model = tilewright.compile(chain("n"))
    assert model._pool.bytes == 0


def test_large_maxima_map_no_memory_ahead() -> None:
    model = tilewright.compile(chain("n"), shapes={"n": "1..20000"})
    assert model._pool.bytes == 0


def test_compiled_model_is_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[str] = []
    link = executable.link
    monkeypatch.setattr(executable, "link", lambda *given: links.append("linked") or link(*given))
    model = tilewright.compile(chain("n"))
    assert links == ["linked"]
    x = np.random.default_rng(1).standard_normal((3, 2048)).astype(np.float32)
    rows = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(model(x), np.exp(rows) / np.exp(rows).sum(0), rtol=1e-4)
    assert links == ["linked"]


def test_model_for_another_machine_is_not_linked() -> None:
    assert tilewright.compile(chain("n"), target="aarch64").manifest.target.arch == "aarch64"


def test_very_large_memory_is_not_prefaulted(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr("tilewright.runtime.native_call.MAX_REUSED_BYTES", 1 << 20)
    monkeypatch.setattr(call_frame, "populate", lambda address, size: taken.append(size))  # pyright: ignore[reportUnknownLambdaType]
    tilewright.compile(chain(1024))
    assert taken == []


@pytest.mark.parametrize("size", [1, 5000, 3 * HUGE_PAGE_BYTES + 17])
def test_populated_memory_keeps_its_content_and_faults_no_more(size: int) -> None:
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    array = np.frombuffer(memory, np.uint8)
    array[0] = 7
    populate(address_of(array), size)
    faults_before = page_faults()
    array[1:size] = 3
    assert page_faults() - faults_before < 8
    assert array[0] == 7
    populate_read(address_of(array), size)
    assert array[:size].sum() == 7 + 3 * (size - 1)


def test_workspace_is_prefaulted() -> None:
    for size in (0, 100, 1 << 20, 2 * HUGE_PAGE_BYTES + 5):
        block = WorkspaceBlock(size)
        assert block.address % (HUGE_PAGE_BYTES if size >= HUGE_PAGE_BYTES else 64) == 0
        faults_before = page_faults()
        ctypes.memset(block.address, 1, size)
        assert page_faults() - faults_before < 8


def test_guard_bytes_after_a_workspace() -> None:
    """The bytes of a vector register after it are mapped, so that masked loads there find a present page."""
    block = WorkspaceBlock(2 * HUGE_PAGE_BYTES)
    faults_before = page_faults()
    ctypes.string_at(block.address + block.size, GUARD_BYTES)
    assert page_faults() == faults_before
