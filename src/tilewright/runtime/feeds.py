"""Feeds of a call: arrays from the caller's objects, with all problems reported at once.

Nothing is cast silently. Arrays that fit are used in place; others of the right dtype are copied only to make them
contiguous.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from tilewright.errors import Defect, FeedError, ShapeError, TilewrightError, pluralize
from tilewright.runtime.manifest import SymbolSpec, TensorSpec, format_dims
from tilewright.runtime.symbol_range import violated_limit
from tilewright.runtime.weights import numpy_dtype

_PYTHON_VALUES = (list, tuple, int, float, complex, bool)


def raise_problems(problems: Sequence[Defect]) -> None:
    """Raises one error for all problems: a ShapeError if all are about sizes, otherwise a FeedError; nothing for
    none."""
    if not problems:
        return
    kind: type[TilewrightError] = ShapeError if all(p.code == ShapeError.code for p in problems) else FeedError
    if len(problems) == 1:
        raise kind(problems[0].what, where=problems[0].where, hint=problems[0].hint)
    lines = "\n  ".join(str(problem) for problem in problems)
    raise kind(f"{pluralize(len(problems), 'problem')}\n  {lines}", where="call")


def collect_feeds(specs: Sequence[TensorSpec], feeds: Mapping[str, object], problems: list[Defect]) -> dict[str, Any]:
    """Arrays by name, in the order and with the dtypes of the specs; "any" passes untouched.

    Non-contiguous arrays are not copied yet (`make_contiguous`): a view of a few bytes can have any size, which is
    checked first. Missing, unknown and mistyped inputs are appended to `problems` and left out of the result.
    """
    arrays: dict[str, Any] = {}
    for spec in specs:
        if spec.name not in feeds:
            problems.append(Defect("feed", f"input '{spec.name}'", f"missing, expected {spec}"))
            continue
        if spec.dtype == "any":
            arrays[spec.name] = feeds[spec.name]
            continue
        array = feed_array(spec, feeds[spec.name], problems)
        if array is not None:
            arrays[spec.name] = array
    declared = {spec.name for spec in specs}
    names = ", ".join(f"'{spec.name}'" for spec in specs) or "none"
    for name in feeds:
        if name not in declared:
            what, hint = "the model has no such input", f"its inputs are {names}"
            problems.append(Defect("feed", f"input '{name}'", what, hint))
    return arrays


def feed_array(spec: TensorSpec, value: object, problems: list[Defect]) -> np.ndarray | None:
    """One input as an array of the spec's dtype in any memory order, or None and a problem.

    Accepts NumPy arrays, objects with `__dlpack__` or `__array__`, and Python numbers and lists of them.
    """
    where = f"input '{spec.name}'"
    dtype = numpy_dtype(spec.dtype)
    try:
        array = _to_numpy(value, dtype)
    except Exception as error:  # runs code of the caller's object, which may raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        what = f"expected {spec}, got a {type(value).__name__} that NumPy can't read ({reason})"
        problems.append(Defect("feed", where, what, "pass a NumPy array in main memory"))
        return None
    if spec.dtype == "string" and array.dtype.kind in "UST":
        return array.astype(object)
    if array.dtype != dtype:
        actual = array.dtype.name if array.dtype.isnative else f"big-endian {array.dtype.name}"
        hint = f"convert it with .astype('{spec.dtype}')"
        problems.append(Defect("feed", where, f"expected {spec}, got {actual} {format_dims(array.shape)}", hint))
        return None
    return array


def make_contiguous(name: str, array: Any) -> Any:
    """An input with its elements in row-major order, after its shape was checked; values other than arrays pass
    untouched.

    Raises:
        ShapeError: there is no memory for the copy.
    """
    if not isinstance(array, np.ndarray) or (array.flags.c_contiguous and array.flags.aligned):
        return array
    try:
        return np.array(array, order="C")
    except MemoryError as error:
        what = f"there is no memory for a contiguous copy of {array.nbytes} bytes"
        raise ShapeError(what, where=f"input '{name}'", hint="pass a contiguous array") from error


def make_picker(keys: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that picks the values at some keys of a mapping, or positions of a sequence, in order, and raises
    KeyError or IndexError for a missing one."""
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda values: tuple([values[key] for key in keys])


