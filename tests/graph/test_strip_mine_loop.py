"""Loops whose number of iterations is data, as chunks of native code."""

import warnings

import numpy as np
import pytest
from tests.frontend.onnx_models import add_initializer, model
from tests.graph.running import assert_same, program_of

import tilewright
from tilewright.errors import FallbackWarning
from tilewright.graph.control_flow import strip_mine_loop
from tilewright.graph.program import Loop, SizesStep, nested_programs
from tilewright.runtime.manifest import IfStep, LoopStep, NativeStep

RNG = np.random.default_rng(8)

ADDING = """y = Loop (n, , x) <body = b (int64 i, bool go, float[N, 4] v) => (bool go2, float[N, 4] v2)
            { go2 = Identity(go)  k = Cast<to=1>(i)  s = Mul(v, w)  v2 = Add(s, k) }>"""


def adding():
    """A loop whose result depends on the number of the iteration; the trip count is an input."""
    proto = model(ADDING, inputs="int64 n, float[N, 4] x", outputs="float[N, 4] y")
    add_initializer(proto, "w", np.full(4, 0.999, np.float32))
    return proto


@pytest.mark.parametrize("count", [-2, 0, 1, 5, 13])
def test_chunks_of_iterations(count, monkeypatch):
    monkeypatch.setattr(strip_mine_loop, "CHUNK", 5)
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    if count >= 0:
        assert_same(adding(), {"n": np.array(count), "x": x})
    executable = tilewright.compile(adding(), optimizer="rule")
    expected = x.copy()
    for k in range(count):
        expected = expected * np.float32(0.999) + np.float32(k)
    np.testing.assert_allclose(executable.run({"n": np.array(count), "x": x})["y"], expected, rtol=1e-6)


def test_a_chunk_is_one_native_loop():
    program = program_of(adding())
    (outer,) = [s for s in program.steps if isinstance(s, Loop)]
    (inner,) = [s for s in outer.body.program.steps if isinstance(s, Loop)]
    assert outer.count is None
    assert inner.count is not None
    assert [s for s in outer.body.program.steps if isinstance(s, SizesStep)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        executable = tilewright.compile(adding(), optimizer="rule")
    (step,) = [s for s in executable.manifest.steps if isinstance(s, LoopStep | IfStep)]
    assert not [s for s in step.body.steps if isinstance(s, LoopStep)]
    assert [s for s in step.body.steps if isinstance(s, NativeStep)]


def test_loops_that_need_the_runtime_stay_whole():
    growing = """y = Loop (n, , x) <body = b (int64 i, bool go, float[M, 4] v) => (bool go2, float[K, 4] v2)
                 { go2 = Identity(go)  v2 = Concat<axis=0>(v, x) }>"""
    proto = model(growing, inputs="int64 n, float[N, 4] x", outputs="float[L, 4] y")
    program = assert_same(proto, {"n": np.array(3), "x": RNG.normal(size=(2, 4)).astype(np.float32)})
    (loop,) = [s for p in (program, *nested_programs(program)) for s in p.steps if isinstance(s, Loop)]
    assert loop.trip_count is not None


@pytest.mark.parametrize("depth", [3, 4, 5])
def test_the_deepest_level_of_native_control_flow(depth, monkeypatch):
    """A loop over chunks is one level more, which the levels that get native code have to have room for."""
    monkeypatch.setattr(strip_mine_loop, "CHUNK", 2)
    loop = ADDING.replace("y = Loop", "v0 = Loop")
    body = loop
    for k in range(1, depth):
        inner = body.replace("\n", " ")
        body = f"""v{k} = If (c) <then_branch = t{k} () => (float[N, 4] v{k - 1}) {{ {inner} }},
                   else_branch = e{k} () => (float[N, 4] w{k}) {{ w{k} = Neg(x) }}>"""
    proto = model(f"{body}  y = Abs(v{depth - 1})", inputs="bool c, int64 n, float[N, 4] x", outputs="float[N, 4] y")
    add_initializer(proto, "w", np.full(4, 0.999, np.float32))
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    for truth in (True, False):
        assert_same(proto, {"c": np.array(truth), "n": np.array(7), "x": x})
