"""Layout propagation: where layouts and conversions go, and that results are preserved."""

import numpy as np
import pytest
from onnx import helper
from tests.driver.models import array, model, value
from tests.graph.layouts.networks import (
    Net,
    blocked,
    feeds,
    kernels_of,
    placed,
    rows,
    shape_of,
    step_of,
    weight,
)
from tests.graph.running import program_of

from tilewright.errors import LayoutError
from tilewright.graph.layouts.dataflow import Reason
from tilewright.graph.layouts.plan import Choice, Variant, contractions
from tilewright.graph.layouts.propagate import propagate
from tilewright.layout.layout import Layout
from tilewright.layout.primitives import Fuse, Pad, Reorder, Split, StoreAt, Unfold

EIGHT = blocked(16, 8)
FOUR = blocked(16, 4)


def conv_relu_pool():
    net = Net()
    relu = net.op("Relu", net.conv("x", "conv", 16), name="relu")
    return net.model(net.op("MaxPool", relu, name="pool", kernel_shape=[3, 3], strides=[2, 2]))


def two_convs(relu: bool = True, kernel: int = 1, bias: bool = True):
    net = Net()
    y = net.conv("x", "first", 16, bias=bias)
    y = net.op("Relu", y, name="relu") if relu else y
    return net.model(net.op("GlobalAveragePool", net.conv(y, "second", 16, kernel), name="mean"))


# Constraint 1: element-wise operators take a layout over


def test_propagated_activation_is_fused_with_its_convolution(golden):
    result = placed(conv_relu_pool(), {"conv": Choice(rows(12))})
    assert result.runtime_conversions == ()
    (kernel,) = [k for k in kernels_of(result) if "relu" in k.label]
    assert kernel.label == "conv (Conv) + relu (Relu)"
    conv, relu = kernel.stages
    assert [a.extent for a in conv.axes] == [a.extent for a in relu.axes]
    golden("\n".join(map(str, (*result.program.steps, *kernel.stages))) + f"\n\n{result}")


def test_without_propagation_activation_and_convolution_are_two_kernels():
    result = placed(conv_relu_pool(), {"conv": Choice(rows(12))}, Variant.ADJACENT)
    assert [p.buffer.name for p in result.assignments] == ["conv_y_1"]
    assert not any("conv" in k.label and "relu" in k.label for k in kernels_of(result))


def test_bias_is_read_at_its_channel():
    result = placed(conv_relu_pool(), {"conv": Choice(EIGHT)})
    assert str(step_of(result, "conv_y_2").body) == "conv_y_1[i0, i1_o, i2, i3, i1_i] + b_conv[i1_i + i1_o * 8]"


def test_a_residual_block_has_one_layout():
    net = Net(16)
    a = net.op("Relu", net.conv("x", "first", 16), name="relu1")
    b = net.conv(a, "second", 16)
    y = net.op("Relu", net.op("Add", b, "x", name="add"), name="relu2")
    last = net.op("MaxPool", y, name="pool", kernel_shape=[3, 3], strides=[2, 2])
    operands = (EIGHT, weight(16, 16, 8))
    choices = {"first": Choice(EIGHT, operands), "second": Choice(EIGHT, operands)}
    result = placed(net.model(last), choices, x=feeds(2, 16))
    assert result.runtime_conversions == ()
    assert shape_of(result, "add_y") == shape_of(result, "relu2_y") == "n, 2, 12, 12, 8"
    assert [k.label for k in kernels_of(result) if "relu2" in k.label] == ["second (Conv) + relu2 (Relu)"]


def test_first_choice_takes_precedence():
    net = Net()
    a, b = net.conv("x", "left", 16), net.conv("x", "right", 16)
    source = net.model(net.op("GlobalAveragePool", net.op("Add", a, b, name="add"), name="mean"))
    left, right = ("left", Choice(EIGHT)), ("right", Choice(FOUR))
    assert shape_of(placed(source, dict((left, right))), "add_y") == "n, 2, 12, 12, 8"
    assert shape_of(placed(source, dict((right, left))), "add_y") == "n, 4, 12, 12, 4"
    assert placed(source, dict((left, right))).runtime_conversions == ()


