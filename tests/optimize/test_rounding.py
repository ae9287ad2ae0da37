"""How far sums that optimizers make are from exact ones, beside sums of chunks of 256 as other libraries make them.

On the same data onnxruntime errs as chains of 256 fused multiply-adds do, to the last digit; NumPy and PyTorch err as
much or more (docs/decisions/0007).
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
"""Terms of a chain in other libraries."""


def in_chunks(left: Floats, right: Floats) -> Floats:
    """left @ right, in chains of fused multiply-adds whose sums are added up."""
    total = np.zeros((left.shape[0], right.shape[1]), np.float32)
    for first in range(0, left.shape[1], OTHERS):
        chain = np.zeros_like(total)
        for k in range(first, min(first + OTHERS, left.shape[1])):
            chain = (chain + left[:, k, None].astype(np.float64) * right[k]).astype(np.float32)
        total += chain
    return total


def run(program: Program, optimizer: Optimizer) -> tuple[list[Floats], Floats]:
    """Arrays of terms of one sign, and what an optimizer's program makes of them."""
    kernel, _, schedule = scheduled(program, "host", optimizer)
    func = prepack_constants(schedule.func, frozenset()).func
    rng = np.random.default_rng(7)
    arrays = {p.name: rng.random(shape_of(p, {}), np.float32) for p in func.params}
    found = Native(func)(arrays)[kernel.params[-1].name]
    return [arrays[p.name] for p in kernel.params[:-1]], found.reshape(shape_of(kernel.params[-1], {}))


def error(found: Floats, exact: npt.NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean((found - exact) ** 2)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_products_err_no_more_than_those_of_other_libraries(name: str) -> None:
    ratios: list[float] = []
    for length in LENGTHS:
        (left, right), found = run(Program([product(32, 48, length)]), OPTIMIZERS[name])
        exact = left.astype(np.float64) @ right
        ratios.append(error(found, exact) / error(in_chunks(left, right), exact))
    assert np.exp(np.log(ratios).mean()) <= 1.001
    assert max(ratios) <= 1.25


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("rows", [509, 1021, 4096, 65536])
def test_column_sums_err_less_than_numpys(name: str, rows: int) -> None:
    """NumPy adds rows to rows, in one chain."""
    (x,), found = run(column_sums(rows, 48), OPTIMIZERS[name])
    exact = x.sum(axis=0, dtype=np.float64)
    assert error(found, exact) <= 0.4 * error(x.sum(axis=0), exact)
