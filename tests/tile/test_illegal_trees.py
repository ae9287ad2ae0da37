"""Illegal tile trees are refused, each for its reason."""

from collections.abc import Callable

import pytest
from tests.tile.tree_edits import EDITS
from tests.tile.trees import cases

from tilewright.errors import ScheduleError, TreeError
from tilewright.loops.ir import Func
from tilewright.tile.check_tree import check_tree
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.tree import TileTree

CASES = cases()


def reason(tree: TileTree, func: Func) -> str:
    """What is wrong with a tree: all conditions that do not hold, or the step that is not legal."""
    with pytest.raises(ScheduleError) as error:
        lower_tree(tree, func)
    error = error.value
    return "\n".join(f"  {p.where}: {p.what}" for p in error.problems) if isinstance(error, TreeError) else f"  {error}"


@pytest.mark.parametrize("name", CASES)
def test_illegal_trees_are_refused(name: str, golden: Callable[[str], None]) -> None:
    case = CASES[name]
    golden("\n".join(f"{what}:\n{reason(edit(case.tree), case.func)}" for what, edit in EDITS.items()))


def test_a_hundred_illegal_trees_are_refused() -> None:
    assert len(CASES) * len(EDITS) >= 100


@pytest.mark.parametrize("name", CASES)
def test_legal_trees_are_accepted(name: str) -> None:
    check_tree(CASES[name].tree, CASES[name].func)
