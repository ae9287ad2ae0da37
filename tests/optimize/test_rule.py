"""The rule's schedules: meaning, well-formedness, replay, and what they look like for typical kernels."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.optimize import programs

EXAMPLES = {"elementwise": 40, "reduction": 40, "gemm": 40, "conv": 30, "pool": 25}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_meaning_is_kept(kind: str) -> None:
    @settings(max_examples=EXAMPLES[kind])
    @given(getattr(programs, kind)(), st.sampled_from(programs.TARGETS))
    def run(program: programs.Program, target: str) -> None:
        programs.check(program, target)

    run()
