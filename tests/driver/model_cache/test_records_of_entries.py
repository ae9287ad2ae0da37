"""The cache of models beside a store of records: which programs are measured decides."""

import sqlite3
from contextlib import closing

import pytest
from tests.driver import models
from tests.driver.model_cache.entries import cache_of, saved

import tilewright.driver.compile as pipeline
from tilewright.driver.compile_model import compile_with_options
from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.kernel_build.record_source import RecordSource
from tilewright.driver.model_cache.record_state import NO_RECORDS, has_records_of, record_state
from tilewright.driver.options import CompileOptions
from tilewright.errors import RecordWarning, StoreError

OPTIONS = CompileOptions()
"""What is constructed becomes a record."""


def test_records_decide(tmp_path, resources, counted):
    """A store that is gone, or has other measured programs, is asked again, and gets what a compilation keeps."""
    store = tmp_path / "records.db"
    data = models.mlp(3).SerializeToString()
    source = RecordSource(store)
    given = BuildResources(1, resources.cache, True, source)
    first = saved(compile_with_options(data, OPTIONS, resources=given), tmp_path)
    compile_with_options(data, OPTIONS, resources=given)
    assert len(counted) == 1
    # another model's compilation adds records that were not measured
    compile_with_options(models.small_convnet().SerializeToString(), OPTIONS, resources=given)
    compile_with_options(data, OPTIONS, resources=given)
    assert len(counted) == 2
    for path in tmp_path.glob("records.db*"):
        path.unlink()
    assert saved(compile_with_options(data, OPTIONS, resources=given), tmp_path) == first
    assert len(counted) == 3
    frozen = BuildResources(1, resources.cache, True, RecordSource(store, frozen=True))
    assert saved(compile_with_options(data, OPTIONS, resources=frozen), tmp_path) == first
    for path in tmp_path.glob("records.db*"):
        path.unlink()
    with pytest.raises(StoreError):
        compile_with_options(data, OPTIONS, resources=frozen)


def test_measured_records_are_used(tmp_path, resources, counted):
    store = tmp_path / "records.db"
    data = models.mlp(3).SerializeToString()
    given = BuildResources(1, resources.cache, True, RecordSource(store))
    compile_with_options(data, OPTIONS, resources=given)
    change(store, "UPDATE records SET kind = 1 WHERE id = (SELECT min(id) FROM records WHERE kind = 3)")
    compile_with_options(data, OPTIONS, resources=given)
    assert len(counted) == 2


def test_records_that_are_measured_meanwhile(tmp_path, resources, counted, monkeypatch):
    store = tmp_path / "records.db"
    data = models.mlp(3).SerializeToString()
    given = BuildResources(1, resources.cache, True, RecordSource(store))
    make = pipeline.make_compilation

    def racing(*args, **kwargs):
        result = make(*args, **kwargs)
        change(store, "UPDATE records SET kind = 1 WHERE id = (SELECT min(id) FROM records WHERE kind = 3)")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "make_compilation", racing)
        compile_with_options(data, OPTIONS, resources=given)
    assert cache_of(resources).usage().entries == 0
    compile_with_options(data, OPTIONS, resources=given)
    assert len(counted) == 2


def change(store, statement):
    with closing(sqlite3.connect(store)) as db, db:
        db.execute(statement)


def test_the_state_of_records(tmp_path, resources):
    """All measured records have a part in it: numbers are given again after pruning."""
    store = tmp_path / "records.db"
    source = RecordSource(store)
    assert record_state(source) == NO_RECORDS
    given = BuildResources(1, resources.cache, True, source)
    compile_with_options(models.mlp(3).SerializeToString(), OPTIONS, resources=given)
    constructed = record_state(source)
    assert constructed.measured == NO_RECORDS.measured
    change(store, "UPDATE records SET kind = 1")
    state = record_state(source)
    assert state.measured[0] > 1
    assert has_records_of(state, source)
    assert not has_records_of(constructed, source)
    first = "(SELECT min(id) FROM records)"
    change(store, f"UPDATE records SET digest = zeroblob(length(digest)) WHERE id = {first}")
    assert record_state(source).measured[0] == state.measured[0]
    assert not has_records_of(state, source)
    store.write_bytes(b"no store")
    assert record_state(source) is None
    assert not has_records_of(None, source)


def test_a_store_that_others_can_write_is_not_used(tmp_path, resources):
    """A compilation warns of the user's own store and goes on without it, whatever is kept."""
    store = tmp_path / "data" / "records.db"
    data = models.mlp(3).SerializeToString()
    source = RecordSource(store, is_default=True)
    given = BuildResources(1, resources.cache, True, source)
    compile_with_options(data, OPTIONS, resources=given)
    compile_with_options(data, OPTIONS, resources=given)
    kept = record_state(source)
    assert kept is not None
    for path in (store, store.parent):
        mode = path.stat().st_mode
        path.chmod(mode | 0o022)
        with pytest.warns(RecordWarning, match="others can write it"):
            compile_with_options(data, OPTIONS, resources=given)
        assert record_state(source) is None
        path.chmod(mode)
        assert record_state(source) == kept


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 9", "DROP TABLE tasks", "PRAGMA application_id = 5"])
def test_a_store_that_is_none_is_refused(statement, tmp_path, resources):
    store = tmp_path / "records.db"
    data = models.mlp(3).SerializeToString()
    given = BuildResources(1, resources.cache, True, RecordSource(store))
    compile_with_options(data, OPTIONS, resources=given)
    change(store, statement)
    with pytest.raises(StoreError):
        compile_with_options(data, OPTIONS, resources=given)


def test_the_hint_for_records_that_were_removed(tmp_path, resources):
    """An entry does not tell whether earlier records are still there, so it is a compilation that brings them back."""
    store = tmp_path / "records.db"
    data = models.mlp(3).SerializeToString()
    given = BuildResources(1, resources.cache, True, RecordSource(store))
    frozen = BuildResources(1, resources.cache, True, RecordSource(store, frozen=True))
    compile_with_options(data, OPTIONS, resources=given)
    change(store, "DELETE FROM records WHERE id < (SELECT max(id) FROM records)")
    compile_with_options(data, OPTIONS, resources=given)
    with pytest.raises(StoreError, match="cache=False"):
        compile_with_options(data, OPTIONS, resources=frozen)
    compile_with_options(data, OPTIONS, resources=BuildResources(1, None, True, RecordSource(store)))
    compile_with_options(data, OPTIONS, resources=frozen)
