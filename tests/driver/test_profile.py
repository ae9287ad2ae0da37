"""Profiles: what an instrumented model computes, how its readings are told, and what the machine allows. Nothing here
depends on how long anything takes."""

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.driver import models

import tilewright
from tilewright.codegen import assembly, emit_llvm
from tilewright.codegen.segment import BufferCopy, KernelCall, TimestampBuffer
from tilewright.driver.compile import make_compilation
from tilewright.driver.diagnostics.instrumentation import instrument
from tilewright.driver.diagnostics.profile import Profile, profile_compilation
from tilewright.driver.options import CompileOptions
from tilewright.errors import FeedError, OptionError
from tilewright.machine import Target
from tilewright.measure.profiling import Recorder
from tilewright.runtime import Executable
from tilewright.runtime.manifest import NativeStep
from tilewright.runtime.step_tree_call import StepTreeCall

COUNTER = "readcyclecounter"


def large() -> onnx.ModelProto:
    """Products that pay for threads, with a dynamic batch."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="wide"),
        helper.make_node("Relu", ["h"], ["r"], name="positive"),
        helper.make_node("MatMul", ["r", "v"], ["y"], name="narrow"),
    ]
    constants = {"w": models.array(1, 256, 512), "v": models.array(2, 512, 256)}
    return models.model(nodes, [models.value("x", ["batch", 256])], [models.value("y", ["batch", 256])], constants)


def two_fallbacks() -> onnx.ModelProto:
    """Native steps around and between two normalizers."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], name="first"),
        models.normalizer("t", "d", "norm one"),
        helper.make_node("Exp", ["d"], ["s"], name="exponential"),
        models.normalizer("s", "e", "norm two"),
        helper.make_node("Neg", ["e"], ["y"], name="last"),
    ]
    outputs = [models.value(name, ["n", 9]) for name in ("y", "d", "e")]  # with declared types, which are not inferred
    return models.model(nodes, [models.value("x", ["n", 9])], outputs)


RNG = np.random.default_rng()
CASES = {
    "mlp": (models.mlp, {"x": (5, 24)}),
    "convnet": (models.small_convnet, {"x": (2, 3, 16, 16)}),
    "large": (large, {"x": (96, 256)}),
    "passing on": (models.passing_on, {"x": (5, 4)}),
    "fallback": (models.with_fallback, {"in put": (5, 9)}),
    "two fallbacks": (two_fallbacks, {"x": (4, 9)}),
}


def case(name: str):
    make, shapes = CASES[name]
    return make(), {n: RNG.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@cache
def compiled(name: str):
    return make_compilation(CASES[name][0]())


@cache
def artifact(name: str):
    return compiled(name).artifact()


@pytest.mark.filterwarnings("ignore::tilewright.FallbackWarning")
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_an_instrumented_model_computes_the_same_bits(name: str, threads: int) -> None:
    feeds, compilation = case(name)[1], compiled(name)
    noted = instrument(compilation, threads)
    segments = [p.segment for p in noted.compilation.segments]
    recorder = Recorder(noted.compilation.artifact(), segments, noted.timestamp_outputs, threads, feeds)
    expected = Executable(artifact(name), threads).run(feeds)
    for _ in range(3):
        actual = recorder.results()
        assert actual.keys() == expected.keys()
        for key in expected:
            np.testing.assert_array_equal(actual[key], expected[key])


@pytest.mark.filterwarnings("ignore::tilewright.FallbackWarning")
@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "aarch64"])
@pytest.mark.parametrize("name", CASES)
def test_code_without_a_profile_knows_nothing_of_one(name: str, target: str) -> None:
    compilation = make_compilation(case(name)[0], CompileOptions(target=target, optimizer="rule"))
    before = compilation.llvm()
    noted = instrument(compilation, 4).compilation
    # threads that wait look at the counter, too
    assert before.count(COUNTER) < noted.llvm().count(COUNTER)
    assert compilation.llvm() == before
    # a segment that notes nothing among the same kernels gives the plain text again
    again = [p.segment for p in compilation.segments]
    assert emit_llvm([k.func for k in noted.kernels], again, noted.target) == before


