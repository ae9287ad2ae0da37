"""Operators that users register: definitions, Python functions, packages, and the errors that name them."""

import re
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tilewright import custom_operators
from tilewright.custom_operators import PYTHON_OPERATORS
from tilewright.driver import register_operator as module
from tilewright.errors import DefinitionError, EvaluatorError, ModelError, OptionError, UnsupportedError
from tilewright.ops.definition import Definition, OpValue
from tilewright.ops.library import OPERATORS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "register-an-operator.md"
DOMAIN = "com.example"
X = np.random.default_rng(8).standard_normal((3, 5)).astype(np.float32)

pytestmark = pytest.mark.usefixtures("registries")


def model(op_type: str, *, result: list[int | str] | None = None, **attributes: object) -> onnx.ModelProto:
    """y = 2 * op(x + x) of a matrix with a dynamic number of rows."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"]),
        helper.make_node(op_type, ["a"], ["b"], name="own", domain=DOMAIN, **attributes),
        helper.make_node("Add", ["b", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result or ["n", 5])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def compiled(op_type: str, **keywords: object) -> tilewright.Executable:
    """The compiled model; no warning about it is due."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return tilewright.compile(model(op_type, **keywords), optimizer="rule", threads=1)  # pyright: ignore[reportArgumentType]


def triple(d: Definition) -> OpValue:
    """3 x"""
    x = d.input(0)
    return d.compute(x.shape, lambda *i: x[i] * 3.0)


