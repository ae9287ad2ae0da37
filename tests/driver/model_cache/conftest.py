"""A cache of models, and the compilations that are made beside it."""

import pytest

import tilewright.driver.compile as pipeline
from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.kernel_build.code_cache import CodeCache


@pytest.fixture
def resources(tmp_path):
    return BuildResources(1, CodeCache(tmp_path / "cache" / "code"), True)


@pytest.fixture
def counted(monkeypatch):
    """Options of the compilations that the pipeline makes."""
    calls = []
    make = pipeline.make_compilation

    def counting(model, options, *args, **kwargs):
        calls.append(options)
        return make(model, options, *args, **kwargs)

    monkeypatch.setattr(pipeline, "make_compilation", counting)
    return calls