def test_layout_propagates_to_all_consumers():
    net = Net()
    a = net.conv("x", "conv", 16)
    r, s = net.op("Relu", a, name="relu"), net.op("Sigmoid", a, name="sigmoid")
    pools = [net.op("GlobalAveragePool", x, name=f"mean{k}") for k, x in enumerate((r, s))]
    result = placed(net.model(*pools), {"conv": Choice(EIGHT)})
    assert shape_of(result, "relu_y") == shape_of(result, "sigmoid_y") == shape_of(result, "conv_y")
    assert result.runtime_conversions == ()


def test_layout_propagates_to_operands_of_an_addition():
    net = Net()
    skip = net.op("MaxPool", net.conv("x", "stem", 16), name="pool", kernel_shape=[1, 1])
    y = net.op("Add", net.conv(skip, "conv", 16), skip, name="add")
    result = placed(net.model(net.op("GlobalAveragePool", y, name="mean")), {"conv": Choice(EIGHT)})
    assert shape_of(result, "pool_y") == "n, 2, 12, 12, 8"


def test_a_constant_of_the_full_shape_is_transformed():
    net = Net()
    net.constants["map"] = array(5, 1, 16, 12, 12)
    net.input.type.tensor_type.shape.dim[0].dim_value = 1
    y = net.op("Mul", net.conv("x", "conv", 16), "map", name="mul")
    result = placed(net.model(net.op("GlobalAveragePool", y, name="mean")), {"conv": Choice(EIGHT)}, x=feeds(1))
    (data,) = [d for d in result.program.constants.values() if d.ndim == 5]
    np.testing.assert_array_equal(data, Layout.of((1, 16, 12, 12)).then(*EIGHT).transform(net.constants["map"]))


# Constraint 2: layouts that expand the data

TILES = (Unfold(2, 6, 4), Unfold(4, 6, 4), Reorder((0, 2, 4, 1, 3, 5)))


def test_a_padding_writes_overlapping_tiles():
    net = Net(16)
    source = net.model(net.op("Relu", net.conv("x", "conv", 16)))
    result = placed(source, {"conv": Choice(None, (TILES,))}, x=feeds(2, 16))
    assert result.runtime_conversions == ()
    assert str(step_of(result, "conv_y").output).endswith("[n, 3, 3, 16, 6, 6]")


def test_tiles_that_overlap_are_not_propagated():
    net = Net(16)
    y = net.op("Tanh", net.op("Exp", "x", name="exp"), name="tanh")
    source = net.model(net.conv(y, "conv", 16, 1))
    result = placed(source, {"conv": Choice(None, ((Unfold(2, 4, 2),),))}, x=feeds(2, 16))
    assert result.runtime_conversions == ()
    assert [p.buffer.name for p in result.assignments] == ["tanh_y"]


def test_tiles_that_overlap_are_converted_where_others_read_the_tensor():
    net = Net(16)
    e = net.op("Exp", "x", name="exp")
    source = net.model(net.conv(e, "conv", 16, 1), net.op("Tanh", e, name="tanh"))
    result = placed(source, {"conv": Choice(None, ((Unfold(2, 4, 2),),))}, x=feeds(2, 16))
    (conversion,) = result.runtime_conversions
    assert conversion.reason is Reason.EXPANDS
    assert shape_of(result, "exp_y") == "n, 16, 12, 12"
    # Tiles that do not overlap only split the dimension: nothing expands, and all readers receive it.
    result = placed(source, {"conv": Choice(None, ((Unfold(2, 4, 4),),))}, x=feeds(2, 16))
    assert result.runtime_conversions == ()


def test_padded_channels_are_read_but_not_propagated():
    net = Net()
    y = net.op("Relu", net.conv("x", "conv", 10), name="relu")
    choice = Choice((Pad(1, 0, 6), *EIGHT))
    result = placed(net.model(net.op("GlobalAveragePool", y, name="mean")), {"conv": choice})
    assert [p.buffer.name for p in result.assignments] == ["conv_y_1"]
    assert result.runtime_conversions == ()


