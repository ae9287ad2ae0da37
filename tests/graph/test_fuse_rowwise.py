"""Row-wise fusion: which computations share a kernel, and coalescing of axes through all stages."""

import pytest
from tests.graph.kernels import N, axes, buffer, check_partition, pointwise, program, reduced
from tests.optimize.computations import maxima_with_places

from tilewright.expr.computation import Axis, Computation, Reducer, View
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Buffer, Expr, Symbol, Var, as_expr, const
from tilewright.expr.operations import cast, conjunction, maximum, select, unary
from tilewright.graph.fuse_rowwise import MAX_SHARED_ROW_BYTES
from tilewright.graph.fusion import MAX_INTERMEDIATE_BYTES
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import Partition, partition

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
    steps, y = softmax(N, 8)
    check_partition(program(steps, [y]), "top (Reduce) + powers (Op) + total (Reduce) + y (Op)")


def test_results_with_other_readers_are_stored() -> None:
    steps, y = softmax(N, 8)
    powers = steps[1].output
    result = check_partition(program(steps, [powers, y]), "top (Reduce) + powers (Op) + total (Reduce) + y (Op)")
    assert outputs_of_each(result) == [["powers", "y"]]


def test_few_long_rows_are_not_fused() -> None:
    steps, y = softmax(4, 40_000)
    assert len(kernels(steps, y)) == 4
    steps, y = softmax(1, 32_000)
    assert len(kernels(steps, y)) == 1


