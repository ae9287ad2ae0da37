"""Convolution and transposed convolution against ONNX Runtime and ONNX's reference."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, Tolerance, check, define, reference_outputs, run_stages

from tilewright.errors import ShapeError
from tilewright.expr.computation import Computation, View
from tilewright.expr.nodes import Select, Symbol, const
from tilewright.expr.traversal import loads, post_order

RNG = np.random.default_rng(11)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def compare(op, inputs, attributes, opset=22, reference="ort"):
    """Literal sizes, all sizes symbolic, and only those of the input symbolic as in real models."""
    check(
        NodeCase(op, inputs, attributes, opset=opset),
        constants=(),
        reference=reference,
        tolerance=Tolerance(1e-4, 2e-5),
    )
    names = {(0, k): Symbol(f"s{k}", 1, 99) for k in (0, *range(2, inputs[0].ndim))}
    check(
        NodeCase(op, inputs, attributes, opset=opset),
        constants=(),
        symbolic=False,
        sizes=names,
        reference=reference,
        tolerance=Tolerance(1e-4, 2e-5),
    )


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 4, 9, 8), (6, 4, 3, 3), {}),
        ((2, 4, 9, 8), (6, 4, 3, 3), {"pads": [1, 2, 0, 3], "strides": [2, 1]}),
        ((1, 4, 9, 8), (6, 4, 1, 1), {}),
        ((1, 4, 9, 8), (6, 4, 1, 1), {"strides": [2, 2], "kernel_shape": [1, 1]}),
        ((1, 4, 9, 11), (6, 4, 3, 2), {"dilations": [2, 3], "pads": [2, 1, 2, 1]}),
        ((1, 6, 9, 8), (4, 3, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
        ((1, 6, 9, 8), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ((1, 6, 9, 8), (12, 1, 5, 5), {"group": 6, "pads": [2, 2, 2, 2]}),
        ((1, 6, 9, 8), (6, 1, 1, 1), {"group": 6}),
        ((2, 4, 13), (5, 4, 3), {"strides": [2], "pads": [1, 0]}),
        ((2, 4, 13), (4, 2, 3), {"dilations": [2], "group": 2}),
        ((1, 2, 5, 6, 7), (3, 2, 3, 2, 3), {"pads": [1, 0, 1, 1, 1, 1], "strides": [1, 2, 2]}),
        ((1, 1, 4, 4), (1, 1, 4, 4), {}),
    ],
)
def test_conv(x, w, attributes):
    compare("Conv", [normal(*x), normal(*w), normal(w[0])], attributes)
    check(NodeCase("Conv", [normal(*x), normal(*w)], attributes), constants=(), tolerance=Tolerance(1e-4, 2e-5))


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("strides", [[1, 1], [2, 3], [3, 1]])
@pytest.mark.parametrize("size", [(7, 8), (9, 10), (6, 6)])
def test_conv_auto_pad(auto, strides, size):
    x, w = normal(1, 3, *size), normal(4, 3, 3, 4)
    compare("Conv", [x, w], {"auto_pad": auto, "strides": strides})


@pytest.mark.parametrize("opset", [7, 11, 22])
def test_conv_in_every_opset(opset):
    compare("Conv", [normal(1, 3, 7, 8), normal(4, 3, 3, 3)], {"auto_pad": "SAME_UPPER", "dilations": [1, 1]}, opset)


def test_conv_of_half_precision_accumulates_in_float32():
    x, w, b = normal(1, 40, 6, 6, dtype=np.float16), normal(4, 40, 3, 3, dtype=np.float16), normal(4, dtype=np.float16)
    exact = reference_outputs(
        "onnx", NodeCase("Conv", [v.astype(np.float64) for v in (x, w, b)], {"pads": [1] * 4}, opset=22)
    )
    check(
        NodeCase("Conv", [x, w, b], {"pads": [1] * 4}),
        constants=(),
        reference=lambda *_: exact[0].astype(np.float16),
        tolerance=Tolerance(1e-3, 1e-3),
    )


@pytest.mark.parametrize("attributes", [{}, {"pads": [1, 1, 1, 1]}, {"group": 2, "strides": [2, 2]}])
@pytest.mark.parametrize("zeros", ["none", "x", "both"])
def test_conv_integer(attributes, zeros):
    x = RNG.integers(0, 256, (1, 4, 6, 7)).astype(np.uint8)
    w = RNG.integers(0, 256, (4, 4 // attributes.get("group", 1), 3, 3)).astype(np.uint8)
    inputs = [x, w, *([] if zeros == "none" else [np.uint8(113)] if zeros == "x" else [np.uint8(7), np.uint8(131)])]
    inputs = [np.asarray(v) for v in inputs]
    for constants in ((), (2, 3)):
        check(NodeCase("ConvInteger", inputs, attributes, opset=10), constants=constants, reference="ort")


def test_conv_integer_with_a_zero_point_per_channel():
    x = RNG.integers(0, 256, (1, 3, 5, 5)).astype(np.uint8)
    w = RNG.integers(0, 256, (4, 3, 3, 3)).astype(np.uint8)
    zero = RNG.integers(0, 256, 4).astype(np.uint8)

    def reference(x, w, zx, zw):
        inputs = [x.astype(np.float64) - zx, w.astype(np.float64) - zw.reshape(-1, 1, 1, 1)]
        return reference_outputs("onnx", NodeCase("Conv", inputs, {"pads": [1] * 4}, opset=22))[0].astype(np.int32)

    check(
        NodeCase("ConvInteger", [x, w, np.asarray(np.uint8(3)), zero], {"pads": [1] * 4}),
        constants=(),
        reference=reference,
    )


def stages(op, inputs, attributes, **options):
    return define(NodeCase(op, inputs, attributes), constants=(), **options)[0].stages


def test_conv_without_padding_has_no_padded_copy():
    assert len(stages("Conv", [normal(1, 4, 8, 8), normal(3, 4, 3, 3)], {})) == 1
    assert len(stages("Conv", [normal(1, 4, 8, 8), normal(3, 4, 3, 3)], {"pads": [0, 1, 0, 0]})) == 2


def test_conv_contraction_has_no_conditions_and_no_unit_axes():
    x, w = normal(1, 6, 8, 8), normal(6, 1, 3, 3)
    for group, weights, axes in (
        (1, normal(4, 6, 3, 3), 3),
        (1, normal(4, 6, 1, 1), 1),
        (6, w, 2),
        (2, normal(4, 3, 1, 3), 2),
    ):
        steps = stages("Conv", [x, weights], {"pads": [1, 1, 1, 1], "group": group})
        contraction = steps[-1]
        assert isinstance(contraction, Computation)
        assert len(contraction.reduce_axes) == axes
        assert not any(isinstance(n, Select) for n in post_order(contraction.body))


def test_depthwise_conv_loads_one_channel():
    steps = stages("Conv", [normal(1, 6, 8, 8), normal(6, 1, 3, 3)], {"group": 6})
    assert [str(load) for load in loads(steps[0].body)] == ["x0[i0, i1, i2 + r0, i3 + r1]", "x1[i1, 0, r0, r1]"]


def test_strided_conv_of_symbolic_size():
    sizes = {(0, 2): Symbol("h", 1, 99), (0, 3): Symbol("w", 1, 99)}
    d, (y,) = define(
        NodeCase("Conv", [normal(1, 3, 9, 9), normal(4, 3, 3, 3)], {"pads": [1] * 4, "strides": [2, 2]}), sizes=sizes
    )
    assert [str(n) for n in y.shape] == ["1", "4", "(h + 1) // 2", "(w + 1) // 2"]
    assert d.constraints == []


@pytest.mark.parametrize(
    ("x", "w", "attributes", "message"),
    [
        ((1, 3, 8, 8), (4, 5, 3, 3), {}, "channels of X: expected 5, got 3"),
        ((1, 6, 8, 8), (4, 2, 3, 3), {"group": 2}, "channels of X: expected 4, got 6"),
        ((1, 6, 8, 8), (5, 3, 3, 3), {"group": 2}, "dimension 0 of W: expected a multiple of group 2, got 5"),
        ((1, 6, 8, 8), (5, 3, 3, 3), {"group": 0}, "group: expected a positive number, got 0"),
        ((1, 3, 8, 8), (4, 3, 3), {}, "W: expected 4 dimensions, got 3"),
        ((3, 8), (4, 3), {}, "X: expected at least 3 dimensions, got 2"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"kernel_shape": [3, 5]}, "dimension 3 of W: expected 5, got 3"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"kernel_shape": [3]}, "kernel_shape: expected 2 values, got 1"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"strides": [2]}, "strides: expected 2 values, got 1"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"strides": [2, 0]}, "strides: expected values of at least 1, got 0"),
        (
            (1, 3, 8, 8),
            (4, 3, 3, 3),
            {"pads": [1 << 62, 0, 1 << 62, 0]},
            "pads: expected values of at most 2147483647, got 4611686018427387904",
        ),
        (
            (1, 3, 8, 8),
            (4, 3, 3, 3),
            {"dilations": [1, 1 << 62]},
            "dilations: expected values of at most 2147483647, got 4611686018427387904",
        ),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"pads": [1, 1]}, "pads: expected 4 values, got 2"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"auto_pad": "SAME"}, "auto_pad: expected one of NOTSET, .*, got 'SAME'"),
        ((1, 3, 2, 8), (4, 3, 3, 3), {}, "dimension 0: a window of 3 does not fit the padded size 2"),
    ],
)
def test_conv_rejects(x, w, attributes, message):
    with pytest.raises(ShapeError, match=r"^\[shape\] node node \(Conv\): " + message + "$"):
        define(NodeCase("Conv", [normal(*x), normal(*w)], attributes))


def test_conv_rejects_a_bias_of_wrong_length_or_type():
    with pytest.raises(ShapeError, match="B: expected 4, got 5"):
        define(NodeCase("Conv", [normal(1, 3, 8, 8), normal(4, 3, 3, 3), normal(5)]))
    with pytest.raises(ShapeError, match="W: expected type float32, got float64"):
        define(NodeCase("Conv", [normal(1, 3, 8, 8), normal(4, 3, 3, 3, dtype=np.float64)]))


def test_window_larger_than_a_symbolic_input_is_checked_at_run_time():
    sizes = {(0, 2): Symbol("h", 1, 99)}
    d, _ = define(NodeCase("Conv", [normal(1, 3, 8, 8), normal(4, 3, 3, 3)]), sizes=sizes)
    assert [m for _, m in d.constraints] == [
        "node node (Conv): dimension 0: a window of 3 does not fit the padded size h"
    ]


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 4, 5, 6), (4, 3, 2, 2), {"strides": [2, 2]}),
        ((2, 4, 5, 6), (4, 3, 3, 3), {}),
        ((2, 4, 5, 6), (4, 3, 1, 1), {}),
        ((2, 4, 5, 6), (4, 3, 1, 2), {"strides": [1, 2]}),
        ((1, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((1, 4, 5, 6), (4, 3, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((1, 4, 5, 6), (4, 3, 2, 3), {"strides": [3, 2], "dilations": [2, 2], "output_padding": [1, 0]}),
        ((1, 4, 5, 6), (4, 3, 2, 2), {"strides": [3, 3]}),
        ((1, 4, 5, 6), (4, 3, 2, 2), {"strides": [3, 3], "pads": [2, 2, 1, 0], "output_padding": [2, 0]}),
        # outputs behind the last tap of the last input
        ((1, 4, 5, 6), (4, 3, 2, 2), {"strides": [2, 2], "output_padding": [1, 1]}),
        ((1, 4, 5, 6), (4, 3, 3, 4), {"strides": [3, 2], "pads": [1, 1, 1, 1], "output_padding": [2, 1]}),
        ((1, 4, 1), (4, 3, 3), {"strides": [5], "output_padding": [4]}),
        ((1, 4, 5, 6), (4, 3, 2, 2), {"group": 2, "strides": [2, 2]}),
        ((1, 4, 5, 6), (4, 1, 3, 3), {"group": 4, "strides": [2, 2], "pads": [1, 0, 1, 0]}),
        ((1, 4, 5, 6), (4, 1, 2, 2), {"group": 4, "strides": [2, 2]}),
        ((1, 4, 5, 6), (4, 2, 3, 3), {"group": 2}),
        ((1, 4, 7), (4, 3, 3), {"strides": [2]}),
        ((1, 4, 7), (4, 3, 2), {"strides": [2]}),
        ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), {"strides": [2, 1, 2], "pads": [0, 1, 0, 0, 1, 1]}),
    ],
)
def test_conv_transpose(x, w, attributes):
    bias = normal(w[1] * attributes.get("group", 1))
    compare("ConvTranspose", [normal(*x), normal(*w), bias], attributes)
    check(
        NodeCase("ConvTranspose", [normal(*x), normal(*w)], attributes, opset=22),
        constants=(),
        reference="ort",
        tolerance=Tolerance(1e-4, 2e-5),
    )


@pytest.mark.parametrize("auto", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(
    ("strides", "shape"),
    [
        ([2, 2], None), ([2, 2], [9, 12]), ([2, 2], [10, 13]), ([2, 2], [11, 11]), ([2, 2], [8, 10]),
        ([1, 3], None), ([1, 3], [7, 17]), ([1, 3], [6, 16]), ([1, 3], [5, 18]), ([1, 3], [4, 15]),
    ],
)  # fmt: skip
def test_conv_transpose_output_shape_and_auto_pad(auto, strides, shape):
    attributes = {"auto_pad": auto, "strides": strides, **({"output_shape": shape} if shape else {})}
    inputs = [normal(1, 2, 5, 6), normal(2, 3, 3, 3)]
    compare("ConvTranspose", inputs, attributes)


def test_conv_transpose_with_kernel_equal_to_stride_is_one_contraction_and_a_view():
    steps = stages("ConvTranspose", [normal(1, 4, 5, 6), normal(4, 3, 2, 2)], {"strides": [2, 2]})
    assert [type(s) for s in steps] == [Computation, View]
    assert [str(load) for load in loads(steps[0].body)] == ["x0[i0, r0, i2, i4]", "x1[r0, i1, i3, i5]"]


def test_conv_transpose_multiplies_no_zeros_between_elements():
    weights = normal(4, 3, 4, 4)
    steps = stages("ConvTranspose", [normal(1, 4, 5, 6), weights], {"strides": [2, 2], "pads": [1] * 4})
    sums = next(s for s in steps if isinstance(s, Computation) and s.reduce_axes)
    assert [int(str(a.extent)) for a in sums.reduce_axes] == [4, 2, 2]  # 2 of 4 taps per output and dimension


def test_conv_transpose_of_symbolic_size_keeps_the_direct_form():
    sizes = {(0, 2): Symbol("h", 1, 99), (0, 3): Symbol("w", 1, 99)}
    d, (y,) = define(
        NodeCase("ConvTranspose", [normal(1, 4, 5, 6), normal(4, 3, 2, 2), normal(3)], {"strides": [2, 2]}), sizes=sizes
    )
    assert y.shape[2] is sizes[0, 2] * 2
    assert y.shape[1] is const(3)
    assert [type(s) for s in d.stages] == [Computation, Computation, View]


@pytest.mark.parametrize(
    ("x", "w", "attributes", "message"),
    [
        ((1, 3, 8, 8), (4, 5, 3, 3), {}, "channels of X: expected 4, got 3"),
        ((1, 3, 8, 8), (3, 5, 3), {}, "W: expected 4 dimensions, got 3"),
        ((1, 3, 8, 8), (3, 5, 3, 3), {"group": 2}, "channels of X: expected a multiple of group 2, got 3"),
        ((1, 3, 8, 8), (3, 5, 3, 3), {"output_shape": [4]}, "output_shape: expected 2 values, got 1"),
        (
            (1, 3, 8, 8),
            (3, 5, 3, 3),
            {"output_padding": [-1, 0]},
            "output_padding: expected values of at least 0, got -1",
        ),
        ((1, 3, 2, 8), (3, 5, 1, 1), {"pads": [2, 0, 2, 0]}, "dimension 0: the pads crop the whole output of 2"),
    ],
)
def test_conv_transpose_rejects(x, w, attributes, message):
    with pytest.raises(ShapeError, match=message):
        define(NodeCase("ConvTranspose", [normal(*x), normal(*w)], attributes))


def test_stages_of_symbolic_sizes_are_correct_for_all_sizes():
    sizes = {(0, 0): Symbol("n", 1, 9), (0, 2): Symbol("h", 1, 99), (0, 3): Symbol("w", 1, 99)}
    w, attributes = normal(4, 3, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}
    for n, height, width in ((1, 5, 5), (2, 6, 7), (3, 1, 9), (1, 2, 4)):
        x = normal(n, 3, height, width)
        d, results = define(NodeCase("Conv", [x, w], attributes), sizes=sizes)
        expected = reference_outputs("ort", NodeCase("Conv", [x, w], attributes, opset=22))
        np.testing.assert_allclose(run_stages(d, results, [x, w])[0], expected[0], rtol=1e-4, atol=1e-5)
