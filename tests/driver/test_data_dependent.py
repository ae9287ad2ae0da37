"""Operators whose results or sizes depend on data, as native code, against ONNX's reference and ONNX Runtime."""

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from tests.driver.data_dependent import (
    assert_close,
    assert_native,
    compile_natively,
    feeds_of,
    one_node,
    reference,
)

import tilewright
from tilewright.driver.compile import make_compilation
from tilewright.driver.diagnostics.profile import profile_compilation
from tilewright.errors import ShapeError
from tilewright.runtime.manifest import NativeStep, SizesStep

RNG = np.random.default_rng()
F32 = np.float32


def ties(*shape: int, dtype: Any = F32) -> np.ndarray:
    """Numbers of which many are equal."""
    return RNG.integers(0, 5, shape).astype(dtype)


def mask(*shape: int, part: float = 0.4) -> np.ndarray:
    return RNG.random(shape) < part


# selection


@pytest.mark.parametrize("dtype", [F32, np.float16, np.int32, np.uint64, np.uint8])
def test_top_k_with_ties(dtype):
    for k, axis, largest in ((1, 0, 0), (2, -2, 1), (11, 1, 0), (3, 0, 1)):
        x = ties(3, 11, 2, dtype=dtype)
        order = np.argsort(-x.astype(np.float64) if largest else x, axis=axis, kind="stable")
        indices = np.take(order, range(k), axis)
        model = one_node("TopK", [x, np.array([k])], {"axis": axis, "largest": largest}, outputs=2, constants=[1])
        results = compile_natively(model).run({"x0": x})
        assert_close(results["y1"], indices)
        assert_close(results["y0"], np.take_along_axis(x, indices, axis))


def test_top_k_like_onnx_runtime_with_k_from_data():
    x, k = RNG.normal(size=(5, 30)).astype(F32), np.array([7])
    executable = assert_native("TopK", [x, k], outputs=2, by="ort")
    assert [type(s) for s in executable.manifest.steps] == [SizesStep, NativeStep]
    assert executable.run({"x0": x, "x1": np.array([0])})["y1"].shape == (5, 0)


@pytest.mark.parametrize(("k", "message"), [(31, "expected at most"), (-1, "expected at least 0")])
def test_top_k_with_a_k_that_there_is_not(k, message):
    x = RNG.normal(size=(5, 30)).astype(F32)
    for static in (None, ()):
        executable = compile_natively(one_node("TopK", [x, np.array([3])], outputs=2, static=static))
        with pytest.raises(ShapeError, match=message):
            executable.run({"x0": x, "x1": np.array([k])})
        assert executable.run({"x0": x, "x1": np.array([3])})["y0"].shape == (5, 3)
    with pytest.raises(tilewright.errors.ModelError, match="k: expected"):
        compile_natively(one_node("TopK", [x, np.array([k])], outputs=2, constants=[1]))


def test_top_k_counts_nan_as_the_largest():
    x = np.array([1, np.nan, 3, np.nan, -np.inf], F32)
    for largest, indices in ((1, [1, 3, 2, 0, 4]), (0, [4, 0, 2, 1, 3])):
        for k in (1, 3, 5):
            node = one_node("TopK", [x, np.array([k])], {"largest": largest}, outputs=2, constants=[1])
            assert_close(compile_natively(node).run({"x0": x})["y1"], np.array(indices[:k]))


@pytest.mark.parametrize("dtype", [bool, F32, np.int8, ml_dtypes.bfloat16])
def test_nonzero(dtype):
    for rank in (1, 2, 4):
        shapes = [RNG.integers(1, 6, rank) for _ in range(3)] + [[0] * rank]
        executable = compile_natively(one_node("NonZero", [ties(*shapes[0], dtype=dtype)], static=()))
        for shape in shapes:
            x = ties(*shape, dtype=dtype)
            assert_close(executable.run({"x0": x})["y0"], np.array(np.nonzero(x)))


def test_nonzero_of_nan_and_negative_zero():
    x = np.array([np.nan, -0.0, 0.0, np.inf], F32)
    assert compile_natively(one_node("NonZero", [x])).run({"x0": x})["y0"].tolist() == [[0, 3]]


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis):
    x = RNG.normal(size=(6, 5)).astype(F32)
    attributes = {} if axis is None else {"axis": axis}
    length = 30 if axis is None else x.shape[axis]
    executable = assert_native("Compress", [x, mask(length - 2)], attributes)
    for condition in (mask(length), np.zeros(length, bool), np.ones(length, bool)):
        expected = np.compress(condition, x, axis)
        assert_close(executable.run({"x0": x, "x1": condition})["y0"], expected)


