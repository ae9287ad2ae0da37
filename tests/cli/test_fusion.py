"""`inspect --fusion`, and `--fuse`."""

import json
import re
from xml.etree import ElementTree

import onnx
import pytest
from tests.cli.command import run
from tests.graph.chains.chain_models import two_products

MACHINE = ["--target", "x86-64-v4", "--machine", "x86-64-v4", "--optimizer", "roller"]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """Two products whose intermediate is much larger than all else."""
    path = tmp_path_factory.mktemp("fusion") / "narrow.onnx"
    onnx.save(two_products(2000, 16, 600, 16), path)
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Two products that compute much for every element of the intermediate."""
    path = tmp_path_factory.mktemp("fusion") / "wide.onnx"
    onnx.save(two_products(64, 512, 512, 512), path)
    return path


def test_a_fused_chain_is_shown_with_times_pruning_and_loops(narrow, capsys):
    code, out, _ = run(capsys, "inspect", narrow, "--fusion", *MACHINE)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "chain 1: n0 (MatMul) + n1 (Relu) -> n2 (MatMul)"
    assert lines[1] == "  verdict  fused: the intermediates stay in fast memory"
    assert re.fullmatch(r"  time     [\d.]+ us in 2 kernels, [\d.]+ us in one", lines[2])
    assert lines[3] == "  work     8.0 FLOPs per byte of intermediates, P/W of the machine is 25.6"
    assert lines[4] == "  replaces n0 (MatMul) + n1 (Relu); n2 (MatMul)"
    # two loops, as the other two axes are one tile, with multiples of 16 points of 2000 and of 600
    assert lines[5].startswith("  space    all 9,500, rule 1 4,750, rule 2 4,750, rule 3 120, rule 4 ")
    assert lines[6].startswith("           2 expressions x 4,750 tile sizes; ")
    assert lines[7:10] == ["  axes     t0: v_i0 v_i1 reduce v_r0", "  axes     t1: v_i0 v_i1",
                           "  axes     out: v_i0 v_i1_2 reduce v_i1"]  # fmt: skip
    assert re.fullmatch(r"  tiling   .*; v_i0 \d+, v_i1 \d+, v_r0 16, v_i1_2 16", lines[10])
    assert lines[11] == "  tree"
    assert any(line.strip().startswith("v_i0 ") and line.endswith(" parallel:") for line in lines[12:])


def test_the_same_as_json(narrow, capsys):
    code, out, _ = run(capsys, "inspect", narrow, "--fusion", "--json", *MACHINE)
    assert code == 0
    (chain,) = json.loads(out)["fusion"]
    assert chain.keys() == {
        "contractions", "replaces", "flops_per_byte", "machine_flops_per_byte", "before_ns", "after_ns", "chosen",
        "reason", "task", "pruning", "expression", "tiles", "tree",
    }  # fmt: skip
    assert chain["contractions"] == chain["replaces"] == ["n0 (MatMul) + n1 (Relu)", "n2 (MatMul)"]
    assert chain["flops_per_byte"] == [8.0]
    assert chain["chosen"]
    assert chain["after_ns"] < 0.85 * chain["before_ns"]
    assert list(chain["pruning"]) == ["all", "rule 1", "rule 2", "rule 3", "rule 4"]
    assert sorted(chain["pruning"].values(), reverse=True) == list(chain["pruning"].values())
    assert chain["tiles"].keys() == {"v_i0", "v_i1", "v_r0", "v_i1_2"}


def test_a_chain_that_is_not_fused_is_shown_with_the_reason(wide, capsys):
    code, out, _ = run(capsys, "inspect", wide, "--fusion", *MACHINE)
    assert code == 0
    assert out.rstrip() == (
        "chain 1: n0 (MatMul) + n1 (Relu) -> n2 (MatMul)\n"
        "  verdict  not fused: compute-bound: 256 FLOPs per byte of intermediates where the machine has 25.6, so fusion"
        " saves at most 9.1%\n"
        "  time     unknown in 2 kernels, unknown in one\n"
        "  work     256.0 FLOPs per byte of intermediates, P/W of the machine is 25.6\n"
        "  replaces n0 (MatMul) + n1 (Relu); n2 (MatMul)"
    )
    chain = json.loads(run(capsys, "inspect", wide, "--fusion", "--json", *MACHINE)[1])["fusion"][0]
    assert not chain["chosen"]
    assert chain["after_ns"] is chain["pruning"] is chain["tree"] is None


def test_other_levels_refer_to_it(narrow, capsys):
    code, out, _ = run(capsys, "inspect", narrow, "--construction", *MACHINE)
    assert code == 0
    assert out.rstrip() == (
        "k0_matmul_relu by mcfuser for x86-64-v4: n0 (MatMul) + n1 (Relu) + n2 (MatMul)\n"
        "a fused chain: --fusion shows it"
    )
    assert run(capsys, "inspect", narrow, "--cost", *MACHINE)[1].rstrip() == out.rstrip()


def test_models_without_chains_say_so(narrow, tmp_path, capsys):
    code, out, _ = run(capsys, "inspect", narrow, "--fusion", "--fuse", "unfused", *MACHINE)
    assert (code, out.rstrip()) == (0, "no chains were considered: fusion is off")
    code, out, _ = run(capsys, "inspect", narrow, "--fusion", "--optimizer", "rule")
    reason = "the optimizer rule reads no description of a machine to estimate by"
    assert (code, out.rstrip()) == (0, f"no chains were considered: {reason}")
    single = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[4, 4] x) => (float[4, 4] y) { y = MatMul(x, x) }'
    )
    onnx.save(single, tmp_path / "single.onnx")
    code, out, _ = run(capsys, "inspect", tmp_path / "single.onnx", "--fusion", *MACHINE)
    assert (code, out.rstrip()) == (0, "no chains were considered: no contraction reads another one")


def test_the_option_reaches_the_compiler_and_the_artifact(narrow, tmp_path, capsys):
    for fuse, functions in (("mcfuser", 1), ("chimera", 1), ("unfused", 2)):
        path = tmp_path / f"{fuse}.tw"
        code, out, _ = run(capsys, "compile", narrow, "-o", path, "--fuse", fuse, "--json", *MACHINE)
        data = json.loads(out)
        assert (code, data["functions"], data["build"]["fusion"]) == (0, functions, fuse)
        code, out, _ = run(capsys, "inspect", path)
        assert (f", fusion {fuse}" in out) == (fuse != "unfused")


def test_wrong_options_are_refused(narrow, tmp_path, capsys):
    code, _, err = run(capsys, "compile", narrow, "-o", tmp_path / "m.tw", "--fuse", "chimera", "--optimizer", "rule")
    assert code != 0
    assert "the optimizer 'rule' reads no description of a machine to estimate by" in err
    assert run(capsys, "compile", narrow, "-o", tmp_path / "m.tw", "-q")[0] == 0
    code, _, err = run(capsys, "run", tmp_path / "m.tw", "--random", "--fuse", "chimera")
    assert code != 0
    assert "--fuse has no effect on a model that is compiled already" in err


def test_the_trees_of_chains_are_drawn(narrow, wide, tmp_path, capsys):
    path = tmp_path / "chain.svg"
    code, out, _ = run(capsys, "inspect", narrow, "--fusion", "--json", "--svg", path, *MACHINE)
    assert code == 0
    elements = list(ElementTree.parse(path).getroot().iter())
    texts = [x.text for x in elements if x.tag.endswith("}text")]
    assert "chain 1: n0 (MatMul) + n1 (Relu) -> n2 (MatMul)" in texts
    assert "verdict  fused: the intermediates stay in fast memory" in texts
    (chain,) = json.loads(out)["fusion"]
    for line in chain["tree"]:
        # loops over tiles also show how many points there are
        text = line.strip().removesuffix(":").split(" in whole tiles of ")[0]
        assert any(x.startswith(text) for x in texts), line
    assert any(x.startswith("v_i0 ") and x.endswith(" parallel of 2000") for x in texts)
    # every box is inside of the picture
    width, height = (int(elements[0].get(x)) for x in ("width", "height"))
    boxes = [x for x in elements if x.tag.endswith("}rect") and x.get("width") != "100%"]
    assert all(int(x.get("x")) + int(x.get("width")) <= width for x in boxes)
    assert all(int(x.get("y")) + int(x.get("height")) <= height for x in boxes)
    code, _, err = run(capsys, "inspect", wide, "--fusion", "--svg", path, *MACHINE)
    assert code == 1
    assert "[option] --svg: there is no tree to draw: no chain of this model has a program" in err
    code, _, err = run(capsys, "inspect", narrow, "--fusion", "--construction", "--svg", path, *MACHINE)
    assert code == 1
    assert "[option] --svg: it draws --construction or --fusion, not both" in err