def test_rows_of_large_size_are_not_fused() -> None:
    steps, y = softmax(64, MAX_INTERMEDIATE_BYTES // 4)
    assert kernels(steps, y) == ["top (Reduce) + powers (Op)", "total (Reduce) + y (Op)"]
    steps, y = softmax(64, 100_000)
    assert len(kernels(steps, y)) == 1


@pytest.mark.parametrize("columns", [Symbol("C", 1, 4096), Symbol("C", 1), Symbol("C", 0)])
def test_rows_of_symbolic_size_are_fused(columns: Symbol) -> None:
    steps, y = softmax(64, columns)
    assert len(kernels(steps, y)) == 1
    # few rows keep threads busy only stage by stage, unless they are known to be short
    steps, y = softmax(4, columns)
    assert len(kernels(steps, y)) == (1 if columns.hi is not None else 4)


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
    steps, y = softmax(N, 8)
    chosen, which = buffer("chosen", N), buffer("which", N)
    steps = [*steps, pointwise(chosen, "a", y[a, cast(int64, which[a])])]
    assert kernels(steps, chosen)[-1] == "chosen (Op)"


def test_axes_are_coalesced_through_all_stages() -> None:
    x, y, total = buffer("x", 3, 5, 4, 8), buffer("y", 3, 5, 4, 8), buffer("total", 3, 5)
    value = x[a, b, i, j]
    steps = [
        reduced(total, "ab", axes("ij", (4, 8)), value),
        pointwise(y, "abcd", x[a, b, c, Var("d")] - total[a, b]),
    ]
    (kernel,) = check_partition(program(steps, [y]), "total (Reduce) + y (Op)").units
    assert isinstance(kernel, Kernel)
    assert [[e.extent for e in (*s.axes, *s.reduce_axes)] for s in kernel.stages] == [
        [as_expr(15), as_expr(32)], [as_expr(15), as_expr(32)],
    ]  # fmt: skip


def outputs_of_each(result: Partition) -> list[list[str]]:
    """What each kernel writes."""
    return [[x.name for x in u.writes] for u in result.units if isinstance(u, Kernel)]


def test_statistics_that_the_program_returns_are_outputs_of_the_kernel() -> None:
    steps, y = softmax(N, 8)
    result = check_partition(program(steps, [y, steps[0].output, steps[2].output]))
    assert outputs_of_each(result) == [["top", "total", "y"]]


def test_a_result_that_a_later_kernel_reads_too_is_stored_once() -> None:
    x, z, total, y = buffer("x", N, 32), buffer("z", N, 32), buffer("total", N), buffer("y", N, 32)
    late = buffer("late", 32)
    steps = [
        pointwise(z, "ab", unary("exp", x[a, b])),
        reduced(total, "a", axes("i", [32]), z[a, i]),
        pointwise(y, "ab", z[a, b] - total[a]),
        # columns of z: no rows in common
        reduced(late, "b", (Axis(i, N),), z[i, b]),
    ]
    result = check_partition(program(steps, [y, late]), "z (Op) + total (Reduce) + y (Op)", "late (Reduce)")
    assert outputs_of_each(result) == [["z", "y"], ["late"]]


def test_readers_wait_for_the_whole_kernel() -> None:
    """A view of the statistics stands before the end of the kernel that computes them."""
    x, total, y = buffer("x", N, 32), buffer("total", N), buffer("y", N, 32)
    whole, kept = buffer("whole", 1), buffer("kept", N, 1)
    steps = [
        reduced(total, "a", axes("i", [32]), x[a, i]),
        View(kept, total),
        reduced(whole, "a", (Axis(i, N),), kept[i, 0]),
        pointwise(y, "ab", unary("exp", x[a, b] - total[a])),
    ]
    result = check_partition(program(steps, [y, whole, kept]))
    assert ["total", "y"] in outputs_of_each(result)
    assert isinstance(result.units[0], Kernel)


def test_reductions_of_one_operand_are_siblings() -> None:
    x = buffer("x", N, 32)
    inner = axes("i", [32])
    steps = [
        reduced(buffer("s", N), "a", inner, x[a, i]),
        reduced(buffer("m", N), "a", inner, x[a, i], Reducer.MAX),
        reduced(buffer("q", N), "a", inner, x[a, i] * x[a, i]),
    ]
    result = check_partition(program(steps, [s.output for s in steps]), "s (Reduce) + m (Reduce) + q (Reduce)")
    assert outputs_of_each(result) == [["s", "m", "q"]]


def test_siblings_of_which_one_needs_the_other_through_a_third_are_no_kernel() -> None:
    x = buffer("x", 64, 32)
    s, columns, m = buffer("s", 64), buffer("columns", 64), buffer("m", 64)
    inner = axes("i", [32])
    steps = [
        reduced(s, "a", inner, x[a, i]),
        # every element needs all sums
        reduced(columns, "a", axes("j", [64]), s[j] * x[a, 0]),
        reduced(m, "a", inner, maximum(x[a, i], columns[a]), Reducer.MAX),
    ]
    result = check_partition(program(steps, [s, m]))
    assert not any({"s", "m"} <= set(written) for written in outputs_of_each(result))


def test_a_sibling_that_reads_a_result_of_the_other_is_no_part_of_it() -> None:
    """The product is fused into its second reader, whose kernel the first one therefore waits for."""
    x, w = buffer("x", N, 8), buffer("w", 8)
    product, least, negated = (buffer(n, N) for n in ("product", "least", "negated"))
    positive = buffer("positive", N, 8)
    steps = [
        reduced(product, "a", axes("i", [8]), x[a, i] * w[i]),
        reduced(least, "a", axes("i", [1]), product[a], Reducer.MIN),
        pointwise(negated, "a", product[a] * -1.0),
        pointwise(positive, "ab", maximum(x[a, b], 0.0)),
    ]
    check_partition(program(steps, [least, negated, positive]))


def test_reductions_along_rows_of_columns_are_not_fused() -> None:
    """Vectors of columns are added up; columns one by one would be read element by element."""
    x, s, m = buffer("x", 40, 40), buffer("s", 40), buffer("m", 40)
    over = axes("i", [40])
    steps = [reduced(s, "a", over, x[i, a]), reduced(m, "a", over, x[i, a], Reducer.MAX)]
    check_partition(program(steps, [s, m]), "s (Reduce)", "m (Reduce)")
    # in a batch, its elements are the rows
    x, s, m = buffer("x", 40, 30, 40), buffer("s", 40, 40), buffer("m", 40, 40)
    over = axes("i", [30])
    steps = [reduced(s, "ab", over, x[a, i, b]), reduced(m, "ab", over, x[a, i, b], Reducer.MAX)]
    (kernel,) = check_partition(program(steps, [s, m])).units
    assert isinstance(kernel, Kernel)
    assert kernel.fusion.outer_rank == 1


def test_other_rows_of_an_operand_are_nothing_in_common() -> None:
    x, s, m = buffer("x", 40, 40), buffer("s", 40), buffer("m", 40)
    steps = [
        reduced(s, "a", axes("i", [40]), x[a, i]),
        reduced(m, "a", axes("i", [40]), x[i, a], Reducer.MAX),
    ]
    check_partition(program(steps, [s, m]), "s (Reduce)", "m (Reduce)")


def test_a_small_common_operand_is_no_reason_to_fuse() -> None:
    x, z, w = buffer("x", 40, 400), buffer("z", 40, 400), buffer("w", 40)
    s, m = buffer("s", 40), buffer("m", 40)
    steps = [
        reduced(s, "a", axes("i", [400]), x[a, i] * w[a] + 1.0),
        reduced(m, "a", axes("i", [400]), z[a, i] + w[a], Reducer.MAX),
    ]
    check_partition(program(steps, [s, m]), "s (Reduce)", "m (Reduce)")


def test_rows_larger_than_the_near_caches_are_not_read_again_from_there() -> None:
    columns = (MAX_SHARED_ROW_BYTES // 4) + 1
    x, s, m = buffer("x", 40, columns), buffer("s", 40), buffer("m", 40)
    steps = [
        reduced(s, "a", axes("i", [columns]), x[a, i]),
        reduced(m, "a", axes("i", [columns]), x[a, i], Reducer.MAX),
    ]
    assert len(partition(program(steps, [s, m])).units) == 2


def test_reductions_that_keep_their_dimensions_are_fused() -> None:
    x, m, kept = buffer("x", N, 32), buffer("m", N), buffer("kept", N, 1)
    y = buffer("y", N, 32)
    steps = [
        reduced(m, "a", axes("i", [32]), x[a, i], Reducer.MAX),
        View(kept, m),
        pointwise(y, "ab", unary("exp", x[a, b] - kept[a, 0])),
    ]
    check_partition(program(steps, [y]), "m (Reduce) + y (Op)")
    # where the view is an output it stays
    result = check_partition(program(steps, [y, kept]), "m (Reduce) + y (Op)")
    assert [type(u).__name__ for u in result.units] == ["Kernel", "View"]


def test_element_wise_work_on_a_common_operand_is_one_kernel() -> None:
    x, z = buffer("x", N, 32), buffer("z", N, 32)
    s, t, other = buffer("s", N, 32), buffer("t", N, 32), buffer("other", N, 32)
    steps = [
        pointwise(s, "ab", unary("sigmoid", x[a, b])),
        pointwise(t, "ab", unary("tanh", x[a, b])),
        pointwise(other, "ab", unary("exp", z[a, b])),
    ]
    check_partition(program(steps, [s, t, other]), "s (Op) + t (Op)", "other (Op)")


def test_parts_of_a_split_have_no_operand_in_common() -> None:
    x, left, right = buffer("x", N, 32), buffer("left", N, 10), buffer("right", N, 10)
    steps = [pointwise(left, "ab", x[a, b]), pointwise(right, "ab", x[a, b + 10])]
    check_partition(program(steps, [left, right]), "left (Op)", "right (Op)")


def test_windows_and_the_places_of_their_maxima() -> None:
    best, first, y = maxima_with_places(16, (20, 32), (3, 3), 1)
    (kernel,) = check_partition(program([best, first, y], [best.output, y.output])).units
    assert isinstance(kernel, Kernel)
    assert [x.name for x in kernel.writes] == ["best", "y"]
    # rows of several windows, so that vectors of results are computed
    assert kernel.fusion.outer_rank == 1


@pytest.mark.parametrize(("columns", "count"), [(10, 4), (24, 4), (47, 4), (8, 1), (16, 1), (32, 1), (48, 1), (49, 1)])
def test_short_rows_that_end_in_a_part_of_a_vector_are_not_fused(columns: int, count: int) -> None:
    steps, y = softmax(N, columns)
    result = partition(program(steps, [y]))
    assert (len(result.units) == 1) == (count == 1)


@pytest.mark.parametrize(("columns", "count"), [(127, 2), (128, 1)])
def test_short_reductions_that_need_each_other_are_not_fused(columns: int, count: int) -> None:
    x, mean, spread = buffer("x", N, columns), buffer("mean", N), buffer("spread", N)
    over = axes("i", [columns])
    steps = [
        reduced(mean, "a", over, x[a, i]),
        reduced(spread, "a", over, maximum(x[a, i] - mean[a], mean[a] - x[a, i])),
    ]
    assert len(check_partition(program(steps, [mean, spread])).units) == count
