"""Checks of one setting against ONNX Runtime: compiled natively, or its computations evaluated in NumPy."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper
from tests.fuzz_contrib.attention import ATTENTION
from tests.fuzz_contrib.floats import FLOATS
from tests.fuzz_contrib.quantized import QUANTIZED
from tests.fuzz_contrib.setting import Draw, Setting
from tests.ops.harness import Array, define, model_of, reference_outputs, run_stages

import tilewright
from tilewright.runtime.manifest import FallbackStep, all_steps

DRAWS: dict[str, Draw] = dict(sorted({**FLOATS, **QUANTIZED, **ATTENTION}.items()))
"""What draws a setting, by operator."""


def drawn(operator: str, seed: int) -> Setting:
    """Setting number `seed` of an operator."""
    return DRAWS[operator](np.random.default_rng([seed, *operator.encode()]))


def model(setting: Setting, symbolic: bool) -> onnx.ModelProto:
    """The model of a setting; with symbolic sizes, dimensions above 1 of other inputs have a name per size."""
    result = model_of(setting.case)
    names = {f"x{k}" for k in setting.initializers if k < len(setting.case.inputs)}
    graph = result.graph
    for k, x in enumerate(setting.case.inputs):
        if x is not None and f"x{k}" in names:
            graph.initializer.append(numpy_helper.from_array(x, f"x{k}"))
    inputs = [v for v in graph.input if v.name not in names]
    del graph.input[:]
    graph.input.extend(inputs)
    for value in inputs if symbolic else ():
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                dim.dim_param = f"n{dim.dim_value}"
    return result


def check_natively(operator: str, seed: int) -> None:
    """Compiles a setting and compares with ONNX Runtime; half of those whose sizes may be symbolic are so.

    Raises:
        AssertionError: a result differs, or a node is not native.
    """
    setting = drawn(operator, seed)
    check_setting_natively(setting, symbolic=not setting.literal and seed % 2 == 1)


def check_setting_natively(setting: Setting, symbolic: bool) -> None:
    """Compiles a setting, with literal or symbolic sizes, and compares with ONNX Runtime.

    Raises:
        AssertionError: a result differs, or a node is not native.
    """
    expected = reference_outputs("ort", setting.case)
    proto = model(setting, symbolic)
    executable = tilewright.compile(proto, cache=False)
    native = [not isinstance(step, FallbackStep) for step in all_steps(executable.manifest.steps)]
    assert all(native), f"{setting.case.op_type} is not native"
    fed = {v.name for v in proto.graph.input}
    results = executable.run({k: x for k, x in setting.case.feeds().items() if k in fed})
    compare(setting, [results[v.name] for v in proto.graph.output], expected)


def check_computations(operator: str, seed: int) -> None:
    """Evaluates the computations of a setting in NumPy and compares with ONNX Runtime.

    Raises:
        AssertionError: a result differs.
    """
    setting = drawn(operator, seed)
    expected = reference_outputs("ort", setting.case)
    constants = [k for k in setting.initializers if k < len(setting.case.inputs)]
    definition, results = define(setting.case, constants=constants, symbolic=not setting.literal)
    compare(setting, run_stages(definition, results, setting.case.inputs), expected)


def compare(setting: Setting, actual: Sequence[Array], expected: Sequence[Array]) -> None:
    """Compares all results with ONNX Runtime's.

    Raises:
        AssertionError: one differs.
    """
    for value, right in zip(actual, expected, strict=True):
        assert value.shape == right.shape, f"shape {value.shape}, expected {right.shape}"
        assert value.dtype == right.dtype, f"type {value.dtype}, expected {right.dtype}"
        if right.dtype.kind == "f":
            np.testing.assert_allclose(value, right, rtol=setting.tolerance.rtol, atol=setting.tolerance.atol)
        else:
            difference = np.abs(value.astype(np.int64) - right.astype(np.int64))
            assert difference.max(initial=0) <= setting.steps, f"differs by {difference.max()} steps"
