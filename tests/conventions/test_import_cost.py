"""Import cost: what importing a part of the package must not load."""

import subprocess
import sys

import pytest

COMPILER_LAYERS = "expr ops graph frontend loops verify layout schedule tile cost lower optimize codegen driver"
COMPILER = [f"tilewright.{layer}" for layer in COMPILER_LAYERS.split()]


@pytest.mark.parametrize(
    ("module", "unloaded"),
    [
        ("tilewright", ["numpy", "onnx", "llvmlite", *COMPILER]),
        ("tilewright.runtime", ["onnx", "llvmlite", *COMPILER]),
        ("tilewright.frontend.onnx", ["onnx", "llvmlite"]),
        ("tilewright.driver.compile_model", ["onnx", *(m for m in COMPILER if m != "tilewright.driver")]),
        ("tilewright.driver.tune", ["ray", "xgboost"]),
        ("tilewright.cli.main", ["onnx", "llvmlite"]),
    ],
)
def test_importing_a_part_loads_no_more_than_it_needs(module: str, unloaded: list[str]) -> None:
    code = f"import sys, {module}; print(*sorted(set({unloaded!r}) & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.split() == []
