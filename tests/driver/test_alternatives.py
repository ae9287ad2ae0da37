"""Alternatives through the pipeline: options, evaluations, native code, and no kernel constructed twice."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from tests.driver.models import array, model, residual_conv, value

import tilewright
import tilewright.driver.compile as pipeline
from tilewright.driver.compile import make_compilation
from tilewright.driver.diagnostics.float64_reference import evaluate_program
from tilewright.driver.diagnostics.verification import relative_error
from tilewright.driver.options import CompileOptions
from tilewright.errors import OptionError
from tilewright.expr.computation import Computation
from tilewright.graph.alternatives import apply_alternatives
from tilewright.graph.layouts.plan import Choice
from tilewright.graph.winograd.rewrite import winograd_forms
from tilewright.layout.primitives import Reorder
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import Gensor, Roller

TARGET = "x86-64-v4"
MACHINE = replace(machine_named("x86-64-v4"), cores=2)
"""With few cores multiplications count; with many, the transforms' memory does."""


def tiles_in(result):
    """The tile sizes of fast convolutions in a compilation, read off the stages that reduce."""
    reductions = [s for s in result.program.steps if isinstance(s, Computation) and s.is_reduction]
    return [int(s.output.shape[0].value) - 2 for s in reductions if s.output.rank == 6]


def compilation(source, **options):
    return make_compilation(source, CompileOptions(target=TARGET, optimizer="roller", machine=MACHINE, **options))


def test_winograd_is_chosen_where_the_estimate_is_faster():
    assert tiles_in(compilation(residual_conv(128, 28))) == [2]
    assert tiles_in(compilation(residual_conv(128, 28), winograd="fast")) == [4]


def test_winograd_is_not_chosen_where_the_estimate_is_slower():
    assert tiles_in(compilation(residual_conv(8, 8))) == []  # the transforms cost more than the sum
    assert tiles_in(compilation(residual_conv(512, 7))) == []  # reading more weights does


@pytest.mark.parametrize("options", [{"exact": True}, {"layouts": {"conv": Choice(output=(Reorder((0, 2, 3, 1)),))}}])
def test_exact_and_layouts_exclude_winograd(options):
    assert tiles_in(compilation(residual_conv(128, 28), **options)) == []


def test_exact_artifacts_equal_those_without_winograd_forms(monkeypatch):
    exact = compilation(residual_conv(64, 28), exact=True)
    monkeypatch.setattr(pipeline, "REWRITES", ())
    plain = compilation(residual_conv(64, 28))
    assert exact.llvm() == plain.llvm()
    assert plain.manifest.build is not None
    assert exact.manifest == replace(plain.manifest, build=replace(plain.manifest.build, convolutions="direct"))
    assert exact.weights.keys() == plain.weights.keys()


def test_optimizer_without_a_machine_never_uses_winograd():
    assert tiles_in(make_compilation(residual_conv(128, 28), CompileOptions(target=TARGET, optimizer="rule"))) == []
    with pytest.raises(OptionError, match="the optimizer 'rule' reads no description of a machine to estimate by"):
        make_compilation(residual_conv(128, 28), CompileOptions(optimizer="rule", winograd="fast"))


def test_compilation_is_deterministic():
    first, second = (compilation(residual_conv(64, 28), winograd="fast") for _ in range(2))
    assert tiles_in(first) == [4]
    assert first.artifact().code == second.artifact().code
    assert first.manifest == second.manifest
    assert [a.tobytes() for a in first.weights.values()] == [a.tobytes() for a in second.weights.values()]


def test_invalid_winograd_options():
    source = residual_conv(8, 8)
    with pytest.raises(OptionError, match=r"there is no 'quick'(.|\n)*use safe or fast"):
        make_compilation(source, CompileOptions(winograd="quick"))
    with pytest.raises(OptionError, match="exact allows no fast convolutions, so 'fast' would have no effect"):
        make_compilation(source, CompileOptions(exact=True, winograd="fast"))
    with pytest.raises(OptionError, match="a plan of layouts excludes fast convolutions, so 'fast' would have no"):
        make_compilation(source, CompileOptions(optimizer="gensor", layouts={"conv": Choice()}, winograd="fast"))
    with pytest.raises(OptionError, match="expected True or False, got 'yes'"):
        make_compilation(source, CompileOptions(exact="yes"))


def always(monkeypatch, tile, name):
    """Computes every convolution by the form of this name."""

    def form(program, *_):
        (only,) = (a for a in winograd_forms(program, float("inf"), (tile,)) if a.name == name)
        return apply_alternatives(program, [only]), ()

    monkeypatch.setattr(pipeline, "_choose_alternatives", form)


