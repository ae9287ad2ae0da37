"""Comparison with the oracle where results cancel: `Schedule.check` judges errors by the largest result, which does not
bound the terms of a sum.

In P = (A B) C with one column of C, all results have the factor B C: where its terms cancel, all are small beside them,
and rounding the terms to float32 exceeds the tolerance in any order. The results of inputs without signs bound the
terms.
"""

import numpy as np

from tilewright.driver.kernel_build.kernel_signature import KernelSignature
from tilewright.driver.kernel_build.oracle import Array, interpret_outputs, random_inputs, sample_sizes
from tilewright.driver.workbench import Workbench
from tilewright.errors import MismatchError
from tilewright.measure.operand_data import reordering_tolerance


def check_values(schedule: Workbench, seed: int, threads: int = 2) -> None:
    """`Schedule.check`; where an output is wrong, once more by the largest of its terms, on the same inputs.

    Raises:
        MismatchError: the kernel computes something else.
    """
    try:
        schedule.check(seed=seed, threads=threads)
    except MismatchError:
        rng, origin = np.random.default_rng(seed), schedule.origin
        signature = KernelSignature(origin)
        samples = sample_sizes(origin.symbols, rng)
        for sizes in [x for k, x in enumerate(samples) if x not in samples[:k]]:
            feeds = random_inputs(signature, sizes, rng, {})
            rounding = max(reordering_tolerance(origin, b.dtype, sizes) for b in signature.outputs)
            results = interpret_outputs(origin, feeds, sizes)
            bounds = interpret_outputs(origin, {name: np.abs(x) for name, x in feeds.items()}, sizes)
            tolerance = rounding * cancellation(results, bounds)
            schedule.check(sizes, inputs=feeds, seed=seed, threads=threads, tolerance=tolerance)


def cancellation(results: tuple[Array, ...], bounds: tuple[Array, ...]) -> float:
    """How many times the largest terms exceed the largest results, at least 1, of the output that cancels least."""
    return min(
        max(1.0, float(np.max(np.abs(b), initial=0.0)) / max(float(np.max(np.abs(r), initial=0.0)), 1e-30))
        for r, b in zip(results, bounds, strict=True)
    )
