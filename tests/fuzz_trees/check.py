"""One random tree: refused for a reason, or verified and computed natively like the untransformed loops."""

from dataclasses import dataclass

import numpy as np
from tests.fuzz.cancellation import check_under_cancellation
from tests.fuzz_trees.draw import random_tree
from tests.fuzz_trees.kernels import random_kernel

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.loops.private_memory import workspace_buffers
from tilewright.tile import tree_json
from tilewright.tile.tree import TileTree, computes

TREES_PER_KERNEL = 6
"""Trees that are drawn for a kernel until one is legal."""


@dataclass(frozen=True)
class Outcome:
    """What became of a random kernel.

    Attributes:
        kernel: its untransformed loops as text.
        tree: the accepted tree; None where all were refused.
        refusals: why trees were refused.
        slices: private buffers that are in the workspace, with a slice per thread.
    """

    kernel: str
    tree: TileTree | None
    refusals: tuple[str, ...]
    slices: tuple[str, ...] = ()


def check(seed: int) -> Outcome:
    """Draws a kernel and trees for it; the first legal one must compute the same.

    Raises:
        VerifyError: an accepted tree gives loops that are not well-formed.
        MismatchError: it computes something else.
    """
    rng = np.random.default_rng([seed])
    result = random_kernel(rng)
    refusals: list[str] = []
    kernel = tw.create_schedule(result).show()
    for _ in range(TREES_PER_KERNEL):
        s = tw.create_schedule(result)
        tree = random_tree(s.func, rng)
        try:
            s.apply_tree(tree)
        except ScheduleError as error:
            refusals.append(str(error))
            continue
        assert tree_json.loads(tree_json.dumps(tree)) == tree
        check_under_cancellation(s, seed)
        slices = tuple(b.name for b in workspace_buffers(s.func))
        return Outcome(kernel, tree, tuple(refusals), slices)
    return Outcome(kernel, None, tuple(refusals))


def is_fused(tree: TileTree) -> bool:
    """Whether a nest of a tree holds several statements."""
    return any(len(computes(node)) > 1 for node in tree.body)