def test_the_counter_of_aarch64_is_one_that_programs_may_read() -> None:
    instrumented = instrument(
        make_compilation(models.mlp(), CompileOptions(target="aarch64", optimizer="rule")), 2
    ).compilation
    text = assembly(instrumented.llvm(), Target.parse("aarch64"))
    assert "CNTVCT_EL0" in text
    assert "PMCCNTR" not in text


def test_timestamp_outputs_have_unused_names() -> None:
    nodes = [helper.make_node("Relu", ["stamps:tw"], ["%stamps:tw"], name="r")]
    model = models.model(nodes, [models.value("stamps:tw", [4])], [models.value("%stamps:tw", [4])])
    profile = tilewright.profile(model, {"stamps:tw": np.ones(4, np.float32)}, seconds=0.001)
    assert [e.nodes for e in profile.entries] == ["r (Relu)"]


def test_every_call_of_an_entry_has_a_record_of_its_own() -> None:
    noted = instrument(compiled("large"), 3)
    (planned,) = noted.compilation.segments
    stamps, (spec,) = planned.segment.timestamps, planned.step.outputs[-1:]
    assert stamps == TimestampBuffer(1, 3)
    assert spec.name == noted.timestamp_outputs[0]
    assert spec.dims == (8 + len(planned.segment.calls) * 4 * 8,)
    feeds = {"x": RNG.standard_normal((96, 256)).astype(np.float32)}
    words = Executable(noted.compilation.artifact(), 3).run(feeds)[spec.name]
    assert words[: len(planned.segment.symbols)].tolist() == [96]
    records = words[8:].reshape(len(planned.segment.calls), 4, 8)
    begin, end = records[:, 0, 0], records[:, 0, 1]
    assert (begin[1:] >= end[:-1]).all()
    assert (end > begin).all()
    assert (records[:, 0, 4] >= 1).all()  # both products pay for threads
    shares, regions = records[:, 1:, 2], records[:, :1, 4]
    assert (shares <= regions).all()  # a thread that comes late finds nothing to do
    assert (shares.max(1, keepdims=True) == regions).all()
    assert ((records[:, 1:, 1] > 0) == (shares > 0)).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_beyond_the_lines_are_not_started(threads: int) -> None:
    noted = instrument(compiled("large"), threads)
    feeds = {"x": RNG.standard_normal((96, 256)).astype(np.float32)}
    outputs = Executable(noted.compilation.artifact(), 8).run(feeds)
    expected = Executable(compiled("large").artifact(), threads).run(feeds)
    np.testing.assert_array_equal(outputs["y"], expected["y"])


def check(profile: Profile) -> None:
    """What holds for every profile."""
    assert profile.calls >= 8
    assert 0 < profile.sum_us <= profile.call_us
    assert profile.outside_us == pytest.approx(profile.call_us - sum(e.us for e in profile.entries))
    ends = 0.0
    for e in profile.entries:
        assert e.begin >= ends - 1e-6
        ends = e.begin + e.us
        assert e.share == pytest.approx(e.us / profile.call_us)
        assert bool(e.threads) == (e.regions > 0)
        for t in e.threads:
            assert min(t.start, t.busy, t.wait) >= 0
        if e.kind == "kernel":
            assert e.limit is not None
            assert e.limit.us == max(e.limit.compute_us, *(us for _, us in e.limit.memory_us))
    assert ends <= profile.call_us + 1e-6


@pytest.mark.filterwarnings("ignore::tilewright.FallbackWarning")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_profiles(name: str, threads: int) -> None:
    feeds, compilation = case(name)[1], compiled(name)
    profile = profile_compilation(compilation, feeds, threads, 0.001)
    check(profile)
    assert profile.threads == threads
    assert profile.inputs == {n: a.shape for n, a in feeds.items()}
    expected: list[str] = []
    segments = iter(compilation.segments)
    for step in compilation.manifest.steps:
        if isinstance(step, NativeStep):
            expected += ["kernel" if isinstance(c, KernelCall) else "copy" for c in next(segments).segment.calls]
        else:
            expected.append("fallback")
    assert [e.kind for e in profile.entries] == expected


