"""How well the cost model orders tile trees of several computations: predicted and measured times on one thread.

    python -m benchmarks.tile_trees [--kernels NAME,...]

Trees of one kernel differ in their sizes only, but for two products, which are also computed one after the other with
the intermediate in memory. They run in turns; the fastest run of each counts, as a shared machine only adds time.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tests.tile import trees

from benchmarks.common import report
from benchmarks.common.statistics import rank_correlation
from benchmarks.one_thread import one_thread_machine
from tilewright.cost.trees.tree_model import TreeModel
from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import Func, LoopKind
from tilewright.measure.function_timer import FunctionTimer
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.tree import CacheWrite, Compute, Node, TileTree, nest
from tilewright.tile.tree_sizes import tree_sizes

ROUNDS, ROUND_SECONDS = 8, 0.004

Trees = Mapping[str, TileTree]
"""Trees of one kernel by what distinguishes them."""


def unfused_products(func: Func, rows: int, lanes: int) -> TileTree:
    """Two products one after the other, in register tiles, with the intermediate in memory."""
    m, n, k = trees.axes_of(func, "C")
    h = trees.axes_of(func, "E")[1]
    parallel, unrolled, vectorized = LoopKind.PARALLEL, LoopKind.UNROLLED, LoopKind.VECTORIZED

    def product(columns: str, terms: str, statement: str, store: str) -> tuple[Node, ...]:
        sums = nest(
            trees.loops((terms, 1), (m, 1, unrolled), (columns, 1, vectorized)),
            Compute(statement, MemoryScope.REGISTER),
        )
        results = nest(trees.loops((m, 1, unrolled), (columns, 1, vectorized)), Compute(store))
        return nest(trees.loops((m, rows, parallel), (columns, lanes)), *sums, *results)

    return TileTree((*product(n, k, "C", "R"), *product(h, n, "E", "E.store")), (CacheWrite("E", "E.store"),))


def _trees(func: Func, tree_of: Callable[..., TileTree], sizes: Sequence[Sequence[int]]) -> dict[str, TileTree]:
    return {" ".join(map(str, x)): tree_of(func, *x) for x in sizes}


def _products(m: int, n: int, k: int, h: int, sizes: Sequence[Sequence[int]]) -> tuple[Func, Trees]:
    func = trees.func_of(trees.two_products(m, n, k, h))
    apart = {
        f"unfused {rows} {lanes}": unfused_products(func, rows, lanes) for rows, lanes in ((8, 32), (4, 32), (2, 32))
    }
    return func, {**_trees(func, trees.tree_of_two_products, sizes), **apart}


def kernels() -> dict[str, Callable[[], tuple[Func, Trees]]]:
    """Kernels with their trees, by name."""

    def attention() -> tuple[Func, Trees]:
        func = trees.func_of(trees.attention(512, 512, 64))
        sizes = ((16, 32, 8, 16), (16, 64, 8, 16), (32, 64, 8, 8), (32, 128, 4, 16), (64, 64, 8, 4), (16, 16, 4, 8),
                 (32, 32, 8, 16), (16, 128, 8, 32), (16, 64, 2, 4))  # fmt: skip
        return func, _trees(func, trees.tree_of_attention, sizes)

    def block() -> tuple[Func, Trees]:
        func = trees.func_of(trees.inverted_residual(28, 32, 192, 32))
        sizes = ((4, 10, 16), (7, 10, 32), (14, 15, 32), (2, 10, 16), (7, 30, 32), (4, 30, 64), (14, 30, 16))
        return func, _trees(func, trees.tree_of_inverted_residual, sizes)

    def three_caches() -> tuple[Func, Trees]:
        func = trees.func_of(trees.product(768, 768, 768))
        sizes = ((384, 192, 96, (256, 128)), (384, 192, 48, (384, 192)), (192, 96, 48, (32, 16)),
                 (768, 384, 96, (768, 256)), (768, 96, 48, (768, 64)), (192, 96, 48, (384, 96)))  # fmt: skip
        return func, {" ".join(map(str, x)): trees.tree_of_three_caches(func, *x) for x in sizes}

    small = ((32, 64, 8, 32), (16, 64, 8, 32), (32, 64, 4, 32), (32, 64, 2, 32), (32, 64, 2, 16), (64, 256, 8, 32),
             (32, 128, 8, 16), (32, 128, 16, 16), (64, 128, 16, 32))  # fmt: skip
    large = ((32, 64, 8, 16), (16, 64, 8, 16), (64, 128, 4, 16), (32, 64, 2, 16), (64, 256, 8, 16), (128, 64, 8, 16))
    return {
        "two products 512x1024x64x64": lambda: _products(512, 1024, 64, 64, small),
        "two products 4096x4096x16x32": lambda: _products(4096, 4096, 16, 32, large),
        "attention 512x512x64": attention,
        "inverted residual 28x28x32x192x32": block,
        "three caches 768x768x768": three_caches,
    }


def compare_times(func: Func, some: Trees) -> list[tuple[str, float, float]]:
    """(tree, measured, predicted nanoseconds), the fastest first."""
    machine = one_thread_machine()
    timer = FunctionTimer({name: lower_tree(tree, func).func for name, tree in some.items()})
    measured = timer.fastest_calls(ROUNDS, ROUND_SECONDS)
    rows: list[tuple[str, float, float]] = []
    for name, tree in some.items():
        model = TreeModel.of(tree, func, machine)
        if model is None:
            raise SystemExit(f"there is no model of {name}")
        rows.append((name, measured[name], float(model.times(np.array([tree_sizes(tree)]))[0])))
    return sorted(rows, key=lambda x: x[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", help="names by comma")
    chosen = parser.parse_args().kernels
    summary: list[list[str]] = []
    for name, make in kernels().items():
        if chosen is not None and name not in chosen.split(","):
            continue
        rows = compare_times(*make())
        table = [[x, f"{m / 1e3:.1f}", f"{p / 1e3:.1f}", f"{m / p:.2f}"] for x, m, p in rows]
        print(f"\n{name}\n\n{report.markdown_table(('sizes', 'us', 'predicted us', 'ratio'), table)}", flush=True)
        times = [(m, p) for _, m, p in rows]
        favourite = min(times, key=lambda x: x[1])[0]
        correlation = rank_correlation(*map(list, zip(*times, strict=True)))
        slowest = times[-1][0] / times[0][0]
        summary.append([name, str(len(rows)), f"{correlation:.2f}", f"{slowest:.1f}", f"{favourite / times[0][0]:.2f}"])
    header = ("kernel", "trees", "rank correlation", "slowest / fastest", "chosen / best")
    print(f"\n{report.markdown_table(header, summary)}")


if __name__ == "__main__":
    main()
