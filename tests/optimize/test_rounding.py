"""Rounding error of optimized sums, compared with sums in K-blocks of 256 as in other libraries.

On the same data onnxruntime has the error of blocks of 256 fused multiply-adds, to the last digit; NumPy and PyTorch
have as much or more (docs/decisions/0007).
"""

import numpy as np
import numpy.typing as npt
import pytest
from tests.codegen.native import Native
from tests.optimize.computations import column_sums, product
from tests.optimize.programs import Program, scheduled, shape_of

from tilewright.lower.prepack_constants import prepack_constants
from tilewright.optimize.construct.gensor import Annealing
from tilewright.optimize.construct.optimizer import Gensor, Roller
from tilewright.optimize.interface import Optimizer
from tilewright.optimize.rule import Rule

Floats = npt.NDArray[np.float32]
LENGTHS = (509, 512, 1021, 1024, 3072)
OPTIMIZERS: dict[str, Optimizer] = {
    o.name: o for o in (Rule(), Roller(), Gensor(annealing=Annealing(walks=3)))
}  # fmt: skip
OTHERS = 256
"""Terms that other libraries accumulate in sequence."""


def blocked_matmul(left: Floats, right: Floats) -> Floats:
    """left @ right, with K-blocks of fused multiply-adds."""
    total = np.zeros((left.shape[0], right.shape[1]), np.float32)
    for first in range(0, left.shape[1], OTHERS):
        partial = np.zeros_like(total)
        for k in range(first, min(first + OTHERS, left.shape[1])):
            partial = (partial + left[:, k, None].astype(np.float64) * right[k]).astype(np.float32)
        total += partial
    return total


def run(program: Program, optimizer: Optimizer) -> tuple[list[Floats], Floats]:
    """Arrays of terms of one sign, and the results of an optimizer's program on them."""
    kernel, _, schedule = scheduled(program, "host", optimizer)
    func = prepack_constants(schedule.func, frozenset()).func
    rng = np.random.default_rng(7)
    arrays = {p.name: rng.random(shape_of(p, {}), np.float32) for p in func.params}
    results = Native(func)(arrays)[kernel.outputs[-1].name]
    return [arrays[p.name] for p in kernel.inputs], results.reshape(shape_of(kernel.outputs[-1], {}))


def error(actual: Floats, exact: npt.NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean((actual - exact) ** 2)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_matmul_error_is_at_most_that_of_other_libraries(name: str) -> None:
    ratios: list[float] = []
    for length in LENGTHS:
        (left, right), actual = run(Program([product(32, 48, length)]), OPTIMIZERS[name])
        exact = left.astype(np.float64) @ right
        ratios.append(error(actual, exact) / error(blocked_matmul(left, right), exact))
    assert np.exp(np.log(ratios).mean()) <= 1.001
    assert max(ratios) <= 1.25


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("rows", [509, 1021, 4096, 65536])
def test_column_sum_error_is_below_numpys(name: str, rows: int) -> None:
    """NumPy adds row by row, in one dependency chain."""
    (x,), actual = run(column_sums(rows, 48), OPTIMIZERS[name])
    exact = x.sum(axis=0, dtype=np.float64)
    assert error(actual, exact) <= 0.4 * error(x.sum(axis=0), exact)
