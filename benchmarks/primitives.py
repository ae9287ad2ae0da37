"""Times of the schedule primitives and the verifier on a convolution of seven loops with padding.

    python -m benchmarks.primitives
    python -m benchmarks.primitives --profile verify      # where the time of one row goes

A search applies thousands of steps, so one may take 1 ms and a verification 5 ms. Every row is applied to the same
function again and again; caches of index expressions are warm then, as they are during a search.
"""

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from tilewright.driver.workbench import create_schedule
from tilewright.expr.define import Reduction, compute, max, placeholder, reduce_axis, sum, symbol
from tilewright.expr.math_functions import exp
from tilewright.expr.nodes import Expr
from tilewright.expr.operations import maximum, select
from tilewright.layout.layout import Layout
from tilewright.loops.ir import Func
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import PRIMITIVES, Step, apply
from tilewright.verify.verifier import verify

MAX_STEP_MS, MAX_VERIFY_MS = 1.0, 5.0
"""Milliseconds."""


def convolution(batch: Expr | int = 1, channels: int = 64, filters: int = 64, size: int = 56) -> Func:
    """S = X / 2, C = 3x3 with stride 1 and padding 1, R = C + B, Y = ReLU."""
    x = placeholder((batch, channels, size, size), name="X")
    weights = placeholder((filters, channels, 3, 3), name="W")
    b = placeholder((filters,), name="B")
    s = compute(x.shape, lambda n0, i0, h0, w0: x[n0, i0, h0, w0] * 0.5, "S")
    i, kh, kw = reduce_axis(channels, "i"), reduce_axis(3, "kh"), reduce_axis(3, "kw")

    def element(n: Expr, o: Expr, h: Expr, w: Expr) -> Reduction:
        y, z = h + kh - 1, w + kw - 1
        inside = (y >= 0) & (y < size) & (z >= 0) & (z < size)
        return sum(select(inside, s[n, i, y, z], 0.0) * weights[o, i, kh, kw], i, kh, kw)

    c = compute((batch, filters, size, size), element, "C")
    r = compute(c.shape, lambda n1, o1, h1, w1: c[n1, o1, h1, w1] + b[o1], "R")
    y = compute(c.shape, lambda n2, o2, h2, w2: maximum(r[n2, o2, h2, w2], 0.0), "Y")
    return create_schedule(y, name="convolution").func


def softmax(rows: int = 64, columns: int = 256) -> Func:
    """m = max of X along rows, Y = sum of exp(X - m), with the maximum in chunks of 16."""
    x = placeholder((rows, columns), name="X")
    k, c = reduce_axis(columns, "k"), reduce_axis(columns, "c")
    m = compute((rows,), lambda i: max(x[i, k], k), "m")
    y = compute((rows,), lambda j: sum(exp(x[j, c] - m[j]), c), "Y")
    s = create_schedule(y, name="softmax")
    s.do("split", "k", 16)
    return s.func


def tiled_convolution(func: Func) -> Func:
    """The convolution in tiles of 16 channels and 8 columns, its epilogue at the tiles, vectorized and unrolled."""
    s = Schedule(func)
    for step in (
        ("split", "o", 16, ("o_o", "o_i")), ("split", "w", 8, ("w_o", "w_i")), ("split", "i", 8, ("i_o", "i_i")),
        ("reorder", ("n", "o_o", "h", "w_o", "i_o", "kh", "kw", "i_i", "w_i", "o_i")),
        ("inline", "S"), ("reverse_inline", "Y"), ("reverse_compute_at", "R", "w_o"),
        ("decompose_reduction", "C", "i_o"), ("vectorize", "o_i"), ("unroll", "w_i"), ("fuse", "n", "o_o", "n_o"),
    ):  # fmt: skip
        s.do(*step)
    return s.func


