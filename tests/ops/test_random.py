"""Random numbers: the generator against its authors' values, distributions, seeds and element types."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, define, run_stages

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.ops.routines.random import philox

SIZE = 20_000


def draw(op, inputs=(), opset=22, **attributes):
    case = NodeCase(op, inputs, attributes, opset=opset)
    d, results = define(case, constants=())
    (y,) = run_stages(d, results, inputs)
    return y


def test_the_generator():
    """A row of the authors' table of known answers: the only one whose counter has no upper 64 bits."""
    words = np.zeros(4, np.int64)
    philox(words, 0, 0)
    assert words.tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_uniform_numbers():
    y = draw("RandomUniform", shape=[100, SIZE // 100], seed=3.0, low=-2.0, high=6.0)
    assert y.shape == (100, SIZE // 100)
    assert y.dtype == np.float32
    assert (y.min(), y.max()) == pytest.approx((-2, 6), abs=0.01)
    assert (y.mean(), y.var()) == pytest.approx((2, 64 / 12), abs=0.1)
    correlation = np.corrcoef(y.reshape(-1)[:-1], y.reshape(-1)[1:])[0, 1]
    assert abs(correlation) < 0.03


@pytest.mark.parametrize(("number", "dtype"), [(1, np.float32), (11, np.float64), (10, np.float16)])
def test_normal_numbers(number, dtype):
    y = draw("RandomNormal", shape=[SIZE], seed=5.0, mean=1.5, scale=0.5, dtype=number)
    assert y.dtype == dtype
    z = (y.astype(np.float64) - 1.5) / 0.5
    assert np.isfinite(z).all()
    assert [np.mean(z**k) for k in (1, 2, 3, 4)] == pytest.approx([0, 1, 0, 3], abs=0.15)
    inside = [np.mean(np.abs(z) < bound) for bound in (1, 2, 3)]
    assert inside == pytest.approx([0.6827, 0.9545, 0.9973], abs=0.01)


def test_seeds():
    first, again, other = (draw("RandomNormal", shape=[50], seed=s) for s in (1.0, 1.0, 2.0))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.9
    # a longer tensor begins with the same numbers
    np.testing.assert_array_equal(draw("RandomNormal", shape=[80], seed=1.0)[:50], first)
    assert (draw("RandomNormal", shape=[50]) != draw("RandomNormal", shape=[50])).mean() > 0.9


def test_shapes_and_types_of_an_operand():
    x = np.zeros((3, 0, 5), np.float16)
    assert draw("RandomUniformLike", [x]).shape == x.shape
    y = draw("RandomNormalLike", [np.zeros((2, 3), np.int32)], dtype=11)
    assert (y.shape, y.dtype) == ((2, 3), np.float64)
    with pytest.raises(UnsupportedError, match="random numbers of type int32"):
        draw("RandomNormalLike", [np.zeros((2, 3), np.int32)])
    with pytest.raises(ShapeError, match="shape: expected sizes of 0 or more"):
        draw("RandomUniform", shape=[2, -1])


def test_bernoulli():
    p = np.repeat(np.array([0, 0.2, 0.9, 1], np.float32), SIZE // 4).reshape(4, -1)
    for number, dtype in ((None, np.float32), (9, bool), (7, np.int64), (10, np.float16)):
        y = draw("Bernoulli", [p], seed=2.0, **({} if number is None else {"dtype": number}))
        assert y.dtype == dtype
        assert y.astype(float).mean(1) == pytest.approx([0, 0.2, 0.9, 1], abs=0.03)
        assert set(np.unique(y.astype(float))) == {0, 1}


def test_multinomial():
    p = np.array([[0.1, 0, 0.6, 0.3], [0, 0, 0, 1]])
    with np.errstate(divide="ignore"):
        logarithms = (np.log(p) + 7).astype(np.float32)
    y = draw("Multinomial", [logarithms], sample_size=SIZE // 4, seed=9.0, dtype=7)
    assert y.dtype == np.int64
    for row, expected in zip(y, p, strict=True):
        assert np.bincount(row, minlength=4) / len(row) == pytest.approx(expected, abs=0.03)
    assert draw("Multinomial", [logarithms], sample_size=0).shape == (2, 0)


@pytest.mark.parametrize("row", [[-np.inf, -np.inf], [np.nan, 0], [np.inf, 0], []])
def test_multinomial_of_what_is_no_distribution(row):
    with pytest.raises(AssertionError, match="the weights of a row are all zero, or no numbers"):
        draw("Multinomial", [np.array([row], np.float32)])


def test_multinomial_rejects():
    x = np.zeros((2, 3), np.float32)
    for attributes in ({"sample_size": -1}, {"dtype": 1}):
        with pytest.raises(ShapeError, match="expected a sample_size of at least 0 and int32 or int64"):
            draw("Multinomial", [x], **attributes)
