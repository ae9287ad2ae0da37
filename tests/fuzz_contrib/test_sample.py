"""A few random settings of every operator of `com.microsoft`; `make fuzz-contrib` checks twenty, natively."""

import re
from pathlib import Path

import numpy as np
import pytest
from tests.fuzz_contrib.check import DRAWS, check_computations, check_natively, compare, drawn
from tests.ops.harness import reference_outputs

from tilewright.frontend.onnx.expand_nodes import EXPANDED
from tilewright.ops.library import OPERATORS

PAGE = Path(__file__).parents[2] / "docs" / "contrib-operators.md"

NATIVE = ("FusedConv", "QLinearConv", "QAttention", "MatMulNBits", "QGemm", "QLinearAveragePool", "NGramRepeatBlock")


@pytest.mark.parametrize("operator", DRAWS)
def test_computations_give_what_onnxruntime_gives(operator: str) -> None:
    for seed in range(3):
        check_computations(operator, seed)


@pytest.mark.parametrize("operator", NATIVE)
def test_native_code_gives_what_onnxruntime_gives(operator: str) -> None:
    check_natively(operator, 1)


def test_every_operator_of_the_domain_is_drawn() -> None:
    assert {name for domain, name in OPERATORS if domain == "com.microsoft"} == set(DRAWS)


def test_the_page_lists_every_operator() -> None:
    rows = [line.split("|")[2] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    listed = re.findall(r"\b[A-Z]\w+", " ".join(rows))
    assert sorted(listed) == sorted([*DRAWS, *(name for _, name in EXPANDED)])


def test_a_result_that_is_two_steps_off_is_noticed() -> None:
    setting = drawn("QLinearAdd", 0)
    (right,) = reference_outputs("ort", setting.case)
    off = np.where(right > 100, right - 2, right + 2).astype(right.dtype)
    with pytest.raises(AssertionError, match="differs by 2 steps"):
        compare(setting, [off], [right])
