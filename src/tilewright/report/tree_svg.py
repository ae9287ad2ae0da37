"""Drawing of tile trees as SVG: loops are boxes around what they execute, statements are filled boxes inside.

What runs one after the other stands one below the other, parts of a partition stand side by side. Colours tell
parallel, vectorized and unrolled loops apart, and where results are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import LoopKind
from tilewright.tile.tree import Compute, Loop, Node, TileTree
from tilewright.tile.tree_text import compute_text, loop_text, staging_text

LINE, PAD, GAP, PICTURE_EDGE = 18, 10, 6, 20
CHARACTER = 6.7
"""Width of a character of the font; a little more than it has on average."""

LOOP_COLOURS = {
    LoopKind.PARALLEL: "#dcebf7", LoopKind.SERIAL: "#ffffff", LoopKind.UNROLLED: "#fdf3e3",
    LoopKind.VECTORIZED: "#e4f4ea",
}  # fmt: skip
SCOPE_COLOURS = {MemoryScope.REGISTER: "#f6c8bd", MemoryScope.STACK: "#e6d9f0"}
MEMORY_COLOUR, FRAME_COLOUR = "#d0d0d0", "#777777"


@dataclass(frozen=True, slots=True)
class TreePicture:
    """A tree to draw.

    Attributes:
        title: what it is the tree of.
        notes: lines below the title.
        tree: the tree.
        extents: the points of axes, as they are shown; those of others are left out.
    """

    title: str
    notes: tuple[str, ...]
    tree: TileTree
    extents: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Box:
    """A box with a line of text and the boxes inside of it, from top to bottom, or side by side."""

    text: str
    fill: str
    inside: "tuple[_Box, ...]" = ()
    dashed: bool = False
    is_row: bool = False

    @property
    def width(self) -> int:
        widths = [x.width for x in self.inside]
        inner = sum(widths) + GAP * (len(widths) - 1) if self.is_row else max(widths, default=0)
        return max(round(CHARACTER * len(self.text)), inner) + 2 * PAD

    @property
    def height(self) -> int:
        heights = [x.height for x in self.inside]
        inner = max(heights, default=0) if self.is_row else sum(heights) + GAP * (len(heights) - 1)
        return LINE + PAD + (inner + PAD if self.inside else 0)

    def svg(self, x: int, y: int, width: int) -> list[str]:
        """The elements of the box; boxes inside of it are as wide as it, as far as none are beside them."""
        frame = ' stroke-dasharray="5 3"' if self.dashed else ""
        parts = [
            f'<rect x="{x}" y="{y}" width="{width}" height="{self.height}" rx="4" fill="{self.fill}" '
            f'stroke="{FRAME_COLOUR}"{frame}/>',
            f'<text x="{x + PAD}" y="{y + LINE}">{escape(self.text)}</text>',
        ]
        right, below = x + PAD, y + LINE + PAD
        for box in self.inside:
            parts += box.svg(right, below, box.width if self.is_row else width - 2 * PAD)
            right, below = (right + box.width + GAP, below) if self.is_row else (right, below + box.height + GAP)
        return parts


def draw_trees(pictures: Sequence[TreePicture]) -> str:
    """The pictures, one below the other, as an SVG document."""
    parts: list[str] = []
    y, width = PICTURE_EDGE, 0
    legend = [_Box(f"{kind} loop", colour) for kind, colour in LOOP_COLOURS.items()]
    legend += [_Box(f"results in {scope}", colour) for scope, colour in SCOPE_COLOURS.items()]
    x = PICTURE_EDGE
    for box in (*legend, _Box("results in memory", MEMORY_COLOUR)):
        parts += box.svg(x, y, box.width)
        x += box.width + GAP
    width, y = x, y + legend[0].height + PICTURE_EDGE
    for picture in pictures:
        tree = picture.tree
        parts.append(f'<text x="{PICTURE_EDGE}" y="{y + LINE}" font-size="15">{escape(picture.title)}</text>')
        y += LINE + PAD
        lines = (*picture.notes, *map(staging_text, tree.staging))
        for line in lines:
            parts.append(f'<text x="{PICTURE_EDGE}" y="{y + LINE - PAD // 2}" fill="#555555">{escape(line)}</text>')
            y += LINE
        boxes = [_node_box(x, picture.extents) for x in tree.body]
        inner = max((x.width for x in boxes), default=0)
        for box in boxes:
            parts += box.svg(PICTURE_EDGE, y + PAD, inner)
            y += box.height + GAP
        texts = (round(CHARACTER * 1.2 * len(picture.title)), *(round(CHARACTER * len(x)) for x in lines))
        width, y = max(width, PICTURE_EDGE + inner, *(PICTURE_EDGE + x for x in texts)), y + 2 * PICTURE_EDGE
    width += PICTURE_EDGE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _node_box(node: Node, extents: Mapping[str, str]) -> _Box:
    if isinstance(node, Compute):
        colour = MEMORY_COLOUR if node.scope is None else SCOPE_COLOURS.get(node.scope, MEMORY_COLOUR)
        return _Box(compute_text(node), colour)
    if isinstance(node, Loop):
        # inside of a loop, its axis has the points of a tile
        inside = tuple(_node_box(x, {**extents, node.axis: str(node.step)}) for x in node.body)
        text = f"{loop_text(node)} of {extents[node.axis]}" if node.axis in extents else loop_text(node)
        return _Box(text, LOOP_COLOURS.get(node.kind, "#ffffff"), inside)
    serial = LOOP_COLOURS[LoopKind.SERIAL]
    parts = tuple(
        _Box("; ".join([f"tiles of {part.tile}", *map(staging_text, part.staging)]), serial,
             tuple(_node_box(x, extents) for x in part.body), dashed=True)
        for part in node.parts
    )  # fmt: skip
    return _Box(f"{node.axis} in parts, one after the other", serial, parts, dashed=True, is_row=True)
