"""The Python examples of docs/tile-trees.md, run as they stand, one after the other, give what the page shows."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tile-trees.md"


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text()
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(example, str(PAGE), "exec"), names)
    (shown,) = re.findall(r"```\n(E.store .*?)```", text, re.DOTALL)
    assert shown in capsys.readouterr().out
