"""Native code of routines against the same functions run by Python."""

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from tests.codegen.native_routine import make_segment, run_native

from tilewright.codegen import assembly, emit_entry_module
from tilewright.codegen.emit_routine import OUT_OF_BOUNDS
from tilewright.errors import InternalError
from tilewright.machine import Target
from tilewright.routine.intrinsics import as_integer, element, entropy, floor, is_nan, sqrt
from tilewright.routine.routine import Elements, Routine, routine

FEW = 5
SCALE = 0.5


def sign(x: int) -> int:
    if x > 0:
        return 1
    return -1 if x < 0 else 0


def store(out: Elements, at: int, value: int) -> bool:
    out[at] = value
    return True


@routine()
def control_flow(x: Elements, out: Elements, n: int) -> int:
    place = 0
    for i in range(n):
        if x[i] < 0:
            continue
        if place > FEW and not x[i] > 90:
            break
        out[place] = x[i]
        place = place + 1
    k = len(out) - 1
    while k >= 0 and out[k] == 0:
        out[k] = 1000 + k
        k = k - 1
    for i in range(n - 1, -1, -2):
        i = i // 2
        out[i] += sign(x[i])
    return 0


@routine()
def arithmetic(x: Elements, y: Elements, out: Elements) -> int:
    for i in range(len(x)):
        a, b = int(x[i]), int(y[i])
        a, b = b, a
        out[6 * i] = a // b if b != 0 else 7
        out[6 * i + 1] = a % b if b != 0 else -7
        out[6 * i + 2] = max(a, b) - min(abs(a), 3)
        out[6 * i + 3] = (a << 3 ^ b) & 255 | (a >> 2)
        out[6 * i + 4] = 1 if -3 < a <= b else 0
        out[6 * i + 5] = (a > 0 and b > 0) + 2 * (a > 5 or b // max(a, 1) > 1)
    return 0


@routine()
def floats(x: Elements, out: Elements) -> int:
    total = element(out, 0)
    for i in range(len(x)):
        value = x[i]
        if is_nan(value):
            value = element(x, -1.5)
        total = total * SCALE + value
        out[3 * i] = total
        out[3 * i + 1] = sqrt(abs(value)) - floor(value)
        out[3 * i + 2] = as_integer(value * 3) - int(value > 0) / 4
    return 0


@routine()
def as_integers(x: Elements, out: Elements) -> int:
    for i in range(len(x)):
        out[i] = as_integer(x[i])
    return 0


@routine("the value is too large", "the value is negative")
def checked(x: Elements, out: Elements) -> int:
    for i in range(len(x)):
        if x[i] > 100:
            return 1
        if x[i] < 0:
            return 2
        store(out, i, x[i])
    return 0


@routine()
def reads_behind_the_end(x: Elements, out: Elements, at: int) -> int:
    out[0] = x[at]
    out[1] = 1
    return 0


@routine()
def writes_behind_the_end(x: Elements, out: Elements, at: int) -> int:
    store(out, at, x[0])
    store(out, 0, 5)
    return 0


def both(
    code: Routine, read: Sequence[np.ndarray], size: int, dtype: object, scalars: Sequence[int] = ()
) -> np.ndarray:
    """What native code and Python write, which must be equal bit by bit."""
    native, python = np.zeros(size, dtype), np.zeros(size, dtype)
    assert run_native((code, read, [native], scalars)) == 0
    assert code.run([*read, python], scalars) == 0
    np.testing.assert_array_equal(native, python)
    return native


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64])
def test_control_flow(dtype):
    rng = np.random.default_rng(1)
    for size in (8, 9, 30):
        x = rng.integers(0 if dtype is np.uint8 else -50, 100, size).astype(dtype)
        assert both(control_flow, [x], size, np.int64, [size]).any()


def test_integers_are_those_of_python():
    rng = np.random.default_rng(2)
    x, y = rng.integers(-40, 40, (2, 200))
    assert len(np.unique(both(arithmetic, [x, y], 1200, np.int64))) > 50


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_floats_round_like_those_of_numpy(dtype):
    x = np.random.default_rng(3).normal(size=50).astype(dtype)
    x[::7] = np.nan
    native, python = np.zeros(150, dtype), np.zeros(150, dtype)
    assert run_native((floats, [x], [native], ())) == 0
    floats.run([x, python], ())
    if dtype is not ml_dtypes.bfloat16:  # whose products with a number of Python are float32
        np.testing.assert_array_equal(native[0::3], python[0::3])
    tolerance = 1e-12 if dtype is np.float64 else 2e-6 if dtype is np.float32 else 0.05
    np.testing.assert_allclose(native.astype(np.float64), python.astype(np.float64), rtol=tolerance, atol=tolerance)


