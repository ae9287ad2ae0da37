"""The Python example of docs/optimizers/mcfuser.md runs as it stands, and its tables say what the code counts."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.optimize.chain_space.chain_cases import expression, gemm_chain

from tilewright.machine.shipped import machine_named
from tilewright.optimize.chains.expression import expression_text
from tilewright.optimize.chains.place_statements import place_statements, placed_text
from tilewright.optimize.chains.pruning import ChainSpace

PAGE = Path(__file__).parents[2] / "docs" / "optimizers" / "mcfuser.md"


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, str(PAGE), "exec"), names)
    tiling = names["best"].tiling
    assert capsys.readouterr().out == f"{expression_text(tiling.expression)} {tiling.tiles}\n"


def test_the_placed_statements() -> None:
    chain = gemm_chain(m=1024, n=1024, k=512, h=512)
    for text, dead in (("mhnk", ""), ("mhnk", "k"), ("mn(k,h)", "")):
        assert f" {placed_text(place_statements(chain, expression(text), dead))}" in PAGE.read_text()


def test_the_waterfall() -> None:
    chain = gemm_chain(m=1024, n=1024, k=512, h=512)
    counts = ChainSpace.of(chain, machine_named("sapphire-rapids").with_cores(2)).counts()
    rows = re.findall(r"^\| (?:all|\d) \|.*\| ([\d,]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [int(x.replace(",", "")) for x in rows] == [count for _, count in counts.waterfall]
    on_gpu = ChainSpace.of(chain, machine_named("h200")).counts().candidates
    assert f"it is {on_gpu:,}." in PAGE.read_text()
