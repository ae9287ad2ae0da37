"""Attention in one pass over keys and values, scheduled by hand.

The definition is the textbook's: scores, their maximum, the normaliser, the weighted sum of the values; each a loop
nest of its own, the scores a matrix of queries by keys. `rolling_update` makes one loop over chunks of keys of it: the
sums use the maximum so far and are corrected whenever it grows (Milakov and Gimelshein, 2018; Dao et al.,
FlashAttention, 2022). What remains of the scores is one tile. Queries are the lanes of vectors; both lengths are
symbolic, one kernel serves all.

    python examples/flash_attention.py [--queries 512] [--keys 512] [--depth 64] [--threads 2]
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

import tilewright as tw
from tilewright.expr.nodes import Expr

KEY_BLOCK = 32
"""Keys of one chunk."""

MAX_KEYS = 1 << 16
"""The most queries and the most keys that the kernel takes."""

COLUMN_BLOCK = 16
"""Columns of the result that are accumulated at once."""


def attention(depth: int) -> tw.Tensor:
    """softmax(Q K^T / sqrt(depth)) V."""
    n, t = tw.symbol("N", 1, MAX_KEYS), tw.symbol("T", 1, MAX_KEYS)
    q, k = tw.placeholder((n, depth), name="Q"), tw.placeholder((t, depth), name="K")
    v = tw.placeholder((t, depth), name="V")
    e, c = tw.reduce_axis(depth, "e"), tw.reduce_axis(t, "c")
    scale = depth**-0.5
    score = tw.compute((n, t), lambda i, j: tw.sum(q[i, e] * scale * k[j, e], e), "S")
    largest = tw.compute((n,), lambda i: tw.max(score[i, c], c), "m")
    total = tw.compute((n,), lambda i: tw.sum(tw.exp(score[i, c] - largest[i]), c), "L")
    return tw.compute((n, depth), lambda i, h: tw.sum(tw.exp(score[i, c] - largest[i]) / total[i] * v[c, h], c), "O")


def flash_schedule(result: tw.Tensor, lanes: int) -> tw.Workbench:
    """One loop over tiles of `lanes` queries, inside it one over chunks of keys."""
    s = tw.create_schedule(result)
    transposed = tw.Layout.of(s.func.params[0].shape).reorder((1, 0))
    queries = s.cache_read("S", "Q", layout=transposed)
    sums = s.cache_write("O")
    i, c = s.loops("m")
    tiles, lane = s.split(i, lanes)
    chunks, key = s.split(c, KEY_BLOCK)
    s.reorder((tiles, chunks, key, lane))
    s.rolling_update("L", chunks)
    s.rolling_update("O", chunks)

    s.compute_at("S", chunks)
    s.compute_at(f"{queries}_read", tiles)
    s.reverse_compute_at("O_write", tiles)
    for buffer in ("m", "L", "m_old", sums):  # one tile's worth, used again by the next
        s.store_at(buffer, tiles)
    for buffer in ("S", sums):  # queries innermost, so that lanes are contiguous
        s.transform_layout(buffer, tw.Layout.of(shape_of(s, buffer)).reorder((1, 0)))
    for buffer in (queries, "S", "m", "L", "m_old", sums):
        s.set_scope(buffer, "stack")

    schedule_scores(s)
    schedule_products(s)
    for block in ("m_init", "L_init", "O_init", "m_save", "L_rescale", "L", "O_rescale", "O_finish", "O_write"):
        lanes_innermost(s, block)
    s.vectorize(s.loops(f"{queries}_read")[-1])
    s.vectorize(lane)
    s.parallel(tiles)
    return s


def schedule_scores(s: tw.Workbench) -> None:
    """A tile of scores: lanes of queries, several keys at once in registers."""
    query, key, e = s.loops("S")[-3:]
    several, one = s.split(key, 8)
    s.reorder((several, e, one, query))
    s.decompose_reduction("S", e)
    for block in ("S", "S_init"):
        one, query = s.loops(block)[-2:]
        s.vectorize(query)
        s.unroll(one)


def schedule_products(s: tw.Workbench) -> None:
    """The weighted sum: lanes of queries, some columns at once; the weight of a key is computed once for these."""
    query, column, key = s.loops("O")[-3:]
    several, one = s.split(column, COLUMN_BLOCK)
    s.reorder((several, key, query, one))
    s.vectorize(query)
    s.hoist("O", one)
    s.unroll(one)


def lanes_innermost(s: tw.Workbench, block: str) -> None:
    """Vectorizes the loop over a tile's queries, which comes first among the loops of the block's own."""
    query, *others = [x for x in s.loops(block) if x not in s.loops("m")]
    if others:
        s.reorder((*others, query))
    s.vectorize(query)


def shape_of(s: tw.Workbench, buffer: str) -> tuple[Expr, ...]:
    """The shape of an internal buffer."""
    return next(b.shape for b in s.func.allocs if b.name == buffer)


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention in NumPy, in the precision of its operands."""
    score = q @ k.T * q.dtype.type(q.shape[1] ** -0.5)
    weight = np.exp(score - score.max(1, keepdims=True))
    return weight / weight.sum(1, keepdims=True) @ v


def best_ms(call: Callable[[], object], repeat: int = 5) -> float:
    """The shortest of some calls, in milliseconds."""
    times: list[float] = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main(queries: int = 512, keys: int = 512, depth: int = 64, threads: int | None = None) -> float:
    """Shows the definition's loops and what was made of them, and compares with NumPy; answers with the error."""
    result = attention(depth)
    s = flash_schedule(result, tw.Target.host().lanes(32))
    print(f"The definition:\n\n{tw.create_schedule(result)}")
    print(f"The schedule:\n\n{s.to_python()}")
    print(f"The loops:\n\n{s}")

    kernel = s.build(threads=threads)
    rng = np.random.default_rng(0)
    print("queries  keys  error of ours  of NumPy's float32  ours, ms  NumPy, ms")
    worst = 0.0
    for n, t in ((queries, keys), (queries // 2 + 1, keys), (1, max(1, keys - 1))):
        q, k, v = (rng.standard_normal((size, depth)).astype(np.float32) for size in (n, t, t))
        exact = reference(*(x.astype(np.float64) for x in (q, k, v)))
        errors = [float(np.abs(found - exact).max()) for found in (kernel(q, k, v), reference(q, k, v))]
        times = [best_ms(lambda q=q, k=k, v=v, f=f: f(q, k, v)) for f in (kernel, reference)]
        print(f"{n:7d} {t:5d} {errors[0]:14.1e} {errors[1]:19.1e} {times[0]:9.2f} {times[1]:10.2f}")
        worst = max(worst, errors[0])
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--keys", type=int, default=512)
    shapes = f"length of a query, a key and a value; multiples of {COLUMN_BLOCK} run fastest"
    parser.add_argument("--depth", type=int, default=64, help=shapes)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if not (1 <= options.queries <= MAX_KEYS and 1 <= options.keys <= MAX_KEYS and options.depth >= 1):
        parser.error(f"--queries and --keys must lie in 1..{MAX_KEYS}, --depth must be at least 1")
    main(**vars(options))
