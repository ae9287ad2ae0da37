"""Task scheduler: which kernel of a model gets the next measurements, by the gradient of the expected gain.

After Ansor (OSDI 2020, Section 6): the model's time is the sum of weight times best time over its kernels. The next
round of a kernel is expected to gain what its last rounds gained, or what optimism says: that it would be as fast as
the fastest similar kernel, or that n rounds after n rounds its time would be zero. Every kernel gets a first round
before the gradients decide. Gains count per second, because rounds of different kernels take different times and
budgets are in seconds.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

BACKWARD_SHARE = 0.2
"""Weight of the gain of the last rounds beside the optimistic guess (Ansor's alpha)."""

SIMILARITY = 2.0
"""How many times slower than the fastest similar kernel a kernel is expected to become (Ansor's beta)."""

WINDOW = 3
"""Rounds whose gain is taken for that of the next one."""

MAX_SIMILAR_ROUNDS = 5
"""Rounds after which a kernel that is still slower than its group suggests is not compared with the group any more."""


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a kernel's tuning is.

    Attributes:
        weight: calls per inference.
        best: nanoseconds of its best program before the first round and after each one.
        operations: floating-point operations of a call; 0 where it only moves data.
        group: kernels of one group have the same loops with other sizes.
        seconds: mean duration of its rounds; 0 before the first one.
        is_finished: whether it gets no further round: its space is exhausted, or it cannot be measured.
        is_busy: whether a round of it is being measured.
        trials: candidates that were measured.
    """

    weight: float
    best: tuple[float, ...]
    operations: float
    group: str
    seconds: float = 0.0
    is_finished: bool = False
    is_busy: bool = False
    trials: int = 0

    @property
    def rounds(self) -> int:
        """Number of its rounds."""
        return max(0, len(self.best) - 1)


def next_task(tasks: Sequence[TaskProgress]) -> int | None:
    """The kernel that gets the next round; None where all are finished or busy.

    Args:
        tasks: all kernels; of those without a round, the one that takes most of the model's time is first.
    """
    active = [k for k, t in enumerate(tasks) if not t.is_finished and not t.is_busy]
    fresh = [k for k in active if tasks[k].rounds == 0]
    if fresh:
        return max(fresh, key=lambda k: (tasks[k].weight * _best_time(tasks[k]), -k))
    gains = expected_gains(tasks)
    return max(active, key=lambda k: (gains[k], -k)) if active else None


def expected_gains(tasks: Sequence[TaskProgress]) -> list[float]:
    """Nanoseconds of an inference that a further second of each kernel is expected to gain; kernels without a round
    count as infinite, finished ones as nothing."""
    rates: dict[str, list[float]] = defaultdict(list)
    for t in tasks:
        if t.rounds and t.operations > 0 and _best_time(t) > 0:
            rates[t.group].append(t.operations / _best_time(t))
    gains: list[float] = []
    for t in tasks:
        if t.is_finished:
            gains.append(0.0)
        elif t.rounds == 0:
            gains.append(inf)
        else:
            gains.append(t.weight * _gain_of_round(t, rates[t.group]) / (t.seconds or 1.0))
    return gains


def _gain_of_round(t: TaskProgress, rates: Sequence[float]) -> float:
    """Nanoseconds of a call that its next round is expected to gain."""
    window = min(WINDOW, t.rounds)
    backward = (t.best[-1 - window] - _best_time(t)) / window
    forward = _best_time(t) / t.rounds
    # alone in its group it is the fastest one
    if len(rates) > 1:
        by_similarity = SIMILARITY * t.operations / max(rates)
        if t.rounds <= MAX_SIMILAR_ROUNDS or _best_time(t) <= by_similarity:
            forward = max(forward, _best_time(t) - by_similarity)
    return BACKWARD_SHARE * backward + (1 - BACKWARD_SHARE) * forward


def _best_time(t: TaskProgress) -> float:
    return t.best[-1] if t.best else 0.0
