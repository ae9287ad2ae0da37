"""Which sizes count where sizes are symbols: those at which programs are chosen and compared.

A symbol whose range somebody declared has sizes all over that range. Of others only the least size is known, and the
model says how large they are meant to be: where a picture's height is divided by 32 on the way to the smallest map, it
is hundreds, and tens after a division by 8. So ranges are those of the model's symbols, and the sizes of kernels follow
from these by what the model does with them.
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
"""Stands for the largest value of a size of which only the least one is known: nobody has declared another."""

MIN_UNDECLARED_BOUND = MAX_SIZE >> 8
"""Ranges that end here or beyond were not declared: they are those of sizes that nobody declared, or parts of these."""

SMALLEST_MAP_SIZES = (4, 32)
"""What is left of an undeclared size where the model divides it most, at least and at most: of a picture's height, as
pictures have 128 to 1024 rows and the smallest maps of a network for them a 32nd."""

MAX_DOWNSAMPLING = 1024
"""By how much a model is taken to divide a size at most."""

QUANTILES = (0.05, 0.45, 0.95)
"""Where in a symbol's range, on a logarithmic scale, the sizes lie at which programs are compared."""

MAX_SAMPLE_VOLUME = 1 << 20
"""What the sizes of all symbols make together at most, unless their least ones make more."""

Ranges = Mapping[Var, tuple[int, int]]
"""The least and the largest value that count, of symbols whose own range does not tell."""


@dataclass(frozen=True, slots=True)
class ShapeSamples:
    """Sizes of symbols.

    Attributes:
        usual: the ones for which programs are chosen.
        others: those at which they are compared.
    """

    representative: Mapping[Var, int]
    shapes: tuple[Mapping[Var, int], ...]

    @staticmethod
    def of(symbols: Sequence[Var], ranges: Ranges | None = None) -> "ShapeSamples":
        """Those of the symbols' ranges."""
        known = ranges or {}
        usual = _clamp_volume({v: representative_size(v, known) for v in symbols}, known)
        return ShapeSamples(usual, sample_shapes(symbols, known))

    def mapped(self, values: Mapping[Var, Expr]) -> "ShapeSamples":
        """Those of symbols whose values are given over these, each once; nothing has less than one element."""

        def at(known: Mapping[Var, int]) -> Mapping[Var, int]:
            return {v: max(1, v.lo or 0, value_of(e, known)) for v, e in values.items()}

        each = {tuple(found.items()): found for found in map(at, self.shapes)}
        return ShapeSamples(at(self.representative), tuple(each.values()))


def ranges_from_divisions(symbols: Sequence[Var], sizes: Iterable[Expr]) -> Ranges:
    """Ranges of the symbols that nobody declared and that a model divides, as the larger maps of a picture are divided
    into the smaller ones: so that what is left of them in the end is neither one element nor thousands.

    Args:
        symbols: the model's.
        sizes: of its tensors.
    """
    open_ones = frozenset(v for v in symbols if v.hi is None or v.hi >= MIN_UNDECLARED_BOUND)
    most = dict.fromkeys(open_ones, 1)
    done: dict[Expr, Mapping[Var, int]] = {}
    for e in sizes if open_ones else ():
        for v, n in _downsampling(e, done).items():
            if v in most:
                most[v] = max(most[v], min(n, MAX_DOWNSAMPLING))
    few, many = SMALLEST_MAP_SIZES
    return {v: (max(v.lo or 1, few * n), max(v.lo or 1, DEFAULT_MAX_SIZE, many * n)) for v, n in most.items() if n > 1}


def _downsampling(e: Expr, memo: dict[Expr, Mapping[Var, int]]) -> Mapping[Var, int]:
    """By how much an expression divides its variables, by literals; products of several variables are left out."""
    if e not in memo:
        found: dict[Var, int] = {e: 1} if isinstance(e, Var) else {}
        for c in e.children():
            for v, n in _downsampling(c, memo).items():
                found[v] = max(found.get(v, 1), n)
        if isinstance(e, Binary) and e.op == "floordiv" and isinstance(e.b, Const) and len(found) == 1:
            found = {v: n * int(e.b.value) for v, n in found.items()}
        memo[e] = found
    return memo[e]


def representative_size(symbol: Var, ranges: Ranges | None = None) -> int:
    """The size of a symbol for which programs are chosen: in the middle of its range, on a logarithmic scale."""
    low, high = _range(symbol, ranges or {})
    return isqrt(low * high)


def sample_shapes(symbols: Sequence[Var], ranges: Ranges | None = None) -> tuple[Mapping[Var, int], ...]:
    """Sizes of symbols at which programs are compared, each once: all small, all of middle size, all large, the first
    one small and the others large, as a single large picture, and the first one large and the others of middle size, as
    many pictures: what they make together varies as each of them does.

    Large ones are round, as those of pictures are: rows then lie whole pages apart, and crowd in the sets of caches.
    """
    known = ranges or {}
    low, middle, high = QUANTILES
    places = [*((q, q) for q in QUANTILES), (low, high), (high, middle)]
    found: dict[tuple[tuple[Var, int], ...], None] = {}
    for first, others in places[: None if len(symbols) > 1 else len(QUANTILES)]:
        where = {v: others if k else first for k, v in enumerate(symbols)}
        sizes = _clamp_volume({v: _quantile_size(_range(v, known), q) for v, q in where.items()}, known)
        rounded = {v: max(_range(v, known)[0], _round_down(n)) if where[v] == high else n for v, n in sizes.items()}
        found[tuple(rounded.items())] = None
    return tuple(dict(s) for s in found)


def value_of(size: Expr, sizes: Mapping[Var, int]) -> int:
    """A size in numbers."""
    known: dict[Var, Expr] = {v: Const(n, v.dtype) for v, n in sizes.items()}
    value = substitute(size, known)
    if not isinstance(value, Const):
        raise InternalError(f"size {size} is made of unknown symbols", where="tile problem")
    return int(value.value)


def used_by(symbols: Sequence[Var], sizes: Iterable[Expr]) -> tuple[Var, ...]:
    """The symbols that sizes are made of, in order."""
    used = {v for e in sizes for v in free_vars(e)}
    return tuple(v for v in symbols if v in used)


def _round_down(n: int) -> int:
    """A size as a power of two or one and a half of it, at most as large."""
    shift = max(0, n.bit_length() - 2)
    return n >> shift << shift


def _quantile_size(span: tuple[int, int], quantile: float) -> int:
    low, high = span
    return max(low, min(high, round(low * (high / low) ** quantile)))


def _range(symbol: Var, ranges: Ranges) -> tuple[int, int]:
    """The least and the largest value that count; a range that was assumed ends where sizes usually do."""
    if symbol in ranges:
        return ranges[symbol]
    low = 1 if symbol.lo is None else max(1, symbol.lo)
    return low, max(low, DEFAULT_MAX_SIZE) if symbol.hi is None or symbol.hi >= MIN_UNDECLARED_BOUND else max(
        low, symbol.hi
    )


def _clamp_volume(sizes: Mapping[Var, int], ranges: Ranges) -> Mapping[Var, int]:
    """Sizes that make `TOGETHER` at most: all nearer to their least ones, by the same part on a logarithmic scale."""
    least = {v: _range(v, ranges)[0] for v in sizes}
    grown = sum(log(n / least[v]) for v, n in sizes.items())
    room = max(0.0, log(MAX_SAMPLE_VOLUME) - sum(map(log, least.values())))
    if grown <= room:
        return sizes
    return {v: int(low * (sizes[v] / low) ** (room / grown)) for v, low in least.items()}
