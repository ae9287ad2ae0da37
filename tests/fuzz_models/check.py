"""Whether a random model compiles and gives what ONNX Runtime gives."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

import numpy as np
import onnx
from tests.fuzz.case import Case, Tally
from tests.fuzz.check import WrongError
from tests.fuzz.options import Choice
from tests.fuzz_models.builder import Builder
from tests.fuzz_models.nodes import draw
from tests.fuzz_models.oracle import Array, oracle
from tests.fuzz_models.rounding import is_rounding

import tilewright
from tilewright.errors import FallbackWarning, InternalError, ShapeWarning, TilewrightError
from tilewright.runtime import Executable

OPSETS = (7, 22)
"""Versions of the operator set that are drawn unless others are asked for."""

TOLERANCE = 2e-4
"""How far a value may be off, relative to the largest of its output and to its own size. Values are at most 1e4 and
models a dozen nodes, so that sums in another order stay far below; what is wrong is wrong by more. Where terms cancel,
what is left may be off by more: then errors against float64 decide (`rounding.py`)."""

DRAWS = 8
"""Inputs for which ONNX Runtime's errors are compared."""

Judge = Callable[[str, Array], bool]
"""Whether an output of a name, which differs, is as near to float64 as ONNX Runtime's."""


def random_case(seed: int, index: int, opsets: tuple[int, int] = OPSETS) -> Case:
    """The case of a number."""
    rng = Random(f"models/{seed}/{index}")
    record: dict[str, Choice] = {}
    case = Case("model", record, seed=rng.randrange(1 << 30))
    record["old opset"], record["opset"] = opsets[0] < OPSETS[0], rng.randint(*opsets)
    made_of(case, rng)
    return case


def made_of(case: Case, rng: Random | None = None) -> tuple[Builder, onnx.ModelProto, str]:
    """The model of a case and the optimizer; choices that the record lacks are drawn, or the simplest."""
    builder = Builder(case.record, rng, case.seed)  # type: ignore[arg-type]
    optimizer = builder.choice("optimizer", ("rule",) * 9 + ("gensor",))
    draw(builder)
    return builder, builder.model(), optimizer


def understood(case: Case) -> Case:
    """The case with all its choices within their ranges."""
    record = dict(case.record)
    made_of(Case(case.kind, record, seed=case.seed))
    return Case(case.kind, record, seed=case.seed)


def check(case: Case, tally: Tally | None = None) -> None:
    """Raises a `WrongError` where a model is refused that others run, or gives something else."""
    builder, model, optimizer = made_of(case)
    if tally is not None:
        for kind in builder.kinds:
            tally.setdefault(kind, [0, 0])[0] += 1
    feeds = builder.feeds()
    expected = _answers(model, feeds)
    if expected is None:
        return
    exe = compiled(model, optimizer)
    if tally is not None:
        native = all(hasattr(s, "prefix") for s in exe.manifest.steps)
        tally.setdefault("(all native)", [0, 0])[not native] += 1
    draws = [builder.feeds(draw=k) for k in range(DRAWS)]
    compare("", call(exe, feeds), expected, partial(is_rounding, model, draws))
    if builder.symbols and not builder.record.get("one run"):
        sizes = {name: size + 1 + k for k, (name, size) in enumerate(builder.symbols.items())}
        others = [builder.feeds(sizes, k) for k in range(DRAWS)]
        expected_there = _answers(model, others[0])
        if expected_there is not None:
            compare("other sizes, ", call(exe, others[0]), expected_there, partial(is_rounding, model, others))
    compare("again, ", call(exe, feeds), expected, partial(is_rounding, model, draws))


def _answers(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
    """What others make of the model, None where they refuse these inputs."""
    try:
        return dict(zip([o.name for o in model.graph.output], oracle(model, feeds), strict=True))
    except Exception:  # ONNX Runtime has an exception type per status
        return None


def compiled(model: onnx.ModelProto, optimizer: str) -> Executable:
    """The compiled model."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FallbackWarning)
        warnings.simplefilter("ignore", ShapeWarning)
        try:
            return tilewright.compile(model, optimizer=optimizer, threads=1)
        except InternalError as error:
            raise WrongError("internal error", str(error)) from error
        except TilewrightError as error:
            raise WrongError("wrong refusal", str(error)) from error
        except Exception as error:
            raise WrongError("internal error", f"{type(error).__name__}: {error}") from error


def call(exe: Executable, feeds: Mapping[str, Array]) -> Mapping[str, Any]:
    """The outputs by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return exe.run(feeds)
        except InternalError as error:
            raise WrongError("internal error in a call", str(error)) from error
        except TilewrightError as error:
            raise WrongError("wrong refusal of a call", str(error)) from error
        except Exception as error:
            raise WrongError("internal error in a call", f"{type(error).__name__}: {error}") from error


def compare(when: str, outputs: Mapping[str, Any], expected: Mapping[str, Array], judge: Judge) -> None:
    """Raises a failure where an output differs by more than rounding; `judge` is asked where it is off by more than
    `TOLERANCE`."""
    for name, right in expected.items():
        actual = np.asarray(outputs[name])
        if actual.shape != right.shape or actual.dtype != right.dtype:
            what = f"{when}{name}: expected {right.dtype}{list(right.shape)}, got {actual.dtype}{list(actual.shape)}"
            raise WrongError("wrong answer", what)
        wide, meant = (a.astype(np.float64) if a.dtype.kind == "f" else a for a in (actual, right))
        if right.dtype.kind == "f":
            limit = TOLERANCE * (np.abs(meant) + np.abs(meant[np.isfinite(meant)]).max(initial=0) * 0.1 + 1e-3)
            with np.errstate(invalid="ignore"):
                is_near = np.isfinite(meant) & (np.abs(wide - meant) <= limit)
            wrong = ~((wide == meant) | is_near | (np.isnan(wide) & np.isnan(meant)))
        else:
            wrong = np.asarray(wide != meant)
        if wrong.any() and not (right.dtype.kind == "f" and judge(name, actual)):
            place = tuple(int(k[0]) for k in np.nonzero(wrong)) if wrong.ndim else ()
            what = f"{when}{name}{list(place)}: expected {right[place]}, got {actual[place]}"
            raise WrongError("wrong answer", f"{what}; {int(wrong.sum())} of {actual.size} wrong")
