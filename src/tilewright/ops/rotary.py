"""RotaryEmbedding: rotary position embedding of attention heads."""

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import cast, select
from tilewright.ops.checks import expect_rank, expect_shape
from tilewright.ops.clamp import clamp_index
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.gather import resolve_index

AngleReader = Callable[[tuple[Expr, ...], Expr], Expr]
"""The sine or cosine for an index of the input and a pair of entries."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """How heads are rotated.

    Attributes:
        half: number of pairs; entries after 2 * half are unchanged.
        interleaved: whether a pair is two adjacent entries, rather than the same entry of both halves.
        cosine: of the angles.
        sine: of the angles.
    """

    half: Expr
    interleaved: bool
    cosine: AngleReader
    sine: AngleReader


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
        return rotate(d, x, _rotation(d, x, heads_axis=1))
    if x.rank != 3 or heads < 1:
        raise ShapeError(
            f"input 0: expected 4 dimensions, or 3 with num_heads, got {x.rank} with num_heads={heads}",
            where=f"node {d.label}",
        )
    batch, length, hidden = x.shape
    d.require((hidden % heads).equals(0), f"input 0: expected a multiple of {heads} heads, got {hidden}")
    per_head = d.view(x, (batch, length, heads, hidden // heads))
    return d.view(rotate(d, per_head, _rotation(d, per_head, heads_axis=2)), x.shape)


@operator("RotaryEmbedding", domain="com.microsoft")
def contrib_rotary_embedding(d: Definition) -> OpValue:
    """Rotary embedding with tables [positions, pairs]; the positions are [batch, sequence], or the first one.

    The input is [batch, heads, sequence, size] or [batch, sequence, heads * size]; without `num_heads` all entries of a
    head are rotated, so that the tables tell its size.

    Raises:
        ShapeError: the input has neither 3 nor 4 dimensions; the tables do not match.
        UnsupportedError: packed batches, a scale, or heads of symbolic size.
    """
    x, positions, table = d.input(0), d.input(1), d.input(2)
    if d.attr_int("is_packed_batching", 0):
        raise d.unsupported("is_packed_batching is not supported")
    if d.attr_float("scale", 1.0) != 1.0:
        raise d.unsupported("a scale is not supported")
    heads, rotary_dim = d.attr_int("num_heads", 0), d.attr_int("rotary_embedding_dim", 0)
    expect_rank(d, table, 2, "cos_cache")
    if x.rank not in (3, 4):
        raise ShapeError(f"input 0: expected 3 or 4 dimensions, got {x.rank}", where=f"node {d.label}")
    if rotary_dim and heads < 1:
        raise ShapeError(
            f"num_heads: expected 1 or more with rotary_embedding_dim, got {heads}", where=f"node {d.label}"
        )
    heads_axis, source = (1, x) if x.rank == 4 else (2, _per_head(d, x, heads, table))
    offset = positions[0] if positions.rank == 1 else None
    if offset is None:
        expect_shape(d, positions, (source.shape[0], source.shape[3 - heads_axis]), "position_ids")
    else:
        expect_shape(d, positions, (const(1),), "position_ids")

    def position(batch: Expr, sequence: Expr) -> Expr:
        return positions[batch, sequence] if offset is None else offset + cast(positions.dtype, sequence)

    rotation = table_rotation(d, source, heads_axis, rotary_dim, bool(d.attr_int("interleaved", 0)), (2, 3), position)
    return d.view(rotate(d, source, rotation), x.shape)


def _per_head(d: Definition, x: OpValue, heads: int, table: OpValue) -> OpValue:
    batch, length, hidden = x.shape
    size = hidden // heads if heads else table.shape[1] * 2
    d.require((hidden % size).equals(0), f"input 0: expected a multiple of {size}, got {hidden}")
    return d.view(x, (batch, length, hidden // size, size))


def table_rotation(
    d: Definition,
    x: OpValue,
    heads_axis: int,
    rotary_dim: int,
    interleaved: bool,
    tables: tuple[int, int],
    position: Callable[[Expr, Expr], Expr],
) -> Rotation:
    """The rotation of heads by tables [positions, pairs]; positions outside of the tables are clamped.

    Args:
        d: the operator.
        x: the heads, of rank 4.
        heads_axis: dimension of the heads, 1 or 2; the other one is the sequence.
        rotary_dim: number of rotated entries; 0 for all.
        interleaved: see `Rotation`.
        tables: positions of the inputs with the cosines and the sines.
        position: the position of (batch, place in the sequence).

    Raises:
        ShapeError: the tables have other shapes.
        UnsupportedError: the size of the heads is symbolic.
    """
    half = _rotated_size(d, x, rotary_dim) // 2

    def reader(number: int) -> AngleReader:
        table = d.input(number)
        expect_shape(d, table, (table.shape[0], half), f"input {number}")

        def read(i: tuple[Expr, ...], pair: Expr) -> Expr:
            row = cast(int64, position(i[0], i[3 - heads_axis]))
            return table[clamp_index(row, table.shape[0]), pair]

        return read

    return Rotation(half, interleaved, reader(tables[0]), reader(tables[1]))


def _rotation(d: Definition, x: OpValue, heads_axis: int) -> Rotation:
    half = _rotated_size(d, x, d.attr_int("rotary_embedding_dim", 0)) // 2
    cosine, sine = (_angle_reader(d, x, position, heads_axis, half) for position in (1, 2))
    return Rotation(half, bool(d.attr_int("interleaved", 0)), cosine, sine)


def _rotated_size(d: Definition, x: OpValue, rotary_dim: int) -> Expr:
    """The number of entries of a head that are rotated, which is literal and even."""
    size: Expr = const(rotary_dim) if rotary_dim else x.shape[3]
    if not isinstance(size, Const):
        raise d.unsupported("the size of the heads is symbolic")
    d.require((size % 2).equals(0), f"input 0: expected an even number of entries to rotate, got {size}")
    d.require(size <= x.shape[3], f"rotary_embedding_dim: expected at most {x.shape[3]}, got {size}")
    return size


def rotate(d: Definition, x: OpValue, rotation: Rotation) -> OpValue:
    """The heads, of rank 4, with their pairs of entries rotated."""
    if not rotation.interleaved:
        return _rotate_halves(d, x, rotation.half, rotation.cosine, rotation.sine)
    pairs = d.view(x, (*x.shape[:3], x.shape[3] // 2, 2))
    return d.view(_rotate_interleaved(d, pairs, rotation.half, rotation.cosine, rotation.sine), x.shape)


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
