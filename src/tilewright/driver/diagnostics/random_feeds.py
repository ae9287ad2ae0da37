"""Random inputs of a compiled model, where a user gives none."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.driver.dimension_names import resolve_dimensions
from tilewright.errors import OptionError
from tilewright.runtime.manifest import FALLBACK_DTYPES, Manifest, TensorSpec
from tilewright.runtime.symbol_range import violated_limit
from tilewright.runtime.weights import numpy_dtype

DEFAULT_SIZE = 8
"""Size of a dynamic dimension where its range allows it."""


def random_feeds(manifest: Manifest, sizes: Mapping[str, int], ints: tuple[int, int], seed: int) -> dict[str, Any]:
    """Random arrays for all inputs: floats from a normal distribution, integers from a range.

    Args:
        manifest: of the compiled model.
        sizes: of dynamic dimensions, by name; others have `DEFAULT_SIZE`, or the nearest size in their range.
        ints: least and greatest integer.
        seed: of the random numbers.

    Raises:
        OptionError: a size is given for a dimension that does not exist, or is beyond its range; or an input's type
            has no random values.
    """
    symbols = {s.name: s for s in manifest.symbols}
    resolved = resolve_dimensions(sizes, symbols, "--size")
    given = {resolved[name]: size for name, size in sizes.items()}
    for name, size in given.items():
        if violated_limit(symbols[name], size):
            low, high = symbols[name].lo, symbols[name].hi
            what = f"{name} is within {low}..{'' if high is None else high}, got {size}"
            raise OptionError(what, where="--size", hint="give a size in this range, or compile with another --shape")
    chosen_sizes = {
        name: max(s.lo, min(DEFAULT_SIZE, DEFAULT_SIZE if s.hi is None else s.hi)) for name, s in symbols.items()
    }
    chosen_sizes |= given
    generator = np.random.default_rng(seed)
    return {spec.name: _random_array(spec, chosen_sizes, ints, generator) for spec in manifest.inputs}


def _random_array(
    spec: TensorSpec, sizes: Mapping[str, int], ints: tuple[int, int], generator: np.random.Generator
) -> np.ndarray[Any, Any]:
    shape = tuple(sizes[d] if isinstance(d, str) else d if d is not None else DEFAULT_SIZE for d in spec.dims)
    if spec.dtype in FALLBACK_DTYPES:
        raise OptionError(f"there are no random values of type {spec.dtype}", where=f"input '{spec.name}'")
    dtype = numpy_dtype(spec.dtype)
    if dtype.kind in "iu" and (ints[1] < np.iinfo(dtype).min or ints[0] > np.iinfo(dtype).max):
        what = f"{spec.dtype} has none of the numbers {ints[0]}..{ints[1]}"
        raise OptionError(what, where=f"input '{spec.name}'", hint="give a range that it has by --ints")
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
        low, high = max(ints[0], np.iinfo(dtype).min), min(ints[1], np.iinfo(dtype).max)
        return generator.integers(low, high, shape, endpoint=True).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)
