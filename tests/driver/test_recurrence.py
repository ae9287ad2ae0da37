"""Compiled LSTM, GRU and RNN give what ONNX Runtime gives."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from tests.driver.control_flow_models import same_as_onnxruntime
from tests.driver.recurrent_models import recurrent

import tilewright
from tilewright.driver.compile import make_compilation
from tilewright.driver.diagnostics.float64_reference import evaluate_program
from tilewright.driver.options import CompileOptions
from tilewright.errors import ModelError, ShapeError

CASES = {
    "LSTM": [
        {}, {"bias": False}, {"initial": True, "direction": "reverse"}, {"peepholes": True, "initial": True},
        {"peepholes": True, "clip": 0.3}, {"input_forget": 1}, {"lengths": (4, 2), "direction": "bidirectional"},
        {"lengths": (1, 3), "direction": "reverse", "initial": True}, {"results": ("", "Yh", "")},
        {"results": ("Y",)}, {"sizes": (16, 64, 7, 3), "direction": "bidirectional", "initial": True},
        {"activations": ["HardSigmoid", "Softsign", "Elu"], "activation_alpha": [0.3, 0.5], "activation_beta": [0.4]},
        {"activations": ["sigmoid", "relu", "leakyrelu", "sigmoid", "tanh", "softplus"],
         "activation_alpha": [0.2], "direction": "bidirectional"},
    ],
    "GRU": [
        {}, {"linear_before_reset": 1}, {"bias": False, "linear_before_reset": 1}, {"initial": True, "clip": 0.3},
        {"lengths": (2, 4), "direction": "bidirectional", "linear_before_reset": 1, "initial": True},
        {"sizes": (16, 33, 6, 3), "direction": "reverse"},
    ],
    "RNN": [
        {}, {"activations": ["Relu"], "initial": True}, {"lengths": (3, 1), "direction": "reverse", "initial": True},
        {"direction": "bidirectional", "dynamic": True, "bias": False},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("op", "options"), [(op, options) for op, cases in CASES.items() for options in cases])
def test_settings(tmp_path: Path, op: str, options: dict) -> None:
    model, feeds = recurrent(op, **options)
    exe = same_as_onnxruntime(model, [feeds], tmp_path)
    assert len(exe.manifest.steps) == 1


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_batches_first(tmp_path: Path, op: str, direction: str) -> None:
    """ONNX Runtime has no layout 1: the same node with steps first is what is right."""
    model, feeds = recurrent(op, direction=direction, initial=True, layout=1)
    plain, _ = recurrent(op, direction=direction, initial=True)
    swapped = {k: np.ascontiguousarray(a.transpose(1, 0, 2)) for k, a in feeds.items()}
    first = tilewright.compile(model, threads=1, optimizer="rule").run(feeds)
    expected = tilewright.compile(plain, threads=1, optimizer="rule").run(swapped)
    np.testing.assert_allclose(first["Y"], expected["Y"].transpose(2, 0, 1, 3), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first["Yh"], expected["Yh"].transpose(1, 0, 2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", range(12))
def test_random_settings_of_any_length(tmp_path: Path, case: int) -> None:
    """One artifact serves all numbers of steps and batches."""
    rng = Random(f"recurrence/{case}")
    op = rng.choice(("LSTM", "GRU", "RNN"))
    sizes = rng.randint(1, 9), rng.choice((1, 2, 8, 17)), 1, 1
    options = {
        "bias": rng.random() < 0.8,
        "direction": rng.choice(("forward", "reverse", "bidirectional")),
        "peepholes": op == "LSTM" and rng.random() < 0.4,
        **({"clip": rng.choice((0.2, 1.0))} if rng.random() < 0.3 else {}),
        **({"linear_before_reset": 1} if op == "GRU" and rng.random() < 0.5 else {}),
    }
    with_lengths = rng.random() < 0.5
    calls = []
    for steps, batch in ((1, 1), (rng.randint(2, 9), rng.randint(2, 5))):
        lengths = [rng.randint(1, steps) for _ in range(batch)] if with_lengths else None
        shapes = (*sizes[:2], steps, batch)
        model, feeds = recurrent(op, shapes, lengths=lengths, dynamic=True, seed=case, **options)
        calls.append((model, feeds))
    # weights are drawn before inputs, so both models have the same
    same_as_onnxruntime(calls[0][0], [feeds for _, feeds in calls], tmp_path)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lengths_out_of_range(op: str, direction: str) -> None:
    """Negative lengths, and those beyond the number of steps, are refused by name; 0 and the number itself are not."""
    for dynamic in (False, True):
        model, feeds = recurrent(op, lengths=(0, 4), direction=direction, dynamic=dynamic)
        exe = tilewright.compile(model, threads=1, optimizer="rule", cache=False)
        assert not exe.run(feeds)["Y"][:, :, 0].any()
        for lengths in ((-1, 2), (2, 5), (np.iinfo(np.int32).min, 1)):
            with pytest.raises(ShapeError, match=rf"node cell \({op}\): a length is out of range"):
                exe.run({**feeds, "L": np.array(lengths, np.int32)})


def test_large_states_against_double_precision() -> None:
    model, feeds = recurrent("LSTM", (32, 128, 50, 2), initial=True)
    compilation = make_compilation(model, CompileOptions())
    exact = evaluate_program(compilation.lowered, feeds)
    results = tilewright.compile(model, threads=1).run(feeds)
    for name, b in compilation.program.outputs:
        assert np.abs(results[name] - exact[b.name]).max() < 1e-5


def test_activation_without_native_form() -> None:
    model, _ = recurrent("RNN", activations=["ScaledTanh"], activation_alpha=[0.5], activation_beta=[0.5])
    with pytest.raises(ModelError, match=r"\[unsupported\] node cell \(RNN\): no native definition"):
        tilewright.compile(model, threads=1, optimizer="rule")
