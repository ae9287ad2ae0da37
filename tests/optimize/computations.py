"""Computations and programs that several tests optimize: contractions, reductions, row-wise programs, windows."""

from hypothesis import strategies as st
from tests.optimize import programs
from tests.optimize.programs import Program, axes, buffer

from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.dtype import int8, int32, int64
from tilewright.expr.nodes import Expr, Symbol, Var, as_expr, const
from tilewright.expr.operations import cast, conjunction, maximum, select

M, N, S = Symbol("M", 1, 512), Symbol("N", 1, 4), Symbol("S", 16, 512)
ROWS, COLUMNS = Symbol("R", 1, 64), Symbol("C", 1, 4096)


def product(m: Expr | int, n: Expr | int, k: Expr | int, dtype=None) -> Computation:
    """t = x @ w"""
    x, w = buffer("x", (m, k)), buffer("w", (k, n))
    out = buffer("t", (m, n))
    a, b, i = Var("a"), Var("b"), Var("i")
    body: Expr = x[a, i] * w[i, b]
    if dtype is not None:
        x, w, out = (buffer(p.name, p.shape, dtype) for p in (x, w, out))
        body = x[a, i] * w[i, b]
        if dtype is int8:
            out = buffer("t", (m, n), int32)
            body = cast(int32, x[a, i]) * cast(int32, w[i, b])
    return Computation(out, axes("ab", (m, n)), axes("i", (k,)), body, Reducer.SUM)


def relu(producer: Computation, name: str = "y") -> Computation:
    """max(producer + bias, 0) with one bias per column"""
    new_axes = axes("efgh"[: len(producer.axes)], [a.extent for a in producer.axes])
    index = tuple(a.var for a in new_axes)
    bias = buffer("bias", (producer.axes[1].extent,))
    value = maximum(producer.output[index] + bias[index[1]], const(0, producer.output.dtype))
    return Computation(buffer(name, producer.output.shape), new_axes, (), value)


def image(n: Expr | int, c: int, o: int, h: Expr | int, k: int) -> Computation:
    """A convolution with k x k weights."""
    outs = as_expr(h) - k + 1
    x, w = buffer("x", (n, c, h, h)), buffer("w", (o, c, k, k))
    b, f, y, z, i, p, q = (Var(v) for v in "bfyzipq")
    return Computation(
        buffer("t", (n, o, outs, outs)), axes("bfyz", (n, o, outs, outs)), axes("ipq", (c, k, k)),
        x[b, i, y + p, z + q] * w[f, i, p, q], Reducer.SUM,
    )  # fmt: skip


def row_sums(rows: Expr | int, columns: Expr | int) -> Computation:
    """One sum per row."""
    x = buffer("x", (rows, columns))
    out = buffer("t", (rows,))
    return Computation(out, axes("a", (rows,)), axes("i", (columns,)), x[Var("a"), Var("i")], Reducer.SUM)


def column_maxima(rows: Expr | int, columns: Expr | int) -> Computation:
    """One maximum per column."""
    x = buffer("x", (rows, columns))
    out = buffer("t", (columns,))
    return Computation(out, axes("a", (columns,)), axes("i", (rows,)), x[Var("i"), Var("a")], Reducer.MAX)


def products_of_pictures(count: int, channels: int, pixels: int, filters: int) -> Program:
    """A 1x1 convolution: out[a, b, c] = sum over i of x[a, i, c] * w[b, i]"""
    x, w = programs.buffer("x", (count, channels, pixels)), programs.buffer("w", (filters, channels))
    out, (a, b, c, i) = programs.buffer("t", (count, filters, pixels)), map(Var, "abci")
    over = programs.axes("i", (channels,))
    body = x[a, i, c] * w[b, i]
    return Program(
        [Computation(out, programs.axes("abc", (count, filters, pixels)), over, body, Reducer.SUM)],
        {},
        frozenset({"w"}),
    )


def column_sums(rows: int, columns: int) -> Program:
    """Sums without reuse of operands."""
    x, a, i = programs.buffer("x", (rows, columns)), Var("a"), Var("i")
    out, over = programs.buffer("t", (columns,)), programs.axes("i", (rows,))
    return Program([Computation(out, programs.axes("a", (columns,)), over, x[i, a], Reducer.SUM)], {})