def check_mapping(feeds: object) -> None:
    """Raises FeedError where feeds are not a mapping of names to arrays."""
    if not isinstance(feeds, Mapping):
        what = f"expected a mapping of input names to arrays, got {type(feeds).__name__}"
        raise FeedError(what, where="call", hint="pass for example {'x': array}")


def _to_numpy(value: object, dtype: np.dtype) -> np.ndarray:
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if isinstance(value, _PYTHON_VALUES):
        # Python numbers have no width, so they take the input's, unless that changes their kind
        array = np.asarray(value)
        return array.astype(dtype) if array.size == 0 or np.can_cast(array.dtype, dtype, "same_kind") else array
    if hasattr(value, "__dlpack__"):
        source: Any = value
        return np.from_dlpack(source)
    if hasattr(value, "__array__"):
        return np.asarray(value)
    raise TypeError("it has neither __dlpack__ nor __array__")


@dataclass(frozen=True, slots=True)
class _Binding:
    """A bound symbolic dimension: its size, and where that came from."""

    size: int
    source: str


class InputSignature:
    """Declared dtypes and sizes of values, against which actual shapes are checked and symbols are bound."""

    def __init__(self, specs: Sequence[TensorSpec], symbols: Sequence[SymbolSpec], noun: str = "input") -> None:
        """Args: the values in order, every symbol in their dims, and the noun for a value in errors."""
        self._specs = tuple(specs)
        self._symbols = {symbol.name: symbol for symbol in symbols}
        self._noun = noun

    def collect(self, feeds: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, int]]:
        """Feeds as `collect_feeds` gives them, and the sizes of the symbolic dimensions that they determine.

        Raises:
            FeedError: no mapping; or a feed is missing, unknown, or of another type or rank.
            ShapeError: a size is not possible.
        """
        check_mapping(feeds)
        problems: list[Defect] = []
        arrays = collect_feeds(self._specs, feeds, problems)
        shapes = {s.name: arrays[s.name].shape for s in self._specs if s.name in arrays and s.dtype != "any"}
        sizes = self.bind(shapes, {}, problems)
        raise_problems(problems)
        return arrays, sizes

    def bind(
        self, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int], problems: list[Defect]
    ) -> dict[str, int]:
        """Sizes of the symbolic dimensions that the shapes determine, together with those bound before.

        Args:
            shapes: the actual shape of each value by name; missing values are not checked.
            sizes: sizes bound before.
            problems: every wrong rank, size or range is appended here.
        """
        bound = {name: _Binding(size, "earlier in the model") for name, size in sizes.items()}
        for spec in self._specs:
            if spec.name in shapes and spec.dtype != "any":
                self._bind_value(spec, shapes[spec.name], bound, problems)
        return {name: binding.size for name, binding in bound.items()}

    def _bind_value(
        self, spec: TensorSpec, shape: tuple[int, ...], bound: dict[str, _Binding], problems: list[Defect]
    ) -> None:
        where = f"{self._noun} '{spec.name}'"
        fixed = [(axis, dim) for axis, dim in enumerate(spec.dims) if isinstance(dim, int)]
        if len(shape) != len(spec.dims) or any(shape[axis] != dim for axis, dim in fixed):
            what = f"expected shape {format_dims(spec.dims)}, got {format_dims(shape)}"
            problems.append(Defect("feed", where, what))
            return
        for axis, dim in enumerate(spec.dims):
            if isinstance(dim, str):
                self._bind_symbol(dim, shape[axis], f"{where} axis {axis}", bound, problems)

    def _bind_symbol(
        self, name: str, size: int, place: str, bound: dict[str, _Binding], problems: list[Defect]
    ) -> None:
        binding = bound.get(name)
        if binding is not None:
            if binding.size != size:
                what = f"expected size {binding.size} for '{name}' as in {binding.source}, got {size}"
                problems.append(Defect("shape", place, what))
            return
        bound[name] = _Binding(size, place)
        symbol = self._symbols[name]
        if violated_limit(symbol, size):
            limits = f"within {symbol.lo}..{symbol.hi}" if symbol.hi is not None else f"of at least {symbol.lo}"
            what = f"expected a size for '{name}' {limits}, got {size}"
            lo, hi = min(symbol.lo, size), "<largest>" if symbol.hi is None else max(symbol.hi, size)
            hint = f"compile with --shape {name}:{lo}..{hi}, which warns where a node excludes the size"
            problems.append(Defect("shape", place, what, hint))
