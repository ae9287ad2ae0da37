"""A matrix product scheduled by hand, step by step, with its speed after each step next to the machine's peak.

    python examples/gemm.py                            # 1024 x 1024 x 1024 on one core and on two
    python examples/gemm.py --size 512 --threads 1
    python examples/gemm.py --show packed              # the loops of a step

docs/gemm.md tells the story of the steps. Two limits are measured in turns with them: the peak of a loop of
multiply-adds that reads nothing, and the speed of the register tile alone, over operands that never leave the cache
nearest to the core.
"""

import argparse
from collections.abc import Callable, Mapping

import numpy as np

import tilewright as tw
from tilewright.driver.workbench import Workbench
from tilewright.machine import Target
from tilewright.measure import calibration_kernels
from tilewright.measure.calibrate import aligned_array
from tilewright.measure.native_functions import NativeFunctions
from tilewright.measure.timing import RepeatedRun, time_interleaved

PREFETCH_DISTANCE = 16
"""Steps of the reduction between asking for data and using it."""

MAX_UNTILED_SIZE = 256
"""The first steps are shown at this size at most: they would take seconds."""


def product(n: int) -> Workbench:
    """C = A B: three loops that nobody has touched."""
    A, B = tw.placeholder((n, n), "float32", "A"), tw.placeholder((n, n), "float32", "B")
    k = tw.reduce_axis(n, "k")
    C = tw.compute((n, n), lambda i, j: tw.sum(A[i, k] * B[k, j], k), "C")
    return tw.create_schedule(C, name="gemm")


def vectors(n: int) -> Workbench:
    """Lanes along the columns, which lie side by side in B and in C; the reduction goes outside of them."""
    s = product(n)
    jo, ji = s.split("j", columns())
    s.reorder((jo, "k", ji))
    start = s.decompose_reduction("C", "k")
    s.vectorize(ji)
    s.vectorize(s.loops(start)[-1])
    return s


def registers(n: int) -> Workbench:
    """A tile of results stays in registers while the whole reduction runs over it."""
    s = product(n)
    tile_registers(s)
    return s


def packed(n: int) -> Workbench:
    """The tile reads both operands from copies in which what it reads next lies next."""
    s = product(n)
    s.pack("C", "B", 1, columns())
    s.pack("C", "A", 0, rows())
    tile_registers(s)
    pack_in_vectors(s)
    return s


def prefetched(n: int) -> Workbench:
    """The copies are asked for some steps before they are read."""
    s = packed(n)
    prefetch_rows(s)
    return s


def parallel(n: int) -> Workbench:
    """Tiles, and the copies that they read, are shared out among threads."""
    s = prefetched(n)
    for block in ("A_packed_pack", "B_packed_pack", "C_write"):
        s.parallel(s.loops(block)[0])
    return s


STEPS: Mapping[str, Callable[[int], Workbench]] = {
    f.__name__: f for f in (product, vectors, registers, packed, prefetched, parallel)
}


def columns() -> int:
    """Columns of the register tile: two vectors."""
    return 2 * Target.host().lanes(32)


def rows() -> int:
    """Rows of the register tile: what two vectors each of the registers allow, with some left for the operands."""
    return (Target.host().vector_registers - 4) // 2


def resident_tile(steps: int, times: int) -> Workbench:
    """The register tile over and over the same operands: what is left when memory costs nothing."""
    A, B = tw.placeholder((steps, rows()), "float32", "A"), tw.placeholder((steps, columns()), "float32", "B")
    r, k = tw.reduce_axis(times, "r"), tw.reduce_axis(steps, "k")
    C = tw.compute((rows(), columns()), lambda i, j: tw.sum(A[k, i] * B[k, j], r, k), "C")
    s = tw.create_schedule(C, name="resident")
    s.cache_write("C", "R")
    once, row = s.split(s.loops("C_write")[0], rows())
    s.compute_at("C", once)
    s.set_scope("R", "register")
    i, j, r_, k_ = s.loops("C")[1:]
    s.reorder((r_, k_, i, j))
    start = s.decompose_reduction("C", r_)
    for block in ("C", start):
        inner, lanes = s.loops(block)[-2:]
        s.unroll(inner)
        s.vectorize(lanes)
    s.unroll(row)
    s.vectorize(s.loops("C_write")[-1])
    return s


