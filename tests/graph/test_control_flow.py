"""Conditionals, loops and scans as steps that hold programs."""

import numpy as np
import pytest
from tests.frontend.onnx_models import add_initializer, model, untyped
from tests.graph.running import assert_same, program_of

from tilewright.errors import FallbackWarning, ModelError
from tilewright.frontend.onnx import load_onnx
from tilewright.graph.lower import lower_graph
from tilewright.graph.passes import simplify_graph
from tilewright.graph.program import Conditional, ControlFlow, Fallback, Loop, Program, RuntimeStep, nested_programs

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    """Random float32."""
    return RNG.normal(size=shape).astype(np.float32)


def runtime_steps(program: Program) -> list[RuntimeStep]:
    """The steps that the runtime executes, in bodies, too."""
    return [s for p in (program, *nested_programs(program)) for s in p.steps if isinstance(s, RuntimeStep)]


IF = """a = Abs(x)  y = If (c) <then_branch = t () => (float[N, 4] r) { x1 = Relu(a)  r = Mul(x1, w) },
                                else_branch = e () => (float[N, 4] r) { r = Neg(x) }>"""


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("constant", [True, False])
def test_branches_capture_values(truth, constant):
    proto = model(IF, inputs="bool c, float[N, 4] x" + ("" if constant else ", float[4] w"))
    weight = normal(4)
    if constant:
        add_initializer(proto, "w", weight)
    feeds = {"c": np.array(truth), "x": normal(3, 4)} | ({} if constant else {"w": weight})
    program = assert_same(proto, feeds)
    (step,) = runtime_steps(program)
    assert isinstance(step, Conditional)
    assert {b.name for b in step.inputs} == {"c", "x", "a"} | (set() if constant else {"w"})
    assert [b.name for b in step.else_branch.captures] == ["x"]


def test_renamed_captured_values():
    body = "b = Identity(x)  a = Abs(b)  d = Abs(x)  " + IF.replace("a = Abs(x)  ", "").replace("Neg(x)", "Neg(d)")
    proto = model(body, inputs="bool c, float[N, 4] x, float[4] w")
    for truth in (True, False):
        assert_same(proto, {"c": np.array(truth), "x": normal(3, 4), "w": normal(4)})


BRANCHES = """y = If (c) <then_branch = t () => (float[N, 4] a) { b = Relu(x)  a = Mul(b, x) },
                         else_branch = e () => (float[N, 4] a) { a = Neg(x) }>"""


@pytest.mark.parametrize(("value", "ops"), [(True, ["Relu", "Mul", "Identity"]), (False, ["Neg", "Identity"])])
def test_conditional_on_a_constant_is_inlined(value, ops):
    proto = model(BRANCHES, inputs="float[N, 4] x")
    add_initializer(proto, "c", np.array(value))
    graph = simplify_graph(load_onnx(proto))
    assert [n.op_type for n in graph.nodes] == ops
    assert graph.nodes[-1].outputs == ("y",)


def test_inlined_branches_get_unique_names():
    body = BRANCHES.replace("y =", "p =") + " " + BRANCHES.replace("y =", "q =") + " y = Add(p, q)"
    proto = model(body, inputs="float[N, 4] x")
    add_initializer(proto, "c", np.array(True))
    program = assert_same(proto, {"x": normal(3, 4)})
    assert not runtime_steps(program)


SIZE = """s = Shape(x)  n = Gather(s, one)  m = Add(n, off)  q = Div(m, by)  c = Equal(q, one)
          y = If (c) <then_branch = t () => (float[A, B] a) { a = Relu(x) },
                      else_branch = e () => (float[A, B] a) { a = Neg(x) }>"""


@pytest.mark.parametrize(
    ("sizes", "left"), [("192..703", ["Relu"]), ("704..900", ["Neg"]), ("192..704", ["Conditional"])]
)
def test_condition_follows_from_a_range(sizes, left):
    proto = model(SIZE, inputs="float[N, S] x", outputs="float[N, S] y")
    for name, value in (("one", 1), ("off", 320), ("by", 512)):
        add_initializer(proto, name, np.array(value))
    program = lower_graph(simplify_graph(load_onnx(proto, {"S": sizes})))
    steps = [type(s).__name__ for s in program.steps if isinstance(s, ControlFlow)]
    assert steps == [x for x in left if x == "Conditional"]
    if not steps:
        x = normal(1, int(sizes.split(".")[0]))
        assert_same_program(program, x, np.maximum(x, 0) if left == ["Relu"] else -x)


