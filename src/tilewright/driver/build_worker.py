"""A process that estimates and builds kernels: `python -m tilewright.driver.build_worker` (`kernel_builds.py`).

It speaks the protocol of `measure.worker`. The first request says what the others have in common:

    {"do": "set up", "optimizer": "gensor", "machine": "{...}", "fusion": "mcfuser", "variants": 8, "with_code": true}
    {"do": "estimate", "task": {...}}
    {"do": "build", "task": {...}, "program": null}

A program that is given, from a record, is built; otherwise one is constructed. Tasks that it has estimated it has
constructed, so it builds them faster than other processes do. It reads tasks without trust; what it answers is code,
which its parent trusts.
"""

import gc
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.driver.build import UNFUSED, with_variants
from tilewright.driver.build_kernel import build_kernel, build_recorded, decode_program, encode_built
from tilewright.driver.gc_policy import GC_THRESHOLD
from tilewright.errors import TilewrightError
from tilewright.machine.model import Machine, parse_machine
from tilewright.measure.worker import Reply, failed, main
from tilewright.optimize import task_json
from tilewright.optimize.chains.optimizer import ChainOptimizer
from tilewright.optimize.constructions import Constructions
from tilewright.optimize.interface import MachineOptimizer, optimizer_named
from tilewright.optimize.measurer import FailureKind


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
        """Estimates or builds a task."""
        setup = self._setup
        if setup is None:
            return failed(FailureKind.BUILD_ERROR, "it is not set up")
        try:
            task = task_json.decode(request["task"])
            if request["do"] == "estimate":
                estimate = setup.constructions.estimate(task)
                return {"value": [list(estimate.nanoseconds), estimate.refusal]}
            if request["program"] is not None:
                program = decode_program(request["program"], task)
                return {"value": encode_built(build_recorded(task, program, setup.with_code))}
            return {"value": encode_built(build_kernel(task, setup.constructions, setup.machine, setup.with_code, ""))}
        except (TilewrightError, RecursionError, MemoryError) as error:
            # the parent does it again and reports the error with the names of the user's model
            return failed(FailureKind.BUILD_ERROR, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    # an interrupt is for the parent, which ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(GC_THRESHOLD)
    worker = _Worker()
    main({"set up": worker.set_up, "estimate": worker.answer, "build": worker.answer})
