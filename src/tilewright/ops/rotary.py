"""RotaryEmbedding: rotary position embedding of attention heads."""

from collections.abc import Callable

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import cast, select
from tilewright.ops.checks import expect_shape
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.gather import resolve_index

AngleReader = Callable[[tuple[Expr, ...], Expr], Expr]
"""The sine or cosine for an index of the input and a pair of entries."""


@operator("RotaryEmbedding")
def rotary_embedding(d: Definition) -> OpValue:
    """Pairs of entries of each head rotated by an angle that depends on the position.

    The input is [batch, heads, sequence, size], or [batch, sequence, heads * size] with the attribute `num_heads`.
    A pair is two adjacent entries (`interleaved`) or the same entry of both halves.

    Raises:
        ShapeError: the input has neither 3 nor 4 dimensions, or 3 without `num_heads`; the tables do not match.
        UnsupportedError: the size of the heads is symbolic.
    """
    x, heads = d.input(0), d.attr_int("num_heads", 0)
    if x.rank == 4:
        return _rotate(d, x, heads_axis=1)
    if x.rank != 3 or heads < 1:
        raise ShapeError(
            f"input 0: expected 4 dimensions, or 3 with num_heads, got {x.rank} with num_heads={heads}",
            where=f"node {d.label}",
        )
    batch, length, hidden = x.shape
    d.require((hidden % heads).equals(0), f"input 0: expected a multiple of {heads} heads, got {hidden}")
    per_head = d.view(x, (batch, length, heads, hidden // heads))
    return d.view(_rotate(d, per_head, heads_axis=2), x.shape)


def _rotate(d: Definition, x: OpValue, heads_axis: int) -> OpValue:
    rotary_dim = d.attr_int("rotary_embedding_dim", 0)
    size: Expr = const(rotary_dim) if rotary_dim else x.shape[3]
    if not isinstance(size, Const):
        raise d.unsupported("the size of the heads is symbolic")
    d.require((size % 2).equals(0), f"input 0: expected an even number of entries to rotate, got {size}")
    d.require(size <= x.shape[3], f"rotary_embedding_dim: expected at most {x.shape[3]}, got {size}")
    half = size // 2
    cosine, sine = (_angle_reader(d, x, position, heads_axis, half) for position in (1, 2))
    if not d.attr_int("interleaved", 0):
        return _rotate_halves(d, x, half, cosine, sine)
    pairs = d.view(x, (*x.shape[:3], x.shape[3] // 2, 2))
    return d.view(_rotate_interleaved(d, pairs, half, cosine, sine), x.shape)


def _rotate_halves(d: Definition, x: OpValue, half: Expr, cosine: AngleReader, sine: AngleReader) -> OpValue:
    """Entry k of the first half rotated with entry k of the second half; later entries are unchanged."""
    wide = accumulator_dtype(x.dtype)

    def body(*i: Expr) -> Expr:
        def value(k: Expr) -> Expr:
            return cast(wide, x[(*i[:3], k)])

        k = i[3]
        first = value(k) * cast(wide, cosine(i, k)) - value(k + half) * cast(wide, sine(i, k))
        pair = k - half
        second = value(pair) * cast(wide, sine(i, pair)) + value(k) * cast(wide, cosine(i, pair))
        return cast(x.dtype, select(k < half, first, select(k < half * 2, second, value(k))))

    return d.compute(x.shape, body)


def _rotate_interleaved(d: Definition, x: OpValue, half: Expr, cosine: AngleReader, sine: AngleReader) -> OpValue:
    """The two entries of every pair rotated; pairs from `half` on are unchanged."""
    wide = accumulator_dtype(x.dtype)

    def body(*i: Expr) -> Expr:
        *outer, pair, component = i
        a, b = (cast(wide, x[(*outer, pair, const(k))]) for k in (0, 1))
        c, s = cast(wide, cosine(i, pair)), cast(wide, sine(i, pair))
        rotated = select(component.equals(0), a * c - b * s, a * s + b * c)
        return cast(x.dtype, select(pair < half, rotated, cast(wide, x[i])))

    return d.compute(x.shape, body)


def _angle_reader(d: Definition, x: OpValue, position: int, heads_axis: int, half: Expr) -> AngleReader:
    """A function that loads from a table of sines or cosines: per batch and position, or by positions from input 3."""
    table, positions = d.input(position), d.optional(3)
    outer = (x.shape[0], x.shape[3 - heads_axis])
    expected = (*outer, half) if positions is None else (table.shape[0], half)
    expect_shape(d, table, expected, f"input {position}")
    if positions is not None:
        expect_shape(d, positions, outer, "input 3 (position_ids)")

    def read(i: tuple[Expr, ...], pair: Expr) -> Expr:
        batch, sequence = i[0], i[3 - heads_axis]
        if positions is None:
            return table[(batch, sequence, pair)]
        row = resolve_index(d, positions, (batch, sequence), table.shape[0], "the table of angles")
        return table[(row, pair)]

    return read
