"""Fast calls: shapes seen before go through native code, which accepts what Python would and refuses the rest."""

import ctypes
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from tests.runtime.invalid_feeds import CASES, A, B, C, expect_error, pair
from tests.runtime.models import WEIGHT, scale_artifact

from tilewright.runtime import Executable
from tilewright.runtime import fast_call as module
from tilewright.runtime.call_frame import CAN_REUSE_OUTPUTS, address_of
from tilewright.runtime.fast_call import CONTEXT_WORDS, MISMATCH, expected_words, make_fast_call
from tilewright.runtime.native_call import NativeCall

pytestmark = pytest.mark.skipif(not CAN_REUSE_OUTPUTS, reason="this interpreter has no entries")

MAIN = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 5, ctypes.c_int64)
ANSWER = 7

X, Y = np.zeros((2, 3), np.float32), np.zeros(4, np.int64)


class Kernel:
    """A kernel that records its calls, and its fast call for arrays like X and Y."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.places = (ctypes.c_size_t * 2)()
        self.main = MAIN(self._called)
        self.words = expected_words([X.dtype, Y.dtype], [X.shape, Y.shape])
        code = ctypes.cast(self.main, ctypes.c_void_p).value
        fields = (code, 2, ctypes.addressof(self.places), 11, 12, 13, 14, 3, address_of(self.words))
        self.context = np.array(fields, np.int64)
        call = make_fast_call(self.context)
        assert call is not None
        self.enter = call

    def _called(self, *arguments: object) -> int:
        self.calls.append(arguments)
        return ANSWER


@pytest.fixture(name="kernel")
def fixture_kernel() -> Kernel:
    return Kernel()


@pytest.fixture(name="exe")
def fixture_exe() -> Executable:
    exe = Executable(scale_artifact(), threads=1)
    for _ in range(4):
        # the second call of a shape prepares the fast ones, in each of two frames
        exe(rows(5))
    return exe


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (n, 3)).astype(np.float32)


def test_context_words(kernel: Kernel) -> None:
    assert len(kernel.context) == len(CONTEXT_WORDS)


def test_matching_arrays_are_accepted(kernel: Kernel) -> None:
    assert kernel.enter(X, Y) == ANSWER
    assert kernel.calls == [(ctypes.addressof(kernel.places), 11, 12, 13, 14, 3)]
    assert list(kernel.places) == [address_of(X), address_of(Y)]
    again = X.copy()
    again.flags.writeable = False
    assert kernel.enter(again, Y) == ANSWER
    assert kernel.places[0] == address_of(again)


def misaligned(array: np.ndarray) -> np.ndarray:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    return memory[1:].view(array.dtype).reshape(array.shape)


REFUSALS: dict[str, tuple[object, ...]] = {
    "none": (), "fewer": (X,), "more": (X, Y, Y), "swapped": (Y, X),
    "no array": (X, 3), "list": (X, [1, 2, 3, 4]), "scalar": (X, np.int64(3)), "none for an array": (None, Y),
    "subclass": (X.view(np.ma.MaskedArray), Y),
    "other type": (X.astype(np.float64), Y), "same size": (X.view(np.int32), Y), "other order": (X.astype(">f4"), Y),
    "other size": (np.zeros((2, 4), np.float32), Y), "turned": (np.zeros((3, 2), np.float32), Y),
    "lower rank": (np.zeros(6, np.float32), Y), "higher rank": (X[None], Y), "rank 0": (X, np.array(1)),
    "not contiguous": (X, np.zeros(8, np.int64)[::2]), "by columns": (np.asfortranarray(X), Y),
    "misaligned": (misaligned(X), Y), "empty": (X, np.zeros(0, np.int64)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_other_arguments_are_refused(kernel: Kernel, case: str) -> None:
    assert kernel.enter(*REFUSALS[case]) == MISMATCH
    assert kernel.calls == []


def test_equal_dtype_of_another_identity_is_refused(exe: Executable) -> None:
    dtype = np.dtype("float32", metadata={"unit": "m"})
    assert dtype == np.dtype("float32")
    x = rows(5).astype(dtype)
    for _ in range(3):
        np.testing.assert_array_equal(exe(x), rows(5) * WEIGHT)


def test_repeated_shapes_use_a_fast_call(exe: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> list[np.ndarray]:
        raise AssertionError("not through native code")

    monkeypatch.setattr(NativeCall, "run", fails)
    for k in range(3):
        np.testing.assert_array_equal(exe(rows(5, k)), rows(5, k) * WEIGHT)
        np.testing.assert_array_equal(exe(**{exe.inputs[0].name: rows(5, k)}), rows(5, k) * WEIGHT)
    with pytest.raises(AssertionError, match="not through native code"):
        exe(rows(6))


@pytest.mark.parametrize("case", CASES)
def test_errors_after_valid_calls(case: str) -> None:
    exe = pair()
    for _ in range(3):
        exe(A, B, C)
    expect_error(case, exe)
    assert exe(A, B, C).shape == ()


SCENARIOS: dict[str, Callable[[Executable], list[np.ndarray]]] = {
    "alternating shapes": lambda exe: [exe(rows(n)) for n in (5, 6, 5, 7, 6, 5)],
    "results that are kept": lambda exe: [exe(rows(5, k)) for k in range(6)],
    "results that are inputs": lambda exe: [exe(exe(exe(rows(5))))],
    "by columns": lambda exe: [exe(np.asfortranarray(rows(5)))],
    "by name": lambda exe: [exe.run({exe.inputs[0].name: rows(n)})[exe.outputs[0].name] for n in (5, 5, 6)],
}


@pytest.mark.parametrize("case", SCENARIOS)
def test_results_equal_those_without_fast_calls(exe: Executable, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = np.concatenate(SCENARIOS[case](exe))
    monkeypatch.setattr(module, "_link_once", lambda: None)
    plain = Executable(scale_artifact(), threads=1)
    assert make_fast_call(np.zeros(len(CONTEXT_WORDS), np.int64)) is None
    np.testing.assert_array_equal(results, np.concatenate(SCENARIOS[case](plain)))


def test_code_outlives_the_cache_that_holds_it() -> None:
    """Python reads the description of a native function whenever it collects garbage, or drops the function."""
    code = module._link_once()  # pyright: ignore[reportPrivateUsage]
    assert code is not None
    address, before, owner = ctypes.addressof(code.method), bytes(code.method), weakref.ref(code.method)
    del code
    module._link_once.cache_clear()  # pyright: ignore[reportPrivateUsage]
    gc.collect()
    assert owner() is not None
    assert ctypes.string_at(address, len(before)) == before


_FUNCTIONS_IN_CYCLES = """
import gc
import numpy as np
from tilewright.runtime import fast_call
for _ in range(20):
    cycle = [fast_call.make_fast_call(np.zeros(9, np.int64)) for _ in range(3)]
    cycle.append(cycle)
    fast_call._link_once.cache_clear()
    del cycle
    gc.collect()
print("alive")
"""


@pytest.mark.parametrize("byte", ["34", "255"])
def test_functions_in_garbage_are_collected(byte: str) -> None:
    # memory that was freed is filled with the complement of the byte (glibc): reading a description there crashes
    environment = os.environ | {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": byte}
    command = [sys.executable, "-c", _FUNCTIONS_IN_CYCLES]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "alive\n"), result.stderr


def test_wrong_field_offset_disables_fast_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    has_expected_layout: Callable[[], bool] = module._has_expected_layout  # pyright: ignore[reportPrivateUsage]
    assert has_expected_layout()
    for name in ("_RANK", "_DTYPE", "_FLAGS"):
        with monkeypatch.context() as m:
            m.setattr(module, name, getattr(module, name) + 8)
            assert not has_expected_layout()