def test_examples_of_the_page() -> None:
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(example, str(PAGE), "exec"), names)
    wide = 2 * X.astype(np.float64)
    expected = 2 * (np.log1p(np.exp(wide - 0.5)) - 0.08 * wide - 0.31)
    np.testing.assert_allclose(compiled("Swoosh", shift=0.5)(X), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(compiled("Median", result=[5])(X), 4 * np.median(X, axis=0), rtol=1e-6)
    np.testing.assert_allclose(compiled("Median", result=["n"], axis=1)(X), 4 * np.median(X, axis=1), rtol=1e-6)


def test_an_artifact_runs_without_the_definition(tmp_path: Path) -> None:
    tilewright.register_operator(DOMAIN, "Triple", triple)
    compiled("Triple").save(tmp_path / "m.tw")
    OPERATORS.pop((DOMAIN, "Triple"))
    np.testing.assert_allclose(tilewright.load(tmp_path / "m.tw")(X), 12 * X, rtol=1e-6)


def test_an_artifact_needs_the_python_function(tmp_path: Path) -> None:
    tilewright.register_operator(DOMAIN, "Own", fallback=lambda x: x * 3, result_types=lambda inputs, _: inputs)
    compiled("Own").save(tmp_path / "m.tw")
    np.testing.assert_allclose(tilewright.load(tmp_path / "m.tw")(X), 12 * X, rtol=1e-6)
    PYTHON_OPERATORS.clear()
    with pytest.raises(UnsupportedError, match=r"'com.example::Own' is not registered; call tilewright.register_op"):
        tilewright.load(tmp_path / "m.tw")(X)


def test_a_definition_replaced_by_another_is_not_served_from_caches() -> None:
    for factor in (3.0, 5.0):

        def scaled(d: Definition, factor: float = factor) -> OpValue:
            x = d.input(0)
            return d.compute(x.shape, lambda *i: x[i] * factor)

        tilewright.register_operator(DOMAIN, "Scaled", scaled)
        np.testing.assert_allclose(compiled("Scaled")(X), 4 * factor * X, rtol=1e-6)


def test_the_function_runs_where_the_definition_does_not_apply() -> None:
    def partial(d: Definition) -> OpValue:
        if d.attr_int("wide", 0):
            raise d.unsupported("wide is not native")
        return triple(d)

    tilewright.register_operator(
        DOMAIN, "Partial", partial, fallback=lambda x, wide: x * wide, result_types=lambda inputs, _: inputs
    )
    np.testing.assert_allclose(compiled("Partial")(X), 12 * X, rtol=1e-6)
    np.testing.assert_allclose(compiled("Partial", wide=7)(X), 28 * X, rtol=1e-6)


def test_sizes_that_only_the_call_tells() -> None:
    tilewright.register_operator(
        DOMAIN, "Positive", fallback=lambda x: x[x[:, 0] > 0], result_types=lambda inputs, _: [("float32", (None, 5))]
    )
    np.testing.assert_allclose(compiled("Positive", result=["k", 5])(X), 4 * X[X[:, 0] > 0], rtol=1e-6)


def faulty(d: Definition) -> OpValue:
    """Divides by zero."""
    return d.compute((1 // 0,), lambda *_: d.input(0)[0])


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (faulty, r"node own \(Own\): the definition of operator 'com.example::Own' failed \(ZeroDivisionError"),
        (lambda _: 3, r"the definition of operator 'com.example::Own' returned int, expected what d.compute returns"),
        (lambda _: (), r"the definition of operator 'com.example::Own' returned 0 results for 1 output"),
    ],
)
def test_faults_of_definitions_name_the_operator(definition: module.OperatorFunction, message: str) -> None:
    tilewright.register_operator(DOMAIN, "Own", definition)
    with pytest.raises(ModelError, match=message):
        tilewright.compile(model("Own"))


@pytest.mark.parametrize("result", [["n", 5], [4, 5]])
def test_a_definition_that_reads_out_of_bounds_is_blamed(result: list[int | str]) -> None:
    tilewright.register_operator(
        DOMAIN, "Own", lambda d: d.compute(d.input(0).shape, lambda i, j: d.input(0)[i + 1, j])
    )
    with pytest.raises(DefinitionError, match=r"node own \(Own\): the registered definition .* is not proved <"):
        tilewright.compile(model("Own", result=result))


def test_faults_of_functions_name_the_node() -> None:
    def types(inputs: object, attributes: object) -> list[tuple[str, object]]:
        raise KeyError("absent")

    tilewright.register_operator(DOMAIN, "Own", fallback=lambda x: x[99], result_types=lambda inputs, _: inputs)
    with pytest.raises(EvaluatorError, match=r"own \(Own\): failed .*IndexError"):
        compiled("Own")(X)
    tilewright.register_operator(DOMAIN, "Own", fallback=lambda x: x, result_types=types)
    with pytest.raises(DefinitionError, match=r"result_types of the operator 'com.example::Own' failed \(KeyError"):
        tilewright.compile(model("Own"))


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        (("", "Relu"), {"fallback": len}, "argument 'domain': expected a nonempty text"),
        (("ai.onnx", "Relu"), {"fallback": len}, "'ai.onnx::Relu': standard operators can't be replaced"),
        ((DOMAIN, 3), {"fallback": len}, "argument 'name': expected a nonempty text, got 3"),
        ((DOMAIN, "Own"), {}, "operator 'com.example::Own': expected a definition or a function, got neither"),
        ((DOMAIN, "Own", "relu"), {}, "argument 'definition': expected a function, got str"),
        (("com.microsoft", "Gelu"), {"fallback": len}, "'com.microsoft::Gelu': the package defines this operator"),
    ],
)
def test_misuse(arguments: tuple[str, ...], keywords: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        tilewright.register_operator(*arguments, **keywords)  # pyright: ignore[reportArgumentType]


class _Entry:
    """An entry point of an installed package."""

    name, value = "example", "example_operators:register"

    def __init__(self, register: object) -> None:
        self.load = lambda: register


def test_packages_register_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = _Entry(lambda: tilewright.register_operator(DOMAIN, "Packaged", triple))
    monkeypatch.setattr(custom_operators, "entry_points", lambda group: [entry])
    monkeypatch.setattr(custom_operators._Packages, "loaded", False)
    np.testing.assert_allclose(compiled("Packaged")(X), 12 * X, rtol=1e-6)


def test_a_package_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_operators, "entry_points", lambda group: [_Entry(lambda: 1 // 0)])
    monkeypatch.setattr(custom_operators._Packages, "loaded", False)
    with pytest.raises(DefinitionError, match=r"entry point 'example' of the group 'tilewright.operators' \(example_"):
        tilewright.compile(model("Packaged"))
