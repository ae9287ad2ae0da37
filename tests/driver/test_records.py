"""Records in compilations: what was constructed is constructed once, what was measured is used, all else stays."""

import os
import shutil
import sqlite3
import stat
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.driver import models

import tilewright
from tilewright.codegen.generator_version import generator_version
from tilewright.driver.compile import make_compilation
from tilewright.driver.kernel_build import kernel_builds, kernel_records
from tilewright.driver.kernel_build.build_resources import BuildResources, build_resources
from tilewright.driver.kernel_build.code_cache import CodeCache
from tilewright.driver.kernel_build.record_source import RecordSource, record_source, user_store
from tilewright.driver.options import CompileOptions
from tilewright.errors import OptionError, RecordWarning, StoreError
from tilewright.measure.records.jsonl import lines_of_rows, write_lines
from tilewright.measure.records.record import Record, RecordKind, machine_key
from tilewright.measure.records.store import RecordStore, open_store
from tilewright.optimize.interface import optimizer_named
from tilewright.optimize.measurer import Timing
from tilewright.runtime import Executable
from tilewright.schedule.step import Step

TIMING = Timing(1000.0, 0.01, 990.0, 20, 20, 0.0, False, 1500.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.db"


@pytest.fixture(scope="module")
def first_store(tmp_path_factory):
    """What the compilation of the model leaves in a store."""
    store = tmp_path_factory.mktemp("records") / "first.db"
    compiled(store)
    return store


@pytest.fixture
def filled(first_store, path):
    """A store in which the model's kernels are constructed."""
    shutil.copy(first_store, path)
    path.chmod(0o600)
    return path


def compiled(source, model=None, options=None, jobs=1, cache=None):
    source = RecordSource(source) if isinstance(source, Path) else source
    resources = BuildResources(jobs, cache, True, source)
    return make_compilation(models.mlp(3) if model is None else model, options or CompileOptions(), resources=resources)


def content(compilation):
    artifact = compilation.artifact()
    return artifact.code, artifact.manifest, {n: w.tobytes() for n, w in artifact.weights.items()}


@pytest.fixture(scope="module")
def unrecorded():
    return compiled(None)


def ruled(compilation, index=0):
    """The kernel with the program of another optimizer, and its record as a tuning's choice on this machine."""
    kernel = compilation.kernels[index]
    trace = optimizer_named("rule").optimize(kernel.task).trace
    assert trace != kernel.programs[0].trace
    machine = machine_key(compilation.build.machine_for(compilation.target))
    return kernel, Record(
        kernel.task, (trace,), TIMING, "search", machine, generator_version(), is_choice=True, created=1e9
    )


def add(path, *records):
    with open_store(path, "write") as store:
        store.add(records)


@pytest.mark.parametrize(("jobs", "model"), [(1, models.small_convnet), (2, models.mlp)])
def test_the_second_compilation_constructs_nothing_and_gives_the_same_bytes(path, jobs, model, monkeypatch):
    monkeypatch.setattr(kernel_builds, "MIN_TASKS", 1)
    unrecorded, first, second = (compiled(source, model(), jobs=jobs) for source in (None, path, path))
    assert first.constructions.constructed == unrecorded.constructions.constructed > 0
    assert first.constructions.recorded == 0
    assert (second.constructions.constructed, second.constructions.recorded) == (0, len(second.kernels))
    assert second.constructions.skipped_records == ()
    assert content(first) == content(second) == content(unrecorded)
    assert [k.optimizer for k in second.kernels] == [k.optimizer for k in unrecorded.kernels]
    with open_store(path) as store:
        assert store.count(RecordKind.CONSTRUCTION) == len(second.kernels)
        assert {r.kind for r in store} == {RecordKind.CONSTRUCTION, RecordKind.ESTIMATE}


def test_records_are_kept_where_the_code_is_cached(tmp_path, path, unrecorded):
    cache = CodeCache(tmp_path / "code")
    compiled(None, cache=cache)
    second = compiled(path, cache=cache)
    assert (second.constructions.constructed, second.constructions.cached) == (0, len(second.kernels))
    third = compiled(path)
    assert (third.constructions.constructed, third.constructions.recorded) == (0, len(third.kernels))
    assert content(third) == content(unrecorded)


def test_what_changed_sources_construct_is_not_kept(path, monkeypatch):
    monkeypatch.setattr(kernel_records, "sources_have_changed", lambda: True)
    compiled(path)
    with open_store(path) as store:
        assert store.count() == 0


@pytest.mark.parametrize(
    "options", [CompileOptions(optimizer="roller"), CompileOptions(variants=1), CompileOptions(machine="haswell")]
)
def test_other_options_are_constructed_anew(filled, options):
    assert compiled(filled, options=options).constructions.constructed > 0
    assert compiled(filled, options=options).constructions.constructed == 0


def test_a_measured_program_is_used(filled, tmp_path, unrecorded):
    kernel, choice = ruled(unrecorded)
    cache, path = CodeCache(tmp_path / "code"), filled
    compiled(path, cache=cache)
    add(path, choice)
    for cached in (0, len(unrecorded.kernels)):
        tuned = compiled(path, cache=cache)
        own = next(k for k in tuned.kernels if k.task.hash == kernel.task.hash)
        assert own.programs[0].trace == choice.trace
        assert own.optimizer == "search"
        assert (tuned.constructions.tuned, tuned.constructions.constructed) == (1, 0)
        assert tuned.constructions.cached >= cached - 1
    others = [k.programs[0].trace for k in tuned.kernels if k.task.hash != kernel.task.hash]
    assert others == [k.programs[0].trace for k in unrecorded.kernels if k.task.hash != kernel.task.hash]
    feeds = {"x": models.array(0, 3, 24)}
    outputs = [Executable(c.artifact()).run(feeds) for c in (tuned, unrecorded)]
    for a, b in zip(outputs[0].values(), outputs[1].values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_frozen_records_give_the_same_bytes(filled, tmp_path, unrecorded):
    _, choice = ruled(unrecorded)
    add(filled, choice)
    tuned = compiled(filled)
    lines = tmp_path / "records.jsonl"
    with open_store(filled) as store:
        write_lines(lines, lines_of_rows(store.rows(), print))
    for source in (filled, lines):
        frozen = compiled(RecordSource(source, frozen=True))
        assert content(frozen) == content(tuned)
        assert (frozen.constructions.constructed, frozen.constructions.tuned) == (0, 1)


def test_frozen_records_of_another_version_are_used(filled, unrecorded):
    with open_store(filled) as store:
        records = [replace(r, generator="0.0.1") for r in store]
    other = filled.with_name("other.db")
    add(other, *records)
    frozen = compiled(RecordSource(other, frozen=True))
    assert frozen.constructions.constructed == 0
    assert content(frozen) == content(unrecorded)
    assert compiled(other).constructions.constructed > 0


def test_frozen_records_that_lack_kernels_name_them(path, unrecorded):
    _, choice = ruled(unrecorded)
    add(path, choice)
    with pytest.raises(StoreError, match=r"no records of \d kernels: .*\(Softmax\).*compile without"):
        compiled(RecordSource(path, frozen=True))
    with pytest.raises(StoreError, match="there are no such records"):
        compiled(RecordSource(path.with_name("none.db"), frozen=True))


def with_trees(unrecorded, **changed):
    """A choice of a kernel by its own constructed program, of another version or machine."""
    kernel, choice = ruled(unrecorded)
    return kernel, replace(choice, **changed)


OTHER_MACHINE = "haswell, 4 cores, 0123456789abcdef"


def trace_of(compilation, kernel):
    return next(k for k in compilation.kernels if k.task.hash == kernel.task.hash).programs[0].trace


def test_a_choice_of_another_version_is_taken_where_nothing_speaks_against_it(filled, unrecorded):
    kernel, choice = with_trees(unrecorded, generator="0.0.1")
    add(filled, choice)
    tuned = compiled(filled)
    assert trace_of(tuned, kernel) == choice.trace
    assert tuned.constructions.tuned == 1


def test_a_choice_of_another_machine_without_a_tree_is_not_taken(filled, unrecorded):
    kernel, choice = with_trees(unrecorded, machine=OTHER_MACHINE)
    add(filled, choice)
    plain = compiled(filled)
    assert trace_of(plain, kernel) == trace_of(unrecorded, kernel)
    assert "no tile tree" in plain.constructions.skipped_records[0]
    assert content(plain) == content(unrecorded)


@pytest.mark.parametrize(
    ("version", "ratio", "is_taken"),
    [("0.0.1", 1.4, True), ("0.0.1", 1.6, False), (None, 1.05, True), (None, 1.2, False), (None, 0.5, True)],
)
def test_the_cost_model_judges_programs_of_others(filled, unrecorded, monkeypatch, version, ratio, is_taken):
    changed = {"machine": OTHER_MACHINE} if version is None else {"generator": version}
    kernel, choice = with_trees(unrecorded, **changed)
    add(filled, choice)
    monkeypatch.setattr(
        kernel_builds.KernelRecords, "_estimated_times", lambda self, record: [ratio * estimates[record.task.hash]]
    )
    estimates = {}
    constructions = kernel_builds.Constructions

    class Noted(constructions):
        def estimate(self, task):
            result = super().estimate(task)
            if result.nanoseconds:
                estimates[task.hash] = result.nanoseconds[0]
            return result

    monkeypatch.setattr(kernel_builds, "Constructions", Noted)
    compilation = compiled(filled)
    assert (trace_of(compilation, kernel) == choice.trace) is is_taken
    assert bool(compilation.constructions.skipped_records) is not is_taken


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_program_that_does_not_fit_is_skipped_with_a_warning(filled, unrecorded, jobs, monkeypatch):
    monkeypatch.setattr(kernel_builds, "MIN_TASKS", 1)
    _, choice = ruled(unrecorded)
    add(filled, replace(choice, traces=((Step("split", ("no such loop", 4, ("a", "b"))),),)))
    with pytest.warns(RecordWarning, match=r"can't be built.*it is constructed"):
        compilation = compiled(filled, jobs=jobs)
    assert content(compilation) == content(unrecorded)
    assert len(compilation.constructions.skipped_records) == 1
    assert compilation.constructions.tuned == 0
    with pytest.raises(StoreError, match="can't be built"):
        compiled(RecordSource(filled, frozen=True))


def test_a_damaged_store_of_the_user_does_not_stop_a_compilation(path, unrecorded):
    path.write_bytes(b"damaged" * 1000)
    path.chmod(0o600)
    path.parent.chmod(0o700)
    with pytest.warns(RecordWarning, match=r"compiled without records: .*is no store"):
        compilation = compiled(RecordSource(path, is_default=True))
    assert content(compilation) == content(unrecorded)
    assert path.read_bytes() == b"damaged" * 1000
    with pytest.raises(StoreError, match=r"is no store of records; check the path"):
        compiled(path)


def overwritten_pages(path):
    """Every page of a file after the first, which has the schema, but for those of tasks and texts."""
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 8] = b"\xff" * 8
    path.write_bytes(data)


def unreadable_texts(path):
    db = sqlite3.connect(path)
    db.execute("UPDATE texts SET text = CAST(x'ff' || CAST(text AS BLOB) AS TEXT)")
    db.commit()
    db.close()


def test_damage_within_the_users_store_does_not_stop_a_compilation(filled, unrecorded):
    filled.parent.chmod(0o700)
    overwritten_pages(filled)
    with pytest.warns(RecordWarning, match=r"compiled without records: .*damaged") as warned:
        compilation = compiled(RecordSource(filled, is_default=True))
    assert len(warned) == 1
    assert content(compilation) == content(unrecorded)
    for source in (filled, RecordSource(filled, is_default=True, frozen=True)):
        with pytest.raises(StoreError, match="damaged"):
            compiled(source)


def test_texts_of_the_users_store_that_are_no_utf8_do_not_stop_a_compilation(filled, unrecorded):
    filled.parent.chmod(0o700)
    unreadable_texts(filled)
    assert content(compiled(RecordSource(filled, is_default=True))) == content(unrecorded)


def test_a_store_that_gets_damaged_during_a_compilation_does_not_stop_it(path, unrecorded, monkeypatch):
    """Look-ups answer, and what is kept can't be written."""

    def broken(self, records):
        raise sqlite3.DatabaseError("disk image is malformed")

    path.parent.chmod(0o700)
    monkeypatch.setattr(RecordStore, "add", broken)
    with pytest.warns(RecordWarning, match="records are not kept"):
        compilation = compiled(RecordSource(path, is_default=True))
    assert content(compilation) == content(unrecorded)


def test_a_store_that_others_may_write_is_not_the_users(path):
    compiled(path)
    path.chmod(0o666)
    with pytest.warns(RecordWarning, match="others can write it"):
        compilation = compiled(RecordSource(path, is_default=True))
    assert compilation.constructions.recorded == 0
    assert compiled(path).constructions.recorded > 0, "a store that is named is the user's decision"


def test_where_nothing_can_be_kept_compilations_go_on(tmp_path):
    (tmp_path / "file").write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(RecordSource(tmp_path / "file" / "records.db", is_default=True))
    with pytest.raises(StoreError, match="can't be written"):
        compiled(tmp_path / "file" / "records.db")


def test_an_export_is_only_read(tmp_path):
    lines = tmp_path / "r.jsonl"
    with pytest.raises(StoreError, match="there are no such records"):
        compiled(lines)
    write_lines(lines, lines_of_rows((), print))
    before = lines.read_bytes()
    assert compiled(lines).constructions.constructed > 0
    assert lines.read_bytes() == before


def test_sources(tmp_path):
    home = {"HOME": "/h", "XDG_DATA_HOME": "/data"}
    assert user_store(home) == Path("/data/tilewright/records.db")
    assert record_source(environ=home) == RecordSource(Path("/data/tilewright/records.db"), True)
    assert record_source(environ={**home, "TILEWRIGHT_RECORDS": "/x.db"}) == RecordSource(Path("/x.db"))
    assert record_source(environ={**home, "TILEWRIGHT_RECORDS": "off"}) is None
    assert record_source(False, environ=home) is None
    assert record_source("y.db", True, {"TILEWRIGHT_RECORDS": "off"}) == RecordSource(Path("y.db"), frozen=True)
    for records, frozen, where in ((False, True, "frozen"), (5, False, "argument 'records'"), ("a", 1, "'frozen'")):
        with pytest.raises(OptionError, match=where):
            record_source(records, frozen, home)
    assert build_resources(environ=home).records == RecordSource(Path("/data/tilewright/records.db"), True)


def test_the_users_store_is_private(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("TILEWRIGHT_RECORDS")
    executable = tilewright.compile(models.mlp(3).SerializeToString())
    store = tmp_path / "tilewright" / "records.db"
    assert executable is not None
    assert stat.S_IMODE(os.stat(store).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(store.parent).st_mode) == 0o700
    assert tilewright.compile(models.mlp(3).SerializeToString(), records=store, frozen=True) is not None
    with pytest.raises(StoreError, match="no records"):
        tilewright.compile(models.small_convnet().SerializeToString(), frozen=True)