# Constraint 3: complex operators are independent


@pytest.mark.parametrize(
    ("second", "conversions"), [(EIGHT, 0), (FOUR, 1), ((), 1), ((Split(1, (2, 4, 2)), Fuse(2, 2), *EIGHT[1:]), 0)]
)
def test_between_two_convolutions_there_is_a_conversion_only_where_layouts_differ(second, conversions):
    result = placed(two_convs(), {"first": Choice(EIGHT), "second": Choice(EIGHT, (second,))})
    assert [c.reason for c in result.runtime_conversions] == [Reason.OPERATORS] * conversions
    # The activation stays with its convolution, and the conversion is a kernel of its own.
    assert [k.label for k in kernels_of(result) if "relu" in k.label] == ["first (Conv) + relu (Relu)"]
    assert len([k for k in kernels_of(result) if "Layout" in k.label]) == conversions


def test_simple_operators_between_two_convolutions_convert():
    for source in (two_convs(kernel=3), two_convs(relu=False, kernel=3)):
        result = placed(source, {"first": Choice(EIGHT), "second": Choice(EIGHT, (FOUR,))})
        assert result.runtime_conversions == ()
    net = Net()
    y = net.op("MaxPool", net.conv("x", "first", 16), name="pool", kernel_shape=[3, 3], strides=[2, 2])
    source = net.model(net.op("GlobalAveragePool", net.conv(y, "second", 16, 1), name="mean"))
    result = placed(source, {"first": Choice(EIGHT), "second": Choice(EIGHT, (FOUR,))})
    assert result.runtime_conversions == ()
    assert shape_of(result, "pool_y") == "n, 4, 5, 5, 4"


def test_equal_requests_share_one_conversion():
    net = Net()
    y = net.op("Relu", net.conv("x", "first", 16), name="relu")
    ends = [net.op("GlobalAveragePool", net.conv(y, n, 16, 1), name=f"mean_{n}") for n in ("a", "b", "c")]
    choices = {"first": Choice(EIGHT)} | {n: Choice(None, (w,)) for n, w in (("a", FOUR), ("b", FOUR), ("c", EIGHT))}
    (conversion,) = placed(net.model(*ends), choices).runtime_conversions
    assert conversion.readers == ("a (Conv)", "b (Conv)")


def test_operator_without_a_choice_writes_row_major():
    result = placed(two_convs(), {"first": Choice(EIGHT)})
    assert result.runtime_conversions == ()
    result = placed(two_convs(relu=False, bias=False), {"second": Choice(None, (EIGHT,))})
    assert [c.reason for c in result.runtime_conversions] == [Reason.OPERATORS]


# What the user sees


def test_inputs_and_outputs_keep_the_users_layout():
    net = Net(16)
    source = net.model(net.conv("x", "conv", 16, 1, bias=False))
    result = placed(source, {"conv": Choice(EIGHT, (EIGHT,))}, x=feeds(2, 16))
    assert [c.reason for c in result.runtime_conversions] == [Reason.OUTPUT, Reason.INPUT]
    assert [str(b) for b in result.program.inputs] == ["x: float32[n, 16, 12, 12]"]
    assert [str(b) for _, b in result.program.outputs] == ["conv_y: float32[n, 16, 12, 12]"]


def test_simple_operators_at_the_border_convert():
    net = Net(16)
    y = net.op("Relu", net.conv(net.op("Tanh", "x"), "conv", 16, 1), name="relu")
    result = placed(net.model(y), {"conv": Choice(EIGHT, (EIGHT,))}, x=feeds(2, 16))
    assert result.runtime_conversions == ()


