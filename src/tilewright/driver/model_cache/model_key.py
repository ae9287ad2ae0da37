"""Keys of whole compilations: everything that decides the artifact but the model's external data."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tilewright.custom_operators import PYTHON_OPERATORS, REGISTERED_DEFINITIONS, load_operator_packages
from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.driver.options import CompileOptions
from tilewright.errors import TilewrightError
from tilewright.machine import Target
from tilewright.machine.choice import choose_machine
from tilewright.version import __version__, source_hash

_NUMPY_VARIABLES = ("NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "OPENBLAS_CORETYPE")
"""Environment variables that choose among NumPy's instructions."""

_PACKAGES = ("llvmlite", "numpy", "onnx", "ml_dtypes")
"""Packages that compute or write a part of the artifact."""


@dataclass(frozen=True, slots=True)
class ModelKey:
    """What decides a compilation.

    Attributes:
        text: 64 hexadecimal digits.
        machine: name, origin and hash of the machine's description.
    """

    text: str
    machine: tuple[str, str, str]


def model_key(digest: str, options: CompileOptions, resources: BuildResources) -> ModelKey | None:
    """The key of a compilation; None for one that is not kept.

    Not kept are compilations with a plan of layouts, with operators that this process has registered, from records
    alone or from an export of records, those whose options are wrong or no plain values, and all where the sources of
    this package have changed since it was imported.

    Args:
        digest: hash of the model's bytes.
        options: which code to generate.
        resources: what it may use.
    """
    records = resources.records
    if records is not None and (records.frozen or records.used is not None or records.path.suffix == ".jsonl"):
        return None
    if options.layouts is not None or not resources.with_code or source_hash() is None:
        return None
    try:
        load_operator_packages()
        if PYTHON_OPERATORS or REGISTERED_DEFINITIONS:
            return None
        target = Target.of(options.target)
        machine = choose_machine(options.machine, target)
        described = machine.machine.name, str(machine.origin), machine.sha256
        store = None if records is None else [str(records.path.absolute()), records.is_default]
        choices = [
            _plain(options.shapes), options.optimizer, options.machine is None, options.exact, options.winograd,
            options.fusion, options.variants,
        ]  # fmt: skip
        fields = [digest, asdict(target), _host(), described, choices, store, _versions()]
        return ModelKey(sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest(), described)
    except (TilewrightError, TypeError, ValueError, OSError, RecursionError):
        return None


def _plain(shapes: object) -> object:
    """The option `shapes` for JSON, which would not tell names from numbers.

    Raises:
        TypeError: it is no mapping by name.
    """
    if shapes is None:
        return None
    if not isinstance(shapes, Mapping):
        raise TypeError
    given: Mapping[Any, Any] = shapes
    if not all(type(name) is str for name in given):
        raise TypeError
    return [[name, _checked(value)] for name, value in given.items()]


def _checked(value: Any) -> Any:
    if value is None or type(value) in (str, int):
        return value
    if type(value) in (list, tuple):
        # (3, 8) is a range of a dimension, [3, 8] are the sizes of an input
        return [type(value).__name__, *map(_checked, value)]
    raise TypeError


def _host() -> list[Any]:
    """What decides the last bits of constants that NumPy computes, whatever the target is."""
    return [asdict(Target.host()), *(os.environ.get(name, "") for name in _NUMPY_VARIABLES)]


@lru_cache(maxsize=1)
def _versions() -> list[str | None]:
    """The versions of this package, of Python, and of the packages that have a part in the artifact."""
    return [__version__, source_hash(), sys.version, *map(_version, _PACKAGES)]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
