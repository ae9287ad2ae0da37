"""The pool of weights: unique names, equal arrays once, determinism."""

import ml_dtypes
import numpy as np
from tests.driver.models import array

from tilewright.driver.artifact.weight_pool import WeightPool


def test_equal_arrays_share_a_name():
    pool = WeightPool()
    a = array(1, 3, 4)
    assert pool.add("w", a) == "w"
    assert pool.add("other", a) == "w"
    assert pool.add("copy", a.copy()) == "w"
    assert list(pool.arrays) == ["w"]


def test_different_arrays_never_share_a_name():
    pool = WeightPool()
    a = array(1, 3, 4)
    names = [pool.add("w", x) for x in (a, a + 1, a.reshape(4, 3), a.view(np.int32), -a)]
    assert names == ["w", "w.2", "w.3", "w.4", "w.5"]


def test_layout_is_made_row_major():
    pool = WeightPool()
    a = array(1, 3, 4)
    assert pool.add("w", a.T) == "w"
    assert pool.arrays["w"].flags.c_contiguous
    np.testing.assert_array_equal(pool.arrays["w"], a.T)


def test_scalars_empty_arrays_and_small_floats():
    pool = WeightPool()
    for k, a in enumerate((np.float32(3), np.zeros((0, 2), np.float32), np.ones(3, ml_dtypes.bfloat16))):
        name = pool.add(f"w{k}", np.asarray(a))
        assert pool.arrays[name].shape == np.shape(a)
