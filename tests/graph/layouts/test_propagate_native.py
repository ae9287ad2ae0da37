"""Layouts through the whole pipeline: native code with a plan matches native code without."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tests.driver.models import array, model, value
from tests.driver.unscheduled import unscheduled
from tests.graph.layouts.networks import Net, blocked, feeds, rows, weight

import tilewright
from tilewright.driver.compile import make_compilation
from tilewright.driver.diagnostics import show
from tilewright.driver.diagnostics.verification import compare_layers, compare_outputs
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.driver.options import CompileOptions
from tilewright.errors import LayoutError, OptionError
from tilewright.graph.kernel import Kernel
from tilewright.graph.layouts.plan import Choice, Plan, Variant
from tilewright.layout.primitives import Reorder, Split, Unfold
from tilewright.loops.ir import For, Seq, blocks
from tilewright.runtime import Executable


def resnet(size: int | None):
    """A stem with a pooling, a plain residual block, one that halves the picture, and a mean."""
    net = Net(3, size)
    y = net.op("Relu", net.conv("x", "stem", 32, 7, 2))
    y = net.op("MaxPool", y, name="pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    z = net.conv(net.op("Relu", net.conv(y, "conv1", 32)), "conv2", 32)
    y = net.op("Relu", net.op("Add", z, y), name="block1")
    z = net.conv(net.op("Relu", net.conv(y, "conv3", 64, 3, 2)), "conv4", 64)
    y = net.op("Relu", net.op("Add", z, net.conv(y, "short", 64, 1, 2)), name="block2")
    return net.model(net.op("GlobalAveragePool", y, name="mean"))


def block_of_16() -> dict[str, Choice]:
    """N C/16 H W 16 everywhere."""
    wide = {"conv1": (32, 32), "conv2": (32, 32), "conv3": (64, 32), "conv4": (64, 64), "short": (64, 32)}
    stem = Choice(blocked(32), (None, (Split(0, (2, 16)), Reorder((0, 2, 3, 4, 1)))))
    return {"stem": stem} | {
        name: Choice(blocked(o), (blocked(i), weight(o, i))) for name, (o, i) in wide.items()
    }  # fmt: skip


@pytest.mark.parametrize(("variant", "optimizer"), [*zip(Variant, ("gensor", "rule", "rule", "rule"), strict=True)])
def test_a_blocked_layout_over_a_residual_network(variant, optimizer):
    source = resnet(None)
    result = make_compilation(source, CompileOptions(layouts=Plan(block_of_16(), variant), optimizer=optimizer))
    assert result.laid_out is not None
    assert result.laid_out.runtime_conversions == ()
    executable = Executable(result.artifact(), 2)
    for n, h, w in ((1, 33, 33), (2, 40, 57)):
        x = {"x": array(h, n, 3, h, w)}
        actual = executable.run(x)
        (comparison,) = compare_outputs(result, x, actual, None)
        assert comparison.error < 2e-6
        expected = ReferenceEvaluator(source).run(None, x)[0]
        np.testing.assert_allclose(actual["mean_y"], expected, rtol=1e-4, atol=1e-5)


def labels(**options):
    """The labels of all kernels without layouts, and with them."""
    all_units = [unscheduled(resnet(32), CompileOptions(layouts=plan, **options))[1] for plan in (None, block_of_16())]
    return [[u.label for u in units if isinstance(u, Kernel)] for units in all_units]


def test_every_residual_block_is_fused_as_without_layouts():
    # fast convolutions, which only plain layouts have, are kernels of their own
    plain, changed = labels(exact=True)
    fused = [[label for label in actual if "block" in label] for actual in (plain, changed)]
    assert fused[0] == fused[1] != []
    assert list(dict.fromkeys(plain)) == list(dict.fromkeys(changed))
    # by the rule, which makes the same kernels on every machine
    plain, changed = labels(optimizer="rule")
    assert plain == changed
    # each sum and its activation run behind a convolution: the second block's behind the one of the shortcut
    assert [x for x in plain if "block" in x or "short" in x] == ["conv2 (Conv) + block1 (Relu)", "short (Conv)"]


def test_kernels_are_compared_in_their_layouts():
    result = make_compilation(resnet(32), CompileOptions(layouts=block_of_16()), expose_intermediates=True)
    actual = compare_layers(result, feeds(1, 3, 32, 32), 2)
    assert len(actual) == sum(len(u.kernel.writes) for u in result.units if isinstance(u, BoundKernel))
    assert max(c.error for c in actual) < 2e-6


def test_an_activation_ends_in_one_loop_nest_with_its_convolution():
    net = Net(3, 12)
    relu = net.op("Relu", net.conv("x", "conv", 16), name="relu")
    source = net.model(net.op("MaxPool", relu, name="pool", kernel_shape=[3, 3], strides=[2, 2]))
    result = make_compilation(source, CompileOptions(shapes={"n": 1}, layouts={"conv": Choice(rows(12))}))
    (kernel,) = [k for k in result.kernels if k.name.endswith("conv_relu")]
    nests = kernel.func.body.stmts if isinstance(kernel.func.body, Seq) else (kernel.func.body,)
    (nest,) = [s for s in nests if isinstance(s, For)]
    assert {b.body.buffer.name for b in blocks(nest)} >= {"out"}
    assert str(kernel.origin.outputs[-1]) == "out: float32[3, 12, 16, 4]"


def test_overlapping_tiles_in_native_code():
    net = Net(16, None)
    source = net.model(net.op("Relu", net.conv("x", "conv", 32), name="relu"))
    tiles = (Unfold(2, 6, 4), Unfold(4, 6, 4), Reorder((0, 2, 4, 1, 3, 5)))
    plan = {"conv": Choice(blocked(32), (tiles, weight(32, 16)))}
    executable = tilewright.compile(source, layouts=plan, shapes={"n": "1..4", "h": "4..64", "w": "4..64"}, threads=2)
    for n, h, w in ((1, 8, 8), (3, 13, 22), (2, 4, 5)):
        x = feeds(n, 16, h, w)
        expected = ReferenceEvaluator(source).run(None, x)[0]
        np.testing.assert_allclose(executable.run(x)["relu_y"], expected, rtol=1e-4, atol=1e-5)


def test_weights_are_stored_transformed_and_once():
    net = Net(16, 12)
    source = net.model(net.op("GlobalAveragePool", net.conv("x", "conv", 16, bias=False), name="mean"))
    result = make_compilation(source, CompileOptions(layouts={"conv": Choice(blocked(16), (None, weight(16, 16)))}))
    assert [w.size for w in result.weights.values()] == [net.constants["w_conv"].size]


def test_a_saved_model_keeps_its_layouts(tmp_path):
    path = tmp_path / "m.tw"
    executable = tilewright.compile(resnet(32), layouts=block_of_16(), optimizer="rule")
    executable.save(path)
    x = feeds(1, 3, 32, 32)
    assert tilewright.load(path).run(x)["mean_y"].tobytes() == executable.run(x)["mean_y"].tobytes()


def test_the_layouts_of_a_compilation_can_be_shown():
    result = make_compilation(resnet(32), CompileOptions(layouts=block_of_16(), optimizer="rule"))
    assert show.layouts(result) == str(result.laid_out)
    plain = make_compilation(resnet(32), CompileOptions(optimizer="rule"))
    assert show.layouts(plain) == "every tensor is stored row-major"


def test_errors_of_a_plan():
    with pytest.raises(LayoutError, match=r"node conv1 \(Conv\), output, primitive 0, split of dimension 1: expected"):
        tilewright.compile(resnet(32), layouts={"conv1": Choice(blocked(64))})
    with pytest.raises(OptionError, match=r"argument 'layouts': expected a Plan, got list; pass for example \{"):
        tilewright.compile(resnet(32), layouts=[Choice()])  # type: ignore[arg-type]


KINDS = {
    "C1D": ("Conv", (2, 8, 11), (8, 8, 3), {"strides": [2], "pads": [1, 1]}),
    "C2D": ("Conv", (2, 8, 7, 6), (8, 8, 3, 3), {"pads": [1] * 4}),
    "C3D": ("Conv", (1, 8, 5, 4, 6), (8, 8, 3, 1, 2), {"strides": [1, 2, 1]}),
    "GRP": ("Conv", (2, 16, 7, 6), (8, 8, 3, 3), {"group": 2}),
    "DEP": ("Conv", (2, 8, 7, 6), (8, 1, 3, 3), {"group": 8, "pads": [1] * 4}),
    "DIL": ("Conv", (2, 8, 9, 8), (8, 8, 3, 3), {"dilations": [2, 2]}),
    "T2D": ("ConvTranspose", (2, 8, 5, 4), (8, 8, 4, 4), {"strides": [2, 2], "pads": [1] * 4}),
    "T3D": ("ConvTranspose", (1, 8, 3, 4, 2), (8, 8, 3, 3, 3), {"strides": [1, 2, 1]}),
    "GEMM": ("Gemm", (6, 8), (8, 8), {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_complex_operator_takes_layouts_of_all_its_tensors(kind):
    operator, shape, kernel, attributes = KINDS[kind]
    rank = len(shape)
    # the sums of a transposed convolution have a dimension for the phases of each stride
    phases = sum(step > 1 for step in attributes.get("strides", ())) if operator == "ConvTranspose" else 0
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], name="tanh"),
        helper.make_node(operator, ["t", "w"], ["c"], name="op", **attributes),
        helper.make_node("Tanh", ["c"], ["y"], name="end"),
    ]
    source = model(nodes, [value("x", shape)], [value("y", [None] * rank)], {"w": array(3, *kernel, scale=0.2)})

    def parts(size: int, dimensions: int = rank) -> tuple[Split, Reorder]:
        return Split(1, (size // 4, 4)), Reorder((0, 1, *range(3, dimensions + 1), 2))

    inner = Split(0, (2, 4)), Reorder((0, *range(2, rank + 1), 1))
    choice = Choice(parts(8, rank + phases), (parts(shape[1]), inner))
    result = make_compilation(source, CompileOptions(layouts={"op": choice}))
    assert result.laid_out is not None
    assert result.laid_out.runtime_conversions == ()
    x = {"x": array(4, *shape)}
    (comparison,) = compare_outputs(result, x, Executable(result.artifact(), 1).run(x), None)
    assert comparison.error < 1e-6
