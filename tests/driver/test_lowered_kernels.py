"""The loops that code is generated from are verified, for kernels of models with borders, tails and symbolic sizes."""

import pytest
from benchmarks.replay.cases import TARGETS, models

from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.loops.ir import If, walk
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.lower.lower_kernel import lower_kernel
from tilewright.machine import Target
from tilewright.verify.verifier import verify

MODELS = {m.name: m for m in models()}

MODEL_NAMES = (
    "matmul/constant_33x65x17", "matmul/dynamic_rows", "conv/3x3_winograd", "conv/depthwise3_stride2",
    "conv/all_dynamic", "pool/max3_stride2", "softmax/rows", "reduce/sum", "transpose/odd", "pad/edge",
)  # fmt: skip


@pytest.mark.parametrize("level", TARGETS)
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_lowered_kernels_are_verified(name: str, level: str) -> None:
    target, machine = TARGETS[level]
    shapes = dict(text.split(":") for text in MODELS[name].shapes)
    options = CompileOptions(shapes=shapes, target=target, optimizer="roller", machine=machine)
    lowered = [
        lower_kernel(k.func, Target.parse(target)).func for k in make_compilation(MODELS[name].make(), options).kernels
    ]
    assert lowered
    for func in lowered:
        verify(func)
        assert show(parse(show(func))) == show(func)


def test_some_kernels_have_branches() -> None:
    options = CompileOptions(target="x86-64-v3", optimizer="rule")
    compilation = make_compilation(MODELS["conv/3x3_winograd"].make(), options)
    lowered = [lower_kernel(k.func, compilation.target).func for k in compilation.kernels]
    assert any(isinstance(s, If) for func in lowered for s, _ in walk(func.body))
