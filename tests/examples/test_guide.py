"""The Python examples of docs/schedules.md, run as they stand, one after the other, give what the page shows."""

import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.schedule.step import PRIMITIVES

GUIDE = Path(__file__).parents[2] / "docs" / "schedules.md"


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text()
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(example, str(GUIDE), "exec"), names)
    shown = capsys.readouterr().out
    (loops,) = re.findall(r"```\n(func .*?)```", text, re.DOTALL)
    assert loops in shown
    assert "[schedule] parallel of loop 'v_k_t': " in shown
    assert "equal in 3 runs" in shown
    assert "s.tile(('i_1', 'j_1'), (8, 32), names=('i_1_o', 'j_1_o', 'i_1_i', 'j_1_i'))" in shown
    np.testing.assert_array_equal(names["d"], np.full((10, 128), 256, np.float32))
    assert isinstance(names["t"], tw.Workbench)
    assert isinstance(names["softmax"], tw.Workbench)
    assert "for i_3 in parallel(n)" in names["softmax"].show()
    tw.create_schedule(names["blur"]).check()


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_the_guide_lists_every_primitive(name: str) -> None:
    assert f"| `{name}(" in GUIDE.read_text()
