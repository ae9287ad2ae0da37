"""Native code of the rule's schedules: bit for bit the interpreter's results, on one thread and on three."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import TARGETS
from tests.optimize import programs
from tests.optimize.native import same
from tests.optimize.programs import Program

from tilewright.optimize.rule import Rule


@pytest.mark.parametrize("kind", ["elementwise", "reduction", "gemm", "conv", "pool"])
def test_native_code_agrees_with_the_interpreter(kind: str) -> None:
    @settings(max_examples=8)
    @given(getattr(programs, kind)(), st.sampled_from(TARGETS))
    def run(program: Program, target: str) -> None:
        same(program, target, Rule())

    run()
