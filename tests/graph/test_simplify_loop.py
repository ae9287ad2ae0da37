"""Loops whose number of iterations follows from a counter, and values that they carry without need."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontend.onnx_models import add_initializer, model
from tests.graph.running import assert_same, program_of, run_program

from tilewright.graph.program import Loop, Program

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def loops(program: Program) -> list[Loop]:
    return [s for s in program.steps if isinstance(s, Loop)]


def while_loop(compare: str, condition: str = "c0", trips: str = "", step: int = 1, first: int = 0):
    """A loop as TensorFlow's exporter writes it: it carries a counter, its bound and a weight, and stacks what it
    computes; `compare` is the condition over the next counter `i2` and the bound `m`."""
    body = f"""s = Shape(x)  n0 = Gather(s, zero)  n = Cast<to=6>(n0)
        f0 = Cast<to=1>(i0)  f1 = Cast<to=1>(n)  c0 = Less(f0, f1)
        i_end, y, n_end, w_end, ys = Loop({trips}, {condition}, i0, h0, n, w)
            <body = b (int64 k, bool go, int32 i, float[4] h, int32 m, float[4, 4] v)
                 => (bool go2, int32 i2, float[4] h2, int32 m2, float[4, 4] v2, float[4] stacked)
            {{ i2 = Add(i, one)  r = Gather(x, i)  p = MatMul(h, v)  q = Add(p, r)  h2 = Tanh(q)  stacked = Identity(h2)
               m2 = Identity(m)  v2 = Identity(v)  {compare} }}>"""
    outputs = "int32 i_end, float[4] y, int32 n_end, float[4, 4] w_end, float[K, 4] ys"
    proto = model(body, inputs="float[N, 4] x", outputs=outputs)
    add_initializer(proto, "zero", np.array(0))
    add_initializer(proto, "one", np.array(step, np.int32))
    add_initializer(proto, "i0", np.array(first, np.int32))
    add_initializer(proto, "h0", normal(4))
    add_initializer(proto, "w", normal(4, 4))
    return proto


BELOW = "a = Cast<to=1>(i2)  b = Cast<to=1>(m)  go2 = Less(a, b)"


@pytest.mark.parametrize("compare", [BELOW, "go2 = Less(i2, m)", "go2 = Greater(m, i2)"])
def test_a_counter_gives_the_number_of_iterations(compare):
    proto = while_loop(compare)
    for rows in (1, 2, 7):
        program = assert_same(proto, {"x": normal(rows, 4)})
    (loop,) = loops(program)
    (size,) = program.symbols
    assert loop.is_counted
    assert loop.count is size
    assert [str(b).split(": ")[1] for b in loop.initial] == ["float32[4]"]
    assert not loop.data_symbols
    assert dict(program.outputs)["ys"].shape[0] is size


@given(step=st.integers(1, 3), first=st.integers(0, 5), rows=st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_steps_and_first_values(step, first, rows):
    """Where the counter begins at the bound or above, the first iteration runs all the same if the condition holds."""
    rows = max(rows, first + step)
    proto = while_loop("go2 = Less(i2, m)", condition="", step=step, first=first)
    # an index beyond the rows is never read: the last iteration begins below the bound
    program = assert_same(proto, {"x": normal(rows, 4)})
    (loop,) = loops(program)
    assert loop.is_counted


def test_a_trip_count_limits_the_iterations():
    proto = while_loop(BELOW, trips="most")
    add_initializer(proto, "most", np.array(3))
    for rows in (1, 3, 6):
        program = assert_same(proto, {"x": normal(rows, 4)})
    assert dict(program.outputs)["ys"].shape[0] is not program.symbols[0]


@pytest.mark.parametrize(
    ("to", "bound", "first", "most"),
    [(10, 2999, 0, 5000), (3, 100, 250, 400), (3, 5, -200, 400), (12, -5, 0, 50), (13, -5, 0, 50)],
)
def test_conversions_that_change_integers_keep_the_counter(to, bound, first, most):
    """float16, int8, uint32 and uint64."""
    compare = f"a = Cast<to={to}>(i2)  b = Cast<to={to}>(m)  go2 = Less(a, b)"
    proto = counting(compare, bound, first)
    add_initializer(proto, "most", np.array(most))
    program = assert_same(proto, {"x": normal(4)})
    (loop,) = loops(program)
    assert not loop.is_counted


@pytest.mark.parametrize(("most", "count"), [(-3, 0), (0, 0), (4, 4), (60, 10), ([3], 3)])
def test_trip_counts_of_any_sign_and_rank(most, count):
    proto = counting("go2 = Less(i2, m)", 10, 0)
    add_initializer(proto, "most", np.array(most))
    i_end, _ = run_program(program_of(proto), {"x": normal(4)})
    assert i_end.shape == ()
    assert i_end == count


def counting(compare: str, bound: int, first: int):
    """A loop that counts from `first`, with the trip count `most`; `compare` is its condition over `i2` and `m`."""
    body = f"""i_end, y = Loop(most, , i0, x)
            <body = b (int64 k, bool go, int32 i, float[4] h) => (bool go2, int32 i2, float[4] h2)
            {{ i2 = Add(i, one)  h2 = Mul(h, half)  {compare} }}>"""
    proto = model(body, inputs="float[4] x", outputs="int32 i_end, float[4] y")
    for name, value in (("i0", first), ("one", 1), ("m", bound)):
        add_initializer(proto, name, np.array(value, np.int32))
    add_initializer(proto, "half", np.array(0.999, np.float32))
    return proto


def test_a_condition_of_data_keeps_the_counter():
    small = "t = ReduceSum<keepdims=0>(h2)  small = Less(t, big)"
    proto = while_loop(f"{BELOW.replace('go2 =', 'below =')}  {small}  go2 = And(small, below)")
    add_initializer(proto, "big", np.array(100, np.float32))
    program = assert_same(proto, {"x": normal(4, 4)})
    (loop,) = loops(program)
    assert not loop.is_counted
    # the bound and the weight are captured all the same
    assert [str(b).split(": ")[1] for b in loop.initial] == ["int32[]", "float32[4]"]


def test_a_bound_that_changes_keeps_the_counter():
    proto = while_loop("go2 = Less(i2, m)")
    (loop,) = [n for n in proto.graph.node if n.op_type == "Loop"]
    (identity,) = [n for n in loop.attribute[0].g.node if n.output[0] == "m2"]
    identity.op_type = "Sub"
    identity.input[:] = ["m", "one"]
    program = assert_same(proto, {"x": normal(6, 4)})
    (step,) = loops(program)
    assert not step.is_counted


def test_results_of_values_that_are_not_carried():
    program = program_of(while_loop(BELOW))
    outputs = dict(program.outputs)
    assert outputs["w_end"].name in {"w", "w_end"}
    assert outputs["i_end"].dtype.name == "int32"
