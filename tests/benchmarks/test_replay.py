import json
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from benchmarks.replay import record
from benchmarks.replay.__main__ import main, report
from benchmarks.replay.cases import EVERYWHERE, OPTIMIZERS, TARGETS, cases
from benchmarks.replay.compare import differing, explained, fingerprint
from benchmarks.replay.normalise import llvm_lines, neutral_manifest, trace_lines
from benchmarks.replay.objects import neutral_object
from benchmarks.replay.record import Kernel, Record
from benchmarks.replay.runner import levels, path_of
from benchmarks.replay.sides import SideError, run_base, run_here

HASHES = Path(__file__).with_name("replay_hashes.json")

STORED = (
    "matmul/constant_33x65x17@avx512.gensor", "matmul/dynamic_rows@avx2.gensor", "gemm/scaled@aarch64.roller",
    "conv/3x3_winograd@avx512.gensor", "conv/depthwise3_stride2@avx2.gensor", "pool/max3_stride2@aarch64.gensor",
    "softmax/rows@avx512.roller", "normalise/layer@avx2.gensor", "reduce/sum@aarch64.rule",
    "transpose/odd@avx512.gensor", "chain/tanh_erf@avx2.rule", "attention/one_head@aarch64.gensor",
)  # fmt: skip
"""Cases whose hashes are stored: every target and optimizer, and the kinds of kernels."""


@pytest.mark.parametrize("name", STORED)
def test_generated_code_has_its_stored_hashes(name: str, tmp_path: Path, request: pytest.FixtureRequest):
    hashes = fingerprint(levels(next(c for c in cases() if c.name == name), tmp_path))
    stored = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    if request.config.getoption("--update-golden"):
        HASHES.write_text(json.dumps({**stored, name: hashes}, indent=1, sort_keys=True) + "\n")
        return
    show = f"to see what: make replay BASE=<revision> REPLAY_ARGS=\"--only '{name}'\""
    assert hashes == stored.get(name), (
        f"the generated code differs from what is stored; {show}; if that is meant:"
        " python -m pytest tests/benchmarks/test_replay.py -n0 --update-golden"
    )


def test_cases_have_names_of_their_own_and_cover_every_target_with_every_optimizer():
    names = [c.name for c in cases()]
    assert len(names) == len(set(names)) > 350
    assert {(c.target, c.optimizer) for c in cases() if c.model.name == EVERYWHERE[0]} == {
        (t, o) for t in TARGETS for o in OPTIMIZERS
    }
    assert set(EVERYWHERE) <= {c.model.name for c in cases()}


def test_a_pattern_chooses_cases_by_shape_or_part():
    assert {c.model.name.partition("/")[0] for c in cases("softmax/*")} == {"softmax"}
    assert {c.target for c in cases("@avx2.")} == {"avx2"}


def test_models_are_the_same_bytes_each_time():
    for case in cases()[::25]:
        assert case.model.make().SerializeToString() == case.model.make().SerializeToString()


LLVM = """define internal void @"k0_add"(ptr noalias %"a0", i64 %"n")
{
entry:
  %".4" = icmp sgt i64 %"n", 0
  br i1 %".4", label %"loop", label %"loop.end"
loop:
  %".6" = call float @"llvm.fabs.f32"(float 0x3ff0000000000000), !noalias !0
  call void @"k1.work"(ptr @"table")
  br label %"loop.end"
loop.end:
  ret void
}
declare float @"llvm.fabs.f32"(float %".1")
define internal void @"k1.work"(ptr %".1")
{
entry:
  ret void
}
@"table" = internal constant [4 x i8] c"a0\\00n"
!0 = !{ !"scope of a0" }
!1 = !{ !"llvm.loop.unroll.disable" }
"""

RENAMED = (
    LLVM.replace("k0_add", "k0_sum").replace('%"n"', '%"rows"').replace('%"a0"', '%"x"').replace("loop.end", "exit")
    .replace('"loop"', '"body"').replace("\nloop:", "\nbody:").replace(".4", "condition").replace("k1.work", "z")
    .replace("table", "data").replace("scope of a0", "scope of x").replace(".6", ".7")
)  # fmt: skip


def test_llvm_text_with_other_identifiers_is_equal():
    assert RENAMED != LLVM
    assert llvm_lines(RENAMED) == llvm_lines(LLVM)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("icmp sgt", "icmp sge"),
        ("llvm.fabs.f32", "llvm.sqrt.f32"),
        ('label %"loop", label %"loop.end"', 'label %"loop.end", label %"loop"'),
        ("i64 %\"n\", 0", "i64 %\"n\", 1"),
        ('c"a0\\00n"', 'c"a1\\00n"'),
        ("llvm.loop.unroll.disable", "llvm.loop.unroll.enable"),
    ],
)  # fmt: skip
def test_llvm_text_that_does_something_else_is_not_equal(old: str, new: str):
    assert old in LLVM
    assert llvm_lines(LLVM.replace(old, new)) != llvm_lines(LLVM)


TRACE = ["split('i', 8, names=('i_o', 'i_i'))", "peel('i_o', 'n // 4 * 4')", "set_scope('t0', 'register')"]


