"""Hypothesis strategies for arguments of primitives."""

from hypothesis import strategies as st

from tilewright.errors import LayoutError
from tilewright.layout.layout import Layout


@st.composite
def layouts(draw, layout: Layout) -> Layout:
    """A layout of up to four random primitives that are legal on their shapes."""
    for _ in range(draw(st.integers(1, 4))):
        rank = len(layout.physical_shape)
        if not rank:
            return layout
        dim, n = draw(st.integers(0, rank - 1)), draw(st.integers(1, 5))
        try:
            match draw(st.sampled_from(("split", "reorder", "fuse", "pad", "unfold"))):
                case "split":
                    layout = layout.pad_to(dim, n).split(dim, (None, n))
                case "reorder":
                    layout = layout.reorder(draw(st.permutations(range(rank))))
                case "fuse":
                    layout = layout.fuse(dim)
                case "pad":
                    layout = layout.pad(dim, n, draw(st.integers(0, 3)))
                case _:
                    layout = layout.pad(dim, 0, 5).unfold(dim, n, draw(st.integers(1, n)))
        except LayoutError:
            continue
    return layout
