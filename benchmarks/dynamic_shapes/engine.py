"""A process with one engine that is given models, shapes and blocks of calls, and its client.

Engines keep threads that spin after a call, so two of them in one process would compete for cores. Requests and answers
are lines of JSON: {"model"} loads, {"feeds", "described"} makes the first call of a shape and times it, {"seconds"}
times a block of calls.
"""

import json
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.common.isolation import error_text
from tilewright.measure import engine_process
from tilewright.measure.engine_comparison import EngineProcess, start_process
from tilewright.measure.engine_process import CANARY_SIZE, OWN, read_feeds
from tilewright.measure.engines import PEERS
from tilewright.measure.timing import time_block
from tilewright.runtime import load

MAX_REPORTED_CALLS = 1000
"""Of a block; of more calls an evenly spaced subset is reported."""

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class EngineClient:
    """An engine in a process of its own.

    Args:
        process: that runs this module.
    """

    def __init__(self, process: EngineProcess) -> None:
        self._process = process

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            ValueError: the engine has failed.
            OptionError: its process has terminated.
        """
        answer = self._process.exchange(request)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer


@contextmanager
def start_engine(name: str, threads: int) -> Generator[EngineClient]:
    """A process with an engine, by the name of a peer, `tilewright` or `canary`; it ends with the context."""
    command = [sys.executable, "-m", "benchmarks.dynamic_shapes.engine", name, str(threads)]
    with start_process(name, threads, command) as process:
        yield EngineClient(process)


def output_norms(outputs: Mapping[str, Any]) -> list[float]:
    """Of every output, by name, its Euclidean norm."""
    return [float(np.linalg.norm(np.asarray(outputs[n], np.float64))) for n in sorted(outputs)]


class _EngineState:
    """An engine with its model and the inputs of the last shape."""

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._threads = name, threads
        self._run: Run = _multiply
        self._feeds: Mapping[str, Any] = {}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        if "model" in request:
            model, threads = str(request["model"]), self._threads
            self._run = load(model, threads).run if self._name == OWN else PEERS[self._name](model, threads)
            return {}
        if "feeds" in request:
            self._feeds = read_feeds(Path(request["feeds"]), request["described"])
            start = time.perf_counter()
            outputs = self._run(self._feeds)
            return {"first": time.perf_counter() - start, "norms": output_norms(outputs)}
        calls = time_block(lambda: self._run(self._feeds), float(request["seconds"]))
        return {"calls": calls[:: -(-len(calls) // MAX_REPORTED_CALLS)]}


_CANARY_MATRIX = np.random.default_rng(0).standard_normal((CANARY_SIZE, CANARY_SIZE), np.float32)


def _multiply(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The canary's work."""
    return {"y": _CANARY_MATRIX @ _CANARY_MATRIX}


def serve(name: str, threads: int, source: TextIO, answer: Callable[[dict[str, Any]], None]) -> None:
    """Answers the requests in the lines of `source`; a failure is an answer as well."""
    engine = _EngineState(name, threads)
    for line in source:
        try:
            answer(engine.answer(json.loads(line)))
        except Exception as error:
            answer({"error": f"{name}: {error_text(error)}"})


if __name__ == "__main__":
    engine_process.main(lambda source, answer: serve(sys.argv[1], int(sys.argv[2]), source, answer))
