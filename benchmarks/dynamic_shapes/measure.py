"""One model at its shapes: engines in turns, the steady state and the first call of every shape."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.dynamic_shapes.artifacts import dynamic_artifact, model_file, static_artifact
from benchmarks.dynamic_shapes.engine import EngineClient, start_engine
from benchmarks.dynamic_shapes.models import DynamicModel
from benchmarks.dynamic_shapes.shapes import Shape, shape_feeds
from tilewright.measure.engine_process import OWN, write_feeds
from tilewright.measure.interleaved_blocks import CANARY, RunPlan, run_in_turns, times_of

DYNAMIC_SIZES, STATIC_SHAPE = "dynamic", "static"

PLAN = RunPlan(rounds=3, seconds=0.08, pause=0.03, canary_seconds=0.02)

TOLERANCE = 2e-2
"""Largest difference of the norms of outputs, relative: a wrong result differs by more."""


class ModelMeasurement:
    """The engines of one model, ready for its shapes.

    Args:
        model: the model.
        peers: names of other engines.
        threads: of every engine.
        optimizer: of the artifact of dynamic sizes.
    """

    def __init__(self, model: DynamicModel, peers: Sequence[str], threads: int, optimizer: str | None = None) -> None:
        self._model, self._stack = model, ExitStack()
        self._folder = Path(self._stack.enter_context(TemporaryDirectory()))
        engines = {DYNAMIC_SIZES: OWN, STATIC_SHAPE: OWN, CANARY: CANARY, **{p: p for p in peers}}
        files = {DYNAMIC_SIZES: dynamic_artifact(model, optimizer), **{p: model_file(model) for p in peers}}
        try:
            self._engines = {n: self._stack.enter_context(start_engine(e, threads)) for n, e in engines.items()}
            request = self._feeds({name: low for name, (low, _) in model.drawn.items()})
            for name, file in files.items():
                self._engines[name].ask({"model": str(file)})
                # the first call of a process does more than that of a shape
                self._engines[name].ask(request)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the processes."""
        self._stack.close()

    def measure(self, shape: Shape) -> dict[str, Any]:
        """Seconds of every engine at a shape.

        Raises:
            ValueError: an engine fails, or results differ.
        """
        self._engines[STATIC_SHAPE].ask({"model": str(static_artifact(self._model, shape))})
        request = self._feeds(shape)
        engines = [n for n in self._engines if n != CANARY]
        answers = {n: self._engines[n].ask(request) for n in engines}
        wrong = wrong_peers({n: a["norms"] for n, a in answers.items()})
        names = [n for n in engines if n not in wrong]
        blocks = run_in_turns(names, lambda name, seconds: _block(self._engines[name], seconds), PLAN)
        times = {n: times_of(n, blocks) for n in names}
        return {
            "kind": self._model.kind,
            "steady": {n: t.median for n, t in times.items()},
            "spread": {n: t.spread for n, t in times.items()},
            "undisturbed": min(t.undisturbed for t in times.values()),
            "first": {n: answers[n]["first"] for n in names if n != STATIC_SHAPE},
            "wrong": wrong,
        }

    def _feeds(self, shape: Shape) -> dict[str, Any]:
        feeds = shape_feeds(self._model, shape, 0)
        path, dtypes = self._folder / "feeds.npz", {n: str(a.dtype) for n, a in feeds.items()}
        return {"feeds": str(path), "described": write_feeds(path, dict(feeds), dtypes)}


def _block(engine: EngineClient, seconds: float) -> list[float]:
    return engine.ask({"seconds": seconds})["calls"]


def wrong_peers(norms: Mapping[str, Sequence[float]]) -> list[str]:
    """The peers whose outputs have other norms than those of our compilation for exactly this shape; their times say
    nothing.

    Raises:
        ValueError: our artifact of dynamic sizes differs, or every peer does.
    """
    expected = norms[STATIC_SHAPE]
    wrong = [
        name
        for name, values in norms.items()
        if len(values) != len(expected) or not np.allclose(values, expected, rtol=TOLERANCE, atol=1e-6)
    ]
    if DYNAMIC_SIZES in wrong or len(wrong) > max(0, len(norms) - 3):
        got = ", ".join(f"{n}: {list(norms[n])}" for n in wrong)
        raise ValueError(f"outputs of {STATIC_SHAPE} have norms {list(expected)}, but those of {got}")
    return wrong
