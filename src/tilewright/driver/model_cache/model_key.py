"""Keys of whole compilations: everything that decides the artifact but the model's external data."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
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

_PACKAGES = ("llvmlite", "numpy", "onnx", "ml_dtypes")
"""Packages that compute or write a part of the artifact."""


def model_key(digest: str, options: CompileOptions, resources: BuildResources) -> str | None:
    """The key of a compilation, 64 hexadecimal digits; None for one that is not kept.

    Not kept are compilations with a plan of layouts, with operators that this process has registered, from records
    alone or from an export of records, and those whose options are wrong or no plain values.

    Args:
        digest: hash of the model's bytes.
        options: which code to generate.
        resources: what it may use.
    """
    records = resources.records
    if records is not None and (records.frozen or records.used is not None or records.path.suffix == ".jsonl"):
        return None
    if options.layouts is not None or not resources.with_code:
        return None
    try:
        load_operator_packages()
        if PYTHON_OPERATORS or REGISTERED_DEFINITIONS:
            return None
        target = Target.of(options.target)
        machine = choose_machine(options.machine, target)
        described = [machine.machine.name, str(machine.origin), machine.sha256]
        store = None if records is None else [str(records.path.absolute()), records.is_default]
        choices = [
            _plain(options.shapes), options.optimizer, options.machine is None, options.exact, options.winograd,
            options.fusion, options.variants,
        ]  # fmt: skip
        fields = [digest, asdict(target), described, choices, store, _versions()]
        return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    except (TilewrightError, TypeError, ValueError, OSError):
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
        return [_checked(x) for x in value]
    raise TypeError


@lru_cache(maxsize=1)
def _versions() -> list[str]:
    """The versions of this package, of Python, and of the packages that have a part in the artifact."""
    return [__version__, source_hash(), sys.version, *map(_version, _PACKAGES)]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
