"""Campaigns: thousands of cases in worker processes, with progress, resume, and failing cases shrunk to files."""

import json
import os
import queue
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TextIO

from tests.fuzz.case import Case
from tests.fuzz.shrink import shrunk

LONGEST = 120
"""Seconds that a case may take while the campaign runs: those in which it is stopped, as by Ctrl-Z, do not count."""

ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}
"""OpenMP's threads sleep between parallel loops: there are more of them than processors."""

JOBS_PER_WORKER = 400
"""Cases after which a worker is replaced, so that what it holds on to is returned."""

WRITTEN_EVERY = 5
"""Seconds after which the state is written again: what a stop without warning loses at most."""

SHRUNK_PER_KIND = 2
"""Failures of one kind that are shrunk; of the others only the first form is kept."""


@dataclass
class Outcome:
    """What became of a job: the case (as far as it is known), and what failed, if anything."""

    case: dict[str, Any] | None = None
    failure: tuple[str, str] | None = None
    tally: dict[str, list[int]] = field(default_factory=dict[str, list[int]])


class _Watch(threading.Thread):
    """Ends a worker process that does not answer in time.

    Its seconds are waits of one second: a wait during which this process is stopped counts once, however long it was.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        super().__init__(daemon=True)
        self.process = process
        self.answered = threading.Event()
        self.expired = False

    def run(self) -> None:
        """Waits for the answer, or ends the process."""
        if not any(self.answered.wait(1.0) for _ in range(LONGEST)):
            self.expired = True
            self.process.kill()


class Worker:
    """A worker process, replaced when it dies.

    Args:
        command: what to start.
    """

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "tests.fuzz.worker")) -> None:
        self.command = command
        self.process: subprocess.Popen[str] | None = None
        self.errors: IO[str] | None = None
        self.done = 0

    def _started(self) -> "subprocess.Popen[str]":
        if self.process is None or self.process.poll() is not None or self.done >= JOBS_PER_WORKER:
            self.close()
            self.done = 0
            self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                env={**os.environ, **ENVIRONMENT},
            )  # fmt: skip
        return self.process

    def ask(self, job: dict[str, Any]) -> Outcome:
        """The outcome of a job; a worker that dies or hangs is a failure of the case that it had."""
        process = self._started()
        self.done += 1
        outcome = Outcome()
        watch = _Watch(process)
        watch.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                message = json.loads(line)
                outcome.case = message.get("case", outcome.case)
                if "result" in message:
                    outcome.tally = message["result"]["tally"]
                    failure = message["result"]["failure"]
                    outcome.failure = (failure[0], failure[1]) if failure else None
                    return outcome
            status = process.wait()
            outcome.failure = ("crash", f"exit status {status}: {self._last_words()}")
        except BrokenPipeError:
            outcome.failure = ("crash", self._last_words())
        finally:
            watch.answered.set()
        if watch.expired:
            outcome.failure = ("timeout", f"no answer in {LONGEST} s")
        return outcome

    def _last_words(self) -> str:
        assert self.errors is not None
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().splitlines() if line.strip()]
        return " / ".join(lines[:3])

    def close(self) -> None:
        """Ends the process."""
        process, errors = self.process, self.errors
        self.process = self.errors = None
        if process is None or errors is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        errors.close()


def stage_of(failure: tuple[str, str]) -> str:
    """What failures that are probably one fault have in common."""
    return re.sub(r"\d+", "#", failure[0])


class Campaign:
    """The cases 0 .. count-1 of a seed.

    Args:
        folder: where failing cases and the state are kept.
        worker: makes a worker.
    """

    def __init__(
        self, folder: Path, seed: int, count: int, log: TextIO = sys.stdout, worker: Callable[[], Worker] = Worker
    ) -> None:
        self.folder, self.seed, self.count, self.log, self.worker = folder, seed, count, log, worker
        self.done: set[int] = set()
        self.tally: dict[str, list[int]] = {}
        self.failed: dict[str, int] = {}
        self.spent = 0.0
        self.lock = threading.Lock()

    @property
    def state(self) -> Path:
        """The file that `resume` reads."""
        return self.folder / f"state-{self.seed}.json"

    def resume(self) -> None:
        """Takes up what an earlier run did."""
        if self.state.exists():
            data = json.loads(self.state.read_text())
            self.done = set(range(data["below"])) | set(data["beyond"])
            self.tally, self.failed, self.spent = data["tally"], data["failed"], data["spent"]

    def save(self) -> None:
        """Writes the state."""
        below = next(k for k in range(self.count + 1) if k not in self.done)
        beyond = sorted(k for k in self.done if k > below)
        data = {"below": below, "beyond": beyond, "tally": self.tally, "failed": self.failed, "spent": self.spent}
        part = self.state.with_suffix(".part")
        part.write_text(json.dumps(data))
        part.replace(self.state)

    def run(self, jobs: int) -> int:
        """Runs what is left on some workers; the number of failures."""
        self.folder.mkdir(parents=True, exist_ok=True)
        left: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(self.count):
            if index not in self.done:
                left.put(index)
        self.begin, self.before, self.earlier = time.monotonic(), len(self.done), self.spent
        self.written = self.spent
        threads = [threading.Thread(target=self._serve, args=(left,), daemon=True) for _ in range(jobs)]
        for t in threads:
            t.start()
        try:
            while any(t.is_alive() for t in threads):
                for t in threads:
                    t.join(1.0)
                self._progress()
        finally:
            with self.lock:
                self.save()
        self._progress("\n")
        return sum(self.failed.values())

    def _serve(self, left: "queue.SimpleQueue[int]") -> None:
        worker = self.worker()
        while True:
            try:
                index = left.get_nowait()
            except queue.Empty:
                worker.close()
                return
            outcome = worker.ask({"seed": self.seed, "index": index})
            if outcome.failure is not None:
                self._failed(index, outcome, worker)
            with self.lock:
                self.done.add(index)
                for name, (applied, rejected) in outcome.tally.items():
                    total = self.tally.setdefault(name, [0, 0])
                    total[0] += applied
                    total[1] += rejected
                self.spent = self.earlier + time.monotonic() - self.begin
                if self.spent - self.written > WRITTEN_EVERY:
                    self.save()
                    self.written = self.spent

    def _failed(self, index: int, outcome: Outcome, worker: Worker) -> None:
        assert outcome.failure is not None
        stage = stage_of(outcome.failure)
        with self.lock:
            self.failed[stage] = self.failed.get(stage, 0) + 1
            number = self.failed[stage]
        path = self.folder / f"failure-{self.seed}-{index}.json"
        case = outcome.case
        if case is not None and number <= SHRUNK_PER_KIND:
            case, outcome.failure = smallest(case, outcome.failure, worker.ask)
        data = {"failure": outcome.failure, "index": index, "seed": self.seed, "case": case}
        path.write_text(json.dumps(data, indent=1))
        with self.lock:
            first = outcome.failure[1].splitlines()[0] if outcome.failure[1] else ""
            self._line(f"{path}: {outcome.failure[0]}: {first}", "\n")

    def _progress(self, end: str = "") -> None:
        now, fresh = time.monotonic() - self.begin, len(self.done) - self.before
        rate = fresh / now if now else 0.0
        rest = (self.count - len(self.done)) / rate / 60 if rate else float("nan")
        done, failed = f"{len(self.done)} of {self.count}", sum(self.failed.values())
        text = f"{done}, {failed} failed, {rate:.1f}/s, {rest:.0f} min left"
        if self.log.isatty() or end:
            self._line(text, end)

    def _line(self, text: str, end: str) -> None:
        """Replaces the line of progress, where there is one."""
        print(f"\r\033[K{text}" if self.log.isatty() else text, end=end, file=self.log, flush=True)

    def summary(self, what: str = "primitive", accepted: str = "applied", refused: str = "rejected") -> str:
        """How often every primitive, or what else is counted, was applied and rejected, and what failed."""
        steps = sum(a for a, _ in self.tally.values())
        programs = max(1, len(self.done))
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = (cpu.ru_utime + cpu.ru_stime) / max(1, len(self.done) - self.before)
        lines = [
            f"{len(self.done)} programs, {steps / programs:.1f} {accepted} each, {self.spent:.0f} s; "
            f"{used * 1e3:.0f} ms of processor time each"
        ]
        lines.append(f"{what:24}{accepted:>13}{refused:>13}")
        lines += [f"{name:24}{a:13}{r:13}" for name, (a, r) in sorted(self.tally.items())]
        lines += [f"{n} failures: {stage}" for stage, n in sorted(self.failed.items())] or ["no failures"]
        return "\n".join(lines)


def smallest(
    case: dict[str, Any], failure: tuple[str, str], ask: Callable[[dict[str, Any]], Outcome]
) -> tuple[dict[str, Any], tuple[str, str]]:
    """A small case that fails at the same stage, and how it fails."""
    last = failure

    def fails(candidate: Case) -> Case | None:
        nonlocal last
        outcome = ask({"case": candidate.to_json(), "lenient": True})
        if outcome.failure is None or stage_of(outcome.failure) != stage_of(failure):
            return None
        last = outcome.failure
        return Case.from_json(outcome.case) if outcome.case is not None else candidate

    return shrunk(Case.from_json(case), fails).to_json(), last
