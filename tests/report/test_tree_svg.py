"""Pictures of tile trees: every loop, part and statement has a box, and boxes enclose what is executed inside."""

from itertools import combinations
from xml.etree import ElementTree

import pytest
from tests.tile.trees import cases

from tilewright.report.tree_svg import TreePicture, draw_trees
from tilewright.tile.tree import CacheWrite, Compute, Loop, LoopPart, Partition, TileTree, walk_tree

Box = tuple[int, int, int, int]
LEGEND_BOXES = 7


def drawn_boxes(tree: TileTree) -> list[Box]:
    """(left, top, right, bottom) of all boxes, without those of the legend."""
    root = ElementTree.fromstring(draw_trees([TreePicture("a -> b", ("fused",), tree, {"v_i": "N"})]))
    rects = [x for x in root.iter() if x.tag.endswith("}rect") and x.get("x") is not None]
    numbers = [[int(x.get(name) or "") for name in ("x", "y", "width", "height")] for x in rects[LEGEND_BOXES:]]
    width, height = (int(root.get(name) or "") for name in ("width", "height"))
    boxes = [(x, y, x + w, y + h) for x, y, w, h in numbers]
    assert all(0 <= left < right <= width and 0 <= top < bottom <= height for left, top, right, bottom in boxes)
    return boxes


def is_inside(inner: Box, outer: Box) -> bool:
    return outer[0] < inner[0] and outer[1] < inner[1] and inner[2] < outer[2] and inner[3] < outer[3]


def is_disjoint(a: Box, b: Box) -> bool:
    return a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


PARTS = TileTree(
    (Partition("v_i", (
        LoopPart(8, (Loop("v_i", 8, (Compute("C"), Compute("D"))),), (CacheWrite("C", "C.tile"),)),
        LoopPart(1, (Loop("v_i", 1, (Compute("C"),)),)),
    )),),
)  # fmt: skip


@pytest.mark.parametrize("tree", [PARTS, *(case.tree for case in cases().values())], ids=["parts", *cases()])
def test_boxes_enclose_what_is_executed_inside(tree: TileTree) -> None:
    nodes = [node for node, _ in walk_tree(tree.body)]
    parts = sum(len(node.parts) for node in nodes if isinstance(node, Partition))
    boxes = drawn_boxes(tree)
    assert len(boxes) == len(nodes) + parts
    for a, b in combinations(boxes, 2):
        assert is_disjoint(a, b) or is_inside(a, b) or is_inside(b, a)


def test_loops_show_what_their_steps_are_of() -> None:
    inner = Loop("v_i", 8, (Loop("v_k", 4, (Compute("C"),)),))
    text = draw_trees([TreePicture("a", (), TileTree((Loop("v_i", 32, (inner,)), *PARTS.body)), {"v_i": "N"})])
    shown = [x.text for x in ElementTree.fromstring(text).iter() if x.tag.endswith("}text")]
    assert {"v_i 32 of N", "v_i 8 of 32", "v_k 4", "tiles of 8; C.tile copies C", "tiles of 1"} <= set(shown)
