"""Compares engines: each in a process of its own, timed in blocks of calls, in turns, with pauses between them.

Engines keep threads that spin for a while after a call, so two engines in one process compete for cores. The canary
beside the blocks (`interleaved_blocks.py`) is a fixed matrix product in a process of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tilewright.errors import OptionError
from tilewright.measure.engine_process import OWN, write_feeds
from tilewright.measure.interleaved_blocks import (
    CANARY,
    BlockTimes,
    RunPlan,
    TimedBlock,
    best_canary,
    run_in_turns,
    times_of,
    typical_canary,
)
from tilewright.measure.system_load import SystemLoad
from tilewright.runtime import Executable

_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """Result of a comparison.

    Attributes:
        engines: times by name, in the order given.
        canary_best, canary_typical, canary_worst: shortest, shortest typical and longest seconds of the canary.
        others: share of the machine's CPUs that other processes took meanwhile.
    """

    engines: Mapping[str, BlockTimes]
    canary_best: float
    canary_typical: float
    canary_worst: float
    others: float

    def best_peer(self) -> str | None:
        """The fastest engine other than this compiler; None if there is none."""
        peers = {name: s.median for name, s in self.engines.items() if name != OWN}
        return min(peers, key=lambda name: peers[name]) if peers else None


def compare_engines(
    executable: Executable,
    model: str | os.PathLike[str] | None,
    peers: Sequence[str],
    feeds: Mapping[str, Any],
    plan: RunPlan,
    tell: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> ComparisonResult:
    """Times a compiled model, and other engines on the model that it was compiled from.

    Args:
        executable: the compiled model; all engines use its number of threads.
        model: the ONNX file; needed only for peers.
        peers: names of `measure.engines.PEERS`.
        feeds: the inputs, arrays by name.
        plan: number and length of blocks.
        tell: progress callback (what, done, total).

    Raises:
        OptionError: an engine is not installed, rejects the model or these inputs, or terminates unexpectedly.
    """
    threads = executable.threads
    with TemporaryDirectory(prefix="tilewright-") as folder:
        artifact, feeds_file = Path(folder) / "model.tw", _write_feeds(Path(folder), executable, feeds)
        executable.save(artifact)
        files = {OWN: str(artifact)} | dict.fromkeys(peers, os.fspath(model or ""))
        jobs = {n: {"engine": n, "model": file, "threads": threads, **feeds_file} for n, file in files.items()}
        return _compare(jobs, plan, tell, lambda blocks: False)


def compare_executables(
    executables: Mapping[str, Executable],
    feeds: Mapping[str, Any],
    plan: RunPlan,
    tell: Callable[[str, int, int], None] = lambda what, done, total: None,
    is_decided: Callable[[Sequence[TimedBlock]], bool] = lambda blocks: False,
) -> ComparisonResult:
    """Times several compilations of one model, each in a process of its own.

    Args:
        executables: at least one, by a name of the result's `engines`; each uses its own number of threads.
        feeds: the inputs, arrays by name.
        plan: number and length of blocks.
        tell: progress callback (what, done, total).
        is_decided: whether the blocks of all rounds so far are enough.

    Raises:
        OptionError: one rejects these inputs, or terminates unexpectedly.
    """
    with TemporaryDirectory(prefix="tilewright-") as folder:
        feeds_file = _write_feeds(Path(folder), next(iter(executables.values())), feeds)
        jobs: dict[str, dict[str, Any]] = {}
        for k, (name, executable) in enumerate(executables.items()):
            file = Path(folder) / f"{k}.tw"
            executable.save(file)
            jobs[name] = {"engine": OWN, "model": str(file), "threads": executable.threads, **feeds_file}
        return _compare(jobs, plan, tell, is_decided)


def _write_feeds(folder: Path, executable: Executable, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the inputs; the part of a job that says what they are."""
    path = folder / "feeds.npz"
    described = write_feeds(path, dict(feeds), {s.name: s.dtype for s in executable.inputs})
    return {"feeds": str(path), "described": described}


def _compare(
    jobs: Mapping[str, Mapping[str, Any]],
    plan: RunPlan,
    tell: Callable[[str, int, int], None],
    is_decided: Callable[[Sequence[TimedBlock]], bool],
) -> ComparisonResult:
    """Runs jobs, at least one, in turns with the canary."""
    names, first = tuple(jobs), next(iter(jobs.values()))
    with ExitStack() as started:
        processes: dict[str, EngineProcess] = {}
        for k, (name, job) in enumerate([(CANARY, {**first, "engine": CANARY, "model": ""}), *jobs.items()]):
            tell(f"starting {name}", k, len(names) + 1)
            processes[name] = started.enter_context(start_engine(job))
        start = SystemLoad.now(sum(p.cpu for p in processes.values()))
        blocks = run_in_turns(names, lambda name, seconds: processes[name].block(seconds), plan, tell, is_decided)
        others = start.others_since(sum(p.cpu for p in processes.values()))
    return comparison_result(names, blocks, others)


def comparison_result(names: Sequence[str], blocks: Sequence[TimedBlock], others: float) -> ComparisonResult:
    """Summary of timed blocks, at least one per engine. Disturbed blocks of an engine count only where it has no
    undisturbed one."""
    engines = {name: times_of(name, blocks) for name in names}
    worst = max(b.canary for b in blocks)
    return ComparisonResult(engines, best_canary(blocks), typical_canary(blocks), worst, others)


class EngineProcess:
    """A process with an engine, which answers lines of JSON.

    Args:
        name: of the engine, for errors.
        process: the process.
    """

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self.name, self._process = name, process
        self.cpu = 0.0

    def exchange(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a line and returns the answer.

        Raises:
            OptionError: the process has terminated.
        """
        line = ""
        if self._process.stdin is not None and self._process.stdout is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(sent) + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise OptionError(f"its process {how}", where=f"engine {self.name}", hint=f"leave {self.name} out")
        return json.loads(line)

    def block(self, seconds: float) -> list[float]:
        """Runs a block; seconds of its calls."""
        answer = self.exchange({"seconds": seconds})
        self.cpu = float(answer["cpu"])
        return [float(x) for x in answer["calls"]]


@contextmanager
def start_engine(job: Mapping[str, Any]) -> Generator[EngineProcess]:
    """A process for a job; it is killed when the context is left.

    Args:
        job: the first line of `engine_process`: {"engine", "model", "threads", "feeds", "described"}.

    Raises:
        OptionError: the engine is not installed, or rejects the model or its inputs.
    """
    # -P: no modules from the working directory
    command = [sys.executable, "-P", "-m", "tilewright.measure.engine_process"]
    with start_process(str(job["engine"]), int(job["threads"]), command) as engine:
        answer = engine.exchange(job)
        if "error" in answer:
            raise OptionError(answer["error"], where=answer["where"] or "engines", hint=answer["hint"])
        yield engine


@contextmanager
def start_process(engine: str, threads: int, command: Sequence[str]) -> Generator[EngineProcess]:
    """A process for an engine, or the canary, with so many threads; it is killed when the context is left."""
    environment = dict(os.environ)
    if engine == CANARY:
        environment |= dict.fromkeys(_BLAS_THREADS, str(threads))
    # a session of its own, so that only this process handles Ctrl-C
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield EngineProcess(engine, process)
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # for data not sent to a terminated process
                    pipe.close()
        process.wait()
