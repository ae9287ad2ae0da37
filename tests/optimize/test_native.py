"""The rule's schedules as native code: bit for bit what the interpreter says, on one thread and on three."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import TARGETS
from tests.optimize import programs
from tests.optimize.native import same
from tests.optimize.programs import Program

from tilewright.optimize.rule import Rule


@pytest.mark.parametrize("kind", ["elementwise", "reduction", "gemm", "conv", "pool"])
def test_native_code_computes_what_the_schedule_says(kind: str) -> None:
    @settings(max_examples=8)
    @given(getattr(programs, kind)(), st.sampled_from(TARGETS))
    def run(program: Program, target: str) -> None:
        same(program, target, Rule())

    run()
