"""Tuning of one kernel: rounds of candidates measured at its points, and the program that serves each point so far.

Candidates of a round run in short blocks in turns with the best program so far. One that seems to win is timed again in
longer blocks; only if it then wins outside the noise it becomes the best program. So of hundreds of candidates it is
not the luckiest measurement that counts.
"""

from collections.abc import Callable, Sequence

from tilewright.driver.tune.choose_variants import choose_programs
from tilewright.driver.tune.plan import MeasurePoint, PlannedKernel
from tilewright.driver.tune.protocols import KernelChoice, StartSearch, StoredMeasurement, TuningStore
from tilewright.driver.tune.rounds import Measuring
from tilewright.driver.tune.scheduler import TaskProgress
from tilewright.driver.tune.verdict import combined_measurement, loses, ratio, seems_to_win, wins
from tilewright.errors import InternalError, MeasureError, SourcesChangedError
from tilewright.lower.kernel_variants import selected_program
from tilewright.measure.workers.interface import Effort, MeasureRequest
from tilewright.optimize.measurer import Candidate, Failure, Measurement, Timing
from tilewright.optimize.search.interface import Search

MAX_PROMISING_RATIO = 1.15
"""A candidate that takes more of the incumbent's time at the first point of its round is not measured at the others."""

MAX_REPEATS = 3
"""Measurements of a candidate that seems to win while the machine is too busy."""

MAX_CONFIRMED = 2
"""Candidates of a round that are timed again, per point."""


