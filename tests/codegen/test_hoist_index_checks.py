"""Index checks of loops of routines: which are hoisted, and that wrong indices end the routine wherever they are."""

import ast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native_routine import make_segment, run_native

from tilewright.codegen import assembly, emit_entry_module
from tilewright.codegen.emit_routine import OUT_OF_BOUNDS
from tilewright.codegen.hoist_index_checks import hoist_index_checks
from tilewright.machine import Target
from tilewright.routine.routine import Elements, routine


def hoisted(text):
    """Texts of the hoisted indices of a loop over i, and whether it is vectorizable."""
    result = hoist_index_checks("i", ast.parse(text).body)
    return [f"{buffer}[{ast.unparse(index)}]" for buffer, index in result.checks], result.is_vectorizable


@pytest.mark.parametrize(
    ("body", "indices", "is_vectorizable"),
    [
        ("out[i] = x[i + 2] * y[k]", ["x[i + 2]", "y[k]", "out[i]"], True),
        ("at = base + i * n\nvalue = x[at]\nout[at] = value", ["x[base + i * n]", "out[base + i * n]"], True),
        ("out[n - 1 - i if k != 0 else i] = x[i]", ["x[i]", "out[n - 1 - i if k != 0 else i]"], True),
        ("out[i] += x[i] if x[i] > 0 else y[i]", ["x[i]", "out[i]"], False),
        ("total = total + x[i]", ["x[i]"], False),
        ("out[i * i] = x[i]", ["x[i]"], False),
        ("out[y[i]] = x[i]", ["y[i]", "x[i]"], False),
        ("at = at + 2\nout[at] = x[i]", ["x[i]"], False),
        ("out[i // 2] = x[i]", ["x[i]"], False),
        ("out[i], out[n] = x[n], x[i]", ["out[i]", "out[n]", "x[n]", "x[i]"], True),
        ("k, at = i, i + 1\nout[i] = x[i]", ["out[i]", "x[i]"], True),
        ("at = i\nat, out[at] = far, x[i]", [], False),
        ("out[i] = f(x[i])", [], False),
        ("if x[i] > 0:\n    out[i] = x[i]", [], False),
        ("out[i] = x[i]\nreturn 1", [], False),
        ("i = i + 1\nout[i] = x[k]", ["out[i + 1]", "x[k]"], False),
    ],
)
def test_indices(body, indices, is_vectorizable):
    texts, vectorizable = hoisted(body)
    assert sorted(texts) == sorted(indices)
    assert vectorizable == is_vectorizable


@routine()
def copy_upwards(x: Elements, out: Elements, start: int, stop: int, factor: int, offset: int) -> int:
    for i in range(start, stop):
        out[i * factor + offset] = x[i - start]
    return 0


@routine()
def copy_downwards(x: Elements, out: Elements, start: int, stop: int, factor: int, offset: int) -> int:
    for i in range(start, stop, -2):
        out[i * factor + offset] = x[(start - i) // 2]
    return 0


SMALL = st.integers(-12, 12)


@settings(max_examples=30, deadline=None)
@given(SMALL, SMALL, st.integers(-3, 3), SMALL)
def test_wrong_indices_end_the_routine(start, stop, factor, offset):
    for code, step in ((copy_upwards, 1), (copy_downwards, -2)):
        x, out = np.arange(1, 31), np.zeros(20, np.int64)
        fenced = np.zeros(40, np.int64)
        indices = [i * factor + offset for i in range(start, stop, step)]
        status = run_native((code, [x], [fenced[10:30]], [start, stop, factor, offset]))
        assert status == (0 if all(0 <= i < 20 for i in indices) else OUT_OF_BOUNDS)
        assert not fenced[:10].any()
        assert not fenced[30:].any()
        if status == 0:
            code.run([x, out], [start, stop, factor, offset])
            np.testing.assert_array_equal(fenced[10:30], out)


@pytest.mark.parametrize("factor", [2**63 - 1, -(2**63), 2**62, 2**61, 2**60])
def test_indices_that_wrap_around_are_wrong(factor):
    # 16 * 2**60 is 0 of 64 bits: the last index is the first one
    x, out = np.arange(1, 31), np.zeros(20, np.int64)
    for iterations in (3, 5, 9, 17):
        assert run_native((copy_upwards, [x], [out], [0, iterations, factor, 0])) == OUT_OF_BOUNDS


def test_a_loop_without_iterations_checks_nothing():
    x, out = np.arange(3), np.zeros(3, np.int64)
    assert run_native((copy_upwards, [x], [out], [5, 5, 1, 100])) == 0


@routine()
def running_total(x: Elements, out: Elements) -> int:
    total = x[0] * 0
    for i in range(len(x)):
        total = total + x[i]
    out[0] = total
    return 0


def test_sums_keep_their_order():
    x = np.random.default_rng().normal(size=1001).astype(np.float32)
    native, python = np.zeros(1, np.float32), np.zeros(1, np.float32)
    assert run_native((running_total, [x], [native], ())) == 0
    running_total.run([x, python], ())
    assert native == python


@routine()
def add(x: Elements, out: Elements) -> int:
    for i in range(len(x)):
        out[i] = x[i] + out[i]
    return 0


def test_vectors():
    x, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    target = Target.parse("x86-64-v3")
    for code, scalars in ((add, []), (running_total, [])):
        text = assembly(emit_entry_module({}, [make_segment((code, [x], [out], scalars))], target), target)
        assert ("ymm" in text) == (code is add)


@routine()
def store_behind_a_name(x: Elements, out: Elements, n: int, far: int) -> int:
    k = 0
    for i in range(n):
        k = i
        k, out[k] = far, x[i]
    return 0


def test_a_name_is_stored_before_the_element_beside_it():
    x, memory, expected = np.arange(1, 21), np.zeros(40, np.int64), np.zeros(20, np.int64)
    assert run_native((store_behind_a_name, [x], [memory[:20]], [4, 25])) == OUT_OF_BOUNDS
    assert not memory.any()
    assert run_native((store_behind_a_name, [x], [memory[:20]], [4, 7])) == 0
    store_behind_a_name.run([x, expected], [4, 7])
    np.testing.assert_array_equal(memory[:20], expected)
