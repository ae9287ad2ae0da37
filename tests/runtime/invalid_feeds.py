"""Invalid feeds, with the errors that they cause."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.runtime.models import compile_ir

from tilewright.errors import FeedError, ShapeError, TilewrightError
from tilewright.machine import Target
from tilewright.runtime import Artifact, Executable
from tilewright.runtime.manifest import (
    Manifest,
    NativeStep,
    SymbolSpec,
    TensorSpec,
)
from tilewright.runtime.manifest_meta import TargetSpec

PAIR = """
define i64 @P_check(ptr %symbols) { ret i64 0 }
define void @P_shapes(ptr %symbols, ptr %out) { ret void }
define i64 @P_workspace(ptr %symbols) { ret i64 0 }
define i64 @P_main(ptr %inputs, ptr %outputs, ptr %weights, ptr %workspace, ptr %symbols, i64 %threads) {
  ret i64 STATUS
}
"""


def pair(status: int = 0) -> Executable:
    """Inputs a[n, 4] float32, b[n, m] int64 (1 <= m <= 8), c bool scalar; one output of rank 0."""
    inputs = (TensorSpec("a", "float32", ("n", 4)), TensorSpec("b", "int64", ("n", "m")), TensorSpec("c", "bool", ()))
    output = TensorSpec("y", "float32", ())
    step = NativeStep("tw", inputs, (output,), (), ("n", "m"))
    symbols = (SymbolSpec("n", 1, None), SymbolSpec("m", 1, 8))
    manifest = Manifest(inputs, (output,), symbols, (step,), TargetSpec.of(Target.host()))
    return Executable(Artifact(manifest, compile_ir(PAIR.replace("STATUS", str(status))), {}), threads=1)


A, B, C = np.ones((2, 4), np.float32), np.ones((2, 3), np.int64), np.array(True)


CASES: dict[str, tuple[Callable[[Executable], object], type[TilewrightError], str]] = {
    "missing": (
        lambda exe: exe(A, B),
        FeedError,
        "[feed] input 'c': missing, expected bool []",
    ),
    "missing by name": (
        lambda exe: exe.run({"b": B, "c": C}),
        FeedError,
        "[feed] input 'a': missing, expected float32 [n, 4]",
    ),
    "extra": (
        lambda exe: exe.run({"a": A, "b": B, "c": C, "d": C}),
        FeedError,
        "[feed] input 'd': the model has no such input; its inputs are 'a', 'b', 'c'",
    ),
    "too many": (lambda exe: exe(A, B, C, C), FeedError, "[feed] call: expected 3 inputs, got 4"),
    "twice": (lambda exe: exe(A, B, C, a=A), FeedError, "[feed] input 'a': given both by position and by name"),
    "double for float": (
        lambda exe: exe(A.astype(np.float64), B, C),
        FeedError,
        "[feed] input 'a': expected float32 [n, 4], got float64 [2, 4]; convert it with .astype('float32')",
    ),
    "int32 for int64": (
        lambda exe: exe(A, B.astype(np.int32), C),
        FeedError,
        "[feed] input 'b': expected int64 [n, m], got int32 [2, 3]; convert it with .astype('int64')",
    ),
    "uint8 for bool": (
        lambda exe: exe(A, B, np.array(1, np.uint8)),
        FeedError,
        "[feed] input 'c': expected bool [], got uint8 []; convert it with .astype('bool')",
    ),
    "big-endian": (
        lambda exe: exe(A.astype(">f4"), B, C),
        FeedError,
        "[feed] input 'a': expected float32 [n, 4], got big-endian float32 [2, 4]; convert it with .astype('float32')",
    ),
    "floats in a list for integers": (
        lambda exe: exe(A, [[1.5, 2.0], [0.0, 1.0]], C),
        FeedError,
        "[feed] input 'b': expected int64 [n, m], got float64 [2, 2]; convert it with .astype('int64')",
    ),
    "ragged list": (
        lambda exe: exe(A, [[1], [2, 3]], C),
        FeedError,
        "[feed] input 'b': expected int64 [n, m], got a list that NumPy can't read",
    ),
    "text": (
        lambda exe: exe(A, "two", C),
        FeedError,
        "[feed] input 'b': expected int64 [n, m], got a str that NumPy can't read "
        "(it has neither __dlpack__ nor __array__); pass a NumPy array in main memory",
    ),
    "None": (
        lambda exe: exe(None, B, C),
        FeedError,
        "[feed] input 'a': expected float32 [n, 4], got a NoneType that NumPy can't read "
        "(it has neither __dlpack__ nor __array__); pass a NumPy array in main memory",
    ),
    "tensor of another device": (
        lambda exe: exe(OnDevice(), B, C),
        FeedError,
        "[feed] input 'a': expected float32 [n, 4], got a OnDevice that NumPy can't read",
    ),
    "rank": (
        lambda exe: exe(A[0], B, C),
        FeedError,
        "[feed] input 'a': expected shape [n, 4], got [4]",
    ),
    "rank of a scalar": (
        lambda exe: exe(A, B, np.ones(1, np.bool_)),
        FeedError,
        "[feed] input 'c': expected shape [], got [1]",
    ),
    "fixed size": (
        lambda exe: exe(A[:, :3], B, C),
        FeedError,
        "[feed] input 'a': expected shape [n, 4], got [2, 3]",
    ),
    "above the range": (
        lambda exe: exe(A, np.ones((2, 9), np.int64), C),
        ShapeError,
        "[shape] input 'b' axis 1: expected a size for 'm' within 1..8, got 9; compile with --shape m:1..9"
        ", which warns where a node excludes the size",
    ),
    "below the range": (
        lambda exe: exe(A, np.ones((2, 0), np.int64), C),
        ShapeError,
        "[shape] input 'b' axis 1: expected a size for 'm' within 1..8, got 0; compile with --shape m:0..8"
        ", which warns where a node excludes the size",
    ),
    "below a range without an end": (
        lambda exe: exe(A[:0], B[:0], C),
        ShapeError,
        "[shape] input 'a' axis 0: expected a size for 'n' of at least 1, got 0; compile with --shape n:0..<largest>"
        ", which warns where a node excludes the size",
    ),
    "two sizes for one symbol": (
        lambda exe: exe(A, np.ones((3, 3), np.int64), C),
        ShapeError,
        "[shape] input 'b' axis 0: expected size 2 for 'n' as in input 'a' axis 0, got 3",
    ),
    "unknown output": (
        lambda exe: exe.run({"a": A, "b": B, "c": C}, ["y", "z"]),
        FeedError,
        "[feed] output 'z': the model has no such output; its outputs are 'y'",
    ),
    "a name for a list of outputs": (
        lambda exe: exe.run({"a": A, "b": B, "c": C}, "y"),
        FeedError,
        "[feed] argument 'outputs': expected a list of output names, got str; pass ['y']",
    ),
    "inputs and outputs in the order of another library": (
        lambda exe: exe.run(["y"], {"a": A, "b": B, "c": C}),
        FeedError,
        "[feed] argument 'outputs': expected a list of output names, got dict; inputs come first: run(inputs, outputs)",
    ),
    "several problems of size": (
        lambda exe: exe(A, np.ones((3, 9), np.int64), C),
        ShapeError,
        "[shape] call: 2 problems\n"
        "  [shape] input 'b' axis 0: expected size 2 for 'n' as in input 'a' axis 0, got 3\n"
        "  [shape] input 'b' axis 1: expected a size for 'm' within 1..8, got 9; compile with --shape m:1..9"
        ", which warns where a node excludes the size",
    ),
    "everything at once": (
        lambda exe: exe.run({"a": A.astype(np.float64), "b": np.ones((2, 9), np.int64), "d": 1}),
        FeedError,
        "[feed] call: 4 problems\n"
        "  [feed] input 'a': expected float32 [n, 4], got float64 [2, 4]; convert it with .astype('float32')\n"
        "  [feed] input 'c': missing, expected bool []\n"
        "  [feed] input 'd': the model has no such input; its inputs are 'a', 'b', 'c'\n"
        "  [shape] input 'b' axis 1: expected a size for 'm' within 1..8, got 9; compile with --shape m:1..9"
        ", which warns where a node excludes the size",
    ),
}


class OnDevice:
    def __dlpack__(self, **options: object) -> object:
        raise BufferError("tensor lives on a GPU")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def expect_error(case: str, exe: Executable) -> None:
    """Calls an executable like that of `pair` with a case's feeds, and expects the case's error."""
    call, kind, message = CASES[case]
    with pytest.raises(TilewrightError) as error:
        call(exe)
    assert type(error.value) is kind
    if "can't read" in message and ";" not in message:  # NumPy's own reason follows
        assert str(error.value).startswith(message)
    else:
        assert str(error.value) == message
