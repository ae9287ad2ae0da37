"""What errors of options suggest: names that exist, and why a size can't be given."""

import re

import pytest
from tests.cli.command import error_of

from tilewright.cli import main


def test_the_help_names_the_optimizers_that_the_error_names(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    message = error_of(capsys, "compile", folder / "mlp.onnx", "--optimizer", "foo")
    names = message.partition("use one of ")[2].split(", ")
    assert "gensor" in names
    with pytest.raises(SystemExit):
        main(["compile", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    described = re.search(r"--optimizer NAME how loops are chosen: (.*?) --", shown)[1]
    assert set(re.findall(r"[a-z][a-z0-9-]+", described)) - {"default", "or", "for", "comparisons"} == set(names)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("x[1]:16", "dimension 1 of input 'x' is fixed to 24 in the model, got 16; leave it out, or export the model"),
        ("x[2]:16", "input 'x' has 2 dimensions, no 'x[2]'; count from 0: its last one is x[1]"),
        ("x[0]:16", "'x[0]' is the dimension 'batch'; name it 'batch'"),
        ("bacth:16", "the model has no dimension or input 'bacth'; did you mean 'batch'? its dynamic dimensions are:"),
    ],
)
def test_sizes_of_axes_that_have_none(folder, capsys, option, message):
    assert f"--shape: {message}" in error_of(capsys, "compile", folder / "mlp.onnx", "--shape", option)
