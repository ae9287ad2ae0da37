"""Col2Im: blocks that slide over an image, added up to the image."""

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.nodes import TRUE, Expr, const
from tilewright.expr.operations import cast, conjunction, maximum, select
from tilewright.ops.axes import num_elements
from tilewright.ops.checks import expect_rank, expect_size
from tilewright.ops.clamp import clamp_index, zero_if_empty
from tilewright.ops.contraction import accumulator_dtype, epilogue, sum_over
from tilewright.ops.data_dependent import elements_or_symbols
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.window import spatial_ints


@operator("Col2Im")
def col2im(d: Definition) -> OpValue:
    """Y[n, c, p] = sum of X[n, c * K + k, b] over the taps k of blocks b of K taps that lie on position p

    Raises:
        ShapeError: the blocks do not fit the image, or X has other numbers of taps and blocks.
    """
    x = d.input(0)
    expect_rank(d, x, 3, "input")
    image = elements_or_symbols(d, 1)
    rank = len(image)
    block = elements_or_symbols(d, 2, rank)
    if rank == 0 or len(block) != rank:
        what = f"block_shape: expected a size for each of {pluralize(rank, 'dimension')}, got {len(block)}"
        raise ShapeError(what, where=f"node {d.label}")
    strides = spatial_ints(d, "strides", rank, 1, min_value=1)
    dilations = spatial_ints(d, "dilations", rank, 1, min_value=1)
    pads = spatial_ints(d, "pads", 2 * rank, 0)
    counts: list[Expr] = []
    for k in range(rank):
        d.require(block[k] >= 1, f"block_shape: expected positive sizes, got {block[k]}")
        room = image[k] + (pads[k] + pads[rank + k]) - ((block[k] - 1) * dilations[k] + 1)
        d.require(room >= 0, f"dimension {k}: a block of {block[k]} does not fit the image")
        counts.append(maximum(room // strides[k] + 1, 0))
    taps = maximum(num_elements(block), 1)
    d.require((x.shape[1] % taps).equals(0), f"input: expected a multiple of {taps} in dimension 1, got {x.shape[1]}")
    expect_size(d, x.shape[2], num_elements(counts), "blocks of input")
    wide = accumulator_dtype(x.dtype)

    def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        tap: Expr = const(0)
        place: Expr = const(0)
        is_inside: Expr = TRUE
        for k in range(rank):
            distance = i[2 + k] + pads[k] - r[k] * dilations[k]
            at = distance // strides[k]
            is_inside = conjunction(is_inside, (distance % strides[k]).equals(0), at >= 0, at < counts[k])
            tap, place = tap * block[k] + r[k], place * counts[k] + at
        row, column = clamp_index(i[1] * taps + tap, x.shape[1]), clamp_index(place, x.shape[2])
        value = zero_if_empty(x[i[0], row, column], (row, x.shape[1]), (column, x.shape[2]))
        return select(is_inside, cast(wide, value), const(0, wide))

    total = sum_over(d, (x.shape[0], x.shape[1] // taps, *image), block, term)
    return epilogue(d, total, x.dtype)
