"""The engines under test, each as a function from feeds to outputs by name."""

import time
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.zoo.model import Model
from benchmarks.zoo.timing import Arrays, RunModel


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A model compiled by Tilewright: how to run it, how long that took, and what it warned of."""

    executable: Any
    seconds: float
    warnings: tuple[str, ...]

    def run(self, feeds: Arrays) -> Arrays:
        """Return the outputs by name."""
        return self.executable.run(dict(feeds))


def tilewright_engine(model: Model, threads: int, optimizer: str | None = None) -> CompiledModel:
    """Compile the model with its declared ranges; warnings (operators left to the reference evaluator) are kept.

    Without the name of an optimizer the default one is used.
    """
    tilewright: Any = import_module("tilewright")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        ranges = dict(model.ranges) or None
        # from nothing: no code and no records of earlier compilations
        executable = tilewright.compile(
            model.path, shapes=ranges, threads=threads, optimizer=optimizer, cache=False, records=False
        )
        seconds = time.perf_counter() - start
    return CompiledModel(executable, seconds, tuple(str(entry.message) for entry in caught))


def prepared_engine(model: Model, threads: int, optimizer: str | None, folder: Path) -> CompiledModel:
    """The artifact of the model in a folder, compiled first where this version of the generator has left none there."""
    generator_version: Any = import_module("tilewright.codegen.generator_version").generator_version
    path = folder / f"{model.name}-{optimizer or 'default'}-{threads}-{generator_version()[:16]}.tw"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        tilewright_engine(model, threads, optimizer).executable.save(path)
    start = time.perf_counter()
    executable = import_module("tilewright").load(path, threads=threads)
    return CompiledModel(executable, time.perf_counter() - start, ())


def load_artifact(path: Path, threads: int) -> RunModel:
    """Return the compiled model that `path` holds."""
    tilewright: Any = import_module("tilewright")
    executable = tilewright.load(path, threads=threads)
    return lambda feeds: executable.run(dict(feeds))
