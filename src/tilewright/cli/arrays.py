"""Inputs of the command line: npz files and random arrays."""

import argparse
import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from tilewright.driver.diagnostics.random_feeds import DEFAULT_SIZE, random_feeds
from tilewright.errors import FeedError, OptionError
from tilewright.runtime.feeds import InputSignature
from tilewright.runtime.manifest import Manifest

Arrays = dict[str, Any]


def add_input_options(parser: argparse.ArgumentParser, *, random_default: bool) -> None:
    """Adds the options that choose the inputs."""
    group = parser.add_argument_group("inputs")
    role = "default" if random_default else "or"
    group.add_argument("--inputs", metavar="X.npz", help="arrays by input name")
    group.add_argument("--random", action="store_true", help=f"random inputs ({role})")
    group.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help=f"random inputs: size of a dynamic dimension (default: {DEFAULT_SIZE}, or the nearest in its range)",
    )
    group.add_argument(
        "--ints", default="0..1", metavar="LO..HI", help="random inputs: range of integers (default: 0..1)"
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="random inputs: seed (default: 0)")


@dataclass(frozen=True, slots=True)
class InputChoice:
    """The inputs that options select, checked as far as they can be without the model.

    Attributes:
        arrays: by input name; None for random ones.
        sizes: of dynamic dimensions, by name.
        ints: least and greatest random integer.
        seed: of the random numbers.
    """

    arrays: Arrays | None
    sizes: Mapping[str, int]
    ints: tuple[int, int]
    seed: int

    def feeds(self, manifest: Manifest) -> Arrays:
        """The inputs of a model.

        Raises:
            OptionError: a size is none of the model's.
        """
        return random_feeds(manifest, self.sizes, self.ints, self.seed) if self.arrays is None else self.arrays

    def check(self, manifest: Manifest) -> None:
        """Checks that a model takes these inputs, by what it declares.

        Raises:
            OptionError: a size is none of the model's, or beyond its range.
            FeedError: an array is missing, unknown, or of another type or rank.
            ShapeError: a size of an array is not possible.
        """
        InputSignature(manifest.inputs, manifest.symbols).collect(self.feeds(manifest))


def input_choice(options: argparse.Namespace, *, random_default: bool) -> InputChoice:
    """The inputs that the options of `add_input_options` select, before a model is compiled for them.

    Raises:
        OptionError: the options contradict each other, or have another form.
        FeedError: the file can't be read.
    """
    if options.seed < 0:
        raise OptionError(f"expected a number of at least 0, got {options.seed}", where="--seed")
    if options.inputs is not None and (options.random or options.size):
        raise OptionError("--inputs excludes --random and --size", where="inputs")
    if options.inputs is None and not (options.random or random_default):
        raise OptionError("the model needs inputs", where="inputs", hint="give --inputs X.npz or --random")
    arrays = None if options.inputs is None else read_npz(options.inputs)
    return InputChoice(arrays, parse_sizes(options.size), _parse_range(options.ints), options.seed)


def read_npz(path: str) -> Arrays:
    """The arrays of an npz file.

    Raises:
        FeedError: the file can't be read, or holds something else than arrays.
    """
    where = f"file '{path}'"
    try:
        with open(path, "rb") as source:
            file = np.load(source, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise FeedError("expected an npz file with arrays by name", where=where, hint=_NPZ_HINT)
            return {name: _read_member(file, name, where) for name in file.files}
    except OSError as error:
        raise FeedError(f"can't be read: {error.strerror or error}", where=where) from error
    except _NPZ_ERRORS as error:
        raise FeedError("is not an npz file of arrays", where=where, hint=_NPZ_HINT) from error


_SIZE = re.compile("[0-9]{1,18}")

_INTEGERS = re.compile(r"(-?[0-9]{1,20})\.\.(-?[0-9]{1,20})")

_NPZ_HINT = "write it with numpy.savez"

_NPZ_ERRORS = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""Errors of NumPy and zipfile for files that are no npz, damaged, encrypted, or compressed by other methods."""


def _read_member(file: Any, name: str, where: str) -> Any:
    """One array of an npz file; replaces NumPy's error messages, which advise unpickling."""
    try:
        value = file[name]
    except _NPZ_ERRORS as error:
        what = f"'{name}' is damaged, or an array of Python objects, which are not read"
        raise FeedError(what, where=where, hint=_NPZ_HINT) from error
    if not isinstance(value, np.ndarray):
        raise FeedError(f"'{name}' is not an array", where=where, hint=_NPZ_HINT)
    return value


def write_npz(path: str, arrays: Mapping[str, Any]) -> None:
    """Writes arrays into an npz file; names may be any text, unlike with `numpy.savez`.

    Raises:
        OptionError: the file can't be written.
    """
    try:
        with open(path, "wb") as target, zipfile.ZipFile(_writable(target), "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
    except OSError as error:
        raise OptionError(f"can't be written: {error.strerror}", where=f"file '{path}'") from error


def _writable(target: IO[bytes]) -> "IO[bytes] | _Unseekable":
    """A file that zip archives can be written into: of a device such as /dev/null without its positions, which are
    always 0."""
    return target if stat.S_ISREG(os.fstat(target.fileno()).st_mode) else _Unseekable(target)


class _Unseekable(io.RawIOBase):
    """A file that can be written only."""

    def __init__(self, target: IO[bytes]) -> None:
        super().__init__()
        self._sink = target

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Writes bytes; returns their number."""
        return self._sink.write(data)


def parse_sizes(entries: Sequence[str]) -> dict[str, int]:
    """{"batch": 4} from ["batch=4"].

    Raises:
        OptionError: an entry has another form, or a name occurs twice.
    """
    sizes: dict[str, int] = {}
    for entry in entries:
        name, equals, value = entry.rpartition("=")
        if not equals or _SIZE.fullmatch(value) is None:
            raise OptionError(f"expected NAME=N, got {entry!r}", where="--size", hint="for example --size batch=4")
        if name in sizes:
            raise OptionError(f"{name!r} is given twice", where="--size")
        sizes[name] = int(value)
    return sizes


def _parse_range(text: str) -> tuple[int, int]:
    match = _INTEGERS.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise OptionError(f"expected LO..HI, got {text!r}", where="--ints", hint="for example --ints 0..999")
    return int(match[1]), int(match[2])
