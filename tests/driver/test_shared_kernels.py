"""Kernels that are one task share a function, whatever the model calls their sizes and in which order operands come."""

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from tests.driver.models import array
from tests.frontend.onnx_models import model

from tilewright.driver.compile import make_compilation
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.driver.options import CompileOptions
from tilewright.runtime import Executable


def functions_and_errors(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[list[str], float]:
    """The functions of a model's kernels, in order, and its largest error."""
    compilation = make_compilation(proto, CompileOptions(optimizer="rule"))
    results = Executable(compilation.artifact(), 2).run(feeds)
    expected = ReferenceEvaluator(proto).run(None, feeds)
    errors = [np.abs(a - b).max() for a, b in zip(results.values(), expected, strict=True)]
    return [u.compiled.name for u in compilation.units if isinstance(u, BoundKernel)], max(errors)


def test_sizes_of_other_names() -> None:
    proto = model(
        "p = Sum(a, v)  q = Sum(b, v)",
        inputs="float[n, 8] a, float[m, 8] b, float[8] v",
        outputs="float[n, 8] p, float[m, 8] q",
    )
    functions, error = functions_and_errors(proto, {"a": array(1, 3, 8), "b": array(2, 200, 8), "v": array(3, 8)})
    assert len(functions) == 2
    assert len(set(functions)) == 1
    assert error < 1e-6


def test_two_sizes_that_change_places() -> None:
    proto = model(
        "e = Relu(a)  p = Add(e, u)  f = Relu(b)  q = Add(f, v)",
        inputs="float[n, m] a, float[m] u, float[m, n] b, float[n] v",
        outputs="float[n, m] p, float[m, n] q",
    )
    feeds = {"a": array(1, 3, 70), "u": array(2, 70), "b": array(3, 70, 3), "v": array(4, 3)}
    functions, error = functions_and_errors(proto, feeds)
    assert len(functions) == 2
    assert len(set(functions)) == 1
    assert error < 1e-6


def test_operands_that_change_places() -> None:
    proto = model(
        "e = Exp(a)  p = Add(e, b)  f = Exp(d)  q = Add(c, f)  g = Exp(h)  r = Sub(i, g)",
        inputs="float[5, 7] a, float[5, 7] b, float[5, 7] c, float[5, 7] d, float[5, 7] h, float[5, 7] i",
        outputs="float[5, 7] p, float[5, 7] q, float[5, 7] r",
    )
    functions, error = functions_and_errors(proto, {n: array(k, 5, 7) for k, n in enumerate("abcdhi")})
    assert len(functions) == 3
    assert functions[0] == functions[1] != functions[2]
    assert error < 1e-5


def test_constant_operands_count() -> None:
    proto = model(
        "p = MatMul(a, b)  q = MatMul(a, w)",
        inputs="float[5, 7] a, float[7, 9] b",
        outputs="float[5, 9] p, float[5, 9] q",
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(array(3, 7, 9), "w"))
    functions, error = functions_and_errors(proto, {"a": array(1, 5, 7), "b": array(2, 7, 9)})
    assert len(set(functions)) == len(functions) == 2
    assert error < 1e-5