def assert_same_program(program: Program, x: np.ndarray, expected: np.ndarray) -> None:
    """A program of one input gives what is expected."""
    from tests.graph.running import run_program

    np.testing.assert_array_equal(run_program(program, {"x": x})[0], expected)


def test_sizes_of_branches_that_differ_are_data_dependent():
    body = """y = If (c) <then_branch = t () => (float[A, B] r) { r = Concat <axis = 0> (x, x) },
                          else_branch = e () => (float[A, B] r) { r = Neg(x) }>  z = Abs(y)"""
    proto = model(body, inputs="bool c, float[N, 4] x", outputs="float[M, 4] z")
    for truth in (True, False):
        program = assert_same(proto, {"c": np.array(truth), "x": normal(3, 4)})
    (step,) = runtime_steps(program)
    assert [str(b) for b in step.outputs] == ["y: float32[y_n0, 4]"]


def test_branches_of_other_types():
    body = BRANCHES.replace("a = Neg(x)", "a = Cast <to = 7> (x)").replace(
        "(float[N, 4] a) { a = C", "(int64[N, 4] a) { a = C"
    )
    with pytest.raises(ModelError, match=r"n0 \(If\).* as float32 in one branch, as int64 in the other"):
        program_of(model(body, inputs="bool c, float[N, 4] x"))


def test_branches_of_other_ranks_are_a_fallback():
    body = BRANCHES.replace("a = Neg(x)", "a = ReduceSum <keepdims = 0> (x, k)")
    proto = untyped(model(body, inputs="bool c, float[N, 4] x"))
    add_initializer(proto, "k", np.array([0]))
    with pytest.warns(FallbackWarning, match="the branches compute 'y' with 2 and 1 axes"):
        program = lower_graph(load_onnx(proto))
    assert [type(s) for s in runtime_steps(program)] == [Fallback]


def test_carried_value():
    body = """y = Loop (n, t, x) <body = b (int64 i, bool t_in, float[N, 4] v) => (bool t_out, float[N, 4] v_out)
              { t_out = Identity(t_in)  v_out = Add(v, x) }>"""
    proto = model(body, inputs="int64 n, bool t, float[N, 4] x")
    for count in (1, 3):
        program = assert_same(proto, {"n": np.array(count), "t": np.array(True), "x": normal(2, 4)})
    (step,) = runtime_steps(program)
    assert isinstance(step, Loop)
    assert step.is_counted
    assert [str(b) for b in step.outputs] == ["y: float32[N, 4]"]


CONCATENATING = """y, s = Loop (n, , x) <body = b (int64 i, bool g, float[M, 4] v) => (bool h, float[K, 4] w, float q)
             { w = Concat <axis = 0> (v, x)  q = ReduceSum <keepdims = 0> (w)  h = Less(q, high) }>"""


def test_growing_value_and_condition_by_data():
    proto = untyped(
        model(CONCATENATING, inputs="int64 n, float[N, 4] x, float high", outputs="float[K, 4] y, float[T] s")
    )
    for limit in (1e9, 30.0):
        feeds = {"n": np.array(6), "x": np.ones((2, 4), np.float32), "high": np.float32(limit)}
        program = assert_same(proto, feeds)
    (step,) = runtime_steps(program)
    assert isinstance(step, Loop)
    assert not step.is_counted
    assert [str(b) for b in step.outputs] == ["y: float32[y_n0, 4]", "s: float32[s_n0]"]


def test_symbols_of_growing_values_are_in_their_order():
    names = "abcdef"
    carried, grown = (", ".join(f"float[{d}] {c}{k}" for c in names) for d, k in (("M", 0), ("K", 1)))
    body = " ".join(f"{c}1 = Concat <axis = 0> ({c}0, x)" for c in names)
    results, first = ", ".join(f"{c}2" for c in names), ", ".join("x" for _ in names)
    text = f"{results} = Loop (n, , {first}) <body = b (int64 i, bool g, {carried}) => (bool g, {grown}) {{ {body} }}>"
    outputs = ", ".join(f"float[{c}] {c}2" for c in names)
    (step,) = runtime_steps(program_of(untyped(model(text, inputs="int64 n, float[N] x", outputs=outputs))))
    own = [v.name for v in step.bodies[0].program.symbols if v.name in step.bodies[0].own_symbols]
    assert [name[0] for name in own] == list(names)


