"""The cases of `onnx.backend.test`, and what becomes of one of them."""

import unittest
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.runner import Runner
from tests.onnx_backend.nearer import is_nearer

from tilewright.driver.interfaces.onnx_backend import OnnxBackend, OnnxBackendRep
from tilewright.errors import TilewrightError
from tilewright.graph.passes.def_use import RANDOM_OPERATORS
from tilewright.runtime import Executable
from tilewright.runtime.manifest import FallbackStep

KINDS = ("native", "fallback", "drawn", "nearer", "refused", "wrong", "failed", "crashed")
"""What becomes of a case: it passes without or with a step of the reference evaluator; its values are drawn at random,
so that only types and shapes can be compared; values beyond the tolerance are all nearer to float64 than those expected
(`nearer.py`); a typed error; other values than expected; another exception; the process ends or hangs."""


class RecordedRep(OnnxBackendRep):
    """A compiled model that keeps what it was last fed."""

    def __init__(self, executable: Executable, model: onnx.ModelProto) -> None:
        super().__init__(executable)
        self.model = model
        self.feeds: dict[str, Any] = {}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        self.feeds = dict(zip([spec.name for spec in self.executable.inputs], inputs, strict=False))
        return super().run(inputs, **kwargs)


class Recorded(OnnxBackend):
    """The backend with the rule's programs, which compile fast; it keeps the last model that it prepared."""

    last: RecordedRep | None = None

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> OnnxBackendRep:
        Recorded.last = None
        prepared = super().prepare(model, device, optimizer="rule", threads=1, **kwargs)
        Recorded.last = RecordedRep(prepared.executable, model)
        return Recorded.last


class NearerError(AssertionError):
    """Values differ from ONNX's and are nearer to float64."""


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
        try:
            cls._assert_similar(ref_outputs, outputs, rtol, atol, model_dir)
        except AssertionError as error:
            last = Recorded.last
            if last is not None and is_nearer(last.model, last.feeds, ref_outputs, outputs, rtol, atol):
                raise NearerError(str(error)) from error
            raise

    @classmethod
    def _assert_similar(
        cls, ref_outputs: Any, outputs: Any, rtol: float, atol: float, model_dir: str | None = None
    ) -> None:
        assert len(outputs) == len(ref_outputs), f"{len(outputs)} values, expected {len(ref_outputs)}"
        for expected, actual in zip(ref_outputs, outputs, strict=True):
            assert isinstance(actual, list | tuple) == isinstance(expected, list | tuple), (
                f"{type(actual)}, not {type(expected)}"
            )
            if isinstance(actual, list | tuple):
                cls._assert_similar(expected, actual, rtol, atol, model_dir)
            else:
                super().assert_similar_outputs([expected], [actual], rtol, atol, model_dir)


def load_cases(backend: type[Recorded] = Recorded) -> dict[tuple[str, str], Callable[..., Any]]:
    """Functions by (category, name) of the case, such as ("Node", "test_abs"), which run on a backend."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        items_by_category = _Runner(backend)._test_items
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
            return Outcome(_kind_of(error), _first(error))
        except unittest.SkipTest as error:
            return Outcome("failed", f"skipped: {error}")
        except Exception as error:
            return Outcome("failed", f"{type(error).__name__}: {_first(error)}")
    if Recorded.last is None:
        return Outcome("failed", "the case did not prepare a model")
    fallbacks = [s for s in Recorded.last.executable.manifest.steps if isinstance(s, FallbackStep)]
    labels = sorted({label.partition(" (")[2].rstrip(")") for s in fallbacks for label in s.nodes})
    return Outcome("fallback" if fallbacks else "native", ", ".join(labels))


def _kind_of(error: AssertionError) -> str:
    """The kind of a case whose values are not those expected."""
    if Recorded.last is None:
        return "failed"
    if _is_drawn(Recorded.last, error):
        return "drawn"
    return "nearer" if isinstance(error, NearerError) else "wrong"


def _is_drawn(model: OnnxBackendRep, error: AssertionError) -> bool:
    """Whether elements differ that an operator draws; another type or shape is another matter."""
    nodes = [label for step in model.executable.manifest.steps for label in step.nodes]
    draws = any(label.endswith(f"({name})") for label in nodes for name in RANDOM_OPERATORS)
    return draws and "Mismatched elements" in str(error)


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " | ".join(lines[:4])[:400]