@pytest.mark.parametrize(("optimizer", "tile", "limit"), [("rule", 4, 6e-6), ("gensor", 2, 1e-6)])
def test_winograd_is_accurate_on_every_size(monkeypatch, optimizer, tile, limit):
    always(monkeypatch, tile, f"winograd F({tile}x{tile}, 3x3)")
    source = residual_conv(19, 0, ["n", 19, "h", "w"])
    compilation = make_compilation(
        source, CompileOptions(shapes={"n": "1..4", "h": "1..40", "w": "1..40"}, optimizer=optimizer)
    )
    executable = tilewright.Executable(compilation.artifact(), 2)
    for n, h, w in ((1, 1, 1), (2, 7, 5), (3, 16, 16), (1, 33, 13)):
        x = array(h, n, 19, h, w)
        (exact,) = evaluate_program(compilation.lowered, {"x": x}).values()
        assert relative_error(executable(x), exact) < limit


@pytest.mark.parametrize("batch", [1, 3])
def test_default_winograd_meets_the_error_limit_of_the_zoo(batch):
    source = residual_conv(64, 28, [batch, 64, 28, 28])
    winograd, exact = (
        make_compilation(source, CompileOptions(optimizer="roller", machine=MACHINE, exact=e)) for e in (False, True)
    )
    if tilewright.Target.host().name != TARGET and not tiles_in(winograd):
        pytest.skip("this machine's estimate is against it")
    x = array(4, batch, 64, 28, 28)
    (reference,) = evaluate_program(winograd.lowered, {"x": x}).values()
    fast, direct = (relative_error(tilewright.Executable(m.artifact())(x), reference) for m in (winograd, exact))
    assert fast <= max(2.5 * direct, 1e-6)


def video(channels, sizes, taps=(3, 3, 3)):
    """A convolution of a video with bias and activation, padded so that sizes stay."""
    pads = [t // 2 for t in taps] * 2
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["t"], name="conv", pads=pads),
        helper.make_node("Relu", ["t"], ["y"], name="relu"),
    ]
    weights = array(1, channels, channels, *taps, scale=(int(np.prod(taps)) * channels) ** -0.5)
    shape = [1, channels, *sizes]
    return model(nodes, [value("x", shape)], [value("y", shape)], {"w": weights, "b": array(2, channels)})


@pytest.mark.parametrize(("sizes", "taps"), [((4, 28, 28), (3, 3, 3)), ((8, 28, 28), (1, 3, 3))])
def test_video_convolutions_transform_only_spatial_axes_by_default(sizes, taps):
    """Time is an axis of the product; cutting it too would amplify errors beyond what the default allows."""
    compiled_model = compilation(video(128, sizes, taps))
    (product,) = (s for s in compiled_model.program.steps if isinstance(s, Computation) and s.is_reduction)
    assert product.output.rank == 7
    assert [int(n.value) for n in product.output.shape[:2]] == [4, 4]
    assert len(product.reduce_axes) == (2 if taps[0] > 1 else 1)
    left = compilation(video(8, (4, 8, 8), taps))
    (direct,) = (s for s in left.program.steps if isinstance(s, Computation) and s.is_reduction)
    assert direct.output.rank == 5  # the transforms cost more than the sum


def test_winograd_of_videos_is_accurate_on_every_size(monkeypatch):
    always(monkeypatch, 2, "winograd F(2x2, 3x3)")
    source = video(19, ("t", "h", 9))
    compilation = make_compilation(source, CompileOptions(shapes={"t": "1..9", "h": "1..20"}, optimizer="gensor"))
    assert [s.output.rank for s in compilation.program.steps if isinstance(s, Computation) and s.is_reduction] == [7]
    exact = make_compilation(source, CompileOptions(shapes={"t": "1..9", "h": "1..20"}, optimizer="rule"))
    executable = tilewright.Executable(compilation.artifact(), 2)
    for t, h in ((1, 1), (2, 7), (6, 16)):
        x = array(h, 1, 19, t, h, 9)
        (expected,) = evaluate_program(exact.lowered, {"x": x}).values()
        assert relative_error(executable(x), expected) < 1e-6


def test_intermediates_of_winograd_are_exposed():
    options = CompileOptions(target=TARGET, optimizer="roller", machine=MACHINE)
    compilation = make_compilation(residual_conv(128, 28), options, expose_intermediates=True)
    assert tiles_in(compilation) == [2]
    assert "y" in dict(compilation.program.outputs)


def test_direct_algorithm_excludes_winograd_forms():
    compiled_model = compilation(residual_conv(128, 28), exact=True)
    assert compiled_model.build.max_error_growth == 1.0
    assert compiled_model.alternatives == ()
    assert [a.name for a in winograd_forms(compiled_model.lowered, 8.0)] == ["winograd F(2x2, 3x3)"]


