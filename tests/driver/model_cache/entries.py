"""Compilations that are kept, for the tests of the cache of models."""

import onnx

from tilewright.driver.model_cache.model_cache import ModelCache
from tilewright.driver.model_cache.model_entry import read_head
from tilewright.driver.options import CompileOptions

OPTIONS = CompileOptions(optimizer="rule")
"""Of most tests here, which are not about constructed programs."""


def cache_of(resources):
    return ModelCache(resources.cache.folder.parent / "models")


def saved(executable, folder):
    path = folder / "saved.tw"
    executable.save(path)
    return path.read_bytes()


def entry_path(resources):
    (path,) = [p for p in cache_of(resources).folder.rglob("*") if p.is_file()]
    return path


def written(folder, model, external):
    """The path of a model's file, with its weights beside it or in it."""
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    if external:
        onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=16)
    else:
        onnx.save(model, path)
    return path


def weight_sources(resources):
    """Where the weights of the only entry come from: parts of the entry, or of which file."""
    path = entry_path(resources)
    with open(path, "rb") as file:
        head = read_head(file.fileno(), path.name)
    return [w[3] for w in head.fields["weights"]]
