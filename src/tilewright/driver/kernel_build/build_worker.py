"""A process that estimates and builds kernels, `python -m tilewright.driver.kernel_build.build_worker`.

It speaks the protocol of `measure.worker`. The first request says what the others have in common:

    {"do": "set up", "optimizer": "gensor", "machine": "{...}", "fusion": "mcfuser", "variants": 8, "with_code": true}
    {"do": "estimate", "tasks": [{...}, ...]}
    {"do": "build", "tasks": [{...}, ...], "programs": [null, ...]}

Tasks of one request are constructed together. A program that is given, from a record, is built; otherwise one is
constructed. Tasks that it has estimated it has constructed, so it builds them faster than other processes do. It reads
tasks without trust; what it answers is code, which its parent trusts. An answer has null for a task that failed.
"""

import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tilewright.driver.build import UNFUSED, with_variants
from tilewright.driver.kernel_build.build_kernel import build_kernel, build_recorded, decode_program, encode_built
from tilewright.errors import TilewrightError
from tilewright.kernel_caches import forget_derived
from tilewright.machine.model import Machine, parse_machine
from tilewright.measure.worker import Reply, failed, main
from tilewright.optimize import task_json
from tilewright.optimize.chains.optimizer import ChainOptimizer
from tilewright.optimize.constructions import Constructions
from tilewright.optimize.interface import MachineOptimizer, optimizer_named
from tilewright.optimize.measurer import FailureKind
from tilewright.optimize.task import Task


@dataclass(frozen=True, slots=True)
class _Setup:
    constructions: Constructions
    machine: Machine
    with_code: bool


class _Worker:
    """The answers of the process, which depend on the first request."""

    _setup: _Setup | None = None

    def set_up(self, request: Mapping[str, Any]) -> Reply:
        """Sets optimizer and machine."""
        machine = parse_machine(request["machine"], "machine of the compilation")
        optimizer = with_variants(optimizer_named(request["optimizer"]), request["variants"])
        fusion = request["fusion"]
        if isinstance(optimizer, MachineOptimizer):
            optimizer = optimizer.for_machine(machine)
        chains = None if fusion == UNFUSED else ChainOptimizer(fusion, machine)
        self._setup = _Setup(Constructions(optimizer, chains), machine, request["with_code"])
        return {"value": None}

    def answer(self, request: Mapping[str, Any]) -> Reply:
        """Estimates or builds tasks."""
        setup = self._setup
        if setup is None:
            return failed(FailureKind.BUILD_ERROR, "it is not set up")
        try:
            tasks = [task_json.decode(t) for t in request["tasks"]]
            programs = request.get("programs", [None] * len(tasks))
            setup.constructions.construct_all(t for t, p in zip(tasks, programs, strict=True) if p is None)
            forget_derived(0)
        except (TilewrightError, RecursionError, MemoryError) as error:
            return failed(FailureKind.BUILD_ERROR, f"{type(error).__name__}: {error}")
        is_estimate = request["do"] == "estimate"
        pairs = zip(tasks, programs, strict=True)
        return {"value": [_estimate_answer(t, setup) if is_estimate else _build_answer(t, p, setup) for t, p in pairs]}


def _estimate_answer(task: Task, setup: _Setup) -> Any:
    """The estimate of a task; None where that fails: the parent does it again and reports the error with the names of
    the user's model."""
    forget_derived()
    with suppress(TilewrightError, RecursionError, MemoryError):
        estimate = setup.constructions.estimate(task)
        return [list(estimate.nanoseconds), estimate.refusal]
    return None


def _build_answer(task: Task, program: Any, setup: _Setup) -> Any:
    """What a task becomes, by a program of a record if there is one; None where that fails."""
    forget_derived()
    with suppress(TilewrightError, RecursionError, MemoryError):
        if program is not None:
            return encode_built(build_recorded(task, decode_program(program, task), setup.with_code))
        return encode_built(build_kernel(task, setup.constructions, setup.machine, setup.with_code, ""))
    return None


if __name__ == "__main__":
    # an interrupt is for the parent, which ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = _Worker()
    main({"set up": worker.set_up, "estimate": worker.answer, "build": worker.answer})