def test_entries_have_the_names_of_the_users_nodes() -> None:
    model, feeds = case("mlp")
    profile = tilewright.profile(model, feeds, seconds=0.001, fusion="unfused")
    assert list(dict.fromkeys(e.nodes for e in profile.entries)) == [
        "dense1 (Gemm) + relu1 (Relu)", "dense2 (MatMul) + bias2 (Add)", "softmax (Softmax)",
    ]  # fmt: skip
    assert profile.sizes == {"batch": 5}
    assert profile.entries[0].flops == 2 * 5 * 24 * 40 + 5 * 40 * 2


@pytest.mark.filterwarnings("ignore::tilewright.FallbackWarning")
def test_fallback_steps_have_entries_in_their_places() -> None:
    model, feeds = case("two fallbacks")
    profile = tilewright.profile(model, feeds, seconds=0.001)
    assert [(e.kind, e.nodes) for e in profile.entries if e.kind == "fallback"] == [
        ("fallback", "norm one (Normalizer)"), ("fallback", "norm two (Normalizer)"),
    ]  # fmt: skip
    assert [e.step for e in profile.entries] == sorted(e.step for e in profile.entries)
    assert all(e.limit is None and e.flops is None for e in profile.entries if e.kind == "fallback")


def test_operations_and_bytes_follow_the_sizes_of_the_call() -> None:
    compilation = compiled("large")
    small, wide = (
        profile_compilation(compilation, {"x": RNG.standard_normal((n, 256)).astype(np.float32)}, 1, 0.001)
        for n in (16, 64)
    )
    for a, b in zip(small.entries, wide.entries, strict=True):
        assert a.flops is not None
        assert b.flops == 4 * a.flops
        assert a.limit is not None
        assert b.limit is not None
        # weights are the same, the rest grows with the batch
        weight = 4 * 256 * 512
        assert b.limit.bytes - weight == 4 * (a.limit.bytes - weight)


def test_copies_have_entries() -> None:
    compilation = compiled("passing on")
    copies = [c for p in compilation.segments for c in p.segment.calls if isinstance(c, BufferCopy)]
    profile = profile_compilation(compilation, {"x": RNG.standard_normal((3, 4)).astype(np.float32)}, 1, 0.001)
    copied_nodes = [e.nodes for e in profile.entries if e.kind == "copy"]
    assert len(copied_nodes) == len(copies) == 4
    assert copied_nodes == ["output 'same'", "output 'view'", "output 'constant'", "output 'again'"]


def test_overhead_is_measured_on_demand() -> None:
    feeds, compilation = case("mlp")[1], compiled("mlp")
    assert profile_compilation(compilation, feeds, 1, 0.001).overhead is None
    measured = profile_compilation(compilation, feeds, 1, 0.001, with_overhead=True).overhead
    assert measured is not None
    assert measured > -1


def test_step_trees_are_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile says so, and compares with plain calls that are walked, too."""

    def refuse(*_: object) -> None:
        raise AssertionError("a call of the step tree")

    monkeypatch.setattr(StepTreeCall, "call", refuse)
    graph = onnx.parser.parse_graph("g (float[N] x) => (int64[1, M] y) { y = NonZero(x) }")
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    feeds = {"x": RNG.standard_normal(20).astype(np.float32)}
    profile = profile_compilation(make_compilation(model), feeds, 1, 0.001, with_overhead=True)
    assert profile.is_walked
    assert not profile_compilation(compiled("mlp"), case("mlp")[1], 1, 0.001).is_walked


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_seconds_are_refused_before_kernels_are_built(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.driver.compile.KernelBuilds", None)
    with pytest.raises(OptionError, match="expected a number of seconds of more than 0"):
        tilewright.profile(models.mlp(1), {"x": np.zeros((1, 24), np.float32)}, seconds=seconds)


def test_wrong_feeds_are_an_error_as_for_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.driver.compile.KernelBuilds", None)  # before it takes its time
    with pytest.raises(FeedError, match="missing"):
        tilewright.profile(models.mlp(), {}, seconds=0.001)
    not_feeds: Any = [1]
    with pytest.raises(FeedError, match="expected a mapping"):
        tilewright.profile(models.mlp(), not_feeds, seconds=0.001)