def tile_registers(s: Workbench) -> None:
    """Cuts C into tiles whose results stay in registers."""
    s.cache_write("C", "R")
    i, j = s.loops("C_write")
    io, ii = s.split(i, rows())
    jo, ji = s.split(j, columns())
    s.reorder((jo, io, ii, ji))
    s.compute_at("C", io)
    s.set_scope("R", "register")
    row, column, k = s.loops("C")[2:]
    s.reorder((k, row, column))
    start = s.decompose_reduction("C", k)
    for block, inner in (("C", 3), (start, 2)):
        row, column = s.loops(block)[inner:]
        s.unroll(row)
        s.vectorize(column)
    s.unroll(ii)
    s.vectorize(ji)


def pack_in_vectors(s: Workbench) -> None:
    """Copies B row by row in vectors, and A in vectors along its rows, which the copy scatters."""
    s.vectorize(s.loops("B_packed_pack")[2])
    _, k, row = s.loops("A_packed_pack")
    ko, ki = s.split(k, Target.host().lanes(32))
    s.reorder((ko, row, ki))
    s.vectorize(ki)


def prefetch_rows(s: Workbench) -> None:
    """Prefetches both operands in the loop over the reduction."""
    k = s.loops("C")[2]
    s.prefetch(k, "A_packed", PREFETCH_DISTANCE)
    s.prefetch(k, "B_packed", PREFETCH_DISTANCE // 2)


def peak_rate() -> tuple[RepeatedRun, float]:
    """A loop of multiply-adds on one core, and the operations of one repetition."""
    target, steps = Target.host(), 20_000
    native = NativeFunctions([calibration_kernels.multiply_add(target)], target)
    width = calibration_kernels.tile_columns(target)
    rng = np.random.default_rng()
    x, y = (rng.uniform(0.4, 0.6, size).astype(np.float32) for size in (width, calibration_kernels.ROWS))
    out = np.zeros((calibration_kernels.ROWS, width), np.float32)

    def run(times: int) -> None:
        native.call("multiply_add", [x, y, out], [times * steps])

    return run, 2.0 * calibration_kernels.ROWS * width * steps


def tile_only_rate() -> tuple[RepeatedRun, float]:
    """The register tile over operands in the first-level cache, and the operations of one repetition."""
    steps, times = 128, 250
    native = NativeFunctions([resident_tile(steps, times).func], Target.host())
    A, B, C = aligned_array((steps, rows())), aligned_array((steps, columns())), aligned_array((rows(), columns()))
    rng = np.random.default_rng()
    A[...], B[...] = rng.random(A.shape, dtype=np.float32), rng.random(B.shape, dtype=np.float32)

    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            native.call("resident", [A, B, C])

    return run, 2.0 * C.size * steps * times


def prepare(step: Callable[[int], Workbench], n: int, threads: int) -> RepeatedRun:
    """A step's kernel on random matrices, checked against NumPy in double precision.

    Raises:
        SystemExit: the result is wrong.
    """
    kernel = step(n).build(threads=threads)
    rng = np.random.default_rng()
    A, B = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    C = np.empty((n, n), np.float32)
    exact = A.astype(np.float64) @ B
    error = np.abs(kernel(A, B) - exact).max() / np.abs(exact).max()
    if not error < 1e-5:
        raise SystemExit(f"{step.__name__} is wrong: error {error:.1e}")

    def run(times: int) -> None:
        for _ in range(times):
            kernel(A, B, out=C)

    return run


def main() -> None:
    """Prints one line per step and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--show", choices=list(STEPS), help="print the loops of a step instead")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each of seven measurements per step")
    options = parser.parse_args()
    if min(options.size, *options.threads) < 1 or options.seconds <= 0:
        parser.error("--size and --threads must be at least 1, --seconds more than 0")
    if options.show:
        print(STEPS[options.show](options.size))
        return
    print(f"{'step':<12}{'size':>6}{'threads':>9}{'GFLOP/s':>10}{'of peak':>9}{'of tile':>9}{'peak':>8}{'tile':>8}")
    for threads in options.threads:
        for name, step in STEPS.items():
            if threads > 1 and step is not parallel:
                continue  # the steps before it use one thread
            n = min(options.size, MAX_UNTILED_SIZE) if step in (product, vectors) else options.size
            (most, most_work), (near, near_work) = peak_rate(), tile_only_rate()
            runs = {"peak": most, "tile": near, "step": prepare(step, n, threads)}
            seconds = time_interleaved(runs, options.seconds, pause=0.05)
            speed = 2e-9 * n**3 / seconds["step"]
            limits = [1e-9 * threads * w / seconds[k] for k, w in (("peak", most_work), ("tile", near_work))]
            shares = "".join(f"{speed / x:>9.1%}" for x in limits)
            print(f"{name:<12}{n:>6}{threads:>9}{speed:>10.1f}{shares}{limits[0]:>8.1f}{limits[1]:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
