"""NumPy's warnings about infinities and NaN do not reach users: they are results like others."""

import numpy as np
import pytest
from tests.frontend.onnx_models import add_initializer, model

import tilewright
from tilewright.errors import FallbackWarning

BODY = """q = If (c) <then_branch = t () => (seq(float[N]) s) { b = Exp(x)  d = Div(b, z)  a = Sub(d, d)
                                                             s = SequenceConstruct(a) },
                    else_branch = e () => (seq(float[N]) s) { b = Log(x)  a = Div(b, z)  s = SequenceConstruct(a) }>
          r = SequenceAt(q, nil)  k = Cast <to = 6> (r)  y = Add(k, k)"""
"""A sequence leaves the branches, so the evaluator runs them."""


@pytest.mark.parametrize("truth", [True, False])
def test_arithmetic_of_a_fallback(truth: bool) -> None:
    """Overflow, division by zero, invalid values and casts of them; warnings are errors in these tests."""
    proto = model(BODY, inputs="bool c, float[N] x, float[1] z", outputs="float[N] r, int32[N] y")
    add_initializer(proto, "nil", np.array(0))
    with pytest.warns(FallbackWarning, match="a sub-graph returns values that are no tensors"):
        exe = tilewright.compile(proto, optimizer="rule", threads=1)
    x = np.array([1000, -1000, 1, 0], np.float32)
    actual = exe.run({"c": np.array(truth), "x": x, "z": np.zeros(1, np.float32)})["r"]
    with np.errstate(all="ignore"):
        wide = np.exp(x) / np.float32(0)
        expected = wide - wide if truth else np.log(x) / np.float32(0)
    np.testing.assert_array_equal(actual, expected)


def test_folding_of_constants() -> None:
    proto = model("a = Det(w)  y = Add(x, a)", inputs="float[2] x", outputs="float[2] y")
    add_initializer(proto, "w", np.full((2, 2), 3e38, np.float32) * np.float32([[1, -1], [1, 1]]))
    exe = tilewright.compile(proto, optimizer="rule", threads=1)
    assert np.isinf(exe(np.ones(2, np.float32))).all()
