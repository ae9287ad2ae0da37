"""Worker processes that are started before this process imports the compiler, so that both import it at once.

A worker is ready after half a second, most of it for imports. This module imports no part of the compiler.
"""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace

from tilewright.driver.kernel_build.build_resources import BuildResources
from tilewright.errors import MeasureError
from tilewright.measure.started_program import StartedProgram, close_all, start_program
from tilewright.version import source_hash

MODULE = "tilewright.driver.kernel_build.build_worker"

TENSORS_PER_WORKER = 16
"""Tensors of a model per worker that is started before its kernels are known: kernels read one or two weights each,
and half of them or fewer are equal to others, so that a worker gets several."""


@contextmanager
def early_workers(resources: BuildResources, tensors: int) -> Generator[BuildResources]:
    """What a compilation may use, with workers that start meanwhile; those that it does not take end with the context.

    Args:
        resources: what it may use.
        tensors: number of the model's tensors; few give no workers.
    """
    count = 0 if source_hash() is None else min(resources.jobs - 1, tensors // TENSORS_PER_WORKER)
    started: list[StartedProgram] = []
    try:
        with suppress(MeasureError):  # the compilation does without, or tries again
            for _ in range(count):
                started.append(start_program(MODULE))
        yield replace(resources, started=started)
    finally:
        close_all(started)
        started.clear()
