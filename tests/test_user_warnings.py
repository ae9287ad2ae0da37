"""Warnings at the line of the user's program."""

import warnings
from pathlib import Path

import onnx
import pytest

import tilewright
from tilewright.errors import SearchWarning
from tilewright.user_warnings import warn_user


def test_a_warning_names_the_caller() -> None:
    with pytest.warns(SearchWarning, match="slow") as caught_warnings:
        warn_user("slow", SearchWarning)
    assert Path(caught_warnings[0].filename) == Path(__file__)


@pytest.mark.parametrize("start", ["compile", "session"])
def test_a_fallback_is_reported_at_the_line_that_compiles(tmp_path: Path, start: str) -> None:
    node = onnx.helper.make_node("StringNormalizer", ["x"], ["y"], name="upper", case_change_action="UPPER")
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.STRING, [2]) for n in "xy")
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]), opset_imports=opset, ir_version=9),
        tmp_path / "m.onnx",
    )
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        if start == "compile":
            tilewright.compile(tmp_path / "m.onnx", cache=False, records=False)
        else:
            tilewright.InferenceSession(str(tmp_path / "m.onnx"))
    (fallback,) = [w for w in issued if w.category is tilewright.FallbackWarning]
    assert "upper" in str(fallback.message)
    assert Path(fallback.filename) == Path(__file__)


def test_the_names_of_the_package_are_the_public_ones() -> None:
    assert dir(tilewright) == sorted(tilewright.__all__)
    assert {"compile", "load", "InferenceSession"} <= set(dir(tilewright))
