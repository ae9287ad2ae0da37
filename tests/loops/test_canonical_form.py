"""Canonical forms: equal for programs that differ in names and order alone, different for all others."""

import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops.disguise import disguised, plain
from tests.optimize import programs
from tests.optimize.programs import Program, data_for

from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import float32, int64
from tilewright.expr.nodes import Binary, Buffer, Expr, Load, Symbol, Var
from tilewright.expr.nodes import const as c
from tilewright.expr.operations import maximum
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.loops.canonical_form import canonical_form, text_without_literals
from tilewright.loops.interpreter import interpret
from tilewright.loops.lowering import lower_to_loops
from tilewright.loops.parser import parse

ANY = st.one_of(programs.elementwise(), programs.reduction(), programs.gemm(), programs.conv(), programs.pool())


@given(ANY, st.randoms(use_true_random=False))
def test_names_and_order_do_not_count(program: Program, rng: random.Random) -> None:
    form, other = canonical_form(plain(program.stages)), canonical_form(disguised(program.stages, rng)[0])
    assert other.text == form.text
    assert other.func == form.func


@given(ANY, st.randoms(use_true_random=False))
def test_a_form_is_its_own_form_and_parses(program: Program, rng: random.Random) -> None:
    form = canonical_form(disguised(program.stages, rng)[0])
    assert parse(form.text) == form.func
    again = canonical_form(form.func)
    assert again.text == form.text
    assert again.params == tuple(p.name for p in form.func.params)
    assert again.symbols == form.func.symbols


@given(ANY, st.randoms(use_true_random=False))
def test_a_form_computes_the_same_bits(program: Program, rng: random.Random) -> None:
    func, symbols = disguised(program.stages, rng)
    form = canonical_form(func)
    values = {symbols[v]: n for v, n in program.sizes.items() if v in symbols}
    generator = np.random.default_rng(3)
    arrays = {b.name: data_for(b, values, generator) for b in func.params}
    renamed = {p.name: arrays[name].copy() for name, p in zip(form.params, form.func.params, strict=True)}
    interpret(func, arrays, {v.name: n for v, n in values.items()})
    pairs = zip(form.symbols, form.func.symbols, strict=True)
    interpret(form.func, renamed, {new.name: values[old] for old, new in pairs})
    for name, p in zip(form.params, form.func.params, strict=True):
        np.testing.assert_array_equal(renamed[p.name], arrays[name])


def pointwise(value, *shape, dtype=float32) -> str:
    """The form of `out[i, ...] = value(inputs, i, ...)` over a shape."""
    variables = [Var(n) for n in "ijk"[: len(shape)]]
    x, y = (Buffer(n, shape, dtype) for n in "xy")
    out = Buffer("out", shape, dtype)
    axes = tuple(Axis(v, n) for v, n in zip(variables, shape, strict=True))
    return canonical_form(plain([Computation(out, axes, (), value(x, y, *variables))])).text


M, N = Symbol("M", 1, 64), Symbol("N", 1, 64)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pointwise(lambda x, y, i: x[i] - y[i], N), pointwise(lambda x, y, i: x[i] + y[i], N)),
        (pointwise(lambda x, y, i: x[i], N), pointwise(lambda x, y, i: x[i], Symbol("N", 1, 65))),
        (pointwise(lambda x, y, i: x[i], N), pointwise(lambda x, y, i: x[i], Symbol("N", 2, 64))),
        (pointwise(lambda x, y, i, j: x[i, j], M, N), pointwise(lambda x, y, i, j: x[i, j], M, M)),
        (pointwise(lambda x, y, i: x[i], N), pointwise(lambda x, y, i: x[i], N, dtype=int64)),
        (pointwise(lambda x, y, i: x[i] + y[i], N), pointwise(lambda x, y, i: x[i] + x[i], N)),
        (pointwise(lambda x, y, i: x[i] * 2.0, N), pointwise(lambda x, y, i: x[i] * 2.0000002, N)),
    ],
    ids=["operation", "upper", "lower", "equal sizes", "type", "same operand", "literal"],
)
def test_what_is_different_has_another_form(one: str, other: str) -> None:
    assert one != other


def test_minima_and_differences_keep_the_order_of_operands() -> None:
    """min(-0, 0) and min(0, -0) are different zeros."""
    for op in ("min", "sub"):
        texts = {
            pointwise(lambda x, y, i, op=op, a=a: Binary(op, *((x[i], y[i] * 2.0) if a else (y[i] * 2.0, x[i]))), N)
            for a in (True, False)
        }
        assert len(texts) == 2


def test_a_sum_has_one_order_wherever_it_occurs() -> None:
    """Nothing but their places tells the inputs of an absolute value of a sum apart."""

    def absolute(x: Buffer, y: Buffer, i: Var, swapped: tuple[bool, bool]) -> Expr:
        one, other = (ordered_sum(x[i], y[i], s) for s in swapped)
        return maximum(one, c(0.0, float32) - other)

    orders = list(product((True, False), repeat=2))
    assert len({pointwise(lambda x, y, i, o=o: absolute(x, y, i, o), N) for o in orders}) == 1


def ordered_sum(a: Expr, b: Expr, is_swapped: bool) -> Expr:
    """A sum with its operands in one order or the other."""
    return Binary("add", *((b, a) if is_swapped else (a, b)))


def test_sums_of_more_than_ten_integers_have_one_form() -> None:
    """Terms are in the order of their texts, in which a10 comes before a2."""

    def summed(order: list[int]) -> str:
        i = Var("i")
        inputs = [Buffer(f"in{k}", (N,), int64) for k in range(12)]
        value = sum((Load(inputs[k], (i,)) * (k + 1) for k in order[1:]), Load(inputs[order[0]], (i,)) * (order[0] + 1))
        out = Buffer("out", (N,), int64)
        func = lower_to_loops("f", [Computation(out, (Axis(i, N),), (), value)], (*inputs, out), (N,))
        form = canonical_form(func)
        assert canonical_form(form.func).text == form.text
        return form.text

    assert summed(list(range(12))) == summed(list(range(11, -1, -1)))


def test_static_kernels_keep_their_names() -> None:
    """Their code is the same whether it is compiled from a model or from a task that was stored."""
    x, w, b = (Buffer(n, shape, float32) for n, shape in (("x", (c(5), c(8))), ("w", (c(8), c(4))), ("b", (c(4),))))
    i, j, k, t, y = Var("i"), Var("j"), Var("k"), *(Buffer(n, (c(5), c(4)), float32) for n in "ty")
    axes = Axis(i, c(5)), Axis(j, c(4))
    product = Computation(t, axes, (Axis(k, c(8)),), x[i, k] * w[k, j], Reducer.SUM)
    kernel = make_kernel([product, Computation(y, axes, (), maximum(t[i, j] + b[j], 0.0))])
    func = lower_to_loops("kernel", kernel.stages, kernel.params, ())
    assert canonical_form(func).func == func


@pytest.mark.parametrize("literal", ["0.5", "(-0.0052)", "1e-05", "(-1.5e+10)", "3.0"])
def test_text_without_literals(literal: str) -> None:
    assert text_without_literals(f"out[v_i0 + 1] = a0[v_i0] * {literal} - t1") == "out[v_i0 + 1] = a0[v_i0] * ? - t1"
