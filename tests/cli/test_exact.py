"""`--exact` and `--winograd` on the command line."""

import json

import onnx
import pytest
from tests.cli.command import run
from tests.driver.models import residual_conv


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("exact") / "net.onnx"
    onnx.save(residual_conv(8, 8), path)
    return path


def test_options_reach_the_compiler(file, tmp_path, capsys):
    base = ["compile", file, "-o", tmp_path / "m.tw", "--target", "x86-64-v3", "--json"]
    for more in (["--exact"], ["--optimizer", "roller", "--winograd", "fast"]):
        code, out, _ = run(capsys, *base, *more)
        assert code == 0
        assert json.loads(out)["functions"] == 2
    code, out, _ = run(capsys, *base, "--exact", "--winograd", "fast")
    assert code != 0
    assert "exact allows no fast convolutions" in out


def test_compiled_models_reject_compile_options(file, tmp_path, capsys):
    assert run(capsys, "compile", file, "-o", tmp_path / "m.tw", "-q")[0] == 0
    code, _, err = run(capsys, "run", tmp_path / "m.tw", "--random", "--exact")
    assert code != 0
    assert "--exact has no effect on a model that is compiled already" in err
