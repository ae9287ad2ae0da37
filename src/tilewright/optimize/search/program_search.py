"""A search of a task's program space that is asked for candidates and told their times.

Candidates are lowered and verified before they are asked for. Programs with equal loops are one. What other searches of
the task have measured is told like what this one asked for: where the search comes upon it, it takes the time as known
and goes on, so that a search that is begun again with its seed and told its history continues.
"""

from collections.abc import Sequence
from hashlib import sha256
from math import ceil

import numpy as np

from tilewright.errors import ScheduleError, VerifyError
from tilewright.loops.ir import Func
from tilewright.loops.printer import show
from tilewright.optimize.measurer import Candidate, Measurement
from tilewright.optimize.search.measurement_history import MeasurementHistory, trace_key
from tilewright.optimize.search.program_space import ProgramId, ProgramSpace
from tilewright.optimize.search.strategies import Observation, SearchStrategy
from tilewright.optimize.task import Task
from tilewright.schedule.step import Trace, replay
from tilewright.verify.verifier import verify

_Admitted = tuple[Candidate, Measurement | None]
"""A candidate, and what was told of it already."""

SPARE_SHARE = 0.3
"""Further programs that are proposed in place of those that are refused, or have known loops."""

MAX_ROUNDS = 64
"""Proposals for one question, as all programs of one may be known or not legal."""


class ProgramSearch:
    """A `Search` of a program space.

    Args:
        task: the kernel, in canonical form.
        space: its programs; None where it has none, so that only the first candidates are asked for.
        strategy: chooses programs; None without a space.
        seed: of the random numbers.
        programs: programs that are asked for first.
        starts: candidates that are asked for first, too; those that are not legal are left out.
    """

    def __init__(
        self,
        task: Task,
        space: ProgramSpace | None,
        strategy: SearchStrategy | None,
        seed: int,
        programs: Sequence[ProgramId] = (),
        starts: Sequence[Candidate] = (),
    ) -> None:
        self.task, self.space, self.strategy, self.seed = task, space, strategy, seed
        self._program_queue = list(programs)
        self._start_queue = list(starts)
        self._tried: dict[ProgramId, None] = {}
        self._loop_digests: set[str] = set()
        self._programs_by_trace: dict[str, ProgramId | None] = {}
        self._history = MeasurementHistory()
        self._observations: list[Observation] = []

    @property
    def best(self) -> Measurement | None:
        """The fastest measurement told; None without one."""
        return self._history.fastest

    @property
    def trials(self) -> int:
        """Distinct candidates told, those that failed included."""
        return len(self._history)

    @property
    def observations(self) -> Sequence[Observation]:
        """The programs of the space that were measured, in the order in which they became known."""
        return tuple(self._observations)

    def programs_of(self, candidates: Sequence[Candidate]) -> list[ProgramId | None]:
        """The programs of candidates that were asked for; None for what is no program of the space."""
        return [self._programs_by_trace.get(trace_key(c.trace)) for c in candidates]

    def describe(self, candidate: Candidate) -> str:
        """A line about a candidate for people; empty for one that is no program of the space."""
        (program,) = self.programs_of([candidate])
        return "" if program is None or self.space is None else self.space.describe(program)

    def ask(self, count: int) -> list[Candidate]:
        """The next candidates; see `Search`. There are fewer where some of a batch have a time already, and where the
        strategy waits for measurements before it decides about more."""
        candidates: list[Candidate] = []
        for _ in range(MAX_ROUNDS):
            limit = None if self.strategy is None else self.strategy.max_batch(len(self._observations))
            admitted = self._next_batch(count if limit is None else min(count, limit))
            candidates = [c for c, m in admitted if m is None]
            for _, known in admitted:
                self._observe(known)
            if candidates or not admitted:
                break
        return candidates

    def _next_batch(self, count: int) -> list[_Admitted]:
        """The next candidates, whether they have a time already or not."""
        batch: list[_Admitted] = []
        while self._start_queue and len(batch) < count:
            batch += self._admit_start(self._start_queue.pop(0))
        while self._program_queue and len(batch) < count:
            batch += self._admit(self._program_queue.pop(0))
        for _ in range(MAX_ROUNDS):
            if len(batch) >= count or self.strategy is None:
                break
            rng = np.random.default_rng([self.seed, len(self._observations), len(self._tried)])
            missing = count - len(batch)
            spare = ceil(SPARE_SHARE * missing)
            proposals = self.strategy.propose(self._observations, self._tried.keys(), missing + spare, rng)
            if not proposals:
                break
            for program in proposals:
                if len(batch) < count:
                    batch += self._admit(program)
        return batch

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """What became of candidates; see `Search`."""
        for m in self._history.add(measurements):
            self._observe(m)

    def _admit(self, program: ProgramId) -> list[_Admitted]:
        """The candidate of a program; none where it was tried, is not legal, or has the loops of another one."""
        if program in self._tried or self.space is None:
            return []
        self._tried[program] = None
        try:
            schedule = self.space.schedule(program)
        except ScheduleError:
            return []
        return self._admit_loops(schedule.func, schedule.trace, program)

    def _admit_start(self, start: Candidate) -> list[_Admitted]:
        try:
            return self._admit_loops(replay(self.task.func, start.trace), start.trace, None)
        except ScheduleError:
            return []

    def _admit_loops(self, func: Func, trace: Trace, program: ProgramId | None) -> list[_Admitted]:
        digest = loops_digest(func)
        if digest in self._loop_digests:
            return []
        self._loop_digests.add(digest)
        key = trace_key(trace)
        told = self._history.get(key)
        if told is None:
            try:
                verify(func)
            except VerifyError:
                return []
        self._programs_by_trace[key] = program
        return [(Candidate(trace), told)]

    def _observe(self, measurement: Measurement | None) -> None:
        """Keeps the time of a program of the space; what others measured waits until the search comes upon it."""
        program = None if measurement is None else self._programs_by_trace.get(trace_key(measurement.candidate.trace))
        if measurement is not None and program is not None:
            self._observations.append(Observation(program, measurement.nanoseconds))


def loops_digest(func: Func) -> str:
    """A hash that is equal for equal loops."""
    return sha256(show(func).encode()).hexdigest()[:16]
