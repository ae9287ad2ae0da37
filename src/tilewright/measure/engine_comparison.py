"""Compares engines: each in a process of its own, timed in blocks of calls, in turns, with pauses between them.

Engines keep threads that spin for a while after a call, so two engines in one process compete for cores. Machines have
slow phases, in which a hypervisor or a neighbour takes cores or the clock is low. So before and after every block a
canary runs, a fixed matrix product. If it is clearly slower than at its best, the machine was disturbed and the block
does not count; more rounds follow, up to a limit.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from tilewright.errors import OptionError
from tilewright.measure.engine_process import CANARY, OWN, write_feeds
from tilewright.measure.system_load import SystemLoad
from tilewright.runtime import Executable

CANARY_SECONDS = 0.03
"""Length of the canary's blocks."""

MAX_CANARY_SLOWDOWN = 1.12
"""A block counts if the canary took at most so many times its best time before and after it."""

BEST_CANARY_QUANTILE = 0.1
"""Quantile of the canary's blocks that is taken as its best time; a single fast one may be luck."""

MAX_ROUND_FACTOR = 3
"""Maximum number of rounds, as a multiple of the planned ones, where blocks do not count."""

_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Duration of a comparison.

    Attributes:
        rounds: undisturbed blocks of every engine.
        seconds: length of a block.
        pause: seconds before each block.
    """

    rounds: int = 5
    seconds: float = 0.3
    pause: float = 0.2


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """One block of one engine: seconds of its calls, and of the canary before and after it."""

    engine: str
    calls: tuple[float, ...]
    before: float
    after: float

    @property
    def canary(self) -> float:
        """Seconds of the slower of the canary runs before and after the block."""
        return max(self.before, self.after)


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Times of an engine, in seconds.

    Attributes:
        median: median over the blocks that count of their medians.
        spread: distance between the quartiles of these medians, relative to `median`.
        fastest: the fastest call of these blocks.
        calls: number of calls in these blocks.
        undisturbed: number of blocks that count. If there are none, all blocks count and this is 0.
        blocks: number of all blocks.
    """

    median: float
    spread: float
    fastest: float
    calls: int
    undisturbed: int
    blocks: int


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """Result of a comparison.

    Attributes:
        engines: times by name, in the order given.
        canary_best, canary_worst: seconds of the canary.
        others: share of the machine's CPUs that other processes took meanwhile.
    """

    engines: Mapping[str, EngineTimes]
    canary_best: float
    canary_worst: float
    others: float

    def best_peer(self) -> str | None:
        """The fastest engine other than this compiler; None if there is none."""
        peers = {name: s.median for name, s in self.engines.items() if name != OWN}
        return min(peers, key=lambda name: peers[name]) if peers else None


RunBlock = Callable[[str, float], Sequence[float]]
"""Runs a block of an engine (name, seconds) and returns the seconds of its calls."""


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
    names, threads = (OWN, *peers), executable.threads
    with TemporaryDirectory(prefix="tilewright-") as folder, ExitStack() as started:
        artifact, arrays = Path(folder) / "model.tw", Path(folder) / "feeds.npz"
        executable.save(artifact)
        described = write_feeds(arrays, dict(feeds), {s.name: s.dtype for s in executable.inputs})
        processes: dict[str, _EngineProcess] = {}
        for k, name in enumerate((CANARY, *names)):
            tell(f"starting {name}", k, len(names) + 1)
            file = str(artifact) if name == OWN else os.fspath(model or "")
            job = {"engine": name, "model": file, "threads": threads, "feeds": str(arrays), "described": described}
            processes[name] = started.enter_context(_start_engine(job))
        start = SystemLoad.now(sum(p.cpu for p in processes.values()))
        blocks = run_in_turns(names, lambda name, seconds: processes[name].block(seconds), plan, tell)
        others = start.others_since(sum(p.cpu for p in processes.values()))
    return comparison_result(names, blocks, others)


def run_in_turns(
    names: Sequence[str],
    run_block: RunBlock,
    plan: RunPlan,
    tell: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[TimedBlock]:
    """Blocks of all engines in turns, every other round backwards, until enough of each count, for at most
    `MAX_ROUND_FACTOR` times the planned rounds."""
    blocks: list[TimedBlock] = []
    time.sleep(plan.pause)
    before = median(run_block(CANARY, CANARY_SECONDS))
    for k in range(MAX_ROUND_FACTOR * plan.rounds):
        for name in names[:: -1 if k % 2 else 1]:
            time.sleep(plan.pause)
            calls = tuple(run_block(name, plan.seconds))
            time.sleep(plan.pause)
            after = median(run_block(CANARY, CANARY_SECONDS))
            blocks.append(TimedBlock(name, calls, before, after))
            before = after
        counting = undisturbed_blocks(blocks)
        done = min(sum(b.engine == n for b in counting) for n in names)
        tell("quiet rounds", min(done, plan.rounds), plan.rounds)
        if done >= plan.rounds:
            break
    return blocks


def best_canary(blocks: Sequence[TimedBlock]) -> float:
    """The canary's time on the undisturbed machine."""
    times = sorted(x for b in blocks for x in (b.before, b.after))
    return times[int(BEST_CANARY_QUANTILE * len(times))]


def undisturbed_blocks(blocks: Sequence[TimedBlock]) -> list[TimedBlock]:
    """The blocks whose canary was at most `MAX_CANARY_SLOWDOWN` times its best time."""
    limit = MAX_CANARY_SLOWDOWN * best_canary(blocks)
    return [b for b in blocks if b.canary <= limit]


def comparison_result(names: Sequence[str], blocks: Sequence[TimedBlock], others: float) -> ComparisonResult:
    """Summary of timed blocks, at least one per engine. Disturbed blocks of an engine count only where it has no
    undisturbed one."""
    counting = undisturbed_blocks(blocks)
    engines: dict[str, EngineTimes] = {}
    for name in names:
        engine_blocks = [b for b in blocks if b.engine == name]
        undisturbed = [b for b in counting if b.engine == name]
        engines[name] = _engine_times(undisturbed or engine_blocks, len(undisturbed), len(engine_blocks))
    return ComparisonResult(engines, best_canary(blocks), max(b.canary for b in blocks), others)


def _engine_times(blocks: Sequence[TimedBlock], undisturbed: int, total: int) -> EngineTimes:
    medians = [median(b.calls) for b in blocks]
    middle = median(medians)
    low, _, high = quantiles(medians, n=4, method="inclusive") if len(medians) > 1 else (middle,) * 3
    least = min(min(b.calls) for b in blocks)
    return EngineTimes(middle, (high - low) / middle, least, sum(len(b.calls) for b in blocks), undisturbed, total)


class _EngineProcess:
    """A process with an engine that is ready to run."""

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
def _start_engine(job: Mapping[str, Any]) -> Generator[_EngineProcess]:
    """A process for a job; it is killed when the context is left."""
    environment = dict(os.environ)
    if job["engine"] == CANARY:
        environment |= dict.fromkeys(_BLAS_THREADS, str(job["threads"]))
    # -P: no modules from the working directory; a session of its own, so that only this process handles Ctrl-C
    command = [sys.executable, "-P", "-m", "tilewright.measure.engine_process"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        engine = _EngineProcess(str(job["engine"]), process)
        answer = engine.exchange(job)
        if "error" in answer:
            raise OptionError(answer["error"], where=answer["where"] or "engines", hint=answer["hint"])
        yield engine
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # for data not sent to a terminated process
                    pipe.close()
        process.wait()
