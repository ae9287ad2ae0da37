"""The oracle at single elements against the interpreter, which executes everything."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops.disguise import plain
from tests.optimize import computations, programs
from tests.optimize.programs import Program, axes, buffer, data_for, shape_of

from tilewright.errors import InternalError
from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Var
from tilewright.expr.operations import unary
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func, blocks
from tilewright.loops.parser import parse
from tilewright.measure.point_oracle import PointOracle

ANY = st.one_of(programs.elementwise(), programs.reduction(), programs.gemm(), programs.conv(), programs.pool())


def run_interpreter(func: Func, arrays: dict[str, np.ndarray], sizes: dict[str, int]) -> np.ndarray:
    storage = {name: a.copy() for name, a in arrays.items()}
    interpret(func, storage, sizes)
    return storage[func.params[-1].name]


def compare(program: Program, stages: list[Computation], exact: bool = True) -> None:
    """All elements, and a few of them in any order, repeated."""
    func = plain(stages)
    rng = np.random.default_rng(2)
    sizes = {v.name: program.sizes[v] for v in func.symbols}
    arrays = {b.name: np.array(data_for(b, {v: sizes[v.name] for v in func.symbols}, rng)) for b in func.params}
    expected = run_interpreter(func, arrays, sizes)
    out = func.params[-1]
    inputs = {n: a for n, a in arrays.items() if n != out.name}
    oracle = PointOracle(func, inputs, sizes)
    shape = shape_of(out, {v: sizes[v.name] for v in func.symbols})
    assert oracle.shape(out) == shape
    if not expected.size:
        return
    chosen = rng.integers(0, expected.size, 7)
    for flat in (np.arange(expected.size), chosen):
        elements = oracle.elements(out, np.unravel_index(flat, shape) if shape else ())
        reference = expected.reshape(-1)[flat] if shape else expected.reshape(-1)[:1]
        if exact:
            np.testing.assert_array_equal(elements, reference)
        else:
            np.testing.assert_allclose(elements, reference, rtol=1e-6)


@given(ANY)
def test_elements_are_those_of_the_interpreter(program: Program) -> None:
    """Values are small whole numbers, so that sums are exact in any order."""
    compare(program, list(program.stages))


def test_softmax_reads_maxima_and_sums_of_whole_rows() -> None:
    rows, columns = 4, 9
    x, top, total, out = (
        buffer(n, s)
        for n, s in (("x", (rows, columns)), ("top", (rows,)), ("total", (rows,)), ("out", (rows, columns)))
    )
    a, i = Var("a"), Var("i")
    shifted = unary("exp", x[a, i] - top[a])
    stages = [
        Computation(top, axes("a", (rows,)), axes("i", (columns,)), x[a, i], Reducer.MAX),
        Computation(total, axes("a", (rows,)), axes("i", (columns,)), shifted, Reducer.SUM),
        Computation(out, axes("ai", (rows, columns)), (), shifted / total[a]),
    ]
    compare(Program(stages), stages, exact=False)


def test_scalar_intermediates_and_empty_reductions() -> None:
    x, total, out = buffer("x", (5,)), buffer("total", ()), buffer("out", (5,))
    a = Var("a")
    stages = [
        Computation(total, (), axes("a", (5,)), x[a], Reducer.SUM),
        Computation(out, axes("a", (5,)), (), x[a] - total[()]),
    ]
    compare(Program(stages), stages)
    empty = buffer("none", (3, 0))
    none = Computation(buffer("y", (3,)), axes("a", (3,)), axes("i", (0,)), empty[a, Var("i")], Reducer.MAX)
    compare(Program([none]), [none])


def test_long_reductions_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.measure import point_oracle

    monkeypatch.setattr(point_oracle, "MAX_POINTS", 8)
    program = computations.KERNELS["convolution"]
    compare(program, list(program.stages))


def test_transformed_loops_are_refused() -> None:
    func = parse(
        "func f(A: float32[8], B: float32[8]):\n    for i in serial(8):\n        block B(v: 8 = i):\n"
        "            B[7 - v] = A[v]\n"
    )
    with pytest.raises(InternalError, match="block 'B' is not indexed by its spatial variables"):
        PointOracle(func, {"A": np.zeros(8, np.float32)}, {}).elements(func.params[1], (np.arange(3),))
    assert len(blocks(func.body)) == 1
