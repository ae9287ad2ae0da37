"""Blocks of calls in turns beside a canary, by which disturbances of the machine are found.

Machines have slow phases, in which a hypervisor or a neighbour takes cores or the clock is low. So what is compared
runs in blocks of calls, in turns, and before and after every block a canary runs: fixed work. If it does not take its
typical time, the machine was not in its typical state and the block does not count; more rounds follow, up to a limit.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

CANARY = "canary"
"""Name of the fixed work among those that take turns."""

CANARY_SECONDS = 0.03
"""Length of the canary's blocks."""

CANARY_TOLERANCE = 1.12
"""Ratio of the longest to the shortest time of the canary that count as its typical time."""

MAX_STATE_SLOWDOWN = 1.5
"""The canary's typical time is at most so many times its best one: clocks and shared caches have states, but what is
slower has lost its core to a load."""

BEST_CANARY_QUANTILE = 0.1
"""Quantile of the canary's times that is taken as its best time; a single fast one may be luck."""

MAX_ROUND_FACTOR = 3
"""Maximum number of rounds, as a multiple of the planned ones, where blocks do not count."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Duration of a comparison.

    Attributes:
        rounds: undisturbed blocks of each.
        seconds: length of a block.
        pause: seconds before each block.
        canary_seconds: length of the canary's blocks.
    """

    rounds: int = 5
    seconds: float = 0.3
    pause: float = 0.2
    canary_seconds: float = CANARY_SECONDS


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """One block of one of those that take turns: seconds of its calls, and of the canary before and after it."""

    name: str
    calls: tuple[float, ...]
    before: float
    after: float

    @property
    def canary(self) -> float:
        """The slower one of both canaries."""
        return max(self.before, self.after)


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Times of one of those that take turns, in seconds.

    Attributes:
        median: median over the blocks that count of their medians.
        spread: distance between the quartiles of these medians, relative to `median`.
        fastest: the fastest call of these blocks.
        calls: number of calls in these blocks.
        undisturbed: number of blocks that count. If there are none, all blocks count and this is 0.
        blocks: number of all blocks.
    """

    median: float
    spread: float
    fastest: float
    calls: int
    undisturbed: int
    blocks: int


RunBlock = Callable[[str, float], Sequence[float]]
"""Runs a block of what has this name for so many seconds and returns the seconds of its calls."""


def run_in_turns(
    names: Sequence[str],
    run_block: RunBlock,
    plan: RunPlan,
    tell: Callable[[str, int, int], None] = lambda what, done, total: None,
    is_decided: Callable[[Sequence[TimedBlock]], bool] = lambda blocks: False,
) -> list[TimedBlock]:
    """Blocks of all names in turns, every other round backwards, until enough of each count, for at most
    `MAX_ROUND_FACTOR` times the planned rounds, or until those of all rounds so far decide."""
    blocks: list[TimedBlock] = []
    _pause(plan)
    before = median(run_block(CANARY, plan.canary_seconds))
    shown, limit = 0, MAX_ROUND_FACTOR * plan.rounds
    for k in range(limit):
        for name in names[:: -1 if k % 2 else 1]:
            _pause(plan)
            calls = tuple(run_block(name, plan.seconds))
            _pause(plan)
            after = median(run_block(CANARY, plan.canary_seconds))
            blocks.append(TimedBlock(name, calls, before, after))
            before = after
        counting = undisturbed_blocks(blocks)
        done = min(sum(b.name == n for b in counting) for n in names)
        # another typical time makes earlier blocks count no more; what is shown does not go back
        shown = max(shown, min(done, plan.rounds))
        tell(f"quiet rounds: {k + 1} run, at most {limit}", shown, plan.rounds)
        if done >= plan.rounds or is_decided(blocks):
            break
    return blocks


def _pause(plan: RunPlan) -> None:
    if plan.pause:  # a pause of no time would give the processor away
        time.sleep(plan.pause)


def _canary_times(blocks: Sequence[TimedBlock]) -> list[float]:
    return sorted(x for b in blocks for x in (b.before, b.after))


def best_canary(blocks: Sequence[TimedBlock]) -> float:
    """The canary's time in the machine's best state, in seconds."""
    times = _canary_times(blocks)
    return times[int(BEST_CANARY_QUANTILE * len(times))]


def typical_canary(blocks: Sequence[TimedBlock]) -> float:
    """The shortest time of the canary in the machine's typical state, in seconds.

    Of the intervals with a ratio of `CANARY_TOLERANCE` it begins the one that has most of the canary's times, among
    those that begin at most `MAX_STATE_SLOWDOWN` times above its best time, which a virtual machine may reach rarely.
    """
    times = _canary_times(blocks)
    states = times[: bisect_right(times, MAX_STATE_SLOWDOWN * best_canary(blocks))]
    return max(states, key=lambda t: bisect_right(times, CANARY_TOLERANCE * t) - bisect_left(times, t))


def undisturbed_blocks(blocks: Sequence[TimedBlock]) -> list[TimedBlock]:
    """The blocks with the canary's typical time before and after them."""
    typical = typical_canary(blocks)
    return [b for b in blocks if typical <= min(b.before, b.after) and b.canary <= CANARY_TOLERANCE * typical]


def times_of(name: str, blocks: Sequence[TimedBlock]) -> BlockTimes:
    """Summary of the blocks of one name, of which there is at least one. Disturbed blocks count only where it has no
    undisturbed one."""
    own = [b for b in blocks if b.name == name]
    undisturbed = [b for b in undisturbed_blocks(blocks) if b.name == name]
    return _summary(undisturbed or own, len(undisturbed), len(own))


def _summary(blocks: Sequence[TimedBlock], undisturbed: int, total: int) -> BlockTimes:
    medians = [median(b.calls) for b in blocks]
    middle = median(medians)
    low, _, high = quantiles(medians, n=4, method="inclusive") if len(medians) > 1 else (middle,) * 3
    least = min(min(b.calls) for b in blocks)
    return BlockTimes(middle, (high - low) / middle, least, sum(len(b.calls) for b in blocks), undisturbed, total)