def test_counted_loop_has_a_known_number_of_slices():
    body = """s = Loop (n, t) <body = b (int64 i, bool g) => (bool g, float[4] q) { q = Gather(x, i) }>"""
    proto = model(f"m = Shape(x)  n = Gather(m, zero)  {body}", outputs="float[N, 4] s")
    add_initializer(proto, "zero", np.array(0))
    add_initializer(proto, "t", np.array(True))
    program = program_of(proto)
    (step,) = runtime_steps(program)
    assert [str(b) for b in step.outputs] == ["s: float32[N, 4]"]


def test_conditional_in_a_loop():
    body = """y = Loop (n, , x) <body = b (int64 i, bool g, float[N, 4] v) => (bool g, float[N, 4] w)
      { p = Mod(i, two)  c = Equal(p, two0)  k = Cast <to = 1> (i)
        w = If (c) <then_branch = t () => (float[N, 4] r) { r = Add(v, k) },
                    else_branch = e () => (float[N, 4] r) { r = Mul(v, x) }> }>"""
    proto = model(body, inputs="int64 n, float[N, 4] x")
    add_initializer(proto, "two", np.array(2))
    add_initializer(proto, "two0", np.array(0))
    program = assert_same(proto, {"n": np.array(5), "x": normal(3, 4)})
    assert [type(s).__name__ for s in runtime_steps(program)] == ["Loop", "Conditional"]


def test_sizes_by_data_in_a_body():
    """They stay in the body."""
    body = """y = Loop (n, , x) <body = b (int64 i, bool g, float[N, 4] v) => (bool g, float[N, 4] w)
      { z = NonZero(v)  c = Shape(z)  d = ReduceSum <keepdims = 0> (c)  k = Cast <to = 1> (d)  w = Add(v, k) }>"""
    program = assert_same(model(body, inputs="int64 n, float[N, 4] x"), {"n": np.array(2), "x": normal(3, 4)})
    assert [type(s).__name__ for s in runtime_steps(program)] == ["Loop", "RoutineStep", "SizesStep"]


def test_loop_that_carries_another_type():
    body = """y = Loop (n, , x) <body = b (int64 i, bool g, float[N, 4] v) => (bool g, int64[N, 4] w)
              { w = Cast <to = 7> (v) }>"""
    with pytest.raises(ModelError, match=r"its body computes 'w' as int64, carried value 0 is float32"):
        program_of(untyped(model(body, inputs="int64 n, float[N, 4] x")))


def test_body_with_too_few_inputs():
    body = "y = Loop (n, , x) <body = b (int64 i, bool g) => (bool g, float[N, 4] w) { w = Relu(x) }>"
    with pytest.raises(ModelError, match="has 3 inputs and 1 output, its body 2 and 2"):
        program_of(model(body, inputs="int64 n, float[N, 4] x"))


def test_rank_that_an_iteration_changes_is_a_fallback():
    body = """y = Loop (n, , x) <body = b (int64 i, bool g, float v) => (bool g, float w) { w = Unsqueeze(v, z) }>"""
    proto = untyped(model(body, inputs="int64 n, float[N] x"))
    add_initializer(proto, "z", np.array([0]))
    with pytest.warns(FallbackWarning, match="an iteration changes the rank of 'v'"):
        program = lower_graph(load_onnx(proto))
    assert [type(s) for s in runtime_steps(program)] == [Fallback]


def nested(levels: int) -> str:
    """Conditionals inside each other."""
    text = "r = Relu(x)"
    for k in range(levels):
        other = "else_branch = e () => (float[N, 4] n) { n = Neg(x) }"
        branches = f"then_branch = t () => (float[N, 4] r) {{ {text} }}, {other}"
        text = f"{'y' if k == levels - 1 else 'r'} = If (c{k}) <{branches}>"
    return text


@pytest.mark.parametrize(("levels", "fallbacks"), [(1, 0), (4, 0), (5, 1), (8, 1)])
def test_levels_of_control_flow(levels, fallbacks):
    conditions = ", ".join(f"bool c{k}" for k in range(levels))
    proto = model(nested(levels), inputs=f"{conditions}, float[N, 4] x")
    feeds = {f"c{k}": np.array(True) for k in range(levels)} | {"x": normal(3, 4)}
    program = assert_same(proto, feeds)
    assert sum(isinstance(s, Fallback) for s in runtime_steps(program)) == fallbacks