def test_readers_of_an_output_read_the_operators_own_result():
    net = Net(16)
    y = net.conv("x", "first", 16, 1, bias=False)
    z = net.conv(y, "second", 16, 1, bias=False)
    choices = {"first": Choice(EIGHT), "second": Choice(None, (EIGHT,))}
    source = net.model(y, net.op("Relu", z))
    result = placed(source, choices, x=feeds(2, 16))
    assert [c.reason for c in result.runtime_conversions] == [Reason.OUTPUT]
    # What the user gets is row by row already for one who wants that.
    result = placed(source, {"first": Choice(EIGHT), "second": Choice(None, ((),))}, x=feeds(2, 16))
    assert [c.reason for c in result.runtime_conversions] == [Reason.OUTPUT]


def test_sources_of_views_are_row_major():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="matmul"),
        helper.make_node("Reshape", ["m", "s"], ["v"], name="reshape"),
        helper.make_node("MatMul", ["v", "u"], ["y0"], name="second"),
        helper.make_node("Relu", ["y0"], ["y"], name="relu"),
    ]
    constants = {"w": array(1, 6, 16), "s": np.array([0, -1, 4], np.int64), "u": array(2, 4, 8)}
    source = model(nodes, [value("x", ["n", 6])], [value("y", ["n", 4, 8])], constants)
    halves = (Split(1, (2, 8)), Reorder((1, 0, 2)))
    x = {"x": array(3, 5, 6)}
    result = placed(source, {"matmul": Choice(halves)}, x=x)
    assert [c.reason for c in result.runtime_conversions] == [Reason.VIEW]
    # A view that has to convert becomes a copy itself.
    result = placed(source, {"second": Choice(None, ((Reorder((1, 0, 2)),),))}, x=x)
    assert result.runtime_conversions == ()


# Constants


def test_weights_are_transformed_at_compile_time():
    net = Net(16)
    source = net.model(net.op("Relu", net.conv("x", "conv", 16)))
    result = placed(source, {"conv": Choice(EIGHT, (None, weight(16, 16, 8)))}, x=feeds(2, 16))
    assert [c for c in result.conversions if c.reason is not Reason.OUTPUT] == []
    data = result.program.constants["w_conv"]
    assert data.shape == (2, 2, 3, 3, 8, 8)
    original = net.constants["w_conv"].reshape(2, 8, 2, 8, 3, 3)
    np.testing.assert_array_equal(data, original.transpose(0, 2, 4, 5, 3, 1))


def shared_weights():
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], name="first", transB=1),
        helper.make_node("Gemm", ["a", "w"], ["b"], name="second"),
        helper.make_node("Relu", ["b"], ["y"], name="relu"),
    ]
    return model(nodes, [value("x", ["n", 8])], [value("y", ["n", 8])], {"w": array(1, 8, 8)})


def test_conflicting_weight_layouts_are_stored_twice():
    program = program_of(shared_weights())
    first, second = contractions(program)
    expected = (Split(0, (2, 4)),)
    choices = {c.output.name: Choice(None, (None, w)) for c, w in ((first, expected), (second, (Reorder((1, 0)),)))}
    result = placed(program, choices, x={"x": array(2, 3, 8)})
    assert result.runtime_conversions == ()
    assert [c.reason for c in result.conversions] == [Reason.CONSTANT] * 2
    assert sorted(d.shape for d in result.program.constants.values()) == [(2, 4, 8), (8, 8)]


def test_weights_computed_from_constants_are_transformed_at_compile_time():
    nodes = [
        helper.make_node("Exp", ["w"], ["e"], name="exp"),
        helper.make_node("MatMul", ["x", "e"], ["m"], name="matmul"),
        helper.make_node("Relu", ["m"], ["y"], name="relu"),
    ]
    source = model(nodes, [value("x", ["n", 8])], [value("y", ["n", 8])], {"w": array(1, 8, 8)})
    result = placed(program_of(source, simplify=False), {"matmul": Choice(None, (None, (Split(0, (2, 4)),)))},
                  x={"x": array(2, 3, 8)})  # fmt: skip
    assert result.runtime_conversions == ()
    assert [d.shape for d in result.program.constants.values()] == [(2, 4, 8)]