def normalised(rows: Expr | int, columns: Expr | int) -> list[Computation]:
    """y = x - max(x) + sum(max(x - max(x), -2)), per row: whole numbers stay whole."""
    a, b, i = (Var(n) for n in "abi")
    x, top = buffer("x", (rows, columns)), buffer("top", (rows,))
    low, total, y = buffer("low", (rows, columns)), buffer("total", (rows,)), buffer("y", (rows, columns))
    grid, line, along = axes("ab", (rows, columns)), axes("a", (rows,)), axes("i", (columns,))
    return [
        Computation(top, line, along, x[a, i], Reducer.MAX),
        Computation(low, grid, (), maximum(x[a, b] - top[a], const(-2, x.dtype))),
        Computation(total, line, along, low[a, i], Reducer.SUM),
        Computation(y, grid, (), low[a, b] + total[a]),
    ]


def windows(
    channels: Expr | int, size: tuple[int, int], taps: tuple[int, int], stride: int, pad: int,
    weighted: bool = False, epilogue: bool = False,
) -> list[Computation]:  # fmt: skip
    """A window over padded planes, as in depthwise convolutions and pooling."""
    a, b, c, p, q = (Var(n) for n in "abcpq")
    h, w = size
    wide = (channels, h + 2 * pad, w + 2 * pad)
    x, padded = buffer("x", (channels, h, w)), buffer("padded", wide)
    inside = conjunction(b >= pad, b < h + pad, c >= pad, c < w + pad)
    outs = (channels, (wide[1] - taps[0]) // stride + 1, (wide[2] - taps[1]) // stride + 1)
    sums = buffer("sums", outs)
    value: Expr = padded[a, b * stride + p, c * stride + q]
    if weighted:
        value = value * buffer("weights", (channels, *taps))[a, p, q]
    stages = [
        Computation(padded, axes("abc", wide), (), select(inside, x[a, b - pad, c - pad], const(0, x.dtype))),
        Computation(sums, axes("abc", outs), axes("pq", taps), value, Reducer.SUM if weighted else Reducer.MAX),
    ]
    if epilogue:
        stages.append(Computation(buffer("y", outs), axes("abc", outs), (), maximum(sums[a, b, c], const(0, x.dtype))))
    return stages


@st.composite
def some_windows(draw) -> Program:  # pyright: ignore[reportMissingParameterType]
    """Random windows."""
    small = st.integers(1, 4)
    taps = draw(small), draw(small)
    size = draw(st.integers(taps[0], 20)), draw(st.integers(taps[1], 40))
    channels = draw(st.sampled_from([1, 2, 7, 48, ROWS]))
    stages = windows(channels, size, taps, draw(st.integers(1, 3)), draw(st.integers(0, 2)), draw(st.booleans()),
                     draw(st.booleans()))  # fmt: skip
    return Program(stages, {ROWS: draw(st.integers(1, 9))} if channels is ROWS else {})


KERNELS = {
    "matmul": Program([product(28, 64, 5), relu(product(28, 64, 5))], {}, frozenset({"w"})),
    "matmul_of_symbolic_rows": Program([product(M, 40, 5)], {M: 21}, frozenset({"w"})),
    "matvec": Program([product(1, 40, 5)], {}, frozenset({"w"})),
    "convolution": Program([image(1, 3, 20, 9, 3), relu(image(1, 3, 20, 9, 3))], {}, frozenset({"w"})),
    "elementwise": Program([relu(product(M, 30, 1))], {M: 9}),
    "row_sums": Program([row_sums(M, 100)], {M: 7}),
    "column_maxima": Program([column_maxima(M, 40)], {M: 9}),
}


def maxima_with_places(
    channels: Expr | int, size: tuple[int, int], taps: tuple[int, int], stride: int
) -> list[Computation]:
    """The maximum of every window, and the first place in the plane where it is."""
    h, w = size
    outs = (channels, (h - taps[0]) // stride + 1, (w - taps[1]) // stride + 1)
    a, b, c, p, q = (Var(n) for n in "abcpq")
    x, best, first = buffer("x", (channels, h, w)), buffer("best", outs), buffer("first", outs, int64)
    index = (a, b * stride + p, c * stride + q)
    place = select(x[index].equals(best[a, b, c]), index[1] * w + index[2], const(h * w))
    grid, window = axes("abc", outs), axes("pq", taps)
    return [
        Computation(best, grid, window, x[index], Reducer.MAX),
        Computation(first, grid, window, place, Reducer.MIN),
        Computation(buffer("y", outs, int64), grid, (), first[a, b, c] + a * (h * w)),
    ]
