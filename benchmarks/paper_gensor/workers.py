"""Programs become machine code in processes of their own, one per core, which sleep while programs are measured."""

import gc
import multiprocessing
import os
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256

from benchmarks.paper_gensor.clock import Code, compiled
from benchmarks.paper_gensor.space import Candidate, Programs
from tilewright.errors import ScheduleError, VerifyError
from tilewright.loops.ir import Func
from tilewright.loops.printer import show
from tilewright.loops.verify import verify

TOGETHER = 8
"""Programs of one object file."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is asked for.

    Attributes:
        candidates: what is compiled, by name.
        checked: those whose loops are verified; the first of every form.
        known: digests of loops that were measured before.
    """

    candidates: dict[str, Candidate]
    checked: frozenset[str]
    known: frozenset[str]


@dataclass(frozen=True, slots=True)
class Done:
    """What a worker answers.

    Attributes:
        code: of programs whose loops are new; None where there are none.
        digests: of the loops of all programs that can be lowered, by name.
        errors: what the verifier said of programs that it refused, by name; they have no digests.
    """

    code: Code | None
    digests: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict[str, str])


_programs: list[Programs] = []
"""Of the worker's process; empty elsewhere."""


def _begin(programs: Programs) -> None:
    _programs[:] = [programs]
    # what came with the fork stays; the many short-lived expressions hold few cycles, which are collected job by job
    gc.freeze()
    gc.disable()


def job_done(programs: Programs, job: Job) -> Done:
    """Lowers and compiles the programs of a job; equal loops once."""
    funcs: dict[str, Func] = {}
    digests: dict[str, str] = {}
    errors: dict[str, str] = {}
    for name, candidate in job.candidates.items():
        try:
            func = programs.func(candidate)
            if name in job.checked:
                verify(func)
        except ScheduleError:
            continue
        except VerifyError as error:
            errors[name] = str(error)
            continue
        digest = sha256(show(func).encode()).hexdigest()[:16]
        if digest not in job.known and digest not in digests.values():
            funcs[name] = func
        digests[name] = digest
    return Done(compiled(funcs, programs.task.target) if funcs else None, digests, errors)


def _work(job: Job) -> Done:
    found = job_done(_programs[0], job)
    gc.collect()
    return found


class Workers:
    """A function from candidates to code, in as many processes as there are cores."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def compile(self, candidates: Sequence[Candidate], checked: Sequence[bool], known: frozenset[str]) -> list[Done]:
        """Code of candidates named "p0", "p1", ..., in jobs of a few."""
        jobs: list[Job] = []
        for first in range(0, len(candidates), TOGETHER):
            part = range(first, min(first + TOGETHER, len(candidates)))
            own = {f"p{k}": candidates[k] for k in part}
            jobs.append(Job(own, frozenset(f"p{k}" for k in part if checked[k]), known))
        return list(self._pool.map(_work, jobs))


@contextmanager
def workers(programs: Programs) -> Generator[Workers]:
    """Workers for the programs of a kernel; forked, as a kernel's expressions do not travel between processes."""
    context = multiprocessing.get_context("fork")
    count = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(count, context, initializer=_begin, initargs=(programs,)) as pool:
        yield Workers(pool)
