"""Computations over stored tensors match computations over row-major ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.layout.stages import axis, buffer, check_same, convolution, lowered, matmul, reads_once
from tests.layout.strategies import SIZES, M, N, attaching, layouts
from tests.ops.harness import NodeCase, define

from tilewright.errors import LayoutError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Computation, Reducer, View
from tilewright.expr.dtype import boolean
from tilewright.expr.operations import binary, select, unary
from tilewright.layout.layout import Layout
from tilewright.layout.rewrite_stage import rewrite_stage
from tilewright.loops.access import accesses
from tilewright.loops.ir import blocks
from tilewright.schedule.loop_transforms import split
from tilewright.schedule.rewrite_tree import bounds_of, find_block


def drawn(data, stage):
    """Layouts for some of the buffers of a stage."""
    chosen = {}
    for b in (stage.output, *stage.inputs):
        if b.rank and data.draw(st.booleans()):
            chosen[b.name] = data.draw(layouts(b.shape, most=3))
    return chosen


def elementwise(shape):
    axes = tuple(axis(f"d{k}", n) for k, n in enumerate(shape))
    at = tuple(a.var for a in axes)
    value = binary("max", buffer("X", *shape)[at] + buffer("Z", shape[-1])[at[-1]], 0.0)
    return Computation(buffer("Y", *shape), axes, (), value)


@given(st.data())
def test_random_layouts_of_elementwise_computations(data):
    stage = elementwise(data.draw(st.sampled_from(((8,), (N, 6), (4, N, M), (3, 4, 5), (N * 4, M + 3)))))
    chosen = drawn(data, stage)
    for sizes in SIZES:
        check_same(stage, chosen, sizes, verified=False)


@given(st.data())
def test_random_layouts_of_matrix_products(data):
    stage = matmul(*data.draw(st.sampled_from(((6, 8, 4), (N, 8, 5), (N, M, N * 4), (1, 7, 1)))))
    chosen = drawn(data, stage)
    for sizes in SIZES:
        check_same(stage, chosen, sizes, verified=False)


@given(st.data())
def test_random_layouts_of_convolutions(data):
    groups, stride, dilation = (data.draw(st.integers(1, 2)) for _ in range(3))
    h, w = data.draw(st.sampled_from(((4, 5), (N, 3), (M, M))))
    kernel = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    stage = convolution((1, 4, h, w), 2, kernel, stride=stride, dilation=dilation, groups=groups)
    chosen = drawn(data, stage)
    for sizes in SIZES[:2]:
        check_same(stage, chosen, sizes, verified=False)


@given(st.data())
def test_random_layouts_of_every_stage_of_operators(data):
    kind = data.draw(st.sampled_from(("Conv", "Softmax", "MaxPool", "Transpose", "Reshape", "Concat")))
    x = np.zeros((2, 4, 5, 3), np.float32)
    if kind == "Conv":
        attributes = {"pads": [1, 0, 2, 1], "strides": [2, 1], "group": 2}
        definition, _ = define(
            NodeCase(kind, [x, np.zeros((4, 2, 3, 2), np.float32), np.zeros(4, np.float32)], attributes)
        )
    elif kind == "Concat":
        definition, _ = define(NodeCase(kind, [x, x], {"axis": 1}))
    elif kind == "Reshape":
        definition, _ = define(NodeCase(kind, [x, np.array([2, 20, 3])]))
    else:
        attributes = {"MaxPool": {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}, "Transpose": {"perm": [0, 3, 1, 2]}}
        definition, _ = define(NodeCase(kind, [x], attributes.get(kind, {})))
    for stage in definition.stages:
        check_same(stage, drawn(data, stage), verified=False)


@given(st.data())
def test_attached_tensors_are_read_where_they_are_stored(data):
    shape = data.draw(st.sampled_from(((4, 6), (N, 5), (3, N, 2))))
    carrier = data.draw(attaching(shape))
    other_shape = carrier.attached[0].other_shape
    axes = tuple(axis(f"d{k}", n) for k, n in enumerate(other_shape))
    at = tuple(a.var for a in axes)
    stage = Computation(buffer("Y", *other_shape), axes, (), buffer("U", *other_shape)[at] * 2.0)
    result = buffer("T", *shape)
    other = tuple(axis(f"e{k}", n) for k, n in enumerate(shape))
    writes = Computation(result, other, (), buffer("X", *shape)[tuple(a.var for a in other)] + 1.0)
    for sizes in SIZES:
        check_same(stage, {"T": carrier}, sizes, verified=False)
        check_same(writes, {"T": carrier}, sizes, verified=False)


def blocked(c, name, dim, factor, order):
    b = c.output if c.output.name == name else next(b for b in c.inputs if b.name == name)
    return Layout.of(b.shape).split(dim, (None, factor)).reorder(order)


@pytest.mark.parametrize("channels", [32, M * 16], ids=str)
def test_blocked_convolution_is_plain_over_blocked_loops(channels):
    c = convolution((N, channels, 7, 7), 16, (3, 3))
    chosen = {
        "Conv": blocked(c, "Conv", 1, 16, (0, 1, 3, 4, 2)),
        "Ker": blocked(c, "Ker", 0, 16, (0, 2, 3, 4, 1)),
    }
    changed = check_same(c, chosen, {N: 3, M: 2})
    assert reads_once(changed)
    assert [a.var.name for a in changed.axes] == ["n", "o_o", "h", "w", "o_i"]


def test_blocked_input_is_plain_once_the_reduction_loop_is_split():
    """N C/16 H W 16 everywhere: once the loop over input channels is split, all three accesses are plain."""
    c = convolution((N, 32, 7, 7), M * 16, (3, 3))
    chosen = {
        "Inp": blocked(c, "Inp", 1, 16, (0, 1, 3, 4, 2)),
        "Conv": blocked(c, "Conv", 1, 16, (0, 1, 3, 4, 2)),
        "Ker": Layout.of(c.inputs[1].shape).split(1, (None, 16)).split(0, (None, 16)).reorder((0, 2, 4, 5, 3, 1)),
    }
    func = split(lowered(check_same(c, chosen, {N: 3, M: 2}), (N, M)), "i", 16, ("i_o", "i_i"))
    (block,) = blocks(func.body)
    _, loops = find_block(func, block.name)
    bindings = {i.var: i.binding for i in block.iters}
    places = {
        a.buffer.name: ", ".join(str(substitute(i, bindings, bounds_of(loops))) for i in a.indices)
        for a in accesses(block)
    }
    assert places == {
        "Inp": "n, i_o, h + rh, rw + w, i_i",
        "Ker": "o_o, i_o, rh, rw, i_i, o_i",
        "Conv": "n, o_o, h, w, o_i",
    }


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("h", "ht"), [(8, 4), (7, 4), (N, 3), (N * 4, 4), (5, 5), (3, 1)], ids=str)
def test_overlapped_tiling_of_a_convolution(h, ht, stride):
    c = convolution((2, 4, h, 6), 3, (3, 2), stride=stride)
    rows = Layout.of(c.output.shape).pad_to(2, ht)
    chosen = {
        "Conv": rows.split(2, (None, ht)).reorder((0, 2, 1, 3, 4)),
        "Inp": Layout.of(c.inputs[0].shape).unfold(2, stride * (ht - 1) + 3, stride * ht).reorder((0, 2, 1, 3, 4)),
    }
    for sizes in SIZES:
        assert reads_once(check_same(c, chosen, sizes))


def test_padding_is_zero_for_any_body():
    i, k = axis("i", 5), axis("k", 3)
    flags = buffer("X", 5, dtype=boolean)
    stage = Computation(buffer("Y", 5, dtype=boolean), (i,), (), unary("not", flags[i.var]))
    check_same(stage, {"Y": Layout.of((5,)).pad(0, 2, 1)})
    for reducer in Reducer:
        stage = Computation(buffer("Y", 5), (i,), (k,), buffer("X", 5, 3)[i.var, k.var], reducer)
        check_same(stage, {"Y": Layout.of((5,)).unfold(0, 2, 2)})


def test_bias_attached_to_its_weight_column():
    """ALT, Section 4.1.2: product and bias are read from one buffer."""
    c = matmul(N, 8, 5)
    weights = Layout.of((5, 8)).store_at("bias", (8,), 0).split(1, (2, 4)).reorder((1, 0, 2))
    assert str(weights.physical_shape) == "(2, 6, 4)"
    m, n = axis("m", N), axis("n", 8)
    add = Computation(buffer("Y", N, 8), (m, n), (), buffer("C", N, 8)[m.var, n.var] + buffer("bias", 8)[n.var])
    rows = Layout.of((N, 8)).split(1, (2, 4))
    for sizes in SIZES:
        product = check_same(c, {"B": weights, "C": rows}, sizes)
        after = check_same(add, {"B": weights, "C": rows, "Y": rows}, sizes)
    assert str(product) == ("C[m, n_o, n_i] = sum(A[m, k] * B[n_o, k, n_i] for k in 5)  for m in N; n_o in 2; n_i in 4")
    assert str(after) == "Y[m, n_o, n_i] = C[m, n_o, n_i] + B[n_o, 5, n_i]  for m in N; n_o in 2; n_i in 4"


def test_view_without_layouts_stays():
    view = View(buffer("Y", N, 12), buffer("X", N, 3, 4))
    assert rewrite_stage(view, {"Z": Layout.of((3,)).pad(0, 1)}) is view
    assert rewrite_stage(view, {"X": Layout.of((N, 3, 4))}) is view


def test_view_of_a_stored_tensor_copies():
    view = View(buffer("Y", N, 12, 5), buffer("X", N, 3, 4, 5))
    for sizes in SIZES:
        copied = check_same(view, {"X": Layout.of((N, 3, 4, 5)).reorder((0, 3, 1, 2))}, sizes)
    assert str(copied) == "Y[i0, i1, i2] = X[i0, i2, i1 // 4, i1 % 4]  for i0 in N; i1 in 12; i2 in 5"


def test_new_axes_have_unique_names():
    i, k = axis("h", 8), axis("h_i", 3)
    stage = Computation(buffer("Y", 8), (i,), (k,), buffer("X", 8, 3)[i.var, k.var], Reducer.SUM)
    changed = check_same(stage, {"Y": Layout.of((8,)).split(0, (2, 4))})
    assert [a.var.name for a in changed.axes] == ["h_o", "h_i_1"]


def test_gather_through_a_stored_table():
    i = axis("i", 6)
    index = buffer("I", 6)
    table = buffer("X", 8)
    body = select(i.var < 3, table[i.var + 2], table[i.var])
    stage = Computation(buffer("Y", 6), (i,), (), body + index[i.var])
    check_same(stage, {"X": Layout.of((8,)).split(0, (2, 4)).reorder((1, 0)), "I": Layout.of((6,)).pad(0, 1)})


def test_layout_of_another_shape():
    with pytest.raises(LayoutError, match=r"buffer 'B': expected a layout of shape \[5, 8\], got \[8, 5\] -> reorder"):
        rewrite_stage(matmul(4, 8, 5), {"B": Layout.of((8, 5)).reorder((1, 0))})


def test_attached_tensor_is_not_written():
    stage = replace(matmul(4, 8, 5), output=buffer("bias", 4, 8))
    carrier = Layout.of((3, 4, 8)).store_at("bias", (4, 8), 0)
    with pytest.raises(LayoutError, match="output 'bias': it is stored at 'W', which another stage writes"):
        rewrite_stage(stage, {"W": carrier})


def test_reduction_does_not_write_attached_tensors():
    carrier = Layout.of((4, 8)).store_at("bias", (8,), 0)
    with pytest.raises(LayoutError, match="output 'C': a reduction can't write the elements of 'bias'"):
        rewrite_stage(matmul(4, 8, 5), {"C": carrier})


def test_loops_of_the_result_are_verified():
    assert lowered(rewrite_stage(matmul(4, 8, 5), {"B": Layout.of((5, 8)).reorder((1, 0))}))
