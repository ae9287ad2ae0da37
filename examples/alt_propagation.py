"""Why layouts travel: a convolution and its ReLU become one loop nest (ALT, Figs. 6 and 7).

The convolution writes its output in blocks of four rows, N H/4 W O 4. If the ReLU keeps its own order, its loops are
not those of the convolution: a block of rows can't be computed inside them, and the refusal says why. If the ReLU gets
the same layout, both have the same loops, and the two become one nest whose intermediate result is a few registers.

    python examples/alt_propagation.py [--channels 16] [--size 16] [--threads 2]
"""

import argparse

import numpy as np

import tilewright as tw


def network(channels: int, size: int) -> tw.Tensor:
    """max(Conv, 0) of a 3x3 convolution over a padded input; the batch is symbolic."""
    n = tw.symbol("N", 1, 8)
    inp = tw.placeholder((n, channels, size + 2, size + 2), name="Inp")
    ker = tw.placeholder((channels, channels, 3, 3), name="Ker")
    i, rh, rw = tw.reduce_axis(channels, "i"), tw.reduce_axis(3, "rh"), tw.reduce_axis(3, "rw")
    shape = (n, channels, size, size)
    conv = tw.compute(
        shape, lambda n, o, h, w: tw.sum(inp[n, i, h + rh, w + rw] * ker[o, i, rh, rw], i, rh, rw), "Conv"
    )
    return tw.compute(shape, lambda n, o, h, w: tw.maximum(conv[n, o, h, w], 0.0), "ReLU")


def fuse_blocks(s: tw.Workbench, block_of_rows: str) -> None:
    """Computes the convolution of one block of rows where the ReLU needs it, and keeps it in registers."""
    s.compute_at("Conv", block_of_rows)
    rows, i, rh, rw = s.loops("Conv")[-4:]
    s.reorder((i, rh, rw, rows))
    s.set_scope("Conv", "register")
    s.decompose_reduction("Conv", i)
    for loop in (rows, s.loops("Conv_init")[-1], s.loops("ReLU")[-1]):
        s.vectorize(loop)
    s.parallel(s.loops("ReLU")[0])


def main(channels: int = 16, size: int = 16, batch: int = 2, threads: int | None = None) -> float:
    """Shows both cases, and compares the fused kernel with NumPy; answers with its error."""
    relu = network(channels, size)
    layout = tw.Layout.of(relu.shape).split(2, (None, 4)).reorder((0, 2, 4, 1, 3))
    print(f"the layout: {layout}\n")

    alone = tw.create_schedule(relu, layouts={"Conv": layout})
    print(f"Fig. 6: only the convolution has it, and the nests differ:\n\n{alone}")
    try:
        alone.compute_at("Conv", alone.loops("ReLU")[1])
    except tw.ScheduleError as reason:
        print(f"fusing them is refused: {reason}\n")

    both = tw.create_schedule(relu, layouts={"Conv": layout, "ReLU": layout})
    fuse_blocks(both, both.loops("ReLU")[3])
    print(f"Fig. 7: both have it, and there is one nest:\n\n{both}")

    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, channels, size + 2, size + 2)).astype(np.float32)
    k = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32)
    kernel = both.build(threads=threads)
    result = layout.restore(kernel(x, k))
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), axis=(2, 3))
    expected = np.maximum(np.einsum("nihwrs,oirs->nohw", windows, k.astype(np.float64), optimize=True), 0)
    error = float(np.abs(result - expected).max() / expected.max())
    print(f"error against NumPy in double precision: {error:.1e}")
    return error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--size", type=int, default=16, help="rows and columns, a multiple of 4")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.size < 4 or options.size % 4 or min(options.channels, options.batch) < 1:
        parser.error("--size must be a positive multiple of 4, --channels and --batch at least 1")
    main(**vars(options))