@pytest.mark.parametrize("attributes", [{}, {"sorted": 0}, {"axis": 1}, {"axis": 0, "sorted": 0}, {"axis": -1}])
def test_unique(attributes):
    executable = assert_native("Unique", [ties(3, 4)], attributes, outputs=4, by="ort")
    for x in (ties(2, 9), np.ones((1, 3), F32), ties(6, 3, dtype=F32) // 3):
        for k, expected in enumerate(reference(one_node("Unique", [x], attributes, outputs=4), {"x0": x}, "ort")):
            assert_close(executable.run({"x0": x})[f"y{k}"], expected)


# boxes


def boxes(batches: int, count: int) -> np.ndarray:
    corner = RNG.random((batches, count, 2)).astype(F32)
    return np.concatenate([corner, corner + RNG.random((batches, count, 2)).astype(F32) * F32(0.5)], 2)


@pytest.mark.parametrize("centered", [0, 1])
@pytest.mark.parametrize("limits", [(5, 0.3), (9, 0.4, 0.5)])
def test_non_max_suppression(centered, limits):
    scores = np.round(RNG.random((2, 3, 40)), 1).astype(F32)
    given = [np.array([v], np.int64 if k == 0 else F32) for k, v in enumerate(limits)]
    for constants in ((), tuple(range(2, 2 + len(given)))):
        inputs = [boxes(2, 40), scores, *given]
        assert_native(
            "NonMaxSuppression", inputs, {"center_point_box": centered}, by="ort", constants=constants
        )


def test_non_max_suppression_of_odd_boxes():
    """Corners in any order, boxes without area, equal boxes, scores that are NaN, no boxes."""
    box = boxes(1, 20)
    box[0, ::3] = box[0, ::3][:, [2, 3, 0, 1]]
    box[0, 5, 2:] = box[0, 5, :2]
    box[0, 7] = box[0, 6]
    scores = np.round(RNG.random((1, 2, 20)), 1).astype(F32)
    limits = [np.array([20]), np.array([0.2], F32), np.array([0.1], F32)]
    executable = assert_native("NonMaxSuppression", [box, scores, *limits], by="ort")
    scores[0, 0, ::2] = np.nan
    rows = executable.run(feeds_of([box, scores, *limits]))["y0"]
    assert len(rows)
    assert not np.isnan(scores[0, rows[:, 1], rows[:, 2]]).any()
    assert executable.run(feeds_of([box[:, :0], scores[:, :, :0], *limits]))["y0"].shape == (0, 3)


@pytest.mark.parametrize("part", [0.1, 0.5, 1.0])
def test_non_max_suppression_of_scores_without_order(part):
    """Without a limit scores that are NaN stay where the heap of ONNX Runtime has them."""
    for count in (1, 2, 3, 8, 41):
        scores = np.round(RNG.random((2, 3, count)), 1).astype(F32)
        scores[RNG.random(scores.shape) < part] = np.nan
        for threshold in (0.2, 1.0):
            inputs = [boxes(2, count), scores, np.array([count]), np.array([threshold], F32)]
            expected = reference(one_node("NonMaxSuppression", inputs), feeds_of(inputs), "ort")[0]
            if count == 1 and threshold == 0.2:
                executable = compile_natively(one_node("NonMaxSuppression", inputs, static=()))
            np.testing.assert_array_equal(executable.run(feeds_of(inputs))["y0"], expected)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
def test_roi_align(mode, transformation):
    x = RNG.normal(size=(2, 3, 12, 10)).astype(F32)
    rois = np.array([[1, 1, 6, 7], [0, 0, 9, 9], [3, 2, 3.5, 8], [-2, -1, 4, 3], [8, 8, 30, 30]], F32)
    attributes = {"mode": mode, "coordinate_transformation_mode": transformation,
                  "sampling_ratio": 2 if mode == "avg" and transformation == "half_pixel" else 0,
                  "output_height": 4, "output_width": 3, "spatial_scale": 0.7}  # fmt: skip
    inputs = [x, rois, np.array([0, 1, 1, 0, 1])]
    executable = assert_native("RoiAlign", inputs, attributes, by="ort")
    with pytest.raises(ShapeError, match=r"node \(RoiAlign\): a batch index is out of range"):
        executable.run(feeds_of([x, rois, np.array([0, 1, 2, 0, 1])]))


# surroundings


DETECTOR = """
agraph (float[1, 3, n] scores, float[1, n, 4] boxes) => (float[k, 4] kept) <int64 ten = {10}, float[1] overlap = {0.4},
  float[1] least = {0.2}, int64[1] axis = {1}, int64[1] last = {2}, int64[1] end = {3}> {
  likely = Sigmoid(scores)
  rows = NonMaxSuppression(boxes, likely, ten, overlap, least)
  places = Slice(rows, last, end, axis)
  flat = Squeeze(places, axis)
  all = Squeeze(boxes)
  picked = Gather(all, flat)
  kept = Mul(picked, picked)
}
"""


def detector() -> onnx.ModelProto:
    text = f'<ir_version: 10, opset_import: ["" : 18]>\n{DETECTOR.strip()}'
    model = onnx.parser.parse_model(text)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


def test_a_detector_is_native_saved_and_profiled(tmp_path):
    model = detector()
    executable = compile_natively(model)
    for count in (30, 7, 0, 31):
        feeds = {"scores": RNG.normal(size=(1, 3, count)).astype(F32), "boxes": boxes(1, count)}
        expected = reference(model, feeds, "ort")
        assert_close(executable.run(feeds)["kept"], expected[0])
        executable.save(tmp_path / "detector.tw")
        assert_close(tilewright.load(tmp_path / "detector.tw").run(feeds)["kept"], expected[0])
    recorded = profile_compilation(make_compilation(model), feeds, threads=1, seconds=0.01)
    assert {e.kind for e in recorded.entries} >= {"routine", "sizes", "kernel"}
    assert "non_max_suppression" in {e.name for e in recorded.entries}


def in_a_loop(op: str, more: str = "") -> onnx.ModelProto:
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    agraph (int64 trips, float[4, 6] x) => (float[4, 6] y) <bool go = {{1}}, int64[1] k = {{6}}> {{
      y = Loop(trips, go, x) <body = step (int64 i, bool c, float[4, 6] v) => (bool c2, float[4, 6] w) {{
        c2 = Identity(c)  {op}  {more} }}>
    }}"""
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize(
    "model",
    [
        in_a_loop("a, b = TopK <axis = 1> (v, k)", "f = Cast <to = 1> (b)  w = Sub(a, f)"),
        in_a_loop("z = NonZero(v)", "d = Size(z)  f = Cast <to = 1> (d)  w = Sub(v, f)"),
    ],
    ids=["sizes known", "sizes by data"],
)
def test_in_the_body_of_a_loop(model):
    x = RNG.normal(size=(4, 6)).astype(F32)
    executable = compile_natively(model)
    for trips in (0, 1, 5):
        feeds = {"trips": np.array(trips), "x": x}
        assert_close(executable.run(feeds)["y"], reference(model, feeds)[0])


def test_in_a_native_loop():
    """A loop whose number of iterations is known is one native call, routines included."""
    model = in_a_loop("a, b = TopK <axis = 1> (v, k)", "f = Cast <to = 1> (b)  w = Sub(a, f)")
    model.graph.input.pop(0)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(3), "trips"))
    executable = compile_natively(model)
    assert [type(s) for s in executable.manifest.steps] == [NativeStep]
    x = RNG.normal(size=(4, 6)).astype(F32)
    assert_close(executable.run({"x": x})["y"], reference(model, {"x": x})[0])



def test_calls_of_changing_sizes_do_not_disturb_each_other():
    executable = compile_natively(one_node("NonZero", [mask(3, 4)], static=()))
    given = [mask(*shape) for shape in ((3, 4), (1, 9), (50, 70), (3, 4), (0, 4))]
    results = [executable.run({"x0": x})["y0"] for x in given]
    for x, y in zip(given, results, strict=True):
        assert_close(y, np.array(np.nonzero(x)))


def test_the_oracle_runs_routines():
    from tilewright.driver.diagnostics.float64_reference import evaluate_program
    from tilewright.frontend.onnx import load_onnx
    from tilewright.graph.lower import lower_graph
    from tilewright.graph.passes import simplify_graph

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = lower_graph(simplify_graph(load_onnx(detector(), None)))
    feeds = {"scores": RNG.normal(size=(1, 3, 9)).astype(F32), "boxes": boxes(1, 9)}
    expected = reference(detector(), feeds, "ort")[0]
    (name,) = [b.name for _, b in program.outputs]
    np.testing.assert_allclose(evaluate_program(program, feeds)[name], expected, rtol=1e-5)
