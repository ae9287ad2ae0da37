"""The Python examples of docs/python-api.md, run as they stand, one after the other; every public name is there."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.driver.models import array, model, value
from tests.driver.tune.test_pipeline import DecreasingTimes, comparison_of

import tilewright
from tilewright.driver.tune import pipeline
from tilewright.measure.workers.interface import Effort
from tilewright.measure.workers.local import LocalWorkers

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"


@pytest.mark.usefixtures("reuse_code", "registries")
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(tmp_path / "records.db"))
    # what programs take does not matter here
    times = LocalWorkers(dict.fromkeys(Effort, DecreasingTimes()))
    monkeypatch.setattr(pipeline, "_make_workers", lambda *args: times)
    monkeypatch.setattr(pipeline, "compare_models", lambda *args: comparison_of(1.0, 0.8))
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    inputs, outputs = [value("x", ["batch", 24])], [value("y", ["batch", 16])]
    onnx.save(model([product], inputs, outputs, {"w": array(1, 24, 16)}), "model.onnx")
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(example, str(PAGE), "exec"), names)
    shown = capsys.readouterr().out
    assert "[feed] input 'x': expected shape [batch, 24], got [3, 25]" in shown
    assert "8 programs measured" in shown
    np.testing.assert_array_equal(names["sums"], np.full(5, 64, np.float32))
    faster, x = names["faster"], names["x"]
    assert isinstance(faster, tilewright.Executable)
    np.testing.assert_allclose(faster(x), names["y"], rtol=1e-5)
    for kernel in ("least", "product"):
        tilewright.create_schedule(names[kernel]).check()
    names["elements"].check()


def test_the_page_has_every_public_name() -> None:
    text = PAGE.read_text()
    named = set(re.findall(r"\b(?:tilewright|t)\.(\w+)|`(\w+)`", text))
    words = {word for pair in named for word in pair}
    assert [name for name in tilewright.__all__ if name not in words] == []
