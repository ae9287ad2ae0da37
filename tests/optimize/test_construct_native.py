"""Native code of constructed programs: bit for bit the interpreter's results, on one thread and on three."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import TARGETS
from tests.optimize import programs
from tests.optimize.computations import product, relu
from tests.optimize.native import same
from tests.optimize.programs import Program
from tests.optimize.tasks import optimizers


@pytest.mark.parametrize("kind", ["reduction", "gemm", "conv", "pool"])
def test_native_code_agrees_with_the_interpreter(kind: str) -> None:
    @settings(max_examples=5)
    @given(getattr(programs, kind)(), st.sampled_from(TARGETS), st.integers(0, 9))
    def run(program: Program, target: str, seed: int) -> None:
        # a single result has no axis to lay out
        same(program, target, optimizers(target, seed)[1], any_kind=True)

    run()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [(37, 53, 61), (45, 96, 300)])
def test_matmul_with_remainders_at_every_level(size: tuple[int, int, int], target: str) -> None:
    m, n, k = size
    program = Program([product(m, n, k), relu(product(m, n, k))], {}, frozenset({"w"}))
    for optimizer in optimizers(target):
        same(program, target, optimizer)
