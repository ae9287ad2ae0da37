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
from tilewright.runtime.manifest import FallbackStep

KINDS = ("native", "fallback", "refused", "wrong", "failed", "crashed")
"""What becomes of a case: it passes without or with a step of the reference evaluator; a typed error; other values than
expected; another exception; the process ends or hangs."""


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


def load_cases() -> dict[tuple[str, str], Callable[..., Any]]:
    """Functions by (category, name) of the case, such as ("Node", "test_abs")."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = Runner(Recorded)._test_items
    return {
        (category.removesuffix("Model"), name.removesuffix("_cpu")): item.func
        for category, items in found.items()
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
            return Outcome("wrong" if Recorded.last is not None else "failed", _first(error))
        except unittest.SkipTest as error:
            return Outcome("failed", f"skipped: {error}")
        except Exception as error:
            return Outcome("failed", f"{type(error).__name__}: {_first(error)}")
    if Recorded.last is None:
        return Outcome("failed", "the case did not prepare a model")
    steps = Recorded.last.executable.manifest.steps
    return Outcome("fallback" if any(isinstance(s, FallbackStep) for s in steps) else "native")


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " | ".join(lines[:4])[:400]
