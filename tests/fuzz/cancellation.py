"""Comparison with the oracle under catastrophic cancellation: `Workbench.check` judges errors by the largest result,
which does not bound the terms of a sum.

In P = (A B) C with one column of C, all results have the factor B C: where its terms cancel, all are small beside them,
and rounding the terms to float32 exceeds the tolerance in any order. For sums of products, the results of inputs
without signs bound the terms.
"""

from collections.abc import Mapping

import numpy as np

from tilewright.driver.kernel_build.kernel_signature import KernelSignature
from tilewright.driver.kernel_build.oracle import Array, interpret_outputs, random_inputs, sample_sizes
from tilewright.driver.workbench import Workbench
from tilewright.errors import MismatchError
from tilewright.measure.operand_data import reordering_tolerance

MIN_CANCELLATION, MAX_CANCELLATION = 10.0, 1e5
"""Largest terms over the largest result, from which on a result cancels, and up to which its errors are judged by its
terms."""


def check_under_cancellation(schedule: Workbench, seed: int, threads: int = 2) -> None:
    """`Workbench.check`; a result that cancels is judged once more by the largest of its terms, on the same inputs.

    Args:
        schedule: a kernel with one output.
        seed: of sizes and inputs.
        threads: of the kernel.

    Raises:
        MismatchError: the kernel computes something else.
    """
    try:
        schedule.check(seed=seed, threads=threads)
    except MismatchError as error:
        rng, origin = np.random.default_rng(seed), schedule.origin
        signature = KernelSignature(origin)
        samples, factors = sample_sizes(origin.symbols, rng), list[float]()
        checks: list[tuple[Mapping[str, int], dict[str, Array], float]] = []
        for sizes in [x for k, x in enumerate(samples) if x not in samples[:k]]:
            feeds = random_inputs(signature, sizes, rng, {})
            (output,), (result,) = signature.outputs, interpret_outputs(origin, feeds, sizes)
            (bound,) = interpret_outputs(origin, {name: np.abs(x) for name, x in feeds.items()}, sizes)
            factors.append(cancellation_factor(result, bound))
            checks.append((sizes, feeds, factors[-1] * reordering_tolerance(origin, output.dtype, sizes)))
        if max(factors) < MIN_CANCELLATION:
            raise error
        for sizes, feeds, tolerance in checks:
            schedule.check(sizes, inputs=feeds, seed=seed, threads=threads, tolerance=tolerance)


def cancellation_factor(result: Array, bound: Array) -> float:
    """How many times the largest term exceeds the largest result: 1 where it does not, where all results are zero, and
    where the terms overflow, at most `MAX_CANCELLATION`."""
    largest, term = (float(np.max(np.abs(x), initial=0.0)) for x in (result, bound))
    if not largest or not np.isfinite(term):
        return 1.0
    return min(max(1.0, term / largest), MAX_CANCELLATION)