def test_filter_without_taps_stays_direct():
    """There is nothing to be computed fast; the sums are empty."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")]
    weights = {"w": array(1, 4, 3, 0, 0)}
    source = model(nodes, [value("x", [1, 3, 4, 4])], [value("y", [1, 4, 5, 5])], weights)
    assert tiles_in(compilation(source)) == []


def strided(channels, size, outputs):
    """A convolution of one tap that reads every second row and column."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", strides=[2, 2])]
    weights = {"w": array(1, outputs, channels, 1, 1, scale=channels**-0.5)}
    shape = [1, outputs, (size + 1) // 2, (size + 1) // 2]
    return model(nodes, [value("x", [1, channels, size, size])], [value("y", shape)], weights)


def copies_in(result):
    return [s for s in result.program.steps if isinstance(s, Computation) and not s.is_reduction]


def test_strided_operands_are_densified_where_the_estimate_is_faster():
    source = strided(256, 28, 512)
    compiled_model = compilation(source)
    (copy,) = copies_in(compiled_model)
    assert [int(n.value) for n in copy.output.shape] == [1, 256, 14, 14]
    assert copies_in(compilation(source, exact=True))  # the sums are the same ones
    assert copies_in(compilation(strided(64, 56, 4))) == []  # few sums read the copy
    assert copies_in(make_compilation(source, CompileOptions(target=TARGET, optimizer="rule"))) == []
    if tilewright.Target.host().name == TARGET:
        x = array(2, 1, 256, 28, 28)
        (exact,) = evaluate_program(compiled_model.lowered, {"x": x}).values()
        assert relative_error(tilewright.Executable(compiled_model.artifact(), 2)(x), exact) < 1e-6


def residual_network():
    """Two blocks of a ResNet: 3x3 convolutions of stride 1 and 2, a shortcut of one tap and stride 2, sums."""

    def conv(x, name, **attributes):
        return helper.make_node("Conv", [x, f"{name}_w", f"{name}_b"], [name], name=name, **attributes)

    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        conv("x", "a", **same), helper.make_node("Relu", ["a"], ["ra"], name="ra"),
        conv("ra", "b", **same), helper.make_node("Add", ["b", "x"], ["sb"], name="sb"),
        helper.make_node("Relu", ["sb"], ["rb"], name="rb"),
        conv("rb", "c", strides=[2, 2], **same), helper.make_node("Relu", ["c"], ["rc"], name="rc"),
        conv("rc", "d", **same), conv("rb", "e", strides=[2, 2]),
        helper.make_node("Add", ["d", "e"], ["sd"], name="sd"), helper.make_node("Relu", ["sd"], ["y"], name="y"),
    ]  # fmt: skip
    channels = {"a": (128, 128, 3), "b": (128, 128, 3), "c": (256, 128, 3), "d": (256, 256, 3), "e": (256, 128, 1)}
    constants = {f"{n}_w": array(k, o, i, t, t, scale=0.05) for k, (n, (o, i, t)) in enumerate(channels.items())}
    constants |= {f"{n}_b": array(9, o) for n, (o, _, _) in channels.items()}
    return model(nodes, [value("x", [1, 128, 28, 28])], [value("y", [1, 256, 14, 14])], constants)


@pytest.fixture
def worked_on(monkeypatch):
    """The canonical texts of the loops that are constructed."""
    texts = []

    def watch(optimizer):
        construct, construct_all = optimizer.construct, optimizer.construct_all

        def note(task):
            texts.append((optimizer.__name__, task.form.text, task.identity["constants"]))

        def spy(self, task):
            note(task)
            return construct(self, task)

        def spy_on_all(self, tasks):
            for task in tasks:
                note(task)
            return construct_all(self, tasks)

        monkeypatch.setattr(optimizer, "construct", spy)
        monkeypatch.setattr(optimizer, "construct_all", spy_on_all)

    watch(Gensor)
    watch(Roller)
    return texts


MODELS = {
    "residual network": (residual_network, {}, 3),
    "winograd": (lambda: residual_conv(128, 28), {"winograd": "fast"}, 1),
    "densified": (lambda: strided(256, 28, 512), {}, 1),
    "direct": (lambda: residual_conv(8, 8), {}, 1),
    "symbolic sizes": (
        lambda: residual_conv(64, 0, ["n", 64, "h", "w"]), {"shapes": {"n": "1..4", "h": "8..64", "w": "8..64"}}, 1
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["gensor", "roller"])
def test_no_kernel_is_constructed_twice(worked_on, name, optimizer):
    source, options, reused = MODELS[name]
    compiled_model = make_compilation(
        source(), CompileOptions(target=TARGET, optimizer=optimizer, machine=MACHINE, **options)
    )
    assert len(worked_on) == len(set(map(str, worked_on))) == compiled_model.constructions.constructed
    assert compiled_model.constructions.reused >= reused


def test_decisions_are_recorded(caplog):
    caplog.set_level("INFO", logger="tilewright.alternatives")
    compiled_model = compilation(residual_conv(128, 28), winograd="fast")
    assert [(d.alternative.name, d.chosen) for d in compiled_model.alternatives] == [
        ("winograd F(2x2, 3x3)", False), ("winograd F(4x4, 3x3)", True),
    ]  # fmt: skip
    small, large = compiled_model.alternatives
    assert small.before == large.before
    assert large.after < small.after < small.before
    assert small.reason == "winograd F(4x4, 3x3) saves more"
    assert large.reason.startswith("4 times fewer multiplications")
    assert [record.message for record in caplog.records] == [str(d) for d in compiled_model.alternatives]
