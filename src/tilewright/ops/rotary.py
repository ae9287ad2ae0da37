"""Rotary position embedding."""

from collections.abc import Callable

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Expr, cast, const, select
from tilewright.ops.contraction import accumulator
from tilewright.ops.definition import Definition, Operand, operator
from tilewright.ops.gather import picked


@operator("RotaryEmbedding")
def rotary_embedding(d: Definition) -> Operand:
    """Pairs of entries of each head turned by an angle that depends on the position.

    The input is [batch, heads, sequence, size], or [batch, sequence, heads * size] with the attribute `num_heads`.
    A pair is two neighbours (`interleaved`) or the same place of both halves.

    Raises:
        ShapeError: the input has neither 3 nor 4 dimensions, or 3 without `num_heads`.
    """
    x = d.input(0)
    if x.rank == 4:
        return _rotated(d, x, heads_axis=1)
    heads = d.attr_int("num_heads", 0)
    if x.rank != 3 or heads < 1:
        raise ShapeError(
            f"input 0: expected 4 dimensions, or 3 with num_heads, got {x.rank} with num_heads={heads}",
            where=f"node {d.label}",
        )
    batch, length, hidden = x.shape
    d.require((hidden % heads).equals(0), f"input 0: expected a multiple of {heads} heads, got {hidden}")
    split = d.view(x, (batch, length, heads, hidden // heads))
    return d.view(_rotated(d, split, heads_axis=2), x.shape)


def _rotated(d: Definition, x: Operand, heads_axis: int) -> Operand:
    wide = accumulator(x.dtype)
    cosine, sine = _angle(d, d.input(1), heads_axis), _angle(d, d.input(2), heads_axis)
    rotated = d.attr_int("rotary_embedding_dim", 0)
    size: Expr = const(rotated) if rotated else x.shape[3]
    half = size // 2
    interleaved = bool(d.attr_int("interleaved", 0))

    def value(i: tuple[Expr, ...], k: Expr) -> Expr:
        return cast(wide, x[(*i[:3], k)])

    def body(*i: Expr) -> Expr:
        k = i[3]
        pair, second = (k // 2, (k % 2).equals(1)) if interleaved else (select(k < half, k, k - half), k >= half)
        a, b = (pair * 2, pair * 2 + 1) if interleaved else (pair, pair + half)
        c, s = cast(wide, cosine(i, pair)), cast(wide, sine(i, pair))
        turned = select(second, value(i, a) * s + value(i, b) * c, value(i, a) * c - value(i, b) * s)
        return cast(x.dtype, select(k < size, turned, value(i, k)))

    return d.compute(x.shape, body)


def _angle(d: Definition, table: Operand, heads_axis: int) -> Callable[[tuple[Expr, ...], Expr], Expr]:
    """How a table of sines or cosines is read: per batch and place, or per position that input 3 gives."""
    positions = d.optional(3)
    expected = 3 if positions is None else 2
    if table.rank != expected:
        what = f"cosines and sines: expected {expected} dimensions, got {table.rank}"
        raise ShapeError(what, where=f"node {d.label}")

    def read(i: tuple[Expr, ...], pair: Expr) -> Expr:
        batch, place = i[0], i[3 - heads_axis]
        if positions is None:
            return table[(batch, place, pair)]
        row = picked(d, positions, (batch, place), table.shape[0], "the table of angles")
        return table[(row, pair)]

    return read
