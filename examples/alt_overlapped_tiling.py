"""A convolution over overlapping tiles, by layouts alone (ALT, Figs. 2 and 3).

Nothing about the convolution is rewritten by hand. The output is stored in tiles of rows, columns and channels; the
input in tiles that overlap by the window's size minus one, so that each tile of the output reads one contiguous tile of
the input; the weights with a block of output channels innermost. The loops and all indices follow from that. The block
of channels then becomes the lanes of vectors, and every tile a task of its own.

    python examples/alt_overlapped_tiling.py [--size 56] [--channels 64] [--threads 2]
"""

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np

import tilewright as tw

WINDOW = 3


def convolution(channels: int, size: int) -> tw.Tensor:
    """Conv[n, o, h, w] over a padded input; the batch is symbolic."""
    n = tw.symbol("N", 1, 8)
    inp = tw.placeholder((n, channels, size + WINDOW - 1, size + WINDOW - 1), name="Inp")
    ker = tw.placeholder((channels, channels, WINDOW, WINDOW), name="Ker")
    i, rh, rw = tw.reduce_axis(channels, "i"), tw.reduce_axis(WINDOW, "rh"), tw.reduce_axis(WINDOW, "rw")
    return tw.compute(
        (n, channels, size, size),
        lambda n, o, h, w: tw.sum(inp[n, i, h + rh, w + rw] * ker[o, i, rh, rw], i, rh, rw),
        "Conv",
    )


def tiled_layouts(conv: tw.Tensor, ht: int, wt: int, ot: int) -> dict[str, tw.Layout]:
    """The layouts of Fig. 2: tiles of ht x wt elements and ot channels; `unfold` makes the overlapping ones."""
    inp, ker = conv.sources
    tiles = tw.Layout.of(conv.shape).split(3, (None, wt)).split(2, (None, ht)).split(1, (None, ot))
    overlapping = tw.Layout.of(inp.shape).unfold(3, wt + WINDOW - 1, wt).unfold(2, ht + WINDOW - 1, ht)
    return {
        "Conv": tiles.reorder((0, 3, 5, 1, 4, 6, 2)),  # N, H/ht, W/wt, O/ot, ht, wt, ot
        "Inp": overlapping.reorder((0, 2, 4, 1, 3, 5)),  # N, H/ht, W/wt, I, ht+2, wt+2
        "Ker": tw.Layout.of(ker.shape).split(0, (None, ot)).reorder((0, 2, 3, 4, 1)),  # O/ot, I, 3, 3, ot
    }


def tiled_schedule(conv: tw.Tensor, layouts: Mapping[str, tw.Layout]) -> tw.Workbench:
    """Lanes along the channels of a block, a row of accumulators in registers, a task per tile."""
    s = tw.create_schedule(conv, layouts=layouts)
    sums = s.cache_write("Conv")
    n, th, tiles_w, to, h, w, o = s.loops("Conv_write")
    s.compute_at("Conv", h)
    column, lane, i, rh, rw = s.loops("Conv")[-5:]
    s.reorder((i, rh, rw, column, lane))  # the channels innermost, as io in Fig. 3
    s.set_scope(sums, "register")
    s.decompose_reduction("Conv", i)
    column_0, lane_0 = s.loops("Conv_init")[-2:]
    for loop in (lane, lane_0, o):
        s.vectorize(loop)
    for loop in (column, column_0, w):
        s.unroll(loop)
    s.parallel(s.fuse(s.fuse(s.fuse(n, th), tiles_w), to))
    return s


def untiled_schedule(conv: tw.Tensor) -> tw.Workbench:
    """The same computation stored row by row: lanes along the columns, and the same number of accumulators."""
    s = tw.create_schedule(conv)
    sums = s.cache_write("Conv")
    n, o, h, w = s.loops("Conv_write")
    o_o, o_i = s.split(o, 4)
    w_o, w_i = s.split(w, 16)
    s.reorder((n, o_o, h, w_o, o_i, w_i))
    s.compute_at("Conv", w_o)
    row, lane, i, rh, rw = s.loops("Conv")[-5:]
    s.reorder((i, rh, rw, row, lane))
    s.set_scope(sums, "register")
    s.decompose_reduction("Conv", i)
    row_0, lane_0 = s.loops("Conv_init")[-2:]
    for loop in (lane, lane_0, w_i):
        s.vectorize(loop)
    for loop in (row, row_0, o_i):
        s.unroll(loop)
    s.parallel(s.fuse(s.fuse(n, o_o), h))
    return s


def best_ms(call: Callable[[], object], repeat: int = 5) -> float:
    """The shortest of some calls, in milliseconds."""
    times: list[float] = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def reference(x: np.ndarray, k: np.ndarray) -> np.ndarray:
    """The convolution in double precision with NumPy."""
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (WINDOW, WINDOW), axis=(2, 3))
    return np.einsum("nihwrs,oirs->nohw", windows, k.astype(np.float64), optimize=True)


def main(size: int = 56, channels: int = 64, batch: int = 1, threads: int | None = None) -> float:
    """Shows the layouts and the loops, and compares both kernels with NumPy; answers with the tiled one's error."""
    conv = convolution(channels, size)
    layouts = tiled_layouts(conv, size // 2, size // 4, min(16, channels))
    for name, layout in layouts.items():
        print(f"{name}: {layout}")
    plain, tiles = untiled_schedule(conv), tiled_schedule(conv, layouts)
    print(f"\nThe loops of Fig. 3, before they are scheduled:\n\n{tw.create_schedule(conv, layouts=layouts)}")
    print(f"The schedule:\n\n{tiles.to_python()}")

    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, channels, size + WINDOW - 1, size + WINDOW - 1)).astype(np.float32)
    k = rng.standard_normal((channels, channels, WINDOW, WINDOW)).astype(np.float32)
    expected = reference(x, k)
    scale = np.abs(expected).max()

    row_by_row = plain.build(threads=threads)
    error = np.abs(row_by_row(x, k) - expected).max() / scale
    print(f"row by row: error {error:.1e}, {best_ms(lambda: row_by_row(x, k)):.2f} ms")

    kernel = tiles.build(threads=threads)
    stored_x, stored_k = layouts["Inp"].transform(x), layouts["Ker"].transform(k)
    error = np.abs(layouts["Conv"].restore(kernel(stored_x, stored_k)) - expected).max() / scale
    print(f"in tiles:   error {error:.1e}, {best_ms(lambda: kernel(stored_x, stored_k)):.2f} ms, on data stored so")
    return float(error)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    rows = "rows and columns of the output, a multiple of 4 from 8 on"
    parser.add_argument("--size", type=int, default=56, help=rows)
    parser.add_argument("--channels", type=int, default=64, help="a multiple of 16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.size < 8 or options.size % 4 or options.channels < 16 or options.channels % 16 or options.batch < 1:
        parser.error("--size must be a multiple of 4 from 8 on, --channels one of 16, --batch at least 1")
    main(**vars(options))
