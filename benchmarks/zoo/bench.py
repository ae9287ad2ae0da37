"""Speed of the zoo: Tilewright next to ONNX Runtime, same machine, same feeds, same number of threads.

A figure is the median over all calls of all blocks (`timing.py`); "others" is the share of the CPU that other processes
took meanwhile. Another of Tilewright's optimizers may be a third engine.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.isolation import Emit, Event, error_text
from benchmarks.zoo.engines import load_artifact, prepared_engine, tilewright_engine
from benchmarks.zoo.model import label
from benchmarks.zoo.models import MODELS
from benchmarks.zoo.timing import Arrays, time_undisturbed
from tilewright.measure.engines import onnxruntime_engine
from tilewright.runtime.manifest import FallbackStep, all_steps


def bench_model(
    name: str, threads: int, quick: bool, optimizer: str | None, second_optimizer: str | None, emit: Emit,
    artifacts: Path | None = None,
) -> None:  # fmt: skip
    """Measure one model, emitting one event for compilation and artifact, and one per shape.

    Args:
        name: of the model.
        threads: of every engine.
        quick: whether only its first shape is measured.
        optimizer: Tilewright's; None for the default one.
        second_optimizer: another optimizer of Tilewright to compare with, or None.
        emit: takes the events.
        artifacts: a folder of artifacts that are measured instead of fresh compilations.
    """
    model = MODELS[name]
    if artifacts is None:
        compiled = tilewright_engine(model, threads, optimizer)
        emit({"compile_s": compiled.seconds, "warnings": list(compiled.warnings)})
        emit(_measure_artifact(compiled.executable, threads, model.inputs(model.shapes[0])))
    else:
        compiled = prepared_engine(model, threads, optimizer, artifacts)
        emit({"load_s": compiled.seconds})
    steps = all_steps(compiled.executable.manifest.steps)
    emit({"evaluated": sum(isinstance(step, FallbackStep) for step in steps)})
    second = [] if second_optimizer is None else [tilewright_engine(model, threads, second_optimizer).run]
    start = time.perf_counter()
    theirs = onnxruntime_engine(model.path, threads)
    emit({"onnxruntime_load_s": time.perf_counter() - start})
    for sizes in model.shapes[:1] if quick else model.shapes:
        emit({"starting": label(sizes)})
        event: Event = {"shape": label(sizes)}
        try:
            (peer, ours, *more), taken = time_undisturbed([theirs, compiled.run, *second], model.inputs(sizes))
            event |= {
                "ours_ms": 1e3 * statistics.median(ours),
                "theirs_ms": 1e3 * statistics.median(peer),
                "ours_min_ms": 1e3 * min(ours),
                "theirs_min_ms": 1e3 * min(peer),
                "calls": [len(ours), len(peer)],
                "others": taken,
            }
            if more:
                event["beside_ms"] = 1e3 * statistics.median(more[0])
        except Exception as error:
            event["error"] = error_text(error)
        emit(event)


def _measure_artifact(executable: Any, threads: int, feeds: Arrays) -> Event:
    """Save, load and run an artifact: its size, the median load time, and whether it computes the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tw"
        try:
            executable.save(path)
            seconds: list[float] = []
            for _ in range(3):
                start = time.perf_counter()
                run = load_artifact(path, threads)
                seconds.append(time.perf_counter() - start)
            expected, actual = executable.run(dict(feeds)), run(feeds)
            same = all(np.array_equal(actual[output], expected[output]) for output in expected)
        except Exception as error:
            return {"artifact_error": error_text(error)}
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
    return {"artifact_bytes": size, "load_s": statistics.median(seconds), "same_bits": same}
