"""The judge of results that cancel accepts rounding, and nothing else."""

import numpy as np
import pytest
from tests.fuzz.cancellation import MAX_CANCELLATION, cancellation_factor, check_under_cancellation
from tests.fuzz_trees import check as trees
from tests.fuzz_trees.check import check

import tilewright as tw
from tilewright.errors import MismatchError
from tilewright.loops import private_memory


def test_products_that_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    # trees of this seed were drawn without a stack; for M = 4 rounding is 1e-4 of the largest result
    monkeypatch.setattr(private_memory, "MAX_STACK_BYTES", 0)
    assert check(292154).tree is not None
    monkeypatch.setattr(trees, "check_under_cancellation", lambda s, seed: s.check(seed=seed, threads=2))
    with pytest.raises(MismatchError):
        check(292154)


def test_cancellation_factor() -> None:
    one, large = np.array([1.0, -2.0]), np.array([-400.0, 2.0])
    assert cancellation_factor(one, large) == 200.0
    assert cancellation_factor(large, one) == 1.0
    assert cancellation_factor(np.zeros(2), large) == 1.0, "a result of zeros is judged as before"
    assert cancellation_factor(one, np.array([np.inf])) == 1.0
    assert cancellation_factor(one, 1e12 * large) == MAX_CANCELLATION


@pytest.mark.parametrize("seed", range(6))
def test_a_wrong_sign_before_a_rectifier_is_reported(seed: int) -> None:
    def rectified(sign: float) -> tw.Tensor:
        x, w, k = tw.placeholder((1, 7), name="x"), tw.placeholder((7, 1), name="w"), tw.reduce_axis(7, "k")
        y = tw.compute((1, 1), lambda i, j: tw.sum(x[i, k] * w[k, j] * sign, k), "y")
        return tw.compute((1, 1), lambda i, j: tw.maximum(y[i, j], 0.0), "z")

    schedule = tw.create_schedule(rectified(1.0))
    schedule.origin = tw.create_schedule(rectified(-1.0)).origin
    with pytest.raises(MismatchError):
        check_under_cancellation(schedule, seed)


@pytest.mark.parametrize("wrong", [1.01, 2.0])
def test_a_wrong_product_that_cancels_is_reported(wrong: float) -> None:
    def product(scale: float) -> tw.Tensor:
        x, w, k = tw.placeholder((1, 1), name="x"), tw.placeholder((1, 1), name="w"), tw.reduce_axis(1, "k")
        # what is subtracted leaves a thousandth
        return tw.compute((1, 1), lambda i, j: tw.sum((x[i, k] - x[i, k] * 0.999) * w[k, j] * scale, k), "y")

    schedule = tw.create_schedule(product(1.0))
    schedule.origin = tw.create_schedule(product(wrong)).origin
    with pytest.raises(MismatchError):
        check_under_cancellation(schedule, 0)


@pytest.mark.parametrize("wrong", [1.0001, 2.0])
def test_a_wrong_product_is_reported(wrong: float) -> None:
    def product(scale: float) -> tw.Tensor:
        x, w, k = tw.placeholder((5, 7), name="x"), tw.placeholder((7, 3), name="w"), tw.reduce_axis(7, "k")
        return tw.compute((5, 3), lambda i, j: tw.sum(x[i, k] * w[k, j] * scale, k), "y")

    schedule = tw.create_schedule(product(1.0))
    schedule.origin = tw.create_schedule(product(wrong)).origin
    with pytest.raises(MismatchError):
        check_under_cancellation(schedule, 0)
