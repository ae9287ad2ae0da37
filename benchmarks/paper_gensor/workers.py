"""Worker processes that compile programs, one per core; they sleep while programs are measured."""

import gc
import multiprocessing
import os
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256

from benchmarks.paper_gensor.program_space import Candidate, ProgramSpace
from benchmarks.paper_gensor.timer import ObjectCode, compile_functions
from tilewright.errors import ScheduleError, VerifyError
from tilewright.loops.ir import Func
from tilewright.loops.printer import show
from tilewright.verify.verifier import verify

PROGRAMS_PER_OBJECT = 8
"""Programs per object file."""


@dataclass(frozen=True, slots=True)
class CompileJob:
    """A request to a worker.

    Attributes:
        candidates: what is compiled, by name.
        checked: those whose loops are verified; the first of every form.
        known: digests of loops that were measured before.
    """

    candidates: dict[str, Candidate]
    verified: frozenset[str]
    known_digests: frozenset[str]


@dataclass(frozen=True, slots=True)
class CompileResult:
    """A worker's answer.

    Attributes:
        code: of programs whose loops are new; None where there are none.
        digests: of the loops of all programs that can be lowered, by name.
        errors: what the verifier said of programs that it refused, by name; they have no digests.
    """

    code: ObjectCode | None
    digests: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict[str, str])


_programs: list[ProgramSpace] = []
"""Of the worker's process; empty elsewhere."""


def _init_worker(programs: ProgramSpace) -> None:
    _programs[:] = [programs]
    # what came with the fork stays; the many short-lived expressions hold few cycles, which are collected job by job
    gc.freeze()
    gc.disable()


def run_job(programs: ProgramSpace, job: CompileJob) -> CompileResult:
    """Lowers and compiles the programs of a job; equal loops once."""
    funcs: dict[str, Func] = {}
    digests: dict[str, str] = {}
    errors: dict[str, str] = {}
    for name, candidate in job.candidates.items():
        try:
            func = programs.lowered_func(candidate)
            if name in job.verified:
                verify(func)
        except ScheduleError:
            continue
        except VerifyError as error:
            errors[name] = str(error)
            continue
        digest = sha256(show(func).encode()).hexdigest()[:16]
        if digest not in job.known_digests and digest not in digests.values():
            funcs[name] = func
        digests[name] = digest
    return CompileResult(compile_functions(funcs, programs.task.target) if funcs else None, digests, errors)


def _run_in_worker(job: CompileJob) -> CompileResult:
    result = run_job(_programs[0], job)
    gc.collect()
    return result


class CompileWorkers:
    """A function from candidates to code, in as many processes as there are cores."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def compile(
        self, candidates: Sequence[Candidate], checked: Sequence[bool], known_digests: frozenset[str]
    ) -> list[CompileResult]:
        """Code of candidates named "p0", "p1", ..., in jobs of a few."""
        jobs: list[CompileJob] = []
        for first in range(0, len(candidates), PROGRAMS_PER_OBJECT):
            part = range(first, min(first + PROGRAMS_PER_OBJECT, len(candidates)))
            named = {f"p{k}": candidates[k] for k in part}
            jobs.append(CompileJob(named, frozenset(f"p{k}" for k in part if checked[k]), known_digests))
        return list(self._pool.map(_run_in_worker, jobs))


@contextmanager
def start_workers(programs: ProgramSpace) -> Generator[CompileWorkers]:
    """Workers for the programs of a kernel; forked, as a kernel's expressions do not travel between processes."""
    context = multiprocessing.get_context("fork")
    count = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(count, context, initializer=_init_worker, initargs=(programs,)) as pool:
        yield CompileWorkers(pool)
