"""Constant prepacking: which nests leave the function, which stay, and the prepacked data."""

import numpy as np
from tests.driver.models import array

from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Buffer, Symbol, Var, as_expr
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func, blocks
from tilewright.loops.lowering import lower_to_loops
from tilewright.lower.prepack_constants import evaluate_prepacked, prepack_constants
from tilewright.schedule.schedule import Schedule

N = Symbol("n", 1, 64)


def matmul(rows=N, inner: int = 5, columns: int = 7) -> Func:
    a = Buffer("a0", (as_expr(rows), as_expr(inner)), float32)
    b = Buffer("a1", (as_expr(inner), as_expr(columns)), float32)
    i, j, k = Var("i0"), Var("i1"), Var("r0")
    out = Buffer("out", (as_expr(rows), as_expr(columns)), float32)
    axes = (Axis(i, as_expr(rows)), Axis(j, as_expr(columns)))
    c = Computation(out, axes, (Axis(k, as_expr(inner)),), a[i, k] * b[k, j], Reducer.SUM)
    return lower_to_loops("matmul", [c], [a, b, out], [N])


def packed(func: Func) -> Func:
    s = Schedule(func)
    s.pack("out", "a1", 1, 4)
    return s.func


def test_packing_of_a_constant_becomes_a_weight():
    func = packed(matmul())
    split = prepack_constants(func, frozenset(["a1"]))
    assert [p.name for p in split.func.params] == ["a0", "a1_packed", "out"]
    assert split.func.allocs == ()
    assert split.scratch == ()
    assert [c.output.name for c in split.prepacked] == ["a1_packed"]
    weights = array(1, 5, 7)
    data = evaluate_prepacked(split.prepacked, {"a1": weights})["a1_packed"]
    assert data.shape == (2, 5, 4)
    full = np.zeros((5, 8), np.float32)
    full[:, :7] = weights
    np.testing.assert_array_equal(data, full.reshape(5, 2, 4).transpose(1, 0, 2))


def test_packing_of_an_input_needs_workspace():
    split = prepack_constants(packed(matmul()), frozenset())
    assert [p.name for p in split.func.params] == ["a0", "a1", "out", "a1_packed"]
    assert [b.name for b in split.scratch] == ["a1_packed"]
    assert split.prepacked == ()
    assert len(blocks(split.func.body)) == 2


def test_function_of_constants_keeps_its_output_nest():
    split = prepack_constants(packed(matmul(as_expr(3))), frozenset(["a0", "a1"]))
    assert [p.name for p in split.func.params] == ["a0", "a1_packed", "out"]
    assert [b.name for b in blocks(split.func.body)] == ["out"]


def test_unused_symbols_are_dropped():
    split = prepack_constants(packed(matmul(as_expr(3))), frozenset(["a1"]))
    assert split.func.symbols == ()


def test_prepacked_function_computes_the_same_result():
    func = packed(matmul())
    split = prepack_constants(func, frozenset(["a1"]))
    a, b = array(2, 6, 5), array(3, 5, 7)
    data = evaluate_prepacked(split.prepacked, {"a1": b})
    result = np.empty((6, 7), np.float32)
    interpret(split.func, {"a0": a, **data, "out": result}, {N: 6})
    np.testing.assert_allclose(result, a @ b, rtol=1e-5, atol=1e-6)
