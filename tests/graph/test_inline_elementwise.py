"""Inlining: the same outputs, and which computations disappear."""

import numpy as np
from tests.graph.kernels import N, axes, buffer, feeds_of, outputs_of, pointwise, program, reduced

from tilewright.expr.computation import Reducer, View
from tilewright.expr.dtype import boolean, int64
from tilewright.expr.nodes import Const, Load, Var, const
from tilewright.expr.operations import conjunction, maximum, select, unary
from tilewright.expr.pattern import product_operands
from tilewright.expr.traversal import post_order
from tilewright.graph.inline_elementwise import MAX_NODES, inline_elementwise, inline_scalars, is_cheap
from tilewright.graph.program import Fallback, Program

a, b, i = (Var(n) for n in "abi")
x, w, s, t, u, y, z = (buffer(n, N, 7) for n in "xwstuyz")


def check(p: Program, *left: str) -> Program:
    """The program after inlining: the same outputs, written by the steps that are `left`."""
    result = inline_elementwise(p)
    for n in (1, 6):
        feeds = feeds_of(p, {N: n})
        for before, after in zip(outputs_of(p, feeds, {N: n}), outputs_of(result, feeds, {N: n}), strict=True):
            np.testing.assert_array_equal(after, before)
    assert [step.output.name for step in result.steps if not isinstance(step, Fallback)] == list(left)
    return result


def test_dependent_elementwise_steps_become_one() -> None:
    steps = [
        pointwise(s, "ab", unary("neg", x[a, b])),
        pointwise(t, "ab", s[a, b] * w[a, b]),
        pointwise(y, "ab", t[a, b] + x[a, b]),
    ]
    result = check(program(steps, [y]), "y")
    assert str(result.steps[0]) == "y[a, b] = neg(x[a, b]) * w[a, b] + x[a, b]  for a in N; b in 7"
    assert result.steps[0].label == "y (Op)"


def test_users_merged_into_one_allow_inlining() -> None:
    steps = [
        pointwise(s, "ab", x[a, b] + w[a, b]),
        pointwise(t, "ab", s[a, b] + 3.0),
        pointwise(u, "ab", unary("tanh", t[a, b])),
        pointwise(y, "ab", s[a, b] * u[a, b]),
    ]
    result = check(program(steps, [y]), "y")
    assert str(result.steps[0]) == "y[a, b] = (x[a, b] + w[a, b]) * tanh(x[a, b] + w[a, b] + 3.0)  for a in N; b in 7"


def test_equal_axis_names_are_not_confused() -> None:
    steps = [pointwise(s, "ab", x[a, b] - 2.0), pointwise(y, "ba", s[b, a] + s[b, 6 - a] * w[b, a])]
    result = check(program(steps, [y]), "y")
    assert str(result.steps[0].body) == "x[b, a] - 2.0 + (x[b, a * (-1) + 6] - 2.0) * w[b, a]"


def test_outputs_are_not_inlined() -> None:
    steps = [pointwise(s, "ab", x[a, b] + 1.0), pointwise(y, "ab", s[a, b] * 2.0)]
    check(program(steps, [s, y]), "s", "y")


def test_operands_of_views_and_fallbacks_are_not_inlined() -> None:
    flat = buffer("flat", N * 7)
    steps = [
        pointwise(s, "ab", x[a, b] + 1.0),
        View(flat, s),
        pointwise(y, "ab", flat[a * 7 + b] * s[a, b]),
    ]
    check(program(steps, [y]), "s", "flat", "y")
    fallback = Fallback(
        nodes=(), inputs=(s,), outputs=(u,), runtime_shapes=(u.shape,), data_symbols=(), reason="a test", model=b""
    )
    p = Program("p", (x,), (("u", u),), {}, (steps[0], fallback), (N,))
    assert inline_elementwise(p).steps == p.steps


def test_reductions_are_not_inlined() -> None:
    r = buffer("r", N)
    steps = [
        reduced(r, "a", axes("i", (7,)), x[a, i], Reducer.MAX),
        pointwise(s, "ab", x[a, b] - r[a]),
        pointwise(y, "ab", s[a, b] * s[a, b]),
    ]
    check(program(steps, [y]), "r", "y")


def test_producer_with_one_read_is_inlined_into_a_reduction() -> None:
    r, q = buffer("r", N), buffer("q", N)
    steps = [pointwise(s, "ab", unary("exp", x[a, b])), reduced(r, "a", axes("i", (7,)), s[a, i])]
    result = inline_elementwise(program(steps, [r]))
    assert [str(step) for step in result.steps] == ["r[a] = sum(exp(x[a, i]) for i in 7)  for a in N"]
    # A second reader would compute the exponentials again.
    steps.append(reduced(q, "a", axes("i", (7,)), s[a, i] * 2.0))
    assert len(inline_elementwise(program(steps, [r, q])).steps) == 3


def test_expensive_bodies_are_not_duplicated() -> None:
    steps = [
        pointwise(s, "ab", x[a, b] * x[a, b] + w[a, b]),
        pointwise(y, "ab", s[a, b] * s[a, 6 - b]),
    ]
    check(program(steps, [y]), "s", "y")


def test_cheap_bodies_are_duplicated() -> None:
    steps = [
        pointwise(s, "ab", x[a, b] + 1.0),
        pointwise(y, "ab", s[a, b] * s[a, 6 - b]),
        pointwise(z, "ab", s[a, b] - 1.0),
    ]
    check(program(steps, [y, z]), "y", "z")