def test_bias_is_stored_with_its_weights():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="matmul"),
        helper.make_node("Add", ["m", "bias"], ["y"], name="add"),
    ]
    constants = {"w": array(1, 8, 4), "bias": array(2, 4)}
    source = model(nodes, [value("x", ["n", 8])], [value("y", ["n", 4])], constants)
    result = placed(source, {"matmul": Choice(None, (None, (StoreAt("bias", (4,), 0),)))}, x={"x": array(2, 3, 8)})
    (data,) = result.program.constants.values()
    np.testing.assert_array_equal(data, np.vstack([constants["w"], constants["bias"]]))


# Variants


@pytest.mark.parametrize("second", [EIGHT, FOUR])
def test_forward_and_backward_propagation_share_one_layout(second):
    choices = {"first": Choice(EIGHT), "second": Choice(EIGHT, (second,))}
    for relu in (True, False):
        source = two_convs(relu)
        forward = placed(source, choices, Variant.FORWARD)
        backward = placed(source, choices, Variant.BACKWARD)
        assert forward.runtime_conversions == backward.runtime_conversions == ()
        assert shape_of(forward, "first_y") == "n, 2, 12, 12, 8"
        assert shape_of(backward, "first_y") == ("n, 2, 12, 12, 8" if second is EIGHT else "n, 4, 12, 12, 4")
        assert [s.operator for s in forward.overridden] == ([] if second is EIGHT else ["second (Conv)"])
        assert [s.operator for s in backward.overridden] == ([] if second is EIGHT else ["first (Conv)"])


def test_expanding_layouts_are_not_shared():
    choices = {"first": Choice(EIGHT), "second": Choice(None, ((Unfold(2, 4, 2),),))}
    for variant in (Variant.FULL, Variant.ADJACENT, Variant.BACKWARD):
        result = placed(two_convs(relu=False, bias=False), choices, variant)
        assert [c.reason for c in result.runtime_conversions] == [Reason.OPERATORS], variant
        assert shape_of(result, "first_y") == "n, 2, 12, 12, 8"


# Explanations and errors


def test_an_explanation_names_tensors_operators_and_conversions(golden):
    choices = {"first": Choice(EIGHT, (None, None)), "second": Choice(EIGHT, (FOUR, weight(16, 16, 8)))}
    result = placed(two_convs(), choices)
    golden(str(result))


def test_no_choice_changes_nothing():
    program = program_of(two_convs())
    assert propagate(program, {}).program.steps == program.steps


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"third": Choice()},
            r"layouts\['third'\]: there is no convolution or matrix product of this name; those of this model are"
            r" first \(Conv\), second \(Conv\)",
        ),
        (
            {"first": Choice((Split(1, (3, 5)),))},
            r"node first \(Conv\), output, primitive 0, split of dimension 1: expected factors whose product is 16,"
            r" got \(3, 5\) with product 15",
        ),
        (
            {"first": Choice(Layout.of((1, 16, 12, 12)))},
            r"node first \(Conv\), output: expected a layout of shape \[n, 16, 12, 12\], got one of \[1, 16, 12, 12\]",
        ),
        (
            {"first": Choice(None, (None, None, EIGHT))},
            r"node first \(Conv\): expected layouts of at most 2 operands \(first_y, w_first\), got 3",
        ),
        (
            {"second": Choice(None, (Layout.of((16, 16)),))},
            r"node second \(Conv\), operand 0 \(relu_y\): expected a layout of shape \[n, 16, 12, 12\]",
        ),
        (
            {"first": Choice(), "first_y": Choice()},
            r"layouts\['first_y'\]: first \(Conv\) has a choice already",
        ),
        ({"first": "NCHWc"}, r"layouts\['first'\]: expected a Choice, got str"),
        ({"first": Choice(Split(1, (2, 8)))}, r"output: expected a Layout or a tuple of primitives, got Split"),
    ],
)
def test_errors_name_the_node_the_tensor_and_what_was_expected(choices, message):
    with pytest.raises(LayoutError, match=message):
        propagate(program_of(two_convs()), choices)
