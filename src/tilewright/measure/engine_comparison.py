"""Engines against each other, each in a process of its own, blocks of calls in turns with pauses between them.

Engines keep threads that spin for a while after a call, so two in one process take each other's cores. Machines have
slow phases, in which a hypervisor or a neighbour takes cores or the clock is low; so beside every block, before and
after it, a canary runs: a fixed product. Where it is clearly slower than at its best the machine was disturbed, and the
block does not count; there are then more rounds, up to a limit.
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
"""A block counts where the canary beside it took at most so many times its best time."""

BEST_CANARY_QUANTILE = 0.1
"""The quantile of the canary's blocks that counts as its best: a single fast one may be luck."""

MAX_ROUND_FACTOR = 3
"""Times the rounds that were asked for which are run at most where blocks do not count."""

_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How long a duel takes.

    Attributes:
        rounds: blocks of every engine that have to count.
        seconds: length of a block.
        pause: seconds before each.
    """

    rounds: int = 5
    seconds: float = 0.3
    pause: float = 0.2


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """One block of one engine: the seconds of its calls, and of the canary's before and after it."""

    engine: str
    calls: tuple[float, ...]
    before: float
    after: float

    @property
    def canary(self) -> float:
        """The slower one of both sides."""
        return max(self.before, self.after)


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """What an engine reached, in seconds.

    Attributes:
        median: of the blocks that count, the median of their medians.
        spread: the distance between the quartiles of these, as a part of the median.
        least: the fastest call of these blocks.
        calls: in these blocks.
        quiet: how many blocks count. Where none does, all do, and this is 0.
        blocks: how many there were.
    """

    median: float
    spread: float
    fastest: float
    calls: int
    undisturbed: int
    blocks: int


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """A duel's outcome.

    Attributes:
        engines: by name, in the order given.
        canary_best, canary_worst: seconds of the canary's product.
        others: the share of the machine's CPUs that other processes took meanwhile.
    """

    engines: Mapping[str, EngineTimes]
    canary_best: float
    canary_worst: float
    others: float

    def best_peer(self) -> str | None:
        """The fastest engine but this compiler; None where there is no other."""
        peers = {name: s.median for name, s in self.engines.items() if name != OWN}
        return min(peers, key=lambda name: peers[name]) if peers else None


RunBlock = Callable[[str, float], Sequence[float]]
"""Runs a block of an engine (name, seconds); seconds of its calls."""


def compare_engines(
    executable: Executable,
    model: str | os.PathLike[str] | None,
    peers: Sequence[str],
    feeds: Mapping[str, Any],
    plan: RunPlan,
    tell: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> ComparisonResult:
    """Times a compiled model and other engines on the model that it was compiled from.

    Args:
        executable: the compiled model; it runs with its number of threads, and so do the others.
        model: the ONNX file; only needed for peers.
        peers: names of `measure.engines.PEERS`.
        feeds: the inputs, arrays by name.
        plan: how many blocks, how long.
        tell: told (what, done, total) as it goes on.

    Raises:
        OptionError: an engine is not installed, rejects the model or these inputs, or ended unexpectedly.
    """
    names, threads = (OWN, *peers), executable.threads
    with TemporaryDirectory(prefix="tilewright-") as folder, ExitStack() as started:
        own, arrays = Path(folder) / "model.tw", Path(folder) / "feeds.npz"
        executable.save(own)
        described = write_feeds(arrays, dict(feeds), {s.name: s.dtype for s in executable.inputs})
        processes: dict[str, _EngineProcess] = {}
        for k, name in enumerate((CANARY, *names)):
            tell(f"starting {name}", k, len(names) + 1)
            file = str(own) if name == OWN else os.fspath(model or "")
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
    """Blocks of all engines in turns, every other round backwards, until enough of each count or `MOST` times as many
    rounds are over."""
    found: list[TimedBlock] = []
    time.sleep(plan.pause)
    before = median(run_block(CANARY, CANARY_SECONDS))
    for k in range(MAX_ROUND_FACTOR * plan.rounds):
        for name in names[:: -1 if k % 2 else 1]:
            time.sleep(plan.pause)
            calls = tuple(run_block(name, plan.seconds))
            time.sleep(plan.pause)
            after = median(run_block(CANARY, CANARY_SECONDS))
            found.append(TimedBlock(name, calls, before, after))
            before = after
        counting = undisturbed_blocks(found)
        done = min(sum(b.engine == n for b in counting) for n in names)
        tell("quiet rounds", min(done, plan.rounds), plan.rounds)
        if done >= plan.rounds:
            break
    return found


def best_canary(blocks: Sequence[TimedBlock]) -> float:
    """The canary's time on the undisturbed machine."""
    found = sorted(x for b in blocks for x in (b.before, b.after))
    return found[int(BEST_CANARY_QUANTILE * len(found))]


def undisturbed_blocks(blocks: Sequence[TimedBlock]) -> list[TimedBlock]:
    """The blocks beside which the canary was not slower than it may be."""
    limit = MAX_CANARY_SLOWDOWN * best_canary(blocks)
    return [b for b in blocks if b.canary <= limit]


def comparison_result(names: Sequence[str], blocks: Sequence[TimedBlock], others: float) -> ComparisonResult:
    """The outcome of blocks, at least one per engine."""
    counting = undisturbed_blocks(blocks)
    engines: dict[str, EngineTimes] = {}
    for name in names:
        own = [b for b in blocks if b.engine == name]
        good = [b for b in counting if b.engine == name]
        engines[name] = _engine_times(good or own, len(good), len(own))
    return ComparisonResult(engines, best_canary(blocks), max(b.canary for b in blocks), others)


def _engine_times(blocks: Sequence[TimedBlock], undisturbed: int, total: int) -> EngineTimes:
    medians = [median(b.calls) for b in blocks]
    middle = median(medians)
    low, _, high = quantiles(medians, n=4, method="inclusive") if len(medians) > 1 else (middle,) * 3
    least = min(min(b.calls) for b in blocks)
    return EngineTimes(middle, (high - low) / middle, least, sum(len(b.calls) for b in blocks), undisturbed, total)


class _EngineProcess:
    """A process with an engine that is ready."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self.name, self._process = name, process
        self.cpu = 0.0

    def exchange(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a line; OptionError where the process has ended instead."""
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
        """Seconds of the calls of a block."""
        answer = self.exchange({"seconds": seconds})
        self.cpu = float(answer["cpu"])
        return [float(x) for x in answer["calls"]]


@contextmanager
def _start_engine(job: Mapping[str, Any]) -> Generator[_EngineProcess]:
    """A process for a job; it is over when the context is left, in whatever way."""
    environment = dict(os.environ)
    if job["engine"] == CANARY:
        environment |= dict.fromkeys(_BLAS_THREADS, str(job["threads"]))
    # -P: modules are not looked for in the working directory; a session of its own: Ctrl-C is this process's to handle
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
                with suppress(OSError):  # of what was not sent to a process that has ended
                    pipe.close()
        process.wait()
