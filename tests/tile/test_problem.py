"""Problems: what is read off a kernel's loops."""

import pytest
from tests.optimize.computations import M, image, product, relu, row_sums
from tests.optimize.programs import axes, buffer
from tests.tile.problems import problem, problem_or_none

from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.define import MAX_SIZE
from tilewright.expr.dtype import DType, float16, float32, int64, uint8
from tilewright.expr.nodes import Expr, Symbol, Var, const
from tilewright.expr.operations import cast, select
from tilewright.tile.shape_samples import representative_size

a, b, i = Var("a"), Var("b"), Var("i")


def test_a_product() -> None:
    p = problem([product(28, 64, 5)], constants="w")
    assert [(x.name, x.extent, x.is_static, x.is_reduction) for x in p.axes] == [
        ("v_a", 28, True, False), ("v_b", 64, True, False), ("v_i", 5, True, True)
    ]  # fmt: skip
    x, w = p.operands
    assert (x.index, x.strides, x.constant) == (((1, 0, 0), (0, 0, 1)), (5, 0, 1), False)
    assert (w.index, w.strides, w.constant) == (((0, 0, 1), (0, 1, 0)), (0, 1, 64), True)
    (out,) = p.results
    assert (out.strides, out.written) == ((64, 1, 0), True)
    assert (p.operations, p.bits, p.points) == (1, 32, 28 * 64 * 5)
    assert (p.spatial, p.reduce) == ((0, 1), (2,))


def test_an_epilogue_is_read_and_written_once_per_result() -> None:
    p = problem([product(28, 64, 5), relu(product(28, 64, 5))])
    assert (p.block, p.final) == ("t", "y")
    assert [(o.buffer, o.strides, o.written) for o in p.results] == [
        ("bias", (0, 1, 0), False), ("y", (64, 1, 0), True)
    ]  # fmt: skip


def test_windows_overlap() -> None:
    p = problem([image(1, 3, 20, 9, 3)])
    x, w = p.operands
    assert x.index[2] == (0, 0, 1, 0, 0, 1, 0)
    assert w.strides == (0, 27, 0, 0, 9, 3, 1)


def test_elementwise_work_has_its_store_among_the_operands() -> None:
    x = buffer("x", (4, 7), float16)
    p = problem([Computation(buffer("y", (7, 4), float16), axes("ab", (7, 4)), (), x[b, a] + x[b, a])])
    assert [(o.buffer, o.strides, o.element_bytes, o.written) for o in p.operands] == [
        ("x", (1, 7), 2, False), ("y", (4, 1), 2, True)
    ]  # fmt: skip
    assert (p.results, p.reduce) == ((), ())


def test_scalars_are_rows_of_one() -> None:
    p = problem([Computation(buffer("y", (7,)), axes("a", (7,)), (), buffer("s", ())[()] + buffer("x", (7,))[a])])
    assert p.operands[0].strides == (0,)


def test_symbols_have_a_representative_size() -> None:
    p = problem([row_sums(M, 100)], {M: 7})
    assert (p.axes[0].extent, p.axes[0].is_static) == (22, False)
    assert representative_size(Symbol("n", 1, 4)) == 2
    assert representative_size(Symbol("n", 512, 512)) == 512
    assert representative_size(Symbol("n", 0, None)) == 16
    assert representative_size(Symbol("n", 1000, 1 << 62)) == 1000
    # nobody has declared the end of this range
    assert representative_size(Symbol("n", 1, MAX_SIZE)) == 16


@pytest.mark.parametrize("index", [a // 2, a % 3, a * a])
def test_accesses_that_are_not_affine_have_no_problem(index: object) -> None:
    x = buffer("x", (200,))
    assert problem_or_none([Computation(buffer("y", (7,)), axes("a", (7,)), (), x[index])]) is None
    total = Computation(buffer("y", (7,)), axes("a", (7,)), axes("i", (5,)), x[index + i], Reducer.SUM)
    assert problem_or_none([total]) is None


def test_gathers_and_symbolic_strides_have_no_problem() -> None:
    x, index = buffer("x", (200,)), buffer("index", (7,), int64)
    assert problem_or_none([Computation(buffer("y", (7,)), axes("a", (7,)), (), x[index[a]])]) is None
    assert problem_or_none([Computation(buffer("y", (7,)), axes("a", (7,)), (), x[a * M])], {M: 7}) is None


def test_selected_loads_count() -> None:
    x = buffer("x", (7,))
    body = select(a >= 1, x[a - 1], const(0, x.dtype))
    assert problem([Computation(buffer("y", (7,)), axes("a", (7,)), (), body)]).operands[0].strides == (1,)


def test_the_widest_element_counts() -> None:
    def bits_of(value: Expr, dtype: DType) -> int:
        return problem([Computation(buffer("y", (7,), dtype), axes("a", (7,)), (), value)]).bits

    half, small, index = buffer("x", (7,), float16)[a], buffer("x", (7,), uint8)[a], buffer("x", (7,), int64)[a]
    assert bits_of(small, uint8) == 8
    assert bits_of(half, float16) == 16
    assert bits_of(cast(float32, half), float32) == 32
    # computed wider than it is loaded and stored
    assert bits_of(cast(uint8, cast(float32, small) * cast(float32, small)), uint8) == 32
    assert bits_of(index, int64) == 64
    assert bits_of(cast(float16, index), float16) == 64
