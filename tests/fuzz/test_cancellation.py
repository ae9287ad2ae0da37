"""The judge of results that cancel accepts rounding, and nothing else."""

import pytest
from tests.fuzz.cancellation import check_values
from tests.fuzz_trees.check import check

import tilewright as tw
from tilewright.errors import MismatchError
from tilewright.loops import private_memory


def test_products_that_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_memory, "MAX_STACK_BYTES", 0)
    # for M = 4 rounding is 1e-4 of the largest result
    assert check(292154).tree is not None


@pytest.mark.parametrize("wrong", [1.0001, 2.0])
def test_a_wrong_product_is_reported(wrong: float) -> None:
    def product(scale: float) -> tw.Tensor:
        x, w, k = tw.placeholder((5, 7), name="x"), tw.placeholder((7, 3), name="w"), tw.reduce_axis(7, "k")
        return tw.compute((5, 3), lambda i, j: tw.sum(x[i, k] * w[k, j] * scale, k), "y")

    schedule = tw.create_schedule(product(1.0))
    schedule.origin = tw.create_schedule(product(wrong)).origin
    with pytest.raises(MismatchError):
        check_values(schedule, 0)
