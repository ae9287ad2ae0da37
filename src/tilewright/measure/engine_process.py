"""A process that runs one engine and times blocks of calls on request (started by `engine_comparison.py`).

The protocol is lines of JSON on standard input and output. The first is the job: {"engine", "model", "threads",
"feeds", "described"}; the answer is {"ready"} or {"error", "where", "hint"}. Then every {"seconds": s} is answered by
{"calls": [seconds of each], "cpu": CPU seconds of the process so far}. Output of engines goes to standard error.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.measure.engines import PEERS
from tilewright.measure.interleaved_blocks import CANARY
from tilewright.measure.timing import time_block
from tilewright.runtime import load
from tilewright.runtime.weights import numpy_dtype

OWN = "tilewright"

CANARY_SIZE = 512
"""Rows and columns of the canary's matrices, float32."""

MAX_REPORTED_CALLS = 10_000
"""Maximum number of calls of a block that are reported; of more calls, an evenly spaced subset."""

Array = np.ndarray[Any, Any]


def write_feeds(path: Path, feeds: dict[str, Any], dtypes: dict[str, str]) -> list[dict[str, Any]]:
    """Writes arrays for another process; returns what `read_feeds` needs besides the file.

    Args:
        path: of the npz file.
        feeds: arrays by name.
        dtypes: the manifest's dtypes by name.
    """
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    # as bytes, because NumPy's format does not support all dtypes
    raw: dict[str, Any] = {f"a{k}": np.frombuffer(a.tobytes(), np.uint8) for k, a in enumerate(arrays.values())}
    with path.open("wb") as file:
        np.savez(file, **raw)
    return [{"name": name, "dtype": dtypes[name], "shape": list(a.shape)} for name, a in arrays.items()]


def read_feeds(path: Path, described: list[dict[str, Any]]) -> dict[str, Array]:
    """The arrays that `write_feeds` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return {
            d["name"]: np.frombuffer(file[f"a{k}"].tobytes(), numpy_dtype(d["dtype"])).reshape(d["shape"]).copy()
            for k, d in enumerate(described)
        }


def _engine_call(job: dict[str, Any]) -> Callable[[], object]:
    """The function that the job's engine calls repeatedly."""
    engine, threads = str(job["engine"]), int(job["threads"])
    if engine == CANARY:
        a = np.random.default_rng(0).standard_normal((CANARY_SIZE, CANARY_SIZE), np.float32)
        return lambda: a @ a
    feeds = read_feeds(Path(job["feeds"]), job["described"])
    if engine == OWN:
        executable = load(job["model"], threads)
        return lambda: executable.run(feeds)
    run = PEERS[engine](str(job["model"]), threads)
    return lambda: run(feeds)


def serve(source: TextIO, answer: Callable[[dict[str, Any]], None]) -> None:
    """Answers the requests in the lines of `source`."""
    job = json.loads(source.readline())
    try:
        call = _engine_call(job)
        call()
    except TilewrightError as error:
        answer({"error": error.what, "where": error.where, "hint": error.hint})
        return
    except Exception as error:
        answer({"error": f"{job['engine']} fails: {type(error).__name__}: {error}", "where": "", "hint": ""})
        return
    answer({"ready": True})
    for line in source:
        calls = time_block(call, float(json.loads(line)["seconds"]))
        step = -(-len(calls) // MAX_REPORTED_CALLS)
        answer({"calls": calls[::step], "cpu": time.process_time()})


def main(serve: Callable[[TextIO, Callable[[dict[str, Any]], None]], None] = serve) -> None:
    """Entry point of the process.

    Args:
        serve: answers the requests in the lines of a file.
    """
    # engines may print: standard output becomes standard error, and only answers go to the parent
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, lambda data: print(json.dumps(data), file=answers, flush=True))


if __name__ == "__main__":
    main()
