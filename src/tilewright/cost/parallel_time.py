"""Parallel time: one thread or all cores, with fork and join, load imbalance and shared bandwidth."""

from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.cost.time import Time, overlapped_time, streaming_time
from tilewright.machine.model import Machine


def parallel_time(
    phases: Sequence[tuple[Numbers, Sequence[Numbers]]], tasks: Numbers, slowdown: Numbers, machine: Machine,
    streaming: bool = False, traffic_growth: Sequence[Numbers] = (),
) -> Time:  # fmt: skip
    """The times on one thread or on all cores, whichever are less.

    Args:
        phases: phases of a task that do not overlap with each other: nanoseconds of all instructions on one core, and
            bytes that leave each memory level from L2 outwards.
        tasks: number of parallel tasks.
        slowdown: factor on the times for other reasons.
        machine: the machine.
        streaming: whether little is used again, so that every line passes all levels one after the other.
        traffic_growth: per level the growth of the bytes on several threads, as data that several of them need is
            loaded by each; none by default.
    """
    levels, time_of = machine.levels[1:], streaming_time if streaming else overlapped_time
    cost, cores = machine.cost, machine.cores
    one_thread = reduce(
        add, [time_of(work, [m / x.gbs(1) for m, x in zip(moved, levels, strict=True)], cost) for work, moved in phases]
    )
    threads = np.minimum(cores, tasks)
    balance = np.ceil(tasks / cores) * cores / tasks
    # with fewer tasks than threads the busiest thread has one of them, and only so many threads load data
    memory_imbalance = np.where(tasks < cores, 1.0, balance)
    # with whole rounds of tasks, half of the last task; the threads that are left use up the shared bandwidth
    imbalance = np.maximum(balance, 1.0 + np.minimum(cost.core_speed_variation, threads / (2.0 * tasks)))
    rates = [np.minimum(x.core_gbs * threads, x.total_gbs) for x in levels]
    growth = [memory_imbalance * g for g in traffic_growth] or [memory_imbalance] * len(levels)
    all_threads = reduce(add, [
        time_of(work * imbalance / cores, [m * g / r for m, g, r in zip(moved, growth, rates, strict=True)], cost)
        for work, moved in phases
    ])  # fmt: skip
    fork_join = np.where(tasks > 1, machine.sync_us * 1e3, 0.0)
    parallel_total = all_threads.total + fork_join
    is_parallel = (parallel_total < one_thread.total) & (tasks > 1)
    levels_time = zip(all_threads.memory, one_thread.memory, strict=True)
    memory = tuple(np.where(is_parallel, a, b) for a, b in levels_time)
    total = np.where(is_parallel, parallel_total, one_thread.total) * slowdown
    compute = np.where(is_parallel, all_threads.compute, one_thread.compute)
    return Time(compute, memory, np.where(is_parallel, fork_join, 0.0), total)
