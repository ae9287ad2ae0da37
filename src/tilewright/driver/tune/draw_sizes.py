"""Sizes at which kernels of dynamic sizes are measured: drawn from the ranges of the model's symbols.

`batch=1:8,seq=16..512` says which sizes a model sees: `NAME=LOW..HIGH` is a range, `NAME=SIZE:WEIGHT` one size with its
share of the calls. Names are those of `dimension_names.py`. Sizes of a range are drawn evenly on a logarithmic scale,
always the same ones for one seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log

import numpy as np

from tilewright.driver.dimension_names import resolve_dimensions
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.errors import OptionError
from tilewright.expr.nodes import Var
from tilewright.expr.traversal import free_vars
from tilewright.tile.shape_samples import (
    Ranges,
    representative_size,
    sample_shapes,
    sampled_range,
    value_of,
)

DRAWN_SHAPES = 5
"""Sizes of the model that kernels are measured at."""

MAX_SIZE = 1 << 40
"""Largest size that a user may name."""

HINT = "for example batch=1:8,batch=4:1,seq=16..512: a size with a weight, or a range"


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """Sizes of one symbol that a user names: `low` to `high`, with a weight."""

    low: int
    high: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Drawn sizes of the model's symbols.

    Attributes:
        shapes: sizes of all symbols, the most representative ones first; one empty shape where there are no symbols.
        weights: their shares of the calls, which add up to 1.
        names: the user's names of symbols, by identifier; a symbol without one keeps its own.
    """

    shapes: tuple[Mapping[Var, int], ...]
    weights: tuple[float, ...]
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    def named(self, shape: Mapping[Var, int]) -> dict[str, int]:
        """Sizes by the user's names."""
        return {self.names.get(v.name, v.name): size for v, size in shape.items()}


def parse_sizes(text: str) -> Mapping[str, tuple[SizeChoice, ...]]:
    """The choices in the text of an option, by the name of the symbol.

    Raises:
        OptionError: it is of another form.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
        raise OptionError(f"expected text, got {type(text).__name__}", where="sizes", hint=HINT)
    choices: dict[str, tuple[SizeChoice, ...]] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, separator, value = (x.strip() for x in part.partition("="))
        choice = _parse_choice(value)
        if not name or not separator or choice is None:
            raise OptionError(f"expected NAME=LOW..HIGH or NAME=SIZE:WEIGHT, got {part!r}", where="sizes", hint=HINT)
        choices[name] = (*choices.get(name, ()), choice)
    return choices


def _parse_choice(text: str) -> SizeChoice | None:
    low, is_range, high = text.partition("..")
    size, _, weight = text.partition(":")
    try:
        choice = SizeChoice(int(low), int(high)) if is_range else SizeChoice(int(size), int(size), float(weight or 1))
    except ValueError:
        return None
    return choice if 1 <= choice.low <= choice.high <= MAX_SIZE and 0 < choice.weight < 1e9 else None


def check_choices(
    choices: Mapping[str, Sequence[SizeChoice]], ranges: Mapping[str, tuple[int, int | None]]
) -> Mapping[str, str]:
    """The dimensions that choices are of, by the names that the user wrote.

    Args:
        choices: what the user says of some dimensions, by name.
        ranges: least and largest size of every dimension of the model, by name; None where there is no largest.

    Raises:
        OptionError: there is no such dimension, or a size is beyond its range.
    """
    resolved = resolve_dimensions(choices, ranges, "sizes")
    for written, own in choices.items():
        name = resolved[written]
        low, high = ranges[name]
        for c in own:
            if c.low < low or (high is not None and c.high > high):
                what = f"{name} is within {low}..{'' if high is None else high}, got {c.low}..{c.high}"
                raise OptionError(what, where="sizes", hint="declare another range of this dimension")
    return resolved


def draw_sizes(
    symbols: Sequence[Var],
    ranges: Ranges | None,
    choices: Mapping[str, Sequence[SizeChoice]],
    count: int = DRAWN_SHAPES,
    seed: int = 0,
    names: Mapping[str, str] | None = None,
) -> ModelSizes:
    """Sizes of a model's symbols.

    Args:
        symbols: of the model.
        ranges: ranges of undeclared symbols.
        choices: what the user says of some dimensions, by name.
        count: how many shapes to draw.
        seed: of the random numbers.
        names: the user's names of symbols, by identifier; a symbol without one has its own.

    Raises:
        OptionError: there is no such symbol, or a size is beyond its range.
    """
    names = names or {}
    by_name = {names.get(v.name, v.name): v for v in symbols}
    resolved = check_choices(choices, {name: (v.lo or 1, v.hi) for name, v in by_name.items()})
    own_choices = {by_name[resolved[name]]: own for name, own in choices.items()}
    if not symbols:
        return ModelSizes(({},), (1.0,))
    rng = np.random.default_rng(seed)
    shapes: dict[tuple[int, ...], float] = {}
    if not choices:
        middle = tuple(representative_size(v, ranges) for v in symbols)
        for sizes in (middle, *(tuple(s[v] for v in symbols) for s in sample_shapes(symbols, ranges))):
            shapes.setdefault(sizes, 1.0)
    tries = 20 * count
    while len(shapes) < count and (tries := tries - 1):
        sizes = tuple(_draw(v, ranges, own_choices.get(v, ()), rng) for v in symbols)
        # shapes that are drawn twice count twice
        shapes[sizes] = shapes.get(sizes, 0.0) + 1.0 / count
    listed = list(shapes.items())[:count]
    total = sum(weight for _, weight in listed)
    return ModelSizes(
        tuple(dict(zip(symbols, sizes, strict=True)) for sizes, _ in listed), tuple(w / total for _, w in listed),
        names,
    )


def _draw(symbol: Var, ranges: Ranges | None, choices: Sequence[SizeChoice], rng: np.random.Generator) -> int:
    """A size of a symbol: of its choices, which are drawn by their weights, or of its range."""
    if choices:
        total = sum(c.weight for c in choices)
        choice = choices[int(rng.choice(len(choices), p=[c.weight / total for c in choices]))]
    else:
        low, high = sampled_range(symbol, ranges or {})
        choice = SizeChoice(max(1, low), max(1, low, high))
    size = exp(rng.uniform(log(choice.low), log(choice.high + 1)))
    return min(choice.high, max(choice.low, int(size)))


def kernel_sizes(
    symbols: Sequence[Var], units: Sequence[BoundKernel], sizes: ModelSizes
) -> list[tuple[Mapping[Var, int], float]]:
    """The sizes of a kernel's symbols at drawn sizes of the model, distinct, with their weights.

    Args:
        symbols: of the kernel's task.
        units: the kernels of the model that share the function; of those with other sizes the first one counts.
        sizes: of the model.
    """
    if not symbols:
        return [({}, 1.0)]
    drawn: dict[tuple[int, ...], float] = {}
    for shape, weight in zip(sizes.shapes, sizes.weights, strict=True):
        values: list[int] = []
        for v in symbols:
            value = units[0].sizes.get(v, v)
            # sizes that depend on data are not drawn
            complete = {x: shape.get(x) or representative_size(x) for x in free_vars(value)}
            values.append(max(1, v.lo or 0, value_of(value, complete)))
        drawn[tuple(values)] = drawn.get(tuple(values), 0.0) + weight
    return [(dict(zip(symbols, values, strict=True)), weight) for values, weight in drawn.items()]
