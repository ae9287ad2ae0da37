"""Workers that start before the compiler is imported."""

import subprocess
import sys

import pytest
from tests.driver import models

import tilewright.driver.compile_model as driver
from tilewright.driver.compile import make_compilation
from tilewright.driver.kernel_build import early_workers as module
from tilewright.driver.kernel_build import kernel_builds
from tilewright.driver.kernel_build.build_resources import BuildResources, build_resources
from tilewright.driver.kernel_build.early_workers import TENSORS_PER_WORKER, early_workers
from tilewright.driver.options import CompileOptions
from tilewright.errors import MeasureError, SourcesChangedError
from tilewright.measure import started_program, worker_process
from tilewright.measure.started_program import start_program
from tilewright.measure.worker_process import WorkerProcess

MANY = 100 * TENSORS_PER_WORKER


@pytest.fixture
def started(monkeypatch):
    """The programs that are started."""
    programs = []

    def noted(name):
        programs.append(start_program(name))
        return programs[-1]

    monkeypatch.setattr(module, "start_program", noted)
    return programs


@pytest.mark.parametrize(
    ("jobs", "tensors", "count"),
    [(1, MANY, 0), (3, MANY, 2), (3, TENSORS_PER_WORKER, 1), (3, TENSORS_PER_WORKER - 1, 0), (3, 0, 0)],
)
def test_their_number(started, jobs, tensors, count):
    with early_workers(BuildResources(jobs), tensors) as used:
        assert used.started == started
        assert len(started) == count
        assert all(p.process.poll() is None for p in started)
    assert not any(p.process.poll() is None for p in started)


def test_they_end_with_an_error(started):
    with pytest.raises(KeyboardInterrupt), early_workers(BuildResources(3), MANY):
        raise KeyboardInterrupt
    assert len(started) == 2
    assert not any(p.process.poll() is None for p in started)


def test_where_none_can_start_there_are_none(monkeypatch):
    def refused(name):
        raise MeasureError("no processes here", where="test")

    monkeypatch.setattr(module, "start_program", refused)
    with early_workers(BuildResources(3), MANY) as used:
        assert used.started == []


def test_without_a_place_for_temporary_files_there_are_none(monkeypatch):
    def refused():
        raise FileNotFoundError("no usable temporary directory found")

    monkeypatch.setattr(started_program.tempfile, "TemporaryFile", refused)
    with early_workers(BuildResources(3), MANY) as used:
        assert used.started == []


def test_a_worker_of_other_sources_is_refused(monkeypatch):
    for own in ("another", None):
        monkeypatch.setattr(worker_process, "source_hash", lambda own=own: own)
        with pytest.raises(SourcesChangedError, match=r"the sources of this package have changed.*start this program"):
            WorkerProcess(module=module.MODULE)


def test_where_sources_have_changed_there_are_none(started, monkeypatch):
    monkeypatch.setattr(module, "source_hash", lambda: None)
    with early_workers(BuildResources(3), MANY) as used:
        assert used.started == started == []


def test_a_compilation_takes_them(started, monkeypatch):
    monkeypatch.setattr(kernel_builds, "MIN_TASKS", 1)
    expected = make_compilation(models.small_convnet(), resources=BuildResources(1, None, True)).artifact().code
    with early_workers(BuildResources(2, None, True), MANY) as used:
        assert make_compilation(models.small_convnet(), resources=used).artifact().code == expected
        assert used.started == []
    assert len(started) == 1
    assert started[0].process.poll() is not None


def test_models_of_many_tensors_have_them(started, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "TENSORS_PER_WORKER", 1)
    content = models.small_convnet().SerializeToString()
    for count in (1, 1):
        # the second one is known
        resources = build_resources(2, True, {"XDG_CACHE_HOME": str(tmp_path)}, False)
        driver.compile_with_options(content, CompileOptions(), resources=resources)
        assert len(started) == count
    assert started[0].process.poll() is not None


def test_they_import_no_part_of_the_compiler():
    code = f"import sys, {module.__name__}; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    compiler = ("tilewright.expr", "tilewright.graph", "tilewright.optimize", "tilewright.codegen", "llvmlite", "onnx")
    assert not [m for m in answer.stdout.split() if m.startswith(compiler)]
