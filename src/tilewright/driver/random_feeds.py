"""Random inputs of a compiled model, where a user gives none."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.errors import OptionError
from tilewright.runtime.manifest import FALLBACK_DTYPES, Manifest, TensorSpec
from tilewright.runtime.weights import numpy_dtype

DEFAULT_SIZE = 8
"""Size of a dynamic dimension where its range allows it."""


def random_feeds(manifest: Manifest, sizes: Mapping[str, int], ints: tuple[int, int], seed: int) -> dict[str, Any]:
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
