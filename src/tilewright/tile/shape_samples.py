"""Sampled shapes of symbolic sizes, at which programs are chosen and compared.

A symbol with a declared range is sampled over that range. Of other symbols only the minimum is known, and the model
tells how large they are meant to be: where an image height is divided by 32 on the way to the smallest feature map, it
is in the hundreds; where it is divided by 8, in the tens. So the ranges are those of the model's symbols, and the sizes
of kernels follow from them by the model's own arithmetic.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, log

from tilewright.errors import InternalError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.define import MAX_SIZE
from tilewright.expr.nodes import Binary, Const, Expr, Var
from tilewright.expr.traversal import free_vars

DEFAULT_MAX_SIZE = 256
"""Upper bound assumed for a size of which only the minimum is declared."""

MIN_UNDECLARED_BOUND = MAX_SIZE >> 8
"""Upper bounds of this size or more were not declared; they derive from the largest size there is."""

SMALLEST_MAP_SIZES = (4, 32)
"""Minimum and maximum of what remains of an undeclared size where the model divides it most. For the height of an
image: images have 128 to 1024 rows, and the smallest feature maps of networks for them a 32nd."""

MAX_DOWNSAMPLING = 1024
"""Largest divisor of a size that is taken into account."""

QUANTILES = (0.05, 0.45, 0.95)
"""Positions of the small, middle and large sample in a symbol's range, on a logarithmic scale."""

GRID_STEPS = 12
"""Logarithmic steps of the grid over a range."""

ALIASED_QUANTILES = (0.7, 0.9)
"""Positions in the ranges of several symbols at which powers of two are in the grid."""

SMALLEST_SIZES = 24
"""Values at the low end of a single symbol's range that are all in the grid: up to twice as many as rows of a register
tile, a remainder of a few rows costs as much as a whole tile, and tiles of other heights leave none."""

MAX_SAMPLE_VOLUME = 1 << 20
"""Largest product of all symbols' sizes in a sample, unless the product of their minima is larger."""

Ranges = Mapping[Var, tuple[int, int]]
"""Minimum and maximum to sample from, for symbols without a declared range."""


@dataclass(frozen=True, slots=True)
class ShapeSamples:
    """Sampled sizes of symbols.

    Attributes:
        representative: the sizes for which programs are chosen.
        shapes: the sizes at which they are compared.
        grid: the sizes at which the programs of one kernel are compared with each other, which are more.
    """

    representative: Mapping[Var, int]
    shapes: tuple[Mapping[Var, int], ...]
    grid: tuple[Mapping[Var, int], ...] = ()

    @staticmethod
    def of(symbols: Sequence[Var], ranges: Ranges | None = None) -> "ShapeSamples":
        """Samples of symbols; `ranges` replace the ranges of some."""
        assumed = ranges or {}
        representative = _clamp_volume({v: representative_size(v, assumed) for v in symbols}, assumed)
        return ShapeSamples(representative, sample_shapes(symbols, assumed), grid_shapes(symbols, assumed))

    def mapped(self, values: Mapping[Var, Expr]) -> "ShapeSamples":
        """Samples of other symbols, whose values are expressions over these; distinct, and at least one element."""

        def at(sizes: Mapping[Var, int]) -> Mapping[Var, int]:
            return {v: max(1, v.lo or 0, value_of(e, sizes)) for v, e in values.items()}

        def distinct(shapes: Iterable[Mapping[Var, int]]) -> tuple[Mapping[Var, int], ...]:
            return tuple({tuple(sizes.items()): sizes for sizes in map(at, shapes)}.values())

        return ShapeSamples(at(self.representative), distinct(self.shapes), distinct(self.grid))


def ranges_from_divisions(symbols: Sequence[Var], sizes: Iterable[Expr]) -> Ranges:
    """Ranges of undeclared symbols that a model divides, as networks for images downsample their feature maps: chosen
    so that the most divided size is neither one element nor thousands.

    Args:
        symbols: the model's symbols.
        sizes: sizes of its tensors.
    """
    undeclared = frozenset(v for v in symbols if v.hi is None or v.hi >= MIN_UNDECLARED_BOUND)
    divisors = dict.fromkeys(undeclared, 1)
    memo: dict[Expr, Mapping[Var, int]] = {}
    for e in sizes if undeclared else ():
        for v, n in _downsampling(e, memo).items():
            if v in divisors:
                divisors[v] = max(divisors[v], min(n, MAX_DOWNSAMPLING))
    low, high = SMALLEST_MAP_SIZES
    return {
        v: (max(v.lo or 1, low * n), max(v.lo or 1, DEFAULT_MAX_SIZE, high * n)) for v, n in divisors.items() if n > 1
    }


def _downsampling(e: Expr, memo: dict[Expr, Mapping[Var, int]]) -> Mapping[Var, int]:
    """By how much an expression divides its variables, by literals; products of several variables are ignored."""
    if e not in memo:
        divisors: dict[Var, int] = {e: 1} if isinstance(e, Var) else {}
        for c in e.children():
            for v, n in _downsampling(c, memo).items():
                divisors[v] = max(divisors.get(v, 1), n)
        if isinstance(e, Binary) and e.op == "floordiv" and isinstance(e.b, Const) and len(divisors) == 1:
            divisors = {v: n * int(e.b.value) for v, n in divisors.items()}
        memo[e] = divisors
    return memo[e]


