"""The one builder of native entries (`codegen.segment.Segment`)."""

from collections.abc import Iterable

from tilewright.codegen.segment import Segment, SegmentCall
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.traversal import free_vars


def make_segment(
    name: str,
    symbols: tuple[Var, ...],
    calls: Iterable[SegmentCall],
    workspace_bytes: Expr,
    outputs: Iterable[Buffer],
    buffers: Iterable[Buffer],
    index_bounds: Iterable[Expr],
    *,
    weights: tuple[str, ...] = (),
    constraints: tuple[Expr, ...] = (),
    iteration_counts: Iterable[Expr] = (),
) -> Segment:
    """A native entry.

    Args:
        name: the prefix of its C symbols.
        symbols: the sizes that the caller passes.
        calls: kernel calls and copies in order of execution.
        workspace_bytes: the size of the workspace.
        outputs: the output buffers in order.
        buffers: all buffers that it touches; their bytes are checked at run time where they depend on symbols.
        index_bounds: upper bounds of the numbers in the kernels, where they may overflow.
        weights: names of the weights in the order of their pointers.
        constraints: conditions on the symbols.
        iteration_counts: further sizes to check, in units of bytes.
    """
    byte_sizes = (b.size * b.dtype.bytes for b in buffers)
    return Segment(
        name=name,
        symbols=symbols,
        calls=tuple(calls),
        workspace_bytes=workspace_bytes,
        output_shapes=tuple(b.shape for b in outputs),
        weights=weights,
        constraints=constraints,
        buffer_bytes=tuple(dict.fromkeys(e for e in (*byte_sizes, *iteration_counts) if free_vars(e))),
        index_bounds=tuple(index_bounds),
    )
