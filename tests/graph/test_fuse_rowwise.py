"""Row-wise fusion: which computations share a kernel, and coalescing of axes through all stages."""

from tests.graph.kernels import N, axes, buffer, check_partition, pointwise, program, reduced

from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Buffer, Expr, Symbol, Var, as_expr, const
from tilewright.expr.operations import cast, conjunction, select, unary
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import partition

a, b, c, i, j, p, q = (Var(n) for n in "abcijpq")


def softmax(rows: Expr | int, columns: Expr | int) -> tuple[list[Computation], Buffer]:
    """Maxima, exponentials, sums, quotients."""
    along = axes("i", (columns,))
    x, powers, y = (buffer(n, rows, columns) for n in ("x", "powers", "y"))
    top, total = buffer("top", rows), buffer("total", rows)
    return [
        reduced(top, "a", along, x[a, i], Reducer.MAX),
        pointwise(powers, "ab", unary("exp", x[a, b] - top[a])),
        reduced(total, "a", along, powers[a, i]),
        pointwise(y, "ab", powers[a, b] / total[a]),
    ], y


def kernels(steps: list[Computation], *outputs: Buffer) -> list[str]:
    """Labels of the kernels; what they compute is checked where sizes are small."""
    return [u.label for u in partition(program(steps, list(outputs))).units if isinstance(u, Kernel)]


def test_a_softmax_is_one_kernel() -> None:
    steps, y = softmax(N, 7)
    check_partition(program(steps, [y]), "top (Reduce) + powers (Op) + total (Reduce) + y (Op)")


def test_results_with_other_readers_end_a_fusion_group() -> None:
    steps, y = softmax(N, 7)
    powers = steps[1].output
    check_partition(program(steps, [powers, y]), "top (Reduce) + powers (Op)", "total (Reduce) + y (Op)")


def test_few_long_rows_are_not_fused() -> None:
    steps, y = softmax(4, 40_000)
    assert len(kernels(steps, y)) == 4
    steps, y = softmax(1, 32_000)
    assert len(kernels(steps, y)) == 1


def test_rows_of_unknown_or_large_size_are_not_fused() -> None:
    columns = Symbol("C", 1, 4096)
    steps, y = softmax(64, columns)
    assert kernels(steps, y) == ["top (Reduce) + powers (Op)", "total (Reduce) + y (Op)"]
    steps, y = softmax(64, 100_000)
    assert kernels(steps, y) == ["top (Reduce) + powers (Op)", "total (Reduce) + y (Op)"]


def padded(channels: int, size: int) -> Computation:
    """A ring of zeros around planes."""
    x, out = buffer("x", channels, size, size), buffer("padded", channels, size + 2, size + 2)
    inside = conjunction(b >= 1, b <= size, c >= 1, c <= size)
    return pointwise(out, "abc", select(inside, unary("exp", x[a, b - 1, c - 1]), const(0, x.dtype)))


def test_padding_is_fused_with_windows_but_not_with_contractions() -> None:
    pad, taps = padded(8, 5), axes("pq", (3, 3))
    depthwise, out = buffer("w", 8, 3, 3), buffer("out", 8, 5, 5)
    window = reduced(out, "abc", taps, pad.output[a, b + p, c + q] * depthwise[a, p, q])
    check_partition(program([pad, window], [out]), "padded (Op) + out (Reduce)")
    weights, whole = buffer("w", 8, 8, 3, 3), axes("ipq", (8, 3, 3))
    dense = reduced(out, "abc", whole, pad.output[i, b + p, c + q] * weights[a, i, p, q])
    check_partition(program([pad, dense], [out]), "padded (Op)", "out (Reduce)")


def test_data_dependent_indices_prevent_rowwise_fusion() -> None:
    steps, y = softmax(N, 7)
    chosen, which = buffer("chosen", N), buffer("which", N)
    steps = [*steps, pointwise(chosen, "a", y[a, cast(int64, which[a])])]
    assert kernels(steps, chosen)[-1] == "chosen (Op)"


def test_axes_are_coalesced_through_all_stages() -> None:
    x, y, total = buffer("x", 3, 5, 4, 6), buffer("y", 3, 5, 4, 6), buffer("total", 3, 5)
    value = x[a, b, i, j]
    steps = [
        reduced(total, "ab", axes("ij", (4, 6)), value),
        pointwise(y, "abcd", x[a, b, c, Var("d")] - total[a, b]),
    ]
    (kernel,) = check_partition(program(steps, [y]), "total (Reduce) + y (Op)").units
    assert isinstance(kernel, Kernel)
    assert [[e.extent for e in (*s.axes, *s.reduce_axes)] for s in kernel.stages] == [
        [as_expr(15), as_expr(24)], [as_expr(15), as_expr(24)],
    ]  # fmt: skip