def test_floats_beyond_int64_saturate():
    x = np.array([np.inf, -np.inf, np.nan, 2.0**63, -(2.0**63), 1e300, 2.0**62, -0.9])
    lowest, highest = -(1 << 63), (1 << 63) - 1
    assert both(as_integers, [x], 8, np.int64).tolist() == [highest, lowest, 0, highest, lowest, highest, 1 << 62, 0]


def test_statuses_are_numbered_over_all_calls():
    good, large, negative = (np.array(v, np.int32) for v in ([1, 2], [1, 200], [-1, 3]))
    outputs = [np.zeros(2, np.int32) for _ in range(2)]

    def status(first: np.ndarray, second: np.ndarray) -> int:
        return run_native((checked, [first], outputs[:1], ()), (checked, [second], outputs[1:], ()))

    assert [status(good, good), status(large, good), status(negative, large)] == [0, 1, 2]
    assert [status(good, large), status(good, negative)] == [3, 4]
    np.testing.assert_array_equal(outputs[0], [1, 2])


@pytest.mark.parametrize("code", [reads_behind_the_end, writes_behind_the_end], ids=lambda code: code.name)
@pytest.mark.parametrize("at", [2, -1, 1 << 40, -(1 << 63)])
def test_no_access_out_of_bounds(code, at):
    x, out = np.array([3.0, 4.0], np.float32), np.zeros(2, np.float32)
    assert run_native((code, [x], [out], [at])) == OUT_OF_BOUNDS
    assert not out.any()
    assert run_native((code, [x], [out], [1])) == 0


@routine()
def calls_what_there_is_not(x: Elements) -> int:
    return int(np.sum(x))


@routine()
def loses_a_fraction(x: Elements) -> int:
    total = 0
    for i in range(len(x)):
        total = total + x[i]
    return total


@routine()
def counts_in_a_bool(x: Elements) -> int:
    k = len(x) > 1
    for i in range(len(x)):
        k = i
    return k


@routine()
def assigns_to_two_targets(x: Elements) -> int:
    last = 0
    for i in range(len(x)):
        last = x[last] = i
    return last


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (calls_what_there_is_not, "np.sum"),
        (loses_a_fraction, "float32 becomes int64"),
        (counts_in_a_bool, "'k' is a bool.*type int64"),
        (assigns_to_two_targets, r"line \d+: last = x\[last\] = i: assign to one name or element at a time"),
    ],
)
def test_code_outside_of_the_subset_is_refused(code, message):
    with pytest.raises(InternalError, match=message):
        run_native((code, [np.ones(3, np.float32)], [], []))


def fill_from(a: Elements, b: Elements, n: int) -> int:
    first = b[0]
    for i in range(n):
        a[i] = first + 7
    a[n] = b[0]
    return 0


def fill_by_way_of_another(a: Elements, b: Elements, n: int) -> int:
    fill_from(a, b, n)
    return 0


@routine()
def fill_from_itself(out: Elements, n: int) -> int:
    fill_by_way_of_another(out, out, n)
    return 0


def test_buffers_that_are_one_in_a_caller_of_a_caller():
    native, python = np.zeros(5, np.int64), np.zeros(5, np.int64)
    assert run_native((fill_from_itself, [], [native], [3])) == 0
    fill_from_itself.run([python], [3])
    np.testing.assert_array_equal(native, python)


@routine()
def store_entropy(out: Elements) -> int:
    out[0] = entropy()
    return 0


@pytest.mark.parametrize(("arch", "counter"), [("x86-64-v3", "rdtsc"), ("aarch64", "cntvct_el0")])
def test_entropy_reads_a_counter_of_the_processor(arch, counter):
    segment, target = make_segment((store_entropy, [], [np.zeros(1, np.int64)], [])), Target.parse(arch)
    assert counter in assembly(emit_entry_module({}, [segment], target), target).lower()