def representative_size(symbol: Var, ranges: Ranges | None = None) -> int:
    """The size for which programs are chosen: the geometric mean of the symbol's range."""
    low, high = sampled_range(symbol, ranges or {})
    return isqrt(low * high)


def sample_shapes(symbols: Sequence[Var], ranges: Ranges | None = None) -> tuple[Mapping[Var, int], ...]:
    """Distinct sizes of symbols at which programs are compared.

    All small; all middle; all large; the first small and the others large (a single large image); the first large and
    the others middle (a large batch). So their product varies as each of them does. Large sizes are round, as those of
    images are: rows then are whole pages apart and alias in caches.
    """
    assumed = ranges or {}
    low, middle, high = QUANTILES
    quantiles = [*((q, q) for q in QUANTILES), (low, high), (high, middle)]
    shapes: dict[tuple[tuple[Var, int], ...], None] = {}
    for first, others in quantiles[: None if len(symbols) > 1 else len(QUANTILES)]:
        quantile = {v: others if k else first for k, v in enumerate(symbols)}
        sizes = _clamp_volume({v: _quantile_size(sampled_range(v, assumed), q) for v, q in quantile.items()}, assumed)
        rounded = {
            v: max(sampled_range(v, assumed)[0], _round_down(n)) if quantile[v] == high else n for v, n in sizes.items()
        }
        shapes[tuple(rounded.items())] = None
    return tuple(dict(s) for s in shapes)


def grid_shapes(symbols: Sequence[Var], ranges: Ranges | None = None) -> tuple[Mapping[Var, int], ...]:
    """Distinct sizes of symbols over their ranges, denser than `sample_shapes`.

    A single symbol has its smallest values, where every row counts, and logarithmic steps up to its largest. Several
    take logarithmic steps together, then one of them at an end of its range while the others are in the middle, and
    powers of two, where rows alias in caches.
    """
    assumed = ranges or {}
    spans = {v: sampled_range(v, assumed) for v in symbols}
    steps = [k / (GRID_STEPS - 1) for k in range(GRID_STEPS)]
    points = [{v: _quantile_size(spans[v], q) for v in symbols} for q in steps]
    if len(symbols) == 1:
        ((v, (low, high)),) = spans.items()
        points += [{v: n} for n in range(low, min(high, low + SMALLEST_SIZES - 1) + 1)]
    else:
        middle = {v: _quantile_size(spans[v], 0.5) for v in symbols}
        points += [middle | {v: n} for v in symbols for n in spans[v]]
        points += [{v: _power_of_two(spans[v], q) for v in symbols} for q in ALIASED_QUANTILES]
    clamped = (_clamp_volume(p, assumed) for p in points)
    distinct = {tuple(p.values()): p for p in clamped}
    return tuple(distinct[key] for key in sorted(distinct))


def value_of(size: Expr, sizes: Mapping[Var, int]) -> int:
    """The value of a size, given those of all of its symbols."""
    literals: dict[Var, Expr] = {v: Const(n, v.dtype) for v, n in sizes.items()}
    value = substitute(size, literals)
    if not isinstance(value, Const):
        raise InternalError(f"size {size} depends on unknown symbols", where="tile problem")
    return int(value.value)


def used_by(symbols: Sequence[Var], sizes: Iterable[Expr]) -> tuple[Var, ...]:
    """The symbols that sizes depend on, in order."""
    used = {v for e in sizes for v in free_vars(e)}
    return tuple(v for v in symbols if v in used)


def _round_down(n: int) -> int:
    """The largest power of two, or three times a power of two, that is at most `n`."""
    shift = max(0, n.bit_length() - 2)
    return n >> shift << shift


def _power_of_two(span: tuple[int, int], quantile: float) -> int:
    """The power of two, where the range has one, that is at most the size at a quantile."""
    low, high = span
    return max(low, min(high, 1 << _quantile_size(span, quantile).bit_length() - 1))


def _quantile_size(span: tuple[int, int], quantile: float) -> int:
    low, high = span
    return max(low, min(high, round(low * (high / low) ** quantile)))


def sampled_range(symbol: Var, ranges: Ranges) -> tuple[int, int]:
    """Minimum and maximum to sample from; an undeclared maximum is the default one."""
    if symbol in ranges:
        return ranges[symbol]
    low = 1 if symbol.lo is None else max(1, symbol.lo)
    high = DEFAULT_MAX_SIZE if symbol.hi is None or symbol.hi >= MIN_UNDECLARED_BOUND else symbol.hi
    return low, max(low, high)


def _clamp_volume(sizes: Mapping[Var, int], ranges: Ranges) -> Mapping[Var, int]:
    """Sizes with a product of at most `MAX_SAMPLE_VOLUME`: all scaled towards their minima alike, in logarithms."""
    minima = {v: sampled_range(v, ranges)[0] for v in sizes}
    growth = sum(log(n / minima[v]) for v, n in sizes.items())
    max_growth = max(0.0, log(MAX_SAMPLE_VOLUME) - sum(map(log, minima.values())))
    if growth <= max_growth:
        return sizes
    return {v: int(low * (sizes[v] / low) ** (max_growth / growth)) for v, low in minima.items()}
