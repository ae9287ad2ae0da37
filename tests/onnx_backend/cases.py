"""The cases of `onnx.backend.test`, and what becomes of one of them."""

import unittest
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx.backend.test.runner import Runner

from tilewright.driver.onnx_backend import OnnxBackend, OnnxBackendRep
from tilewright.errors import TilewrightError
from tilewright.graph.passes.def_use import RANDOM_OPERATORS
from tilewright.runtime.manifest import FallbackStep

KINDS = ("native", "fallback", "drawn", "refused", "wrong", "failed", "crashed")
"""What becomes of a case: it passes without or with a step of the reference evaluator; its values are drawn at random,
so that only types and shapes can be compared; a typed error; other values than expected; another exception; the process
ends or hangs."""


class Recorded(OnnxBackend):
    """The backend with the rule's programs, which compile fast; it keeps the last model that it prepared."""

    last: OnnxBackendRep | None = None

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> OnnxBackendRep:
        cls.last = None
        cls.last = super().prepare(model, device, optimizer="rule", threads=1, **kwargs)
        return cls.last


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case: one of `KINDS`, and the error's first lines."""

    kind: str
    detail: str = ""


class _Runner(Runner):
    """ONNX's runner, which compares elements of sequences as outputs of their own, scalars too."""

    @classmethod
    def assert_similar_outputs(
        cls, ref_outputs: Any, outputs: Any, rtol: float, atol: float, model_dir: str | None = None
    ) -> None:
        assert len(outputs) == len(ref_outputs), f"{len(outputs)} values, expected {len(ref_outputs)}"
        for expected, actual in zip(ref_outputs, outputs, strict=True):
            assert isinstance(actual, list | tuple) == isinstance(expected, list | tuple), (
                f"{type(actual)}, not {type(expected)}"
            )
            if isinstance(actual, list | tuple):
                cls.assert_similar_outputs(expected, actual, rtol, atol, model_dir)
            else:
                super().assert_similar_outputs([expected], [actual], rtol, atol, model_dir)


def load_cases() -> dict[tuple[str, str], Callable[..., Any]]:
    """Functions by (category, name) of the case, such as ("Node", "test_abs")."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        items_by_category = _Runner(Recorded)._test_items
    return {
        (category.removesuffix("Model"), name.removesuffix("_cpu")): item.func
        for category, items in items_by_category.items()
        for name, item in items.items()
        if name.endswith("_cpu")
    }


def run_case(case: Callable[..., Any]) -> Outcome:
    """Runs one case in this process."""
    Recorded.last = None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            case(unittest.TestCase())
        except TilewrightError as error:
            return Outcome("refused", _first(error))
        except AssertionError as error:
            kind = "failed" if Recorded.last is None else "drawn" if _is_drawn(Recorded.last, error) else "wrong"
            return Outcome(kind, _first(error))
        except unittest.SkipTest as error:
            return Outcome("failed", f"skipped: {error}")
        except Exception as error:
            return Outcome("failed", f"{type(error).__name__}: {_first(error)}")
    if Recorded.last is None:
        return Outcome("failed", "the case did not prepare a model")
    steps = Recorded.last.executable.manifest.steps
    return Outcome("fallback" if any(isinstance(s, FallbackStep) for s in steps) else "native")


def _is_drawn(model: OnnxBackendRep, error: AssertionError) -> bool:
    """Whether elements differ that an operator draws; another type or shape is another matter."""
    nodes = [label for step in model.executable.manifest.steps for label in step.nodes]
    draws = any(label.endswith(f"({name})") for label in nodes for name in RANDOM_OPERATORS)
    return draws and "Mismatched elements" in str(error)


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " | ".join(lines[:4])[:400]