class KernelTuning:
    """The state of a kernel's tuning. Its work asks for measurements and is sent them (`rounds.py`).

    Attributes:
        kernel: the kernel.
        baseline: nanoseconds of the constructed program per point; empty before it was measured.
        timings: per point the measurement by which the best program won against the one before; None where the
            constructed program is the best.
        challenges, confirmed: programs that seemed to win in short blocks, and those of them that won in longer ones.
        best: nanoseconds of the best programs after each round, as a mean over the points; the first is the baseline.
        trials: number of candidates that were measured here.
        failures: how many of them failed.
        disturbed: how many were timed while the machine was too busy for reliable times.
        seconds: time of all rounds.
        refusal: why it is not tuned; empty where it is.
        is_exhausted: whether its search has no further program.
    """

    def __init__(self, kernel: PlannedKernel, store: TuningStore, start_search: StartSearch) -> None:
        self.kernel = kernel
        self.baseline: tuple[float, ...] = ()
        self.timings: list[Timing | None] = [None] * len(kernel.points)
        self.best: list[float] = []
        self.trials = self.failures = self.disturbed = 0
        self.challenges = self.confirmed = 0
        self.seconds = 0.0
        self.refusal = ""
        self.is_exhausted = False
        self._tuning_store, self._start_search = store, start_search
        self._program_search: Search | None = None
        self._base_programs = [kernel.programs[p.program] for p in kernel.points]
        self._constructed_choice: KernelChoice | None = None
        self._current = list(self._base_programs)
        self._ratios = [1.0] * len(kernel.points)
        self._rounds = 0

    @property
    def is_finished(self) -> bool:
        """Whether it gets no further round."""
        return self.is_exhausted or bool(self.refusal)

    @property
    def is_improved(self) -> bool:
        """Whether some point has a better program than the constructed one."""
        return any(c is not own for c, own in zip(self._current, self._base_programs, strict=True))

    @property
    def speedup(self) -> float:
        """By which factor its best programs are faster than the constructed ones; 1 where nothing was measured."""
        return self.best[0] / self.best[-1] if self.best else 1.0

    @property
    def programs(self) -> tuple[Candidate, ...]:
        """The best program per point."""
        return tuple(self._current)

    def progress(self) -> TaskProgress:
        """How far it is, for the scheduler."""
        k = self.kernel
        best = tuple(self.best) or ((k.predicted or 0.0),)
        rounds = max(1, len(best) - 1)
        seconds = self.seconds / rounds
        return TaskProgress(k.calls, best, k.operations, k.group, seconds, self.is_finished, trials=self.trials)

    def start(self, is_late: Callable[[], bool]) -> Measuring[None]:
        """Measures the constructed programs, looks up what was chosen before, and starts the search.

        Args:
            is_late: whether the time is up. It is asked between points; then the baseline stays empty.
        """
        kernel, store = self.kernel, self._tuning_store
        times: list[float] = []
        for point, program in zip(kernel.points, self._base_programs, strict=True):
            if is_late():
                return
            (measured,) = yield MeasureRequest(point.task, (program,), None, Effort.CONFIRM)
            store.add(kernel, point, [measured])
            if isinstance(measured.result, Failure):
                self.refusal = f"its constructed program fails: {measured.result}"
                return
            times.append(measured.result.nanoseconds)
            choice = KernelChoice(kernel.programs, kernel.selector, measured.result, 1.0)
            self._constructed_choice = self._constructed_choice or choice
        self.baseline = tuple(times)
        self.best = [self._mean_time()]
        history = store.history(kernel)
        self._program_search = self._start_search(kernel, self._join_history(history))
        yield from self._resume()

    def round(self, count: int) -> Measuring[int]:
        """Measures at most so many candidates, each at one point or more; gives how many."""
        search = self._program_search
        candidates = list(search.ask(count)) if search is not None else []
        if search is None or not candidates:
            self.is_exhausted = True
            return 0
        try:
            results = yield from self._measure(candidates)
        except SourcesChangedError:
            raise  # which says nothing of the programs
        except MeasureError as error:
            # the best program failed beside a candidate: without it nothing can be compared
            self.refusal = str(error)
            self._revert()
            raise
        self.trials += len(candidates)
        self._rounds += 1
        self.failures += sum(any(isinstance(x, Failure) for x in r) for r in results.values())
        self.disturbed += sum(any(isinstance(x, Timing) and x.is_disturbed for x in r) for r in results.values())
        shares = [p.weight for p in self.kernel.points]
        search.tell([combined_measurement(c, r, self.baseline, shares) for c, r in results.items()])
        yield from self._confirm(results)
        self.best.append(self._mean_time())
        return len(candidates)

    def finish(self, is_late: Callable[[], bool]) -> Measuring[None]:
        """Times the best programs against the constructed ones once more; those that do not win are given up.

        Args:
            is_late: whether the time is up. It is asked between points; those that are left stay as they are.
        """
        if not self.is_improved:
            return
        for k, (point, own) in enumerate(zip(self.kernel.points, self._base_programs, strict=True)):
            if self._current[k] is own:
                continue
            if is_late():
                break
            result = yield from self._measure_repeatedly(Effort.JUDGE, point, self._current[k], own)
            if isinstance(result, Timing) and (wins(result) or (result.is_disturbed and not loses(result))):
                # on a machine that is too busy the earlier measurement counts
                self.timings[k] = result if wins(result) else self.timings[k]
                self._ratios[k] = ratio(result) or 1.0
            else:
                self._current[k], self.timings[k], self._ratios[k] = own, None, 1.0
        self.best.append(self._mean_time())
        self._keep_choice()

    def revert(self) -> None:
        """Goes back to the constructed programs, for compilations as well."""
        self._revert()
        self._keep_choice()

    def _revert(self) -> None:
        self._current = list(self._base_programs)
        self._ratios = [1.0] * len(self._ratios)
        self.timings = [None] * len(self.timings)
        if self.baseline:
            self.best.append(self._mean_time())

    def _mean_time(self) -> float:
        """Nanoseconds of a call with the best programs, over the points."""
        points = zip(self.kernel.points, self.baseline, self._ratios, strict=True)
        return sum(p.weight * ns * r for p, ns, r in points)

    def _measure(self, candidates: Sequence[Candidate]) -> Measuring[dict[Candidate, list[Timing | Failure | None]]]:
        """Results of candidates per point; of those that are slow at the round's first one, only there.

        Every round begins at another point, so that programs for some of the sizes have their chance.
        """
        points, first = self.kernel.points, self._rounds
        results: dict[Candidate, list[Timing | Failure | None]] = {c: [None] * len(points) for c in candidates}
        remaining = list(candidates)
        for k in (*range(first % len(points), len(points)), *range(first % len(points))):
            if not remaining:
                break
            point = points[k]
            measured = yield MeasureRequest(point.task, tuple(remaining), self._current[k])
            self._tuning_store.add(self.kernel, point, measured)
            for m in measured:
                results[m.candidate][k] = m.result
            remaining = [m.candidate for m in measured if _is_promising(m.result)]
        return results

    def _confirm(self, results: dict[Candidate, list[Timing | Failure | None]]) -> Measuring[None]:
        """Times candidates again that seem to win at a point, and lets those that do win serve it."""
        has_new = False
        for k, point in enumerate(self.kernel.points):
            timings = [(t, c) for c, own in results.items() if isinstance(t := own[k], Timing) and seems_to_win(t)]
            ranked = sorted(timings, key=lambda pair: ratio(pair[0]) or 1.0)
            for _, candidate in ranked[:MAX_CONFIRMED]:
                has_new |= yield from self._challenge(k, point, candidate)
        if has_new:
            self._keep_choice()

    def _challenge(self, k: int, point: MeasurePoint, candidate: Candidate) -> Measuring[bool]:
        """Times a candidate in longer blocks against the best program of a point; whether it takes its place."""
        self.challenges += 1
        result = yield from self._measure_repeatedly(Effort.CONFIRM, point, candidate, self._current[k])
        if not isinstance(result, Timing) or not wins(result):
            return False
        self._current[k], self.timings[k] = candidate, result
        self._ratios[k] *= ratio(result) or 1.0
        self.confirmed += 1
        return True

    def _measure_repeatedly(
        self, effort: Effort, point: MeasurePoint, candidate: Candidate, incumbent: Candidate
    ) -> Measuring[Timing | Failure]:
        """The last measurement of a candidate: it is repeated where the machine was too busy for one that seems to
        win."""
        for left in reversed(range(MAX_REPEATS)):
            (measured,) = yield MeasureRequest(point.task, (candidate,), incumbent, effort)
            self._tuning_store.add(self.kernel, point, [measured])
            result = measured.result
            if isinstance(result, Failure) or not result.is_disturbed or not seems_to_win(result) or not left:
                return result
        raise InternalError("a measurement without an end", where="tuning")

    def _keep_choice(self) -> None:
        """Keeps the programs that compilations use."""
        choice = self.choice() or self._constructed_choice
        if choice is not None:
            self._tuning_store.choose(self.kernel, choice)

    def choice(self) -> KernelChoice | None:
        """The programs that compilations use; None for the constructed ones."""
        timing = next((t for t in self.timings if t is not None), None)
        if timing is None or not self.is_improved:
            return None
        chosen = choose_programs(self.kernel, self._current, self._ratios, self.kernel.max_programs)
        served = zip(chosen.served, self._current, self._ratios, strict=True)
        worst = max(1.0 if program == best else 1 / part for program, best, part in served)
        return KernelChoice(chosen.programs, chosen.selector, timing, worst)

    def _resume(self) -> Measuring[None]:
        """Lets the programs that an earlier tuning chose serve the points at which they are not slower.

        The constructed programs are a choice, too: compilations prefer it to programs of which only short blocks were
        timed.
        """
        earlier = self._tuning_store.chosen(self.kernel)
        if earlier is None:
            self._keep_choice()
            return
        for k, point in enumerate(self.kernel.points):
            sizes = {v: point.sizes[v.name] for v in self.kernel.task.func.symbols}
            candidate = earlier.programs[selected_program(earlier.selector, sizes, len(earlier.programs))]
            if candidate == self._base_programs[k]:
                continue
            own = self._base_programs[k]
            result = yield from self._measure_repeatedly(Effort.CONFIRM, point, candidate, own)
            if isinstance(result, Timing) and not loses(result):
                self._current[k], self.timings[k] = candidate, result
                self._ratios[k] = min(1.0, ratio(result) or 1.0)
        if self.is_improved:
            self.best.append(self._mean_time())

    def _join_history(self, history: Sequence[StoredMeasurement]) -> list[Measurement]:
        """What was measured before of candidates, as one measurement each.

        What was timed while the machine was too busy, or by its first calls alone, is left out, so that the search asks
        for it again; only the constructed programs stay, which are timed in every session anyway.
        """
        points = self.kernel.points
        index = {tuple(sorted(p.sizes.items())): k for k, p in enumerate(points)}
        results: dict[Candidate, list[Timing | Failure | None]] = {}
        for m in history:
            k = index.get(tuple(sorted(m.sizes.items())))
            is_unreliable = isinstance(m.result, Timing) and not m.result.is_reliable
            if k is not None and (not is_unreliable or m.candidate in self.kernel.programs):
                results.setdefault(m.candidate, [None] * len(points))[k] = m.result
        shares = [p.weight for p in points]
        return [combined_measurement(c, r, self.baseline, shares) for c, r in results.items()]


def _is_promising(result: Timing | Failure) -> bool:
    if isinstance(result, Failure):
        return False
    value = ratio(result)
    return value is None or value <= MAX_PROMISING_RATIO