def benchmark_cases() -> Mapping[str, Callable[[], object]]:
    """The measured actions by name."""
    plain, dynamic = convolution(), convolution(symbol("N", 1, 64))
    before, after = Schedule(plain), tiled_convolution(plain)
    for step in (
        ("split", "o", 16, ("o_o", "o_i")), ("split", "w", 10, ("w_o", "w_i")), ("split", "i", 8, ("i_o", "i_i")),
        ("reorder", ("n", "o_o", "h", "w_o", "i_o", "kh", "kw", "i_i", "w_i", "o_i")),
    ):  # fmt: skip
        before.do(*step)
    actions: dict[str, Callable[[], object]] = {}
    for name, args in STEPS.items():
        primitive = name.split()[0]
        func = plain if primitive in ON_UNSCHEDULED else after if primitive == "store_at" else before.func
        step = Step.of(primitive, *args)
        actions[name] = lambda func=func, step=step: apply(func, step)
    chunks = softmax()
    actions["rolling_update"] = lambda: apply(chunks, Step.of("rolling_update", "Y", "k_o"))
    actions["verify untransformed"] = lambda: verify(plain)
    actions["verify dynamic batch"] = lambda: verify(dynamic)
    actions["verify reordered"] = lambda: verify(before.func)
    actions["verify tiled"] = lambda: verify(after, registers=False)
    return actions


BLOCKED = Layout.of((1, 64, 56, 56)).split(1, (4, 16)).reorder((0, 1, 3, 4, 2))

ON_UNSCHEDULED = frozenset(("rfactor", "inline", "reverse_inline", "clone_producer", "transform_layout"))
"""Primitives that are measured on the unscheduled convolution; the others on the split and reordered one."""

STEPS: Mapping[str, Sequence[object]] = {
    "split": ("h", 4), "split with a tail": ("h", 5), "split_parts": ("h", 4), "tile": (("h2", "w2"), (8, 8)),
    "fuse": ("n", "o_o"), "reorder": (("n", "h", "o_o"),), "peel": ("h", 1), "parallel": ("n",), "vectorize": ("w2",),
    "unroll": ("w_i",), "virtual_thread": ("o_i",), "bind": ("h", "block_x"), "set_scope": ("C", "memory"),
    "clone_producer": ("C", "R"), "pad_storage": ("C", 3, 16), "cache_read": ("C", "S"), "cache_write": ("Y",),
    "pack": ("C", "W", 0, 16), "transform_layout": ("C", BLOCKED), "prefetch": ("i_o", "W", 1),
    "hoist": ("R", "w1"), "decompose_reduction": ("C", "i_o"), "rfactor": ("C", 0, 8), "compute_at": ("C", "h1"),
    "reverse_compute_at": ("R", "w_o"), "store_at": ("C", "w_o"), "inline": ("S",), "reverse_inline": ("Y",),
}  # fmt: skip


def median_ms(action: Callable[[], object], runs: int) -> float:
    """The median time of an action."""
    times: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.primitives", description=__doc__)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--profile", metavar="ROW", help="profile the rows whose name begins so")
    given = parser.parse_args()
    measured = benchmark_cases()
    missing = PRIMITIVES.keys() - {name.split()[0] for name in measured}
    for name, action in measured.items():
        if given.profile is not None and not name.startswith(given.profile):
            continue
        try:
            action()
        except Exception as error:
            print(f"{name:24} refused: {error}")
            continue
        took, limit = median_ms(action, given.runs), MAX_VERIFY_MS if name.startswith("verify") else MAX_STEP_MS
        print(f"{name:24}{took:8.2f} ms{'' if took <= limit else f'   over {limit} ms'}")
        if given.profile is not None:
            profile = cProfile.Profile()
            profile.runcall(lambda run=action: [run() for _ in range(given.runs)])
            pstats.Stats(profile).sort_stats("cumtime").print_stats(40)
    for name in sorted(missing):
        print(f"{name:24} not measured")


if __name__ == "__main__":
    main()
