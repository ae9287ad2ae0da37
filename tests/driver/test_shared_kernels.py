"""Kernels that are one task share a function, whatever the model calls their sizes and in which order operands come.

Literals in which kernels differ are parameters.
"""

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


Layer = tuple[str, list[onnx.TensorProto]]
"""Nodes and their initializers."""


def affine(name: str, operator: str, scale: float, offset: float, exponent: float = 2.0) -> Layer:
    """Nodes that scale, shift and clip the result of an operator, and their learned scalars."""
    scalars = {f"scale_{name}": scale, f"offset_{name}": offset, f"exponent_{name}": exponent}
    nodes = (
        f"s_{name} = {operator}  m_{name} = Mul(s_{name}, scale_{name})  d_{name} = Add(m_{name}, offset_{name})  "
        f"r_{name} = Relu(d_{name})  {name} = Pow(r_{name}, exponent_{name})"
    )
    return nodes, [onnx.numpy_helper.from_array(np.array([v], np.float32), k) for k, v in scalars.items()]


def affine_model(*layers: Layer) -> onnx.ModelProto:
    """A model of several such layers, `p` and `q`, of products of `a` and `b`."""
    proto = model(
        "  ".join(nodes for nodes, _ in layers),
        inputs="float[n, 24] a, float[24, 40] b, float[m, 24] c",
        outputs="float[n, 40] p, float[m, 40] q",
    )
    proto.graph.initializer.extend(x for _, scalars in layers for x in scalars)
    return proto


def affine_feeds() -> dict[str, np.ndarray]:
    """Feeds of these models."""
    return {"a": array(1, 5, 24), "b": array(2, 24, 40), "c": array(3, 19, 24)}


def test_learned_scalars_are_parameters() -> None:
    proto = affine_model(affine("p", "MatMul(a, b)", 0.37, -0.21), affine("q", "MatMul(c, b)", -1.3, 0.08))
    functions, error = functions_and_errors(proto, affine_feeds())
    assert len(functions) == 2
    assert len(set(functions)) == 1
    assert error < 1e-4


def test_equal_scalars_stay_literals() -> None:
    proto = affine_model(affine("p", "MatMul(a, b)", 0.37, 0.5), affine("q", "MatMul(c, b)", -1.3, 0.5))
    compilation = make_compilation(proto, CompileOptions(optimizer="rule"))
    (kernel,) = compilation.kernels
    # two operands and one scale
    assert len(kernel.origin.params) == 3 + 1
    assert " + 0.5" in kernel.task.form.text or "0.5 + " in kernel.task.form.text


def test_exponents_are_no_parameters() -> None:
    proto = affine_model(affine("p", "MatMul(a, b)", 0.5, 0.5, 2.0), affine("q", "MatMul(c, b)", 0.5, 0.5, 3.0))
    functions, error = functions_and_errors(proto, affine_feeds())
    assert len(set(functions)) == 2
    assert error < 1e-4


def test_kernels_without_an_equal_keep_their_literals() -> None:
    proto = affine_model(affine("p", "MatMul(a, b)", 0.37, 0.11), ("q = MatMul(c, b)", []))
    compilation = make_compilation(proto, CompileOptions(optimizer="rule"))
    assert not [name for name in compilation.program.constants if name.startswith("literal")]