def test_traces_with_other_names_are_equal():
    other = ["split('x', 8, names=('x_o', 'x_i'))", "peel('x_o', 'rows // 4 * 4')", "set_scope('sum', 'register')"]
    assert trace_lines(other) == trace_lines(TRACE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("8", "4"), ("('i_o', 'i_i')", "('i_i', 'i_o')"), ("'register'", "'stack'"), ("peel", "unroll"), ("// 4", "// 8")],
)
def test_traces_that_do_something_else_are_not_equal(old: str, new: str):
    assert trace_lines([s.replace(old, new) for s in TRACE]) != trace_lines(TRACE)


def _object(text: str) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    return target.create_target_machine(reloc="pic").emit_object(llvm.parse_assembly(text))


FUNCTIONS = """
@table = internal constant [2 x float] [float 1.0, float 2.0]
declare float @expf(float)
define internal float @first(i64 %n) noinline {
  %p = getelementptr float, ptr @table, i64 %n
  %x = load float, ptr %p
  %y = call float @expf(float %x)
  ret float %y
}
define float @second(i64 %n) {
  %x = call float @first(i64 %n)
  ret float %x
}
"""


def test_objects_with_other_symbols_are_equal():
    other = FUNCTIONS.replace("@first", "@zzz").replace("@second", "@a").replace("@table", "@m")
    assert _object(other) != _object(FUNCTIONS)
    assert neutral_object(_object(other)) == neutral_object(_object(FUNCTIONS))


@pytest.mark.parametrize(
    ("old", "new"), [("expf", "logf"), ("float 2.0", "float 3.0"), ("ret float %y", "ret float %x")]
)
def test_objects_that_do_something_else_are_not_equal(old: str, new: str):
    assert neutral_object(_object(FUNCTIONS.replace(old, new))) != neutral_object(_object(FUNCTIONS))


def test_what_is_no_object_file_is_refused():
    assert neutral_object(b"") == []
    with pytest.raises(ValueError, match="expected an ELF file"):
        neutral_object(b"\x7fELF\x01")


def test_a_manifest_is_compared_without_its_build_and_with_weights_by_position():
    def manifest(weight: str, version: str) -> dict[str, object]:
        step = {"kind": "native", "weights": [weight], "prefix": "tw"}
        fallback = {"kind": "fallback", "model": f"model of {weight}"}
        return {"steps": [step, fallback], "build": {"version": version}, "code": {}, "weights": {}}

    assert neutral_manifest(manifest("w", "1")) == neutral_manifest(manifest("packed", "2"))
    assert neutral_manifest(manifest("w", "1"))["steps"] == [
        {"kind": "native", "weights": ["weight0"], "prefix": "tw"}, {"kind": "fallback", "model": "weight1"}
    ]  # fmt: skip


def test_a_difference_names_the_first_kernel_and_shows_the_lines_with_their_own_names():
    old = Record(kernels=(Kernel("k0_add", "gensor", TRACE),), llvm=LLVM)
    new = Record(kernels=(Kernel("k0_sum", "gensor", TRACE),), llvm=RENAMED.replace("icmp sgt", "icmp sge"))
    parts = differing(old.digests(), new.digests())
    assert parts == ["llvm"]
    text = explained(old, new, parts)
    assert "function 1 (k0_add, here k0_sum)" in text
    assert '-  %".4" = icmp sgt i64 %"n", 0' in text
    assert '+  %"condition" = icmp sge i64 %"rows", 0' in text
    assert "ret void" not in text


def test_values_that_are_mixed_up_are_shown_too():
    old = Record(llvm=LLVM)
    new = Record(llvm=LLVM.replace('label %"loop", label %"loop.end"', 'label %"loop.end", label %"loop"'))
    assert "other names are the same" in explained(old, new, ["llvm"])


def test_a_difference_of_a_trace_comes_before_that_of_its_code():
    old = Record(kernels=(Kernel("k0", "gensor", TRACE), Kernel("k1", "rule", TRACE)), llvm=LLVM)
    new = replace(old, kernels=(old.kernels[0], Kernel("k1", "rule", [*TRACE[:2], "set_scope('t0', 'stack')"])))
    text = explained(old, new, differing(old.digests(), new.digests()))
    assert "trace of kernel 1 (k1)" in text
    assert "-set_scope('t0', 'register')" in text
    assert "+set_scope('t0', 'stack')" in text


def test_the_working_tree_is_equal_to_itself_and_a_deliberate_difference_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    names = [c.name for c in cases("binary/s")]
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        run_here(folder, "binary/s", 1)
    assert report(names, old, new, 1) == 0
    assert "all are equal" in capsys.readouterr().out
    place = path_of(new, names[0])
    recorded = record.read(place)
    record.write(replace(recorded, llvm=recorded.llvm.replace("fsub", "fadd")), place)
    assert report(names, old, new, 1) == 1
    out = capsys.readouterr().out
    assert f"{names[0]}\n  differs in llvm" in out
    assert f"{len(names)} cases (0 refused): 1 differ" in out


def test_cases_that_end_in_a_fault_prove_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record.write(Record(error="internal", message="[internal] it broke"), path_of(tmp_path, "a/b"))
    assert report(["a/b"], tmp_path, tmp_path, 1) == 1
    assert "1 cases end in a fault" in capsys.readouterr().out


def test_a_revision_that_does_not_exist_is_an_error():
    with pytest.raises(SideError, match="there is no revision 'no-such-revision'"):
        run_base("no-such-revision", "*", 1)


def test_the_list_names_cases(capsys: pytest.CaptureFixture[str]):
    assert main(["--list", "--only", "gemm/trans*"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
