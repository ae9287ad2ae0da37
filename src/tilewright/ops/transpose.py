"""Transpose, DepthToSpace and SpaceToDepth."""

from collections.abc import Sequence

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.nodes import Expr
from tilewright.expr.traversal import is_one
from tilewright.ops.definition import Definition, OpValue, operator


def permute(d: Definition, x: OpValue, order: Sequence[int]) -> OpValue:
    """`x` with permuted dimensions; a view where only dimensions of size 1 move."""
    sizes = tuple(x.shape[k] for k in order)
    proper = [k for k in order if not is_one(x.shape[k])]
    if proper == sorted(proper):
        return d.view(x, sizes)

    def body(*i: Expr) -> Expr:
        return x[tuple(i[order.index(k)] for k in range(x.rank))]

    return d.compute(sizes, body)


@operator("Transpose")
def transpose(d: Definition) -> OpValue:
    """The dimensions in the order `perm`, by default reversed.

    Raises:
        ShapeError: `perm` is not a permutation of the dimensions.
    """
    x = d.input(0)
    order = d.attr_ints("perm", tuple(reversed(range(x.rank)))) or ()
    if sorted(order) != list(range(x.rank)):
        raise ShapeError(
            f"perm: expected a permutation of {pluralize(x.rank, 'dimension')}, got {list(order)}",
            where=f"node {d.label}",
        )
    return permute(d, x, order)


def _image_and_block(d: Definition) -> tuple[OpValue, int]:
    x, block = d.input(0), d.attr_int("blocksize", 0)
    if x.rank != 4:
        raise ShapeError(f"input 0: expected 4 dimensions, got {x.rank}", where=f"node {d.label}")
    if block < 1:
        raise ShapeError(f"blocksize: expected 1 or more, got {block}", where=f"node {d.label}")
    return x, block


def _mode(d: Definition) -> str:
    mode = d.attr_str("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise ShapeError(f"mode: expected DCR or CRD, got {mode}", where=f"node {d.label}")
    return mode


@operator("DepthToSpace")
def depth_to_space(d: Definition) -> OpValue:
    """Channels moved into blocks of pixels, in DCR (depth first) or CRD order."""
    x, b = _image_and_block(d)
    n, c, h, w = x.shape
    d.require((c % (b * b)).equals(0), f"channels: expected a multiple of {b * b}, got {c}")
    depth, mode = c // (b * b), _mode(d)
    blocks = d.view(x, (n, b, b, depth, h, w) if mode == "DCR" else (n, depth, b, b, h, w))
    moved = permute(d, blocks, (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3))
    return d.view(moved, (n, depth, h * b, w * b))


@operator("SpaceToDepth")
def space_to_depth(d: Definition) -> OpValue:
    """Blocks of pixels moved into channels, in DCR or, since version 28, CRD order: the inverse of DepthToSpace."""
    x, b = _image_and_block(d)
    n, c, h, w = x.shape
    mode = _mode(d)
    for what, size in (("height", h), ("width", w)):
        d.require((size % b).equals(0), f"{what}: expected a multiple of {b}, got {size}")
    blocks = d.view(x, (n, c, h // b, b, w // b, b))
    moved = permute(d, blocks, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return d.view(moved, (n, c * (b * b), h // b, w // b))
