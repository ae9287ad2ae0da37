"""Matrix products, Gemm and Einsum against the references."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, Tolerance, check, define

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Binary, Load
from tilewright.expr.traversal import post_order
from tilewright.ops.einsum import parse_equation

RNG = np.random.default_rng(7)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def whole(dtype, *shape, low=None, high=None):
    info = np.iinfo(dtype)
    return RNG.integers(info.min if low is None else low, (info.max if high is None else high) + 1, shape).astype(dtype)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (7, 4, 5)),
        ((1, 3, 4), (6, 4, 5)),
        ((2, 3, 4, 5), (2, 3, 5, 2)),
        ((4,), (2, 3, 4, 5)),
        ((2, 3, 5, 4), (4,)),
        ((3, 1), (1, 5)),
        ((1, 1), (1, 1)),
        ((5, 1, 2, 3), (1, 6, 3, 4)),
    ],
)
def test_matmul_broadcasts_like_numpy(a, b):
    check(NodeCase("MatMul", [normal(*a), normal(*b)]))


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64, np.uint32])
def test_matmul_in_other_types(dtype):
    values = normal if np.dtype(dtype).kind == "f" else lambda *s, dtype: whole(dtype, *s, low=0, high=99)
    check(NodeCase("MatMul", [values(3, 6, dtype=dtype), values(6, 4, dtype=dtype)]))


def test_matmul_of_half_precision_accumulates_in_float32():
    a, b = normal(5, 300, dtype=np.float16), normal(300, 4, dtype=np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    check(NodeCase("MatMul", [a, b]), reference=lambda a, b: exact.astype(np.float16), tolerance=Tolerance(1e-3, 1e-3))


def test_contraction_body_is_a_single_product():
    for op, inputs, attributes in (
        ("MatMul", [normal(2, 3, 4), normal(4, 5)], {}),
        ("Gemm", [normal(4, 3), normal(5, 4), normal(5)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
        ("Conv", [normal(1, 4, 6, 6), normal(3, 4, 3, 3), normal(3)], {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("Einsum", [normal(2, 3, 4), normal(2, 4, 5)], {"equation": "bij,bjk->bki"}),
        ("ConvTranspose", [normal(1, 4, 6, 6), normal(4, 3, 2, 2), normal(3)], {"strides": [2, 2]}),
    ):
        d, _ = define(NodeCase(op, inputs, attributes), symbolic=True)
        contractions = [s for s in d.stages if isinstance(s, Computation) and s.is_reduction]
        assert len(contractions) == 1
        body = contractions[0].body
        assert isinstance(body, Binary)
        assert body.op == "mul"
        assert isinstance(body.a, Load)
        assert isinstance(body.b, Load)


def test_reduction_axes_of_size_one_are_dropped():
    d, _ = define(NodeCase("MatMul", [normal(3, 1), normal(1, 5)]))
    assert [s.is_reduction for s in d.stages if isinstance(s, Computation)] == [False]


def test_matmul_rejects_wrong_inner_size():
    with pytest.raises(ShapeError, match=r"^\[shape\] node node \(MatMul\): rows of B: expected 4, got 5$"):
        define(NodeCase("MatMul", [normal(3, 4), normal(5, 6)]))


def test_matmul_rejects_wrong_batch():
    with pytest.raises(ShapeError, match=r"node \(MatMul\): broadcast along dimension 0: sizes 2 and 3 differ"):
        define(NodeCase("MatMul", [normal(2, 3, 4), normal(3, 4, 6)]))


def test_matmul_rejects_scalars():
    with pytest.raises(ShapeError, match="B: expected at least 1 dimension, got a scalar"):
        define(NodeCase("MatMul", [normal(3, 4), normal()]))


def test_matmul_rejects_mixed_types():
    with pytest.raises(ShapeError, match="B: expected type float32, got float64"):
        define(NodeCase("MatMul", [normal(3, 4), normal(4, 6, dtype=np.float64)]))


def test_matmul_of_symbolic_inner_sizes_adds_a_constraint():
    d, _ = define(NodeCase("MatMul", [normal(2, 3), normal(4, 2)]), symbolic=True)
    assert [m for _, m in d.constraints] == ["node node (MatMul): rows of B: expected n3, got n4"]


@pytest.mark.parametrize(
    ("a", "b", "zero_a", "zero_b"),
    [
        ((3, 4), (4, 5), None, None),
        ((3, 4), (4, 5), (), ()),
        ((3, 4), (4, 5), (3,), (5,)),
        ((2, 3, 4), (4, 5), (), (5,)),
        ((2, 3, 4), (2, 4, 5), (1,), (1,)),
    ],
)
@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
def test_matmul_integer(a, b, zero_a, zero_b, types):
    inputs = [whole(types[0], *a), whole(types[1], *b)]
    inputs.append(None if zero_a is None else np.asarray(whole(types[0], *zero_a)))
    inputs.append(None if zero_b is None else np.asarray(whole(types[1], *zero_b)))

    def reference(a, b, za, zb):
        x, y = a.astype(np.int32), b.astype(np.int32)
        if za is not None:
            x = x - (za.reshape(-1, 1) if za.ndim else za).astype(np.int32)
        if zb is not None:
            y = y - zb.astype(np.int32)
        return x @ y

    for constants in ((), (2, 3)):
        check(NodeCase("MatMulInteger", inputs), constants=constants, reference=reference)


def test_matmul_integer_rejects_wrong_zero_point():
    with pytest.raises(ShapeError, match="a_zero_point: expected 3, got 4"):
        define(
            NodeCase("MatMulInteger", [whole(np.uint8, 3, 5), whole(np.uint8, 5, 2), whole(np.uint8, 4)]), constants=()
        )


@pytest.mark.parametrize("c", [None, (), (1,), (5,), (3, 1), (1, 5), (3, 5), (1, 1)])
@pytest.mark.parametrize("flips", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm(c, flips):
    a, b = normal(3, 4), normal(4, 5)
    inputs = [a.T.copy() if flips[0] else a, b.T.copy() if flips[1] else b]
    inputs += [] if c is None else [np.asarray(normal(*c))]
    check(NodeCase("Gemm", inputs, {"transA": flips[0], "transB": flips[1]}, opset=13), constants=())
    check(
        NodeCase("Gemm", inputs, {"transA": flips[0], "transB": flips[1], "alpha": 0.25, "beta": -1.5}, opset=13),
        constants=(),
    )


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 24])
def test_gemm_in_every_opset(opset):
    check(
        NodeCase("Gemm", [normal(3, 4), normal(4, 5), normal(5)], {"beta": 0.5}, opset=opset),
        reference="ort",
        tolerance=Tolerance(1e-5),
    )


def test_gemm_of_half_precision_and_integers():
    a, b, c = (normal(*s, dtype=np.float16) for s in ((4, 50), (50, 3), (3,)))
    wide = a.astype(np.float64) @ b.astype(np.float64) * 0.5 + c
    check(
        NodeCase("Gemm", [a, b, c], {"alpha": 0.5}),
        reference=lambda *_: wide.astype(np.float16),
        tolerance=Tolerance(1e-3, 1e-3),
    )
    check(
        NodeCase(
            "Gemm", [whole(np.int32, 3, 4, high=9, low=-9), whole(np.int32, 4, 2, high=9, low=-9)], {"alpha": 2.0}
        ),
        reference=lambda a, b: a @ b * 2,
    )
    with pytest.raises(UnsupportedError, match=r"alpha 0.5 or beta 1.0 of an integer Gemm is not an integer"):
        define(NodeCase("Gemm", [whole(np.int32, 3, 4), whole(np.int32, 4, 2)], {"alpha": 0.5}))


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([(3, 4), (5, 6)], {}, "rows of B: expected 4, got 5"),
        ([(3, 4), (5, 6)], {"transA": 1}, "rows of B: expected 3, got 5"),
        ([(2, 3, 4), (4, 5)], {}, "A: expected 2 dimensions, got 3"),
        ([(3, 4), (4,)], {}, "B: expected 2 dimensions, got 1"),
        ([(3, 4), (4, 5), (4,)], {}, "C: expected 5, got 4"),
        ([(3, 4), (4, 5), (1, 3, 5)], {}, "C: expected at most 2 dimensions, got 3"),
    ],
)
def test_gemm_rejects(inputs, attributes, message):
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("Gemm", [normal(*s) for s in inputs], attributes))


def test_gemm_requires_c_before_opset_11():
    with pytest.raises(ShapeError, match="input 2 is missing; C is optional since opset 11"):
        define(NodeCase("Gemm", [normal(3, 4), normal(4, 5)], opset=9))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ij->", [(3, 4)]),
        ("ii->i", [(4, 4)]),
        ("ii", [(4, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("i,i", [(5,), (5,)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (1, 4, 5)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("...,...", [(2, 3), (3,)]),
        ("a...b,b->...a", [(2, 3, 4), (4,)]),
        ("ij,kj->k", [(2, 3), (4, 3)]),
        ("i...->...", [(3, 4, 2)]),
        ("bn,anm,bm->ba", [(2, 3), (4, 3, 5), (2, 5)]),
        ("j...i", [(2, 3, 4)]),
        (" i j , j k -> k i ", [(3, 4), (4, 5)]),
        ("ij,ij->ij", [(3, 4), (3, 4)]),
        ("a,b,c,d->dcba", [(2,), (3,), (4,), (5,)]),
    ],
)
def test_einsum(equation, shapes):
    check(
        NodeCase("Einsum", [normal(*s) for s in shapes], {"equation": equation}),
        reference=lambda *x: np.asarray(np.einsum(equation, *x), np.float32),
        tolerance=Tolerance(atol=1e-5),
    )


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [(3, 4), (5, 6)], "label 'j': expected 4, got 5"),
        ("ij,jk->ik", [(3, 4)], "expected 1 operand, got 2"),
        ("ijk->i", [(3, 4)], "operand 0 'ijk': expected 3 dimensions, got 2"),
        ("ij->z", [(3, 4)], "the result has label 'z', which no operand has"),
        ("ij->ii", [(3, 4)], "the result names a label twice: 'ii'"),
        ("i1->i", [(3, 4)], "expected letters and one ellipsis, got 'i1'"),
    ],
)
def test_einsum_rejects(equation, shapes, message):
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("Einsum", [normal(*s) for s in shapes], {"equation": equation}))


def test_equation_without_arrow_keeps_labels_that_occur_once_sorted():
    assert parse_equation("ba,ac", [2, 2]).output == ("b", "c")
    assert parse_equation("b...a", [4]).output == ("...1", "...0", "a", "b")


def test_einsum_of_many_operands_contracts_pairwise():
    d, _ = define(NodeCase("Einsum", [normal(2, 3), normal(3, 4), normal(4, 5)], {"equation": "ij,jk,kl->il"}))
    assert [
        len([n for n in post_order(s.body) if isinstance(n, Load)]) for s in d.stages if isinstance(s, Computation)
    ] == [
        2,
        2,
    ]
