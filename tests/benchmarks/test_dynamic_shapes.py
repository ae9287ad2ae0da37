"""The benchmark of dynamic shapes: models that engines run, shapes in their ranges, wrong results, tables."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.dynamic_shapes import measure, tables
from benchmarks.dynamic_shapes.__main__ import main
from benchmarks.dynamic_shapes.engine import output_norms, serve
from benchmarks.dynamic_shapes.models import DynamicModel, all_models
from benchmarks.dynamic_shapes.shapes import draw_shapes, shape_feeds, with_fixed_sizes
from benchmarks.zoo.models import MODELS
from onnx.reference import ReferenceEvaluator

from tilewright.errors import OptionError
from tilewright.measure.engine_process import OWN, write_feeds

KINDS = ("gemm rows", "conv batch", "conv size", "attention", "cnn size")


def _drawn_models(count: int = 1) -> list[DynamicModel]:
    return [m for m in all_models(3, count) if m.name not in MODELS]


def test_every_kind_draws_models_and_shapes_in_their_ranges_by_a_seed() -> None:
    models = _drawn_models(2)
    assert [m.kind for m in models] == [k for k in KINDS for _ in range(2)]
    assert len({m.name for m in models}) == len(models)
    assert [m.name for m in _drawn_models(2)] == [m.name for m in models]
    assert [m.name for m in all_models(4, 2)] != [m.name for m in all_models(3, 2)]
    for model in all_models(3, 2):
        shapes = draw_shapes(model, 5, 1)
        assert shapes == draw_shapes(model, 5, 1)
        assert 1 <= len({tuple(s.values()) for s in shapes}) == len(shapes) <= 5
        for shape in shapes:
            assert list(shape) == list(model.drawn)
            for name, size in shape.items():
                low, high = model.drawn[name]
                assert low <= size <= high
                assert size % model.multiples.get(name, 1) == 0
                # ranges of models without declared ones are open
                least, most = model.ranges.get(name, (1, size))
                assert least <= size <= most


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_fixed_sizes_has_the_results_of_the_dynamic_one(kind: str) -> None:
    (model,) = (m for m in _drawn_models() if m.kind == kind)
    proto = model.build()
    onnx.checker.check_model(proto, full_check=True)
    shape = {name: low for name, (low, _) in model.drawn.items()}
    feeds = shape_feeds(model, shape, 5)
    fixed = with_fixed_sizes(proto, feeds)
    assert all(d.dim_value > 0 for i in fixed.graph.input for d in i.type.tensor_type.shape.dim)
    assert any(d.dim_param for i in proto.graph.input for d in i.type.tensor_type.shape.dim)
    (expected,), (actual,) = (ReferenceEvaluator(m).run(None, feeds) for m in (proto, fixed))
    np.testing.assert_array_equal(actual, expected)
    assert np.isfinite(expected).all()
    assert 1e-3 < np.abs(expected).max() < 1e3


def test_an_engine_answers_models_shapes_and_blocks_and_says_what_fails(tmp_path: Path) -> None:
    model = next(m for m in _drawn_models() if m.kind == "gemm rows")
    file, feeds = tmp_path / "m.onnx", shape_feeds(model, {"rows": 3}, 0)
    onnx.save(model.build(), file)
    described = write_feeds(tmp_path / "f.npz", dict(feeds), {"x": "float32"})
    requests = [
        {"model": str(file)}, {"feeds": str(tmp_path / "f.npz"), "described": described}, {"seconds": 0.001},
        {"model": str(tmp_path / "no.onnx")},
    ]  # fmt: skip
    answers: list[dict[str, object]] = []
    serve("onnxruntime", 1, StringIO("".join(json.dumps(r) + "\n" for r in requests)), answers.append)
    loaded, first, block, failed = answers
    expected = ReferenceEvaluator(str(file)).run(None, feeds)
    assert loaded == {}
    assert first["norms"] == pytest.approx(output_norms({"y": expected[0]}), rel=1e-4)
    assert isinstance(block["calls"], list)
    assert min(block["calls"]) > 0
    assert "onnxruntime: " in str(failed["error"])


def test_peers_with_wrong_results_are_left_out_and_our_own_are_refused() -> None:
    right = {"dynamic": [2.001], "static": [2.0], "onnxruntime": [1.99], "openvino": [2.0]}
    assert measure.wrong_peers(right) == []
    assert measure.wrong_peers(right | {"openvino": [1.5]}) == ["openvino"]
    assert measure.wrong_peers({n: right[n] for n in ("dynamic", "static")}) == []
    with pytest.raises(ValueError, match=r"static have norms \[2.0\], but those of dynamic: \[1.5\]"):
        measure.wrong_peers(right | {"dynamic": [1.5]})
    with pytest.raises(ValueError, match="onnxruntime"):
        measure.wrong_peers(right | {"openvino": [1.5], "onnxruntime": [float("nan")]})


def test_an_unknown_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["dynamic_shapes", "--peers", "onnxruntime,warp"])
    with pytest.raises(OptionError, match="there is no engine 'warp'"):
        main()


def test_tables_show_means_and_the_lowest_by_kind() -> None:
    assert tables.markdown({}) == ""
    results = {
        f"m {k}": {
            "kind": "gemm rows",
            "steady": {"dynamic": 2e-3, "static": static, "onnxruntime": 4e-3, "openvino": peer},
            "first": {"dynamic": 3e-3, "onnxruntime": 6e-3, "openvino": 3e-2},
        }
        for k, (static, peer) in enumerate([(1e-3, 5e-3), (4e-3, 1e-3)])
    }
    lines = tables.markdown(results).splitlines()
    row = "2 | 1.00 | 0.50 | 1.00 | 0.50 | 2.00 | 2.00 | 1.50 |"
    assert f"| gemm rows | {row}" in lines
    assert f"| all | {row}" in lines
    assert "| m 0 | 0.50 | 2.000 | 1.000 |" in lines
    assert "Left out" not in lines[-1]
    left_out = tables.markdown({"m": results["m 0"] | {"wrong": ["openvino"]}})
    assert left_out.splitlines()[-1] == "Left out, as results are wrong: openvino at m."


def test_our_engine_is_the_runtime() -> None:
    answers: list[dict[str, object]] = []
    serve(OWN, 1, StringIO(json.dumps({"model": "/nonexistent.tw"}) + "\n"), answers.append)
    assert "nonexistent.tw" in str(answers[0]["error"])
