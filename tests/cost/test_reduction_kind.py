"""Which reductions count as long: by their terms, and by the axes that they reduce."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tilewright.cost.reduction_kind import is_long_reduction
from tilewright.machine.cost_parameters import CostParameters


@pytest.mark.parametrize(
    ("axes", "terms", "is_long"),
    [((2,), 15, False), ((2,), 16, True), ((2, 3), 25, False), ((2, 3), 39, False), ((2, 3), 40, True)],
)
def test_one_axis_has_a_limit_of_its_own(axes: tuple[int, ...], terms: int, is_long: bool) -> None:
    problem = cast(Any, SimpleNamespace(reduce=axes, reduction_length=terms))
    assert is_long_reduction(problem, CostParameters(min_long_axis=16, min_long_reduction=40)) == is_long
