"""Random computations: one function per kind, from options to the tensors that it makes.

All are written in the front end's own language. Multiplications and sums of small whole numbers are exact in every
type, so that most programs are compared bit by bit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.fuzz.options import Options

from tilewright.expr import define as tw
from tilewright.expr.define import Size, Tensor
from tilewright.expr.dtype import DType, float16, float32, float64, int8, int16, int32, int64, uint8
from tilewright.expr.nodes import Expr, as_expr
from tilewright.expr.operations import binary, cast, conjunction, maximum, minimum, select, unary

TYPES: Mapping[str, DType] = {
    t.name: t for t in (float32, float64, float16, int32, int8, uint8, int16, int64)
}  # fmt: skip


@dataclass(frozen=True)
class RandomComputation:
    """What a kind makes: the last tensor, how the size of rounding errors is bounded, and what data it wants.

    Attributes:
        output: the result.
        linear: sums and products alone, so that |inputs| give the size of what was added up.
    """

    output: Tensor
    linear: bool = True


def dtype(o: Options, names: Sequence[str] = tuple(TYPES)) -> str:
    """The element type; the kinds of the tensors follow it."""
    return o.choice("dtype", names)


FLOATS = ("float32", "float64", "float16")


def elementwise(o: Options) -> RandomComputation:
    """Y = f(A, B) with B broadcast along some axes, read transposed perhaps."""
    t = dtype(o)
    rank = o.number("rank", 1, 3)
    shape = [o.size(f"n{k}", (40, 24, 12)[k]) for k in range(rank)]
    a = tw.placeholder(shape, t, "A")
    kept = [not o.flag(f"broadcast {k}", 0.4) for k in range(rank)]
    b = tw.placeholder([n for n, keep in zip(shape, kept, strict=True) if keep] or [1], t, "B")
    turned = rank > 1 and o.flag("transposed", 0.2)
    op = o.choice("op", ("add", "mul", "sub", "max", "min", "select"))

    def body(*i: Expr) -> Expr:
        index = [x for x, keep in zip(i, kept, strict=True) if keep]
        x, y = a[i], b[tuple(index) or (0,)]
        if op == "select":
            return select(i[0] < as_expr(shape[0]) // 2, x, y)
        return binary(op, x, y)  # type: ignore[arg-type]

    def turned_body(*i: Expr) -> Expr:
        return body(*reversed(i))

    out = list(reversed(shape)) if turned else shape
    return RandomComputation(tw.compute(out, turned_body if turned else body, "Y"))


def reduction(o: Options) -> RandomComputation:
    """One or two axes of A reduced by a sum, maximum, minimum or product."""
    t = dtype(o)
    rank = o.number("rank", 1, 3)
    shape = [o.size(f"n{k}", (30, 20, 9)[k]) for k in range(rank)]
    a = tw.placeholder(shape, t, "A")
    first = o.number("first", 0, rank - 1)
    last = o.number("last", first, rank - 1)
    over = [tw.reduce_axis(shape[k], f"r{k}") for k in range(first, last + 1)]
    how = o.choice("reducer", ("sum", "max", "min", "prod") if TYPES[t].is_int else ("sum", "max", "min"))

    def body(*i: Expr) -> object:
        index = (*i[:first], *over, *i[first:])
        return {"sum": tw.sum, "max": tw.max, "min": tw.min, "prod": tw.prod}[how](a[index], over)

    return RandomComputation(tw.compute([*shape[:first], *shape[last + 1 :]], body, "Y"), linear=how == "sum")  # type: ignore


def accumulated(o: Options, x: Expr) -> Expr:
    """A factor in the type that sums are made in: small integers are widened."""
    t = TYPES[str(o.record["dtype"])]
    return cast(int32, x) if t.is_int and t.bits < 32 and not o.flag("narrow", 0.2) else x


def gemm_of(o: Options, name: str, rows: Size, columns: Size, depth: Size, left: Tensor | None = None) -> Tensor:
    """A product of matrices, transposed and batched as the options say."""
    t = str(o.record["dtype"])
    batch = o.size("batch", 5) if left is None and o.flag("batched", 0.3) else None
    first = [] if batch is None else [batch]
    ta, tb = left is None and o.flag("transposed A"), o.flag("transposed B")
    a = left or tw.placeholder([*first, *((depth, rows) if ta else (rows, depth))], t, f"{name}_A")
    b = tw.placeholder([*first, *((columns, depth) if tb else (depth, columns))], t, f"{name}_B")
    k = tw.reduce_axis(depth, f"{name}_k")

    def body(*i: Expr) -> object:
        *n, r, c = i
        x = a[(*n, k, r)] if ta else a[(*n, r, k)]
        y = b[(*n, c, k)] if tb else b[(*n, k, c)]
        return tw.sum(accumulated(o, x) * accumulated(o, y), k)

    return tw.compute([*first, rows, columns], body, name)  # type: ignore[arg-type]


def gemm(o: Options) -> RandomComputation:
    """C = A B."""
    dtype(o)
    return RandomComputation(gemm_of(o, "C", o.size("m", 24), o.size("n", 36), o.size("k", 20)))


def with_epilogue(o: Options) -> RandomComputation:
    """Y = max(A B + bias, 0), the bias per column."""
    dtype(o, (*FLOATS, "int32"))
    n = o.size("n", 24)
    c = gemm_of(o, "C", o.size("m", 20), n, o.size("k", 12))
    bias = tw.placeholder([n], c.dtype, "bias")
    return RandomComputation(
        tw.compute(c.shape, lambda *i: maximum(c[i] + bias[i[-1]], as_expr(0, c.dtype)), "Y"), linear=False
    )


def two_gemms(o: Options) -> RandomComputation:
    """D = (A B) E."""
    dtype(o, ("float64", "int32", "float32"))
    m, n = o.size("m", 12), o.size("n", 12)
    c = gemm_of(o, "C", m, n, o.size("k", 9))
    if len(c.shape) == 3:
        return RandomComputation(c)
    return RandomComputation(gemm_of(o, "D", m, o.size("p", 10), n, left=c))


def window(o: Options, axis: str, high: int) -> tuple[Size, Size, Callable[[Expr, Expr], Expr], Expr, int]:
    """One axis of a sliding window: input size, kernel, position of a point, output size, padding."""
    kernel = o.number(f"kernel {axis}", 1, 4)
    stride, dilation = o.number(f"stride {axis}", 1, 3), o.number(f"dilation {axis}", 1, 2)
    pad = o.number(f"pad {axis}", 0, 2)
    reach = dilation * (kernel - 1) + 1
    size = o.size(axis, high, low=max(1, reach - 2 * pad))
    out = (as_expr(size) + (2 * pad - reach)) // stride + 1
    return size, kernel, lambda y, k: y * stride + k * dilation - pad, out, pad


def padded(x: Callable[..., Expr], at: Sequence[Expr], sizes: Sequence[Size], pads: Sequence[int], zero: Expr) -> Expr:
    """The element, or zero outside of the input."""
    inside = [c for p, n, pad in zip(at, sizes, pads, strict=True) if pad for c in (p >= 0, p < n)]
    value = x(*at)
    return select(conjunction(*inside), value, zero) if inside else value


def convolution(o: Options) -> RandomComputation:
    """1-D and 2-D convolutions with stride, dilation, padding and groups."""
    t = dtype(o)
    two = o.flag("two", 0.6)
    names = ("y", "x") if two else ("x",)
    axes = [window(o, name, 14 if two else 30) for name in names]
    n = o.size("batch", 2)
    groups = o.choice("groups", (1, 1, 2, 3))
    cin, cout = o.number("cin", 1, 9 // groups), o.number("cout", 1, 18 // groups)
    x = tw.placeholder([n, groups * cin, *(a[0] for a in axes)], t, "X")
    w = tw.placeholder([groups * cout, cin, *(a[1] for a in axes)], t, "W")
    c = tw.reduce_axis(cin, "c")
    over = [tw.reduce_axis(a[1], f"k{name}") for a, name in zip(axes, names, strict=True)]

    def body(*i: Expr) -> object:
        b, f, *place = i
        channel = c if groups == 1 else f // cout * cin + c
        at = [a[2](p, k) for a, p, k in zip(axes, place, over, strict=True)]
        zero = as_expr(0, x.dtype)
        value = padded(lambda *s: x[(b, channel, *s)], at, [a[0] for a in axes], [a[4] for a in axes], zero)
        return tw.sum(accumulated(o, value) * accumulated(o, w[(f, c, *over)]), c, *over)

    return RandomComputation(tw.compute([n, groups * cout, *(a[3] for a in axes)], body, "Y"))  # type: ignore[arg-type]


def depthwise(o: Options) -> RandomComputation:
    """One filter per channel."""
    t = dtype(o)
    axes = [window(o, name, 14) for name in ("y", "x")]
    channels = o.size("channels", 20)
    x = tw.placeholder([channels, *(a[0] for a in axes)], t, "X")
    w = tw.placeholder([channels, *(a[1] for a in axes)], t, "W")
    over = [tw.reduce_axis(a[1], f"k{name}") for a, name in zip(axes, "yx", strict=True)]

    def body(c: Expr, i: Expr, j: Expr) -> object:
        at = [a[2](p, k) for a, p, k in zip(axes, (i, j), over, strict=True)]
        value = padded(lambda *s: x[(c, *s)], at, [a[0] for a in axes], [a[4] for a in axes], as_expr(0, x.dtype))
        return tw.sum(accumulated(o, value) * accumulated(o, w[(c, *over)]), *over)

    return RandomComputation(tw.compute([channels, *(a[3] for a in axes)], body, "Y"))  # type: ignore[arg-type]


def pooling(o: Options) -> RandomComputation:
    """The largest value of a window; what lies outside counts as the smallest number."""
    t = dtype(o)
    axes = [window(o, name, 16) for name in ("y", "x")]
    channels = o.size("channels", 16)
    x = tw.placeholder([channels, *(a[0] for a in axes)], t, "X")
    over = [tw.reduce_axis(a[1], f"k{name}") for a, name in zip(axes, "yx", strict=True)]
    least = tw.Reducer.MAX.identity(x.dtype)

    def body(c: Expr, i: Expr, j: Expr) -> object:
        at = [a[2](p, k) for a, p, k in zip(axes, (i, j), over, strict=True)]
        return tw.max(padded(lambda *s: x[(c, *s)], at, [a[0] for a in axes], [a[4] for a in axes], least), *over)

    return RandomComputation(tw.compute([channels, *(a[3] for a in axes)], body, "Y"), linear=False)  # type: ignore[arg-type]


def softmax(o: Options) -> RandomComputation:
    """exp(A - max) / sum(exp(A - max)) along rows."""
    t = dtype(o, FLOATS[:2])
    m, n = o.size("m", 16), o.size("n", 40)
    a = tw.placeholder([m, n], t, "A")
    k, l = tw.reduce_axis(n, "k"), tw.reduce_axis(n, "l")  # noqa: E741
    top = tw.compute([m], lambda i: tw.max(a[i, k], k), "top")
    e = tw.compute([m, n], lambda i, j: unary("exp", a[i, j] - top[i]), "e")
    total = tw.compute([m], lambda i: tw.sum(e[i, l], l), "total")
    return RandomComputation(tw.compute([m, n], lambda i, j: e[i, j] / total[i], "Y"), linear=False)


def attention(o: Options) -> RandomComputation:
    """The average of V's rows, weighted by the softmax of A's rows."""
    t = dtype(o, FLOATS[:2])
    m, n, d = o.size("m", 8), o.size("n", 32), o.size("d", 8)
    a, v = tw.placeholder([m, n], t, "A"), tw.placeholder([n, d], t, "V")
    k, l, p = (tw.reduce_axis(n, name) for name in "klp")  # noqa: E741
    top = tw.compute([m], lambda i: tw.max(a[i, k], k), "top")
    total = tw.compute([m], lambda i: tw.sum(unary("exp", a[i, l] - top[i]), l), "total")

    def body(i: Expr, j: Expr) -> object:
        return tw.sum(unary("exp", a[i, p] - top[i]) / total[i] * v[p, j], p)

    return RandomComputation(tw.compute([m, d], body, "Y"), linear=False)  # type: ignore[arg-type]


def neighbours(o: Options) -> RandomComputation:
    """T = A + A, then Y = T at other places: shifted, clamped, mirrored, every other one."""
    t = dtype(o)
    n, m = o.size("n", 40), o.size("m", 12)
    a = tw.placeholder([n, m], t, "A")
    total = tw.compute([n, m], lambda i, j: a[i, j] + a[i, j], "T")
    how = o.choice("how", ("shift", "clamp", "mirror", "halve", "fold"))
    last = as_expr(n) - 1

    def body(i: Expr, j: Expr) -> Expr:
        match how:
            case "shift":
                return select(i >= 1, total[i - 1, j], as_expr(0, total.dtype)) + total[i, j]
            case "clamp":
                return total[minimum(i + 2, last), j] + total[maximum(i - 1, 0), j]
            case "mirror":
                return total[last - i, j]
            case "halve":
                return total[i // 2, j] + total[i % 3 * i // maximum(i, 1) % n, j]
            case _:
                return total[i * 3 % n, j]

    return RandomComputation(tw.compute([n, m], body, "Y"))


def row_scaled(o: Options) -> RandomComputation:
    """A reduction and what uses it per row: Y = A * sum(A) + B."""
    t = dtype(o)
    m, n = o.size("m", 20), o.size("n", 24)
    a, b = tw.placeholder([m, n], t, "A"), tw.placeholder([n], t, "B")
    k = tw.reduce_axis(n, "k")
    total = tw.compute([m], lambda i: tw.sum(a[i, k], k), "total")
    scaled = tw.compute([m, n], lambda i, j: a[i, j] * total[i], "scaled")
    return RandomComputation(tw.compute([m, n], lambda i, j: scaled[i, j] + b[j], "Y"))


KINDS: Mapping[str, Callable[[Options], RandomComputation]] = {
    f.__name__: f
    for f in (
        gemm, elementwise, reduction, with_epilogue, two_gemms, convolution, depthwise, pooling, softmax, attention,
        neighbours, row_scaled,
    )
}  # fmt: skip
"""Every kind of computation by name; the first is the simplest to read."""
