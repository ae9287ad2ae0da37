"""Parallel time: one thread or all cores, with fork and join, load imbalance and shared bandwidth."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from tilewright.cost.false_sharing import FalseSharing
from tilewright.cost.footprint import Numbers
from tilewright.cost.time import Time, overlapped_time, streaming_time
from tilewright.machine.cost_parameters import CostParameters
from tilewright.machine.model import Machine
from tilewright.tile.program import Mask


class Phase(NamedTuple):
    """Work in which instructions and memory traffic overlap; phases follow each other.

    Attributes:
        work: nanoseconds of all instructions on one core.
        moved: bytes that leave each memory level from L2 outwards.
    """

    work: Numbers
    moved: Sequence[Numbers]


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """The times of work on one thread and on all cores.

    Attributes:
        one_thread: the times of the phases on one thread.
        all_threads: those on all cores, without fork and join.
        threads: that have a task each, on all cores.
        imbalance: factor on the time of the thread that finishes last over the mean.
        memory_imbalance: the same where memory is the limit.
        rates: bytes per nanosecond that all cores read from each level.
        fork_join: nanoseconds of fork and join, and of result lines that threads share; 0 for a single task.
        is_parallel: whether all cores are faster.
    """

    one_thread: Sequence[Time]
    all_threads: Sequence[Time]
    threads: Numbers
    imbalance: Numbers
    memory_imbalance: Numbers
    rates: Sequence[Numbers]
    fork_join: Numbers
    is_parallel: Mask


def thread_plan(
    phases: Sequence[Phase], tasks: Numbers, machine: Machine, levels_in_turn: bool = False,
    traffic_growth: Sequence[Numbers] = (), sharing: FalseSharing | None = None,
) -> ThreadPlan:  # fmt: skip
    """The times on one thread and on all cores.

    Args:
        phases: of the work of all tasks.
        tasks: number of parallel tasks.
        machine: the machine.
        levels_in_turn: whether little is used again, so that every line passes all levels one after the other.
        traffic_growth: per level the growth of the bytes on several threads, as data that several of them need is
            loaded by each; none by default.
        sharing: lines of results that threads share; none by default.
    """
    levels, time_of = machine.levels[1:], streaming_time if levels_in_turn else overlapped_time
    cost, cores = machine.cost, machine.cores
    one_thread = [
        time_of(work, [m / x.gbs(1) for m, x in zip(moved, levels, strict=True)], cost) for work, moved in phases
    ]
    threads = np.minimum(cores, tasks)
    balance = np.ceil(tasks / cores) * cores / tasks
    # with fewer tasks than threads the busiest thread has one of them, and only so many threads load data
    memory_imbalance = np.where(tasks < cores, 1.0, balance)
    # with whole rounds of tasks, half of the last task; the threads that are left use up the shared bandwidth
    imbalance = np.maximum(balance, 1.0 + np.minimum(cost.core_speed_variation, threads / (2.0 * tasks)))
    rates = [np.minimum(x.core_gbs * threads, x.total_gbs) for x in levels]
    growth = [memory_imbalance * g for g in traffic_growth] or [memory_imbalance] * len(levels)
    all_threads = [
        time_of(work * imbalance / cores, [m * g / r for m, g, r in zip(moved, growth, rates, strict=True)], cost)
        for work, moved in phases
    ]
    one, all_ = (reduce(add, [time.total for time in times]) for times in (one_thread, all_threads))
    sync = machine.sync_us * 1e3 + (0.0 if sharing is None else _exposed_wait(sharing, all_, cost))
    fork_join = np.where(tasks > 1, sync, 0.0)
    is_parallel = (all_ + fork_join < one) & (tasks > 1)
    return ThreadPlan(one_thread, all_threads, threads, imbalance, memory_imbalance, rates, fork_join, is_parallel)


def _exposed_wait(sharing: FalseSharing, thread_time: Numbers, cost: CostParameters) -> Numbers:
    """Nanoseconds that a thread waits for lines of results beyond the work that overlaps with it."""
    beside, exposed = thread_time * sharing.work_beside, cost.exposed_fraction
    return np.maximum(exposed * sharing.nanoseconds, sharing.nanoseconds - (1.0 - exposed) * beside)


def parallel_time(
    phases: Sequence[Phase], tasks: Numbers, slowdown: Numbers, machine: Machine, levels_in_turn: bool = False,
    traffic_growth: Sequence[Numbers] = (), sharing: FalseSharing | None = None,
) -> Time:  # fmt: skip
    """The times on one thread or on all cores, whichever are less.

    Args:
        phases, tasks, machine, levels_in_turn, traffic_growth, sharing: as for `thread_plan`.
        slowdown: factor on the times for other reasons.
    """
    plan = thread_plan(phases, tasks, machine, levels_in_turn, traffic_growth, sharing)
    is_parallel, one, all_ = plan.is_parallel, reduce(add, plan.one_thread), reduce(add, plan.all_threads)
    memory = tuple(np.where(is_parallel, a, b) for a, b in zip(all_.memory, one.memory, strict=True))
    total = np.where(is_parallel, all_.total + plan.fork_join, one.total) * slowdown
    compute = np.where(is_parallel, all_.compute, one.compute)
    return Time(compute, memory, np.where(is_parallel, plan.fork_join, 0.0), total)
