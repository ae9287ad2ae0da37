"""Invalid feeds: every message names the input, what was expected and what was given."""

import numpy as np
import pytest
from tests.runtime.invalid_feeds import CASES, A, B, C, expect_error, pair
from tests.runtime.models import X, compile_ir, compress_artifact, scale_artifact

from tilewright.errors import EvaluatorError, FeedError, ShapeError, TilewrightError
from tilewright.machine import Target
from tilewright.runtime import Artifact, Executable
from tilewright.runtime.manifest import (
    FallbackStep,
    Manifest,
    NativeStep,
    SymbolSpec,
    TensorSpec,
)
from tilewright.runtime.manifest_meta import TargetSpec


def test_valid_feeds_of_the_model() -> None:
    assert pair()(A, B, C).shape == ()
    assert pair()(A, B, True).dtype == np.float32


@pytest.mark.parametrize("case", CASES)
def test_message(case: str) -> None:
    expect_error(case, pair())


def test_failed_call_does_not_change_the_executable() -> None:
    exe = Executable(scale_artifact(), threads=1)
    x = np.random.default_rng(5).uniform(1, 2, (4, 3)).astype(np.float32)
    good = exe(x)
    for bad in (x.astype(np.float64), x[:, :2], np.ones((13, 3), np.float32)):
        with pytest.raises(TilewrightError):
            exe(bad)
    np.testing.assert_array_equal(exe(x), good)


def test_violated_constraint_names_the_node() -> None:
    exe = Executable(scale_artifact(), threads=1)
    for _ in range(2):
        with pytest.raises(ShapeError) as error:
            exe(np.ones((13, 3), np.float32))
        assert str(error.value) == "[shape] node 'lucky' (Reshape): expected n != 13, got n=13"


LARGE = """
define i64 @P_check(ptr %symbols) {
  ret i64 STATUS
}
define void @P_shapes(ptr %symbols, ptr %out) {
  store i64 OUTPUT, ptr %out
  ret void
}
define i64 @P_workspace(ptr %symbols) {
  ret i64 ROOM
}
define i64 @P_main(ptr %inputs, ptr %outputs, ptr %weights, ptr %workspace, ptr %symbols, i64 %threads) {
  ret i64 0
}
"""


@pytest.mark.parametrize(
    ("status", "output", "room", "message"),
    [
        (1, 1, 0, "these sizes need more than 2^46 bytes or 2^62 operations: n=3"),
        (0, 2**62, 0, f"not enough memory: these sizes need {2**64} bytes: n=3"),
        (0, 2**56, 100, f"not enough memory: these sizes need {2**58 + 100} bytes: n=3"),
        (0, 1, 2**60, f"not enough memory: these sizes need {2**60 + 4} bytes: n=3"),
    ],
)
def test_not_enough_memory(status: int, output: int, room: int, message: str) -> None:
    x, y = TensorSpec("x", "float32", ("n",)), TensorSpec("y", "float32", ("big",))
    manifest = Manifest(
        (x,), (y,), (SymbolSpec("n"),), (NativeStep("tw", (x,), (y,), (), ("n",)),), TargetSpec.of(Target.host())
    )
    text = LARGE.replace("STATUS", str(status)).replace("OUTPUT", str(output)).replace("ROOM", str(room))
    exe = Executable(Artifact(manifest, compile_ir(text), {}), threads=1)
    for _ in range(2):
        with pytest.raises(ShapeError) as error:
            exe(np.ones(3, np.float32))
        assert str(error.value) == f"[shape] call: {message}; feed smaller arrays"
        assert not isinstance(error.value.__context__, IndexError)


def test_unknown_status_is_an_internal_error() -> None:
    with pytest.raises(TilewrightError, match=r"^\[internal\] native code of step 'tw' answered 5; this is a fault of"):
        pair(status=5)(A, B, C)


def test_constraint_in_a_later_step() -> None:
    exe = Executable(compress_artifact(), threads=1)
    x = np.ones((14, 3), np.float32)
    with pytest.raises(ShapeError, match="expected m != 13, got m=13"):
        exe(x, np.arange(14) != 4)


def test_evaluator_error_on_values() -> None:
    exe = with_middle_result(TensorSpec("kept", "float32", ("m", 3)), data=np.array([7], np.int64))
    with pytest.raises(EvaluatorError) as error:
        exe(np.ones((4, 3), np.float32))
    assert str(error.value) == (
        "[evaluator] node 'pick' (Gather): failed on ONNX's reference evaluator, which runs it: IndexError: index 7 is "
        "out of bounds for axis 0 with size 4; given float32 [4, 3]: either these do not suit the node, or the "
        "evaluator can't run it"
    )


@pytest.mark.parametrize(
    ("dims", "message"),
    [(("n", 3), "[n, 3] with n=4"), ((5, 3), "[5, 3]"), (("m",), "[m]"), (("m", "n"), "[m, n] with n=4")],
)
def test_evaluator_result_contradicts_declared_shape(dims: tuple[int | str, ...], message: str) -> None:
    exe = with_middle_result(TensorSpec("kept", "float32", dims), data=np.array([0, 2], np.int64))
    with pytest.raises(FeedError) as error:
        exe(np.ones((4, 3), np.float32))
    assert str(error.value) == (
        "[feed] model: the reference evaluator's result 'kept' for node 'pick' (Gather) has shape [2, 3], the model "
        f"says {message}; correct the shapes that the model declares"
    )


def with_middle_result(kept: TensorSpec, data: np.ndarray) -> Executable:
    """kept = Gather(x, data) in the reference evaluator, with the given declared shape."""
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "index"], ["kept"], name="pick")],
        "fallback",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])],
        [helper.make_tensor_value_info("kept", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(data, "index")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    step = FallbackStep("f", (X,), (kept,), ("node 'pick' (Gather)",))
    symbols = (SymbolSpec("n"), SymbolSpec("m"))
    manifest = Manifest((X,), (kept,), symbols, (step,), TargetSpec.of(Target.host()))
    return Executable(Artifact(manifest, b"", {"f": np.frombuffer(model.SerializeToString(), np.uint8)}))


def test_reader_declares_another_shape() -> None:
    exe = Executable(compress_artifact(), threads=1)
    steps = exe.manifest.steps
    narrow = TensorSpec("kept", "float32", (5, 3))
    out = TensorSpec("out", "float32", (5, 3))
    last = NativeStep("tw1", (narrow,), (out,), ("w",), ("n",))
    manifest = Manifest(exe.inputs, (out,), exe.manifest.symbols, (*steps[:2], last), exe.manifest.target)
    narrowed = Executable(Artifact(manifest, exe.artifact.code, exe.artifact.weights), threads=1)
    with pytest.raises(FeedError) as error:
        narrowed(np.ones((4, 3), np.float32), np.ones(4, np.bool_))
    assert str(error.value) == "[feed] tensor 'kept': expected shape [5, 3], got [4, 3]"


def test_unchecked_sizes() -> None:
    exe = Executable(scale_artifact(), threads=1)
    assert str(TensorSpec("q", "int8", (None, 3, "n"))) == "int8 [?, 3, n]"
    assert exe.inputs == (X,)
