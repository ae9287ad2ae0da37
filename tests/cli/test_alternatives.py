"""`inspect --alternatives`, and the counters of `compile --json`."""

import json

import onnx
import pytest
from tests.cli.command import run
from tests.driver.models import residual_conv

MACHINE = ["--target", "x86-64-v4", "--machine", "x86-64-v4", "--optimizer", "roller"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("alternatives") / "net.onnx"
    onnx.save(residual_conv(128, 28), path)
    return path


def test_alternatives_are_shown_with_times_and_reasons(file, capsys):
    code, out, _ = run(capsys, "inspect", file, "--alternatives", "--winograd", "fast", *MACHINE)
    assert code == 0
    header, small, large, counts = out.rstrip().splitlines()
    assert header.split() == ["node", "alternative", "before", "us", "after", "us", "why"]
    assert small.startswith("conv (Conv)  winograd F(2x2, 3x3)  ")
    assert large.startswith("conv (Conv)  winograd F(4x4, 3x3)  ")
    assert counts.startswith("constructed kernels: ")
    code, out, _ = run(capsys, "inspect", file, "--alternatives", "--winograd", "fast", "--json", *MACHINE)
    assert code == 0
    evaluations = json.loads(out)["alternatives"]
    assert [a["name"] for a in evaluations] == ["winograd F(2x2, 3x3)", "winograd F(4x4, 3x3)"]
    assert evaluations[0].keys() == {
        "node", "name", "replaces", "error_growth", "before_ns", "after_ns", "chosen", "reason",
    }  # fmt: skip
    assert evaluations[0]["before_ns"] == evaluations[1]["before_ns"]
    assert sum(a["chosen"] for a in evaluations) <= 1
    for a, line in zip(evaluations, (small, large), strict=True):
        assert f"{a['after_ns'] / 1e3:.1f}  {'chosen' if a['chosen'] else '-'}" in line
        assert line.endswith(a["reason"])


def test_models_without_alternatives_say_so(file, capsys):
    code, out, _ = run(capsys, "inspect", file, "--alternatives", "--exact", *MACHINE)
    assert code == 0
    assert out.splitlines()[0] == "no alternatives were considered"
    code, out, _ = run(capsys, "inspect", file, "--alternatives", "--exact", "--json", *MACHINE)
    assert json.loads(out)["alternatives"] == []


def test_constructed_kernels_are_counted(file, tmp_path, capsys):
    base = ["compile", file, "-o", tmp_path / "m.tw", "--json", "--no-cache", *MACHINE]
    direct, chosen = (json.loads(run(capsys, *base, *more)[1]) for more in (["--exact"], ["--winograd", "fast"]))
    assert (direct["constructed_kernels"], direct["reused_kernels"]) == (direct["functions"], 0)
    assert chosen["reused_kernels"] >= 1
    assert chosen["constructed_kernels"] > chosen["functions"]
