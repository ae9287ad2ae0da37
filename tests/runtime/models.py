"""Small compiled models for the runtime's tests, in hand-written LLVM IR."""

import llvmlite.binding as llvm
import numpy as np
from onnx import TensorProto, helper

from tilewright.machine import Target
from tilewright.runtime import Artifact
from tilewright.runtime.manifest import (
    ConstraintSpec,
    FallbackStep,
    Manifest,
    NativeStep,
    SymbolSpec,
    TensorSpec,
)
from tilewright.runtime.manifest_meta import ModelMeta, TargetSpec

DECLARATIONS = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare float @expf(float)
"""

# y[n, 3] = x[n, 3] * w[3], through the workspace; n = 13 breaks a constraint
SCALE = """
define i64 @P_check(ptr %symbols) {
  %n = load i64, ptr %symbols
  %bad = icmp eq i64 %n, 13
  %result = zext i1 %bad to i64
  ret i64 %result
}
define void @P_shapes(ptr %symbols, ptr %out) {
  %n = load i64, ptr %symbols
  store i64 %n, ptr %out
  %second = getelementptr i64, ptr %out, i64 1
  store i64 3, ptr %second
  ret void
}
define i64 @P_workspace(ptr %symbols) {
  %n = load i64, ptr %symbols
  %bytes = mul i64 %n, 12
  ret i64 %bytes
}
define i64 @P_main(ptr %inputs, ptr %outputs, ptr %weights, ptr %workspace, ptr %symbols, i64 %threads) {
entry:
  %x = load ptr, ptr %inputs
  %y = load ptr, ptr %outputs
  %w = load ptr, ptr %weights
  %n = load i64, ptr %symbols
  %count = mul i64 %n, 3
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %stage, label %done
stage:
  %s = phi i64 [ 0, %entry ], [ %s1, %stage ]
  %sx = getelementptr float, ptr %x, i64 %s
  %sv = load float, ptr %sx
  %st = getelementptr float, ptr %workspace, i64 %s
  store float %sv, ptr %st
  %s1 = add i64 %s, 1
  %smore = icmp slt i64 %s1, %count
  br i1 %smore, label %stage, label %scale
scale:
  %i = phi i64 [ 0, %stage ], [ %i1, %scale ]
  %c = srem i64 %i, 3
  %xp = getelementptr float, ptr %workspace, i64 %i
  %wp = getelementptr float, ptr %w, i64 %c
  %yp = getelementptr float, ptr %y, i64 %i
  %a = load float, ptr %xp
  %b = load float, ptr %wp
  %r = fmul float %a, %b
  store float %r, ptr %yp
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %scale, label %done
done:
  ret i64 0
}
"""

# threads[4] = the number of threads of a parallel region, in every element that a thread wrote
COUNT = """
define i64 @P_check(ptr %symbols) {
  ret i64 0
}
define void @P_shapes(ptr %symbols, ptr %out) {
  store i64 4, ptr %out
  ret void
}
define i64 @P_workspace(ptr %symbols) {
  ret i64 0
}
define internal void @P_body(ptr %y) {
  %me = call i32 @omp_get_thread_num()
  %all = call i32 @omp_get_num_threads()
  %slot = getelementptr i32, ptr %y, i32 %me
  store i32 %all, ptr %slot
  ret void
}
define i64 @P_main(ptr %inputs, ptr %outputs, ptr %weights, ptr %workspace, ptr %symbols, i64 %threads) {
  %y = load ptr, ptr %outputs
  call void @llvm.memset.p0.i64(ptr %y, i8 0, i64 16, i1 false)
  %one = icmp eq i64 %threads, 1
  br i1 %one, label %alone, label %team
alone:
  store i32 1, ptr %y
  ret i64 0
team:
  %n = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @P_body, ptr %y, i32 %n, i32 0)
  ret i64 0
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

N = SymbolSpec("n", 0, 1000)
X = TensorSpec("x", "float32", ("n", 3))
Y = TensorSpec("y", "float32", ("n", 3))
WEIGHT = np.array([2.0, -1.0, 0.5], np.float32)


def compile_ir(text: str, prefix: str = "tw", target: Target | None = None) -> bytes:
    """Object code of a module whose functions are called P_...; P becomes the prefix."""
    target = target or Target.host()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.feature_string, opt=2, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(DECLARATIONS + text.replace("@P_", f"@{prefix}_"))
    module.triple = target.triple
    return machine.emit_object(module)


def scale_artifact(target: Target | None = None, meta: ModelMeta | None = None) -> Artifact:
    """y = x * w as one native step with a dynamic batch and a constraint."""
    target = target or Target.host()
    step = NativeStep(
        prefix="tw",
        inputs=(X,),
        outputs=(Y,),
        weights=("w",),
        symbols=("n",),
        constraints=(ConstraintSpec("n != 13", "node 'lucky' (Reshape)"),),
        nodes=("mul",),
    )
    meta = meta or ModelMeta("scale", "tests", "1", "", 7, "", (("character", "a\nb"),))
    manifest = Manifest((X,), (Y,), (N,), (step,), TargetSpec.of(target), meta)
    return Artifact(manifest, compile_ir(SCALE, target=target), {"w": WEIGHT})


def count_artifact() -> Artifact:
    """A model without inputs that returns the number of threads that computed it."""
    spec = TensorSpec("threads", "int32", (4,))
    step = NativeStep("tw", (), (spec,))
    manifest = Manifest((), (spec,), (), (step,), TargetSpec.of(Target.host()))
    return Artifact(manifest, compile_ir(COUNT), {})


def compress_artifact() -> Artifact:
    """scale, then Compress in the reference evaluator (its output has a data-dependent size), then scale again."""
    keep = TensorSpec("keep", "bool", ("n",))
    middle, kept = TensorSpec("middle", "float32", ("n", 3)), TensorSpec("kept", "float32", ("m", 3))
    out = TensorSpec("out", "float32", ("m", 3))
    graph = helper.make_graph(
        [helper.make_node("Compress", ["middle", "keep"], ["kept"], axis=0, name="pick")],
        "fallback",
        [
            helper.make_tensor_value_info("middle", TensorProto.FLOAT, [None, 3]),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, [None]),
        ],
        [helper.make_tensor_value_info("kept", TensorProto.FLOAT, [None, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    first = NativeStep("tw", (X,), (middle,), ("w",), ("n",), (ConstraintSpec("n != 13"),))
    pick = FallbackStep("fallback0", (middle, keep), (kept,), ("node 'pick' (Compress)",))
    last = NativeStep("tw1", (kept,), (out,), ("w",), ("m",), (ConstraintSpec("m != 13"),))
    symbols = (N, SymbolSpec("m", 0, None))
    manifest = Manifest((X, keep), (out, kept), symbols, (first, pick, last), TargetSpec.of(Target.host()))
    text = SCALE.replace("@P_", "@tw_") + SCALE.replace("@P_", "@tw1_")
    weights = {"w": WEIGHT, "fallback0": np.frombuffer(model.SerializeToString(), np.uint8)}
    return Artifact(manifest, compile_ir(text), weights)
