"""Speed of construction: tile programs scored per second, and seconds per operator.

python -m benchmarks.construction_speed [--optimizer gensor] [--groups gemm_large,conv_resnet50]
"""

import argparse
import time
from statistics import median

import numpy as np

from benchmarks.operators.cases import all_cases
from tilewright.cost.analytical import program_times
from tilewright.driver.compile import make_compilation
from tilewright.machine import Target
from tilewright.machine.calibration_store import machine_for
from tilewright.optimize.interface import optimizer_named
from tilewright.optimize.task import Task
from tilewright.tile.problem import extract_problem
from tilewright.tile.program import Sketch

CANDIDATES = 100_000


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", default="gensor")
    parser.add_argument("--groups", default="gemm_large,gemm_small,conv_resnet50,depthwise")
    options = parser.parse_args()
    print(f"{programs_scored_per_second():,.0f} tile programs scored per second")
    groups = options.groups.split(",")
    times: list[tuple[float, str]] = []
    for case in all_cases():
        if case.group in groups:
            kernels = construction_times(case.model(), options.optimizer)
            times += [(seconds, f"{case.name} {name}") for name, seconds in kernels]
    seconds = [s for s, _ in times]
    print(f"{len(times)} kernels: median {median(seconds):.3f} s, longest {max(times)[0]:.3f} s ({max(times)[1]})")


def programs_scored_per_second() -> float:
    """Candidates of a 512 x 512 x 512 product that the cost model scores in a second."""
    case = next(c for c in all_cases() if c.name == "gemm_m512_k512_n512")
    func = make_compilation(case.model()).kernels[0].origin
    problem = extract_problem(func, frozenset({"a1"}))
    if problem is None:
        raise SystemExit("a product has a problem")
    form = Sketch(1, 16, (1, 0), 2, ((1, 1),))
    rng = np.random.default_rng(0)
    register = np.stack([rng.choice([1, 2, 4, 8], CANDIDATES), 16 * rng.choice([1, 2], CANDIDATES),
                         rng.choice([1, 2, 4], CANDIDATES)], axis=1)  # fmt: skip
    near = register * rng.choice([1, 2, 4], (CANDIDATES, 3))
    far = near * rng.choice([1, 2, 4], (CANDIDATES, 3))
    far[:, 2] = 512
    sizes = np.stack([register, near, far], axis=1).astype(np.int64)
    machine = machine_for(Target.host())
    spent: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        program_times(problem, form, sizes, machine)
        spent.append(time.perf_counter() - start)
    return CANDIDATES / median(spent)


def construction_times(model: object, optimizer: str) -> list[tuple[str, float]]:
    """Seconds that an optimizer takes for every kernel of a model that it applies to."""
    chosen = optimizer_named(optimizer)
    times: list[tuple[str, float]] = []
    for kernel in make_compilation(model).kernels:  # pyright: ignore[reportArgumentType]
        task = Task(kernel.origin, frozenset(b.name for b in kernel.origin.inputs[1:]), Target.host(), kernel.fusion)
        start = time.perf_counter()
        if chosen.optimize(task) is not None:
            times.append((kernel.name, time.perf_counter() - start))
    return times


if __name__ == "__main__":
    main()
