"""Scan of operator set 8, with a batch, against NumPy and ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest

import tilewright
from tilewright.frontend.onnx.upgrade_scan import upgrade_scan

RNG = np.random.default_rng()
SUMS = """
    <ir_version: 3, opset_import: ["" : 8]>
    g (float[b,2] initial, float[b,t,2] x, float[b,t] w) => (float[b,2] y, float[b,t,2] z, float[b,t] v) {
       two = Constant <value = float {2.0}> ()
       y, z, v = Scan <num_scan_inputs: int = 2, directions = [0, 1],
          body: graph = body (float[2] total, float[2] next, float[] factor)
             => (float[2] new_total, float[2] copy, float[] negative) {
                scaled = Mul (next, factor)
                new_total = Add (total, scaled)
                copy = Mul (new_total, two)
                negative = Neg (factor)
          }>("", initial, x, w)
    }"""


@pytest.mark.parametrize(("batch", "steps"), [(1, 3), (4, 5), (2, 1), (3, 0), (0, 3)])
def test_sums_over_time(batch, steps):
    executable = tilewright.compile(onnx.parser.parse_model(SUMS))
    initial, x, w = (RNG.normal(size=s).astype(np.float32) for s in ((batch, 2), (batch, steps, 2), (batch, steps)))
    results = executable.run({"initial": initial, "x": x, "w": w})
    totals = initial[:, None] + np.cumsum(x * w[:, ::-1, None], 1)
    np.testing.assert_allclose(results["z"], 2 * totals, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(results["y"], totals[:, -1] if steps else initial, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(results["v"], -w[:, ::-1])


def test_names_of_the_body_are_kept_apart():
    text = SUMS.replace("copy", "total/item").replace("two", "next/item")
    model = onnx.parser.parse_model(text.replace("total/item", '"total/item"').replace("next/item", '"next/item"'))
    feeds = {"initial": np.ones((2, 2)), "x": np.ones((2, 3, 2)), "w": np.ones((2, 3))}
    feeds = {name: a.astype(np.float32) for name, a in feeds.items()}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for actual, right in zip(tilewright.compile(model).run(feeds).values(), expected, strict=True):
        np.testing.assert_array_equal(actual, right)


@pytest.mark.parametrize(
    "text",
    [
        SUMS.replace('("", initial', "(lengths, initial"),
        SUMS.replace("Neg (factor)", "Upsample (factor)"),
        SUMS.replace("initial, x, w)\n", "initial, x)\n"),
    ],
)
def test_others_are_left_alone(text):
    scan = onnx.parser.parse_model(text).graph.node[1]
    assert upgrade_scan(scan) is None
