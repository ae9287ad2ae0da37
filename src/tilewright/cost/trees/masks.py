"""The share of a statement's executions that masks by indices leave, as tiles of keys without a score are skipped."""

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.cost.trees.boxes import StatementNest, TreeBoxes
from tilewright.expr.nodes import Var
from tilewright.tile.index_masks import IndexMask
from tilewright.tile.tree import computes
from tilewright.tile.tree_sizes import LoopStep, PathNode


def executed_share(
    nest: StatementNest, boxes: TreeBoxes, masks: Sequence[IndexMask], extents: Mapping[str, int],
    symbols: Mapping[Var, int],
) -> Numbers:  # fmt: skip
    """Per candidate the share of the iterations around a nest that are not skipped: 1 outside of loops with online
    sums.

    Args:
        nest: the nest.
        boxes: of the candidates.
        masks: of the kernel.
        extents: of its axes.
        symbols: sizes of its symbols.
    """
    share = np.ones(boxes.sizes.shape[1])
    for mask in masks:
        nodes = nest.path.nodes
        chunks = next((k for k, x in enumerate(nodes) if _is_online_loop(x, mask.key)), None)
        rows = [x for x in nodes[:chunks] if x.axis == mask.row]
        if chunks is not None and rows:
            tiles = boxes.sizes[rows[-1].place], boxes.sizes[nodes[chunks].place]
            share = share * mask.executed_share(extents, tiles, symbols)
    return share


def _is_online_loop(node: PathNode, axis: str) -> bool:
    """Whether a node is the loop over tiles of an axis that online sums are in."""
    return isinstance(node, LoopStep) and node.axis == axis and any(c.online for c in computes(*node.loop.body))
