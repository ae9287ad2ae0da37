"""One machine of a cluster: JSON text in, JSON text out. The builders and the runner of a local tuning do the work.

    describe() -> {"type": "x86-64-v4, sapphire-rapids, 2 cores", "version": "...", "cores": 2}
    build({"task": {...}, "candidate": {...}, "cases": [...]}) -> {"value": {...}, "seconds": 0.3}
    run({"task": {...}, "candidate": {...}, "incumbent": null, "effort": "quick", "threads": 2}) -> {"value": {...}}

A failure of a candidate, or a request that can't be read, is {"failure": [kind, message]}; where the incumbent could
not be prepared, so that the candidate did not run, it is {"incumbent_failure": [kind, message]}. An error of the
machine, which can do nothing then, is {"error": message}.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from tilewright.codegen.generator_version import generator_version
from tilewright.errors import MeasureError, TilewrightError
from tilewright.machine import Target
from tilewright.machine.shipped import describe_host
from tilewright.measure.build import decode_built
from tilewright.measure.local_measurer import MeasureOptions, Runner, UnpreparedIncumbentError
from tilewright.measure.worker import INCUMBENT_FAILURE, failed
from tilewright.measure.worker_process import WorkerPool
from tilewright.measure.workers.interface import EFFORT_PLANS, Effort
from tilewright.optimize import task_json
from tilewright.optimize.measurer import Failure, FailureKind
from tilewright.version import __version__


def host_type() -> str:
    """The type of this machine: its target, its microarchitecture and its number of processors. Times of one type are
    comparable, and its programs run on each machine of it."""
    machine, _ = describe_host()
    return f"{Target.host().name}, {machine.name}, {machine.cores} cores"


def code_version() -> str:
    """The version of this package and of its code generator, which have to be equal on all machines."""
    return f"{__version__}, {generator_version()}"


class LocalStation:
    """A station that is this machine; `close` ends its processes.

    Args:
        options: limits of builds and runs.
    """

    def __init__(self, options: MeasureOptions | None = None) -> None:
        self._options = options or MeasureOptions()
        self._runner = Runner()
        self._lock = threading.Lock()
        self._idle_builders: list[WorkerPool] = []
        self._is_closed = False

    def describe(self) -> str:
        """Its type, the version of its code, and its number of processors."""
        return json.dumps({"type": host_type(), "version": code_version(), "cores": describe_host()[0].cores})

    def build(self, request: str) -> str:
        """Builds a candidate in a process of its own; may be called by several threads at once."""
        return self._answer(lambda: self._build(json.loads(request)))

    def run(self, request: str) -> str:
        """Checks and times a built candidate in a process of its own; nothing else may run on the machine."""
        return self._answer(lambda: self._run(json.loads(request)))

    def close(self) -> None:
        """Ends its processes and removes its files."""
        with self._lock:
            self._is_closed = True
            builders, self._idle_builders = self._idle_builders, []
        with ExitStack() as stack:  # one whose close is interrupted keeps no other open
            stack.callback(self._runner.close)
            for pool in builders:
                stack.callback(pool.close)

    @staticmethod
    def _answer(work: Callable[[], Mapping[str, Any]]) -> str:
        """The reply of some work with the seconds that it took; no error leaves this machine but as text. Another
        machine would not read a request that this one can't read, which is of the same version."""
        begin = time.monotonic()
        try:
            reply = dict(work())
        except (MeasureError, OSError, MemoryError) as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        except (TilewrightError, ValueError, KeyError, TypeError) as error:
            reply = failed(FailureKind.BUILD_ERROR, f"{type(error).__name__}: {error}")
        return json.dumps({**reply, "seconds": time.monotonic() - begin})

    def _build(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            pool = self._idle_builders.pop() if self._idle_builders else WorkerPool(1, self._options.memory_bytes)
        try:
            (reply,) = pool.ask_all([{"do": "build", **request}], self._options.build_seconds)
        finally:
            with self._lock:
                is_closed = self._is_closed
                if not is_closed:
                    self._idle_builders.append(pool)
            if is_closed:  # meanwhile
                pool.close()
        return reply

    def _run(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        task, incumbent = task_json.decode(request["task"]), request["incumbent"]
        if not task.target.runs_here:
            raise MeasureError(f"this machine can't run code for {task.target}", where="station")
        options = replace(self._options, plan=EFFORT_PLANS[Effort(request["effort"])])
        other = None if incumbent is None else decode_built(incumbent)
        candidate, threads = decode_built(request["candidate"]), int(request["threads"])
        try:
            result = self._runner.run(candidate, other, self._runner.cases.of(task), threads, options)
        except UnpreparedIncumbentError as error:
            return {INCUMBENT_FAILURE: failed(error.failure.kind, error.failure.message)["failure"]}
        if isinstance(result, Failure):
            return failed(result.kind, result.message)
        return {"value": asdict(result)}
