"""Inputs of the command line: npz files and random arrays."""

import argparse
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import FeedError, OptionError
from tilewright.runtime.manifest import FALLBACK_DTYPES, Manifest, TensorSpec
from tilewright.runtime.weights import numpy_dtype

Arrays = dict[str, Any]

DEFAULT_SIZE = 8
"""Size of a dynamic dimension in random inputs where its range allows it."""


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
    group.add_argument("--seed", type=int, default=0, help="random inputs: seed (default: 0)")


def feeds_of(options: argparse.Namespace, manifest: Manifest, *, random_default: bool) -> Arrays:
    """The inputs that the options select.

    Raises:
        OptionError: the options contradict each other, or name a dimension that does not exist.
        FeedError: the file can't be read.
    """
    if options.seed < 0:
        raise OptionError(f"expected a number of at least 0, got {options.seed}", where="--seed")
    if options.inputs is not None:
        if options.random or options.size:
            raise OptionError("--inputs excludes --random and --size", where="inputs")
        return read_npz(options.inputs)
    if not (options.random or random_default):
        raise OptionError("the model needs inputs", where="inputs", hint="give --inputs X.npz or --random")
    return random_inputs(manifest, parse_sizes(options.size), _parse_range(options.ints), options.seed)


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
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
    except OSError as error:
        raise OptionError(f"can't be written: {error.strerror}", where=f"file '{path}'") from error


def parse_sizes(entries: Sequence[str]) -> dict[str, int]:
    """{"batch": 4} from ["batch=4"].

    Raises:
        OptionError: an entry has another form.
    """
    sizes: dict[str, int] = {}
    for entry in entries:
        name, equals, value = entry.rpartition("=")
        if not equals or not value.isdigit():
            raise OptionError(f"expected NAME=N, got {entry!r}", where="--size", hint="for example --size batch=4")
        sizes[name] = int(value)
    return sizes


def _parse_range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise OptionError(f"expected LO..HI, got {text!r}", where="--ints", hint="for example --ints 0..999")
    return int(match[1]), int(match[2])


def random_inputs(manifest: Manifest, sizes: Mapping[str, int], ints: tuple[int, int], seed: int) -> Arrays:
    """Random arrays for all inputs: floats from a normal distribution, integers from a range.

    Raises:
        OptionError: a size is given for a dimension that does not exist, or an input's type has no random values.
    """
    symbols = {s.name: s for s in manifest.symbols}
    for name in sizes:
        if name not in symbols:
            listed = ", ".join(f"'{n}'" for n in symbols) or "none"
            raise OptionError(f"the model has no dynamic dimension {name!r}; it has: {listed}", where="--size")
    chosen_sizes = {
        name: max(s.lo, min(DEFAULT_SIZE, DEFAULT_SIZE if s.hi is None else s.hi)) for name, s in symbols.items()
    }
    chosen_sizes |= sizes
    generator = np.random.default_rng(seed)
    return {spec.name: _random_array(spec, chosen_sizes, ints, generator) for spec in manifest.inputs}


def _random_array(
    spec: TensorSpec, sizes: Mapping[str, int], ints: tuple[int, int], generator: np.random.Generator
) -> np.ndarray[Any, Any]:
    shape = tuple(sizes[d] if isinstance(d, str) else d if d is not None else DEFAULT_SIZE for d in spec.dims)
    if spec.dtype in FALLBACK_DTYPES:
        raise OptionError(f"there are no random values of type {spec.dtype}", where=f"input '{spec.name}'")
    dtype = numpy_dtype(spec.dtype)
    try:
        return _random_values(spec.dtype, dtype, shape, ints, generator)
    except (MemoryError, ValueError) as error:
        what = f"there is no memory for random values of shape {list(shape)}"
        raise OptionError(what, where=f"input '{spec.name}'", hint="give smaller sizes by --size") from error


def _random_values(
    name: str, dtype: Any, shape: tuple[int, ...], ints: tuple[int, int], generator: np.random.Generator
) -> np.ndarray[Any, Any]:
    if name == "bool":
        return generator.random(shape) < 0.5
    if name.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        return generator.integers(max(ints[0], limits.min), min(ints[1], limits.max), shape, endpoint=True).astype(
            dtype
        )
    return generator.standard_normal(shape).astype(dtype)
