"""Random kernels of several computations: products in a row, softmax between them, windows, statistics of rows."""

from collections.abc import Callable

import numpy as np

import tilewright as tw
from tilewright.expr.nodes import Expr

MAX_SIZE = 24
"""The largest size of a dimension."""

Size = Expr | int


def random_kernel(rng: np.random.Generator) -> tw.Tensor:
    """The result of a random kernel."""
    kind = KINDS[rng.integers(len(KINDS))]
    return kind(rng)


def _size(rng: np.random.Generator, low: int = 1) -> int:
    return int(rng.integers(low, MAX_SIZE + 1))


def _symbol_or_size(rng: np.random.Generator, name: str) -> Size:
    return tw.symbol(name, 1, MAX_SIZE) if rng.random() < 0.3 else _size(rng)


def _elementwise(x: tw.Tensor, shape: tuple[Size, ...], name: str, rng: np.random.Generator) -> tw.Tensor:
    """A rectifier, a scaling, or a bias along the last dimension."""
    choice = rng.integers(3)
    bias = tw.placeholder((shape[-1],), name=f"{name}_bias")

    def value(*i: Expr) -> Expr:
        return tw.maximum(x[i], 0.0) if choice == 0 else x[i] * 0.5 if choice == 1 else x[i] + bias[i[-1]]

    return tw.compute(shape, value, name)


def _matmul(a: tw.Tensor, m: Size, k: Size, n: Size, name: str) -> tw.Tensor:
    b, r = tw.placeholder((k, n), name=f"{name}_w"), tw.reduce_axis(k, f"{name}_k")
    return tw.compute((m, n), lambda i, j: tw.sum(a[i, r] * b[r, j], r), name)


def products(rng: np.random.Generator) -> tw.Tensor:
    """Two to four products in a row, with element-wise work between some of them."""
    m, width = _symbol_or_size(rng, "M"), _size(rng)
    x = tw.placeholder((m, width), name="X")
    for k in range(int(rng.integers(2, 5))):
        following = _size(rng)
        x = _matmul(x, m, width, following, f"P{k}")
        width = following
        if rng.random() < 0.5:
            x = _elementwise(x, (m, width), f"Q{k}", rng)
    return x


def attention(rng: np.random.Generator) -> tw.Tensor:
    """softmax(Q K^T) V."""
    n, t, depth, columns = _symbol_or_size(rng, "N"), _symbol_or_size(rng, "T"), _size(rng), _size(rng)
    q, k = tw.placeholder((n, depth), name="Q"), tw.placeholder((t, depth), name="K")
    v, e, c = tw.placeholder((t, columns), name="V"), tw.reduce_axis(depth, "e"), tw.reduce_axis(t, "c")
    s = tw.compute((n, t), lambda i, j: tw.sum(q[i, e] * k[j, e], e), "S")
    if rng.random() < 0.5:
        s = _elementwise(s, (n, t), "Z", rng)
    m = tw.compute((n,), lambda i: tw.max(s[i, c], c), "m")
    total = tw.compute((n,), lambda i: tw.sum(tw.exp(s[i, c] - m[i]), c), "L")
    return tw.compute((n, columns), lambda i, h: tw.sum(tw.exp(s[i, c] - m[i]) / total[i] * v[c, h], c), "O")


def windows(rng: np.random.Generator) -> tw.Tensor:
    """A 1x1 convolution, a depthwise window and sometimes another 1x1 convolution."""
    size, channels, wide, taps = _size(rng, 4), _size(rng), _size(rng), int(rng.integers(1, 4))
    x, w = tw.placeholder((size + taps - 1, channels), name="X"), tw.placeholder((channels, wide), name="W")
    d, k = tw.placeholder((taps, wide), name="D"), tw.reduce_axis(channels, "k")
    r = tw.reduce_axis(taps, "r")
    e = tw.compute((size + taps - 1, wide), lambda y, c: tw.sum(x[y, k] * w[k, c], k), "E")
    if rng.random() < 0.5:
        e = _elementwise(e, (size + taps - 1, wide), "A", rng)
    window = tw.compute((size, wide), lambda y, c: tw.sum(e[y + r, c] * d[r, c], r), "F")
    return _matmul(window, size, wide, _size(rng), "G") if rng.random() < 0.6 else window


def statistics(rng: np.random.Generator) -> tw.Tensor:
    """Rows minus their mean over the root of their variance."""
    m, n = _symbol_or_size(rng, "M"), _size(rng, 2)
    x, r = tw.placeholder((m, n), name="X"), tw.reduce_axis(n, "r")
    mean = tw.compute((m,), lambda i: tw.sum(x[i, r] / float(n), r), "mean")
    var = tw.compute((m,), lambda i: tw.sum((x[i, r] - mean[i]) * (x[i, r] - mean[i]), r), "var")
    return tw.compute((m, n), lambda i, j: (x[i, j] - mean[i]) / tw.sqrt(var[i] + 1.0), "Y")


KINDS: tuple[Callable[[np.random.Generator], tw.Tensor], ...] = (products, products, attention, windows, statistics)