def test_operands_of_contractions_are_not_inlined() -> None:
    g, m = buffer("g", N, 5), buffer("m", 7, 5)
    steps = [
        pointwise(s, "ab", maximum(x[a, b], 0.0)),
        reduced(g, "ab", axes("i", (7,)), s[a, i] * m[i, b]),
    ]
    check(program(steps, [g]), "s", "g")


def test_guarded_reads_stay_guarded() -> None:
    padded = buffer("padded", N + 2, 9)
    inside = conjunction(a >= 1, a < N + 1, b >= 1, b < 8)
    steps = [
        pointwise(s, "ab", x[a, b] + 1.0),
        pointwise(padded, "ab", select(inside, s[a - 1, b - 1], 0.0)),
    ]
    check(program(steps, [padded]), "padded")


def test_producer_is_inlined_into_padding_and_slices() -> None:
    padded, part = buffer("padded", N + 2, 9), buffer("part", 3, N)
    inside = conjunction(a >= 1, a < N + 1, b >= 1, b < 8)
    value = unary("exp", x[a, b]) + w[a, b]
    edge = select(b < 9, select(inside, s[a - 1, b - 1], 0.0), 0.0)
    check(program([pointwise(s, "ab", value), pointwise(padded, "ab", edge)], [padded]), "padded")
    check(program([pointwise(s, "ab", value), pointwise(part, "ab", s[b, 5 - 2 * a])], [part]), "part")


def test_repeated_reads_prevent_inlining() -> None:
    spread, diagonal = buffer("spread", N, 7, 2), buffer("diagonal", 3, 4)
    value = unary("exp", x[a, b]) + w[a, b]
    steps = [pointwise(s, "ab", value), pointwise(spread, "abi", s[a, b] + 1.0)]
    check(program(steps, [spread]), "s", "spread")
    steps = [pointwise(s, "ab", value), pointwise(diagonal, "ab", s[0, a + b] + 1.0)]
    check(program(steps, [diagonal]), "s", "diagonal")


def test_reduction_epilogue_is_not_inlined_into_padding() -> None:
    m, bias, padded = buffer("m", 7, 7), buffer("bias", 7), buffer("padded", N, 9)
    steps = [
        reduced(s, "ab", axes("i", (7,)), x[a, i] * m[i, b]),
        pointwise(t, "ab", maximum(s[a, b] + bias[b], 0.0)),
        pointwise(padded, "ab", select(conjunction(b >= 1, b < 8), t[a, b - 1], 0.0)),
    ]
    check(program(steps, [padded]), "s", "t", "padded")


def test_indices_are_inlined() -> None:
    index, rows = buffer("index", N, dtype=int64), buffer("rows", N, 7)
    steps = [
        pointwise(index, "a", (N - 1) - a),
        pointwise(rows, "ab", x[index[a], b]),
    ]
    result = check(program(steps, [rows]), "rows")
    assert str(result.steps[0].body) == "x[N - a - 1, b]"


def test_expression_size_is_limited() -> None:
    steps = []
    here = x
    for k in range(12):
        after = buffer(f"v{k}", N, 7)
        body = here[a, b]
        for _ in range(3):
            body = maximum(body * w[a, b], body + x[a, b])
        steps.append(pointwise(after, "ab", body))
        here = after
    result = inline_elementwise(program(steps, [here]))
    assert 1 < len(result.steps) < 12
    assert all(sum(1 for _ in post_order(step.body)) <= MAX_NODES for step in result.steps)


def test_scalars_become_literals() -> None:
    one, flag, row = buffer("one", 1, 1), buffer("flag", dtype=boolean), buffer("row", 7)
    body = select(flag[()], x[a, b] + one[const(0), const(0)], row[b])
    p = program(
        [pointwise(y, "ab", body)],
        [y],
        {"one": np.full((1, 1), 2.5, np.float32), "flag": np.array(True), "row": np.arange(7, dtype=np.float32)},
    )
    result = inline_scalars(p)
    assert str(result.steps[0].body) == "x[a, b] + 2.5"
    feeds = feeds_of(p, {N: 3})
    np.testing.assert_array_equal(outputs_of(result, feeds, {N: 3})[0], outputs_of(p, feeds, {N: 3})[0])


def test_scalars_keep_their_type_and_value() -> None:
    for data in (np.float32(0.1), np.float64(0.1), np.int64(-3), np.uint8(200), np.float16(np.nan), np.bool_(True)):
        from tilewright.expr.dtype import DTYPES

        dtype = DTYPES[data.dtype.name]
        out, c = buffer("out", 3, dtype=dtype), buffer("c", dtype=dtype)
        p = program([pointwise(out, "a", c[()])], [out], {"c": np.asarray(data)})
        (step,) = inline_scalars(p).steps
        assert isinstance(step.body, Const)
        assert step.body.dtype == dtype
        np.testing.assert_array_equal(outputs_of(inline_scalars(p), {}, {})[0], np.full(3, data))


def test_product_operands_and_is_cheap() -> None:
    assert product_operands(x[a, i] * w[b, i])
    assert not product_operands(x[a, i] * x[a, i])
    assert not product_operands(x[a, i] + w[b, i])
    assert is_cheap(x[a, b] * 2.0)
    assert not is_cheap(unary("exp", x[a, b]))
    assert not is_cheap(x[a, b] + w[a, b])
    assert isinstance(x[a, b], Load)
