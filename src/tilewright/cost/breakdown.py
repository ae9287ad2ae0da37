"""Breakdown of a predicted time: the named terms that the cost model adds up, as arrays over candidates.

A part of a program is its whole register tiles, their remainder, or a stage of a row-wise program. Its time is

    slowdown * sum over phases of (longest + exposed fraction * (sum of the others)) + fork_join

where a phase overlaps its instructions with the traffic of each memory level (`cost.time`). Instructions take the
longest of the overlapping core terms and the sum of the exposed ones; a level's time is the sum of its terms. Terms are
those of the thread that finishes last. The program's time is that of its parts and of packing.

The terms are those that score candidates, so the total is the number by which construction ranks. Only conflict misses
and the ramp-up of the hardware prefetcher are found by evaluating the traffic again: they are what it grows by beyond
that of caches in which nothing aliases, and of a prefetcher that needs no ramp-up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from tilewright.cost.analytical import program_times, split_parts
from tilewright.cost.caches import CacheHierarchy
from tilewright.cost.candidate_batch import CandidateBatch
from tilewright.cost.core_terms import TileCycles
from tilewright.cost.features import Features
from tilewright.cost.footprint import Numbers
from tilewright.cost.loop_footprints import LoopFootprints
from tilewright.cost.packing import packing_time
from tilewright.cost.parallel_time import ThreadPlan, thread_plan
from tilewright.cost.part_work import PartWork, part_work
from tilewright.cost.shape_family import ShapeFamily
from tilewright.cost.time import Time
from tilewright.cost.traffic import cache_traffic
from tilewright.machine.model import Machine
from tilewright.tile.problem import Problem
from tilewright.tile.program import Mask, Sizes, Sketch

Terms = Mapping[str, Numbers]
"""Terms by name, one number per candidate each."""

COUNTED_FEATURES = (
    "tasks", "register_tiles", "accumulators", "registers", "steps", "vector_operations", "vector_loads", "split_loads",
    "broadcast_loads", "shuffled_vectors", "gather_loads", "vector_stores", "scatter_stores", "streams",
    "stream_starts", "pages",
)  # fmt: skip
"""The counts of `cost.features.Features` that a breakdown states."""


@dataclass(frozen=True, slots=True)
class LevelTerms:
    """Traffic from one memory level, L2 or beyond.

    Attributes:
        name: of the level.
        bytes: that leave it: "traffic" of the loops, "conflict_misses", "ramp_up" of the hardware prefetcher,
            "untracked_streams", and "shared_data", which several threads load again.
        time: nanoseconds of these, and of the load "imbalance" of threads.
    """

    name: str
    bytes: Terms
    time: Terms


@dataclass(frozen=True, slots=True)
class CostPart:
    """The terms of a part of a program, in nanoseconds where nothing else is said.

    Attributes:
        name: "whole tiles", "remainder", or the block of a stage.
        counts: numbers of tasks, register tiles, instructions and streams (`COUNTED_FEATURES`).
        overlapping: core resources of which the slowest counts.
        exposed: core terms that come on top, "imbalance" of threads among them.
        contained: parts of the overlapping terms, for information.
        levels: memory levels from L2 outwards.
        phases: the times of each phase, without fork and join.
        levels_in_turn: whether lines pass the levels one after the other (`time.streaming_time`).
        threads: number of threads that have work.
        slowdown: factor on the phases, for the size of the code.
        fork_join: fork and join of threads.
        total: of the part.
    """

    name: str
    counts: Terms
    overlapping: Terms
    exposed: Terms
    contained: Terms
    levels: tuple[LevelTerms, ...]
    phases: tuple[Time, ...]
    levels_in_turn: bool
    threads: Numbers
    slowdown: Numbers
    fork_join: Numbers
    total: Numbers

    @property
    def compute(self) -> Numbers:
        """Nanoseconds of the instructions."""
        return core_time(self.overlapping, self.exposed)

    def map_arrays(self, function: Callable[[Numbers], Numbers]) -> "CostPart":
        """The part with `function` applied to every array."""
        counts, overlapping, exposed, contained = (
            _map_terms(x, function) for x in (self.counts, self.overlapping, self.exposed, self.contained)
        )
        levels = tuple(
            LevelTerms(x.name, _map_terms(x.bytes, function), _map_terms(x.time, function)) for x in self.levels
        )
        phases = tuple(x.map_arrays(function) for x in self.phases)
        numbers = (function(x) for x in (self.threads, self.slowdown, self.fork_join, self.total))
        return CostPart(
            self.name, counts, overlapping, exposed, contained, levels, phases, self.levels_in_turn, *numbers
        )

    def features(self) -> dict[str, Numbers]:
        """All terms by flat names, such as "core.spills" or "L2.traffic"."""
        core = {**self.overlapping, **self.exposed, **self.contained}
        result = {f"count.{k}": x for k, x in self.counts.items()} | {f"core.{k}": x for k, x in core.items()}
        for level in self.levels:
            result |= {f"{level.name}.{k}_bytes": x for k, x in level.bytes.items()}
            result |= {f"{level.name}.{k}": x for k, x in level.time.items()}
        return result | {
            "threads.count": self.threads, "threads.fork_join": self.fork_join, "slowdown": self.slowdown,
            "total": self.total,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class CostBreakdown:
    """The terms of a batch of candidates at one shape, in nanoseconds.

    Attributes:
        parts: of the programs; all terms are 0 where a candidate has no such part.
        packing: packing of operands at run time.
        total: the predicted time, by which construction ranks.
    """

    parts: tuple[CostPart, ...]
    packing: Numbers
    total: Numbers

    def features(self) -> dict[str, Numbers]:
        """All terms by flat names, such as "whole tiles.core.spills": inputs of a learned model."""
        result = {f"{part.name}.{k}": x for part in self.parts for k, x in part.features().items()}
        return result | {"packing": self.packing, "total": self.total}


def core_time(overlapping: Terms, exposed: Terms) -> Numbers:
    """The longest of the overlapping core terms and the sum of the exposed ones."""
    return reduce(np.maximum, overlapping.values()) + reduce(add, exposed.values())


def cost_breakdown(problem: Problem, sketch: Sketch, sizes: Sizes, machine: Machine) -> CostBreakdown:
    """The terms of candidates [candidate, level, axis], at the problem's own sizes."""
    split, count = split_parts(ShapeFamily.of(problem), sketch, sizes), len(sizes)
    main = _tile_part("whole tiles", sketch, split.main, machine)
    parts = [main.map_arrays(lambda x: np.where(split.has_whole_tile, x, 0.0))]
    if split.remainder is not None:
        rest = _tile_part("remainder", sketch, split.remainder, machine)
        # where it follows the whole tiles in the same tasks nothing is forked for it
        forked = np.where(split.has_own_tasks, rest.fork_join, rest.fork_join * (1.0 - 1.0 / rest.slowdown))
        rest = replace(rest, fork_join=forked, total=rest.total - rest.fork_join + forked)
        parts.append(rest.map_arrays(lambda x: _scatter(x, split.positions, count)))
    times = program_times(problem, sketch, sizes, machine)
    alone, shared = (packing_time(problem, sketch, machine, x) for x in (False, True))
    return CostBreakdown(tuple(parts), np.where(times.parallel > 0, shared, alone), times.total)


def _tile_part(name: str, sketch: Sketch, batch: CandidateBatch, machine: Machine) -> CostPart:
    """The terms of whole tiles or of the remainder, for all candidates of the batch."""
    work = part_work(sketch, batch, machine)
    plan = thread_plan(
        work.phases, work.features.tasks, machine, work.levels_in_turn, work.traffic_growth, work.sharing
    )
    traffic = _traffic_terms(sketch, work, machine)
    return make_part(
        name, work.features, work.tiles, _stall_cycles(work, machine), traffic, plan, tuple(range(len(work.phases))),
        machine, work.levels_in_turn, work.slowdown, work.traffic_growth,
    )  # fmt: skip


def _stall_cycles(work: PartWork, machine: Machine) -> dict[str, Numbers]:
    """Cycles that instructions wait besides those of the register tiles, on one core."""
    return {
        "scatter_stalls": work.scatter_stalls * machine.ghz + np.zeros_like(work.slowdown),
        "split_misses": work.split_misses * machine.ghz + np.zeros_like(work.slowdown),
        "store_starts": work.store_starts * machine.ghz + np.zeros_like(work.slowdown),
    }


def tree_part(
    name: str, sketch: Sketch, work: PartWork, plan: ThreadPlan, executions: Numbers, machine: Machine,
    footprints: LoopFootprints,
) -> CostPart:  # fmt: skip
    """The terms of a statement of a tile tree.

    Args:
        name: see `CostPart`.
        sketch, work: of the statement.
        plan: its times, and whether the loops around it are parallel.
        executions: how often it runs.
        machine: the machine.
        footprints: of the loops around it.
    """
    stalls = {name: x / executions for name, x in _stall_cycles(work, machine).items()}
    traffic = _traffic_terms(sketch, work, machine, footprints)
    return make_part(
        name, work.features, work.tiles, stalls, traffic, plan, tuple(range(len(work.phases))), machine,
        work.levels_in_turn, work.slowdown, work.traffic_growth, executions,
    )  # fmt: skip


def make_part(
    name: str, features: Features, tiles: TileCycles, exposed: Terms, traffic: Sequence[Terms], plan: ThreadPlan,
    phases: Sequence[int], machine: Machine, levels_in_turn: bool, slowdown: Numbers, growth: Sequence[Numbers] = (),
    repetitions: float | Numbers = 1.0,
) -> CostPart:  # fmt: skip
    """A part from the terms of the model.

    Args:
        name, features: see `CostPart`.
        tiles: cycles of the register tiles, on one core.
        exposed: further cycles on one core, which come on top.
        traffic: per level the bytes on one thread by their causes.
        plan: the times on one thread and on all cores.
        phases: positions of the part's phases in the plan; fork and join belong to the first one.
        machine, levels_in_turn, slowdown: see `CostPart`.
        growth: per level the growth of the bytes on several threads; none by default.
        repetitions: how often the cycles count.
    """
    parallel = plan.is_parallel
    chosen = tuple(_select(parallel, plan.all_threads[k], plan.one_thread[k]) for k in phases)
    time = reduce(add, chosen)
    # all cores share the instructions; the imbalance is what the last one executes beyond its share
    ns_per_cycle = repetitions / machine.ghz / np.where(parallel, machine.cores, 1.0)
    terms = {
        group: _to_nanoseconds(tiles.cycles(group), ns_per_cycle) for group in ("overlapping", "exposed", "contained")
    }
    on_top = {**terms["exposed"], **_to_nanoseconds(exposed, ns_per_cycle)}
    on_top["imbalance"] = time.compute - core_time(terms["overlapping"], on_top)
    levels: list[LevelTerms] = []
    for k, (level, causes) in enumerate(zip(machine.levels[1:], traffic, strict=True)):
        rate = np.where(parallel, plan.rates[k], level.gbs(1))
        again = np.where(parallel, growth[k] - 1.0, 0.0) if growth else np.zeros_like(rate)
        bytes_ = {**causes, "shared_data": reduce(add, causes.values()) * again}
        nanoseconds = {cause: x / rate for cause, x in bytes_.items()}
        waiting = np.where(parallel, plan.memory_imbalance - 1.0, 0.0)
        nanoseconds["imbalance"] = reduce(add, nanoseconds.values()) * waiting
        levels.append(LevelTerms(level.name, bytes_, nanoseconds))
    fork_join = np.where(parallel, plan.fork_join, 0.0) * slowdown if 0 in phases else np.zeros_like(slowdown)
    return CostPart(
        name, {k: getattr(features, k) for k in COUNTED_FEATURES}, terms["overlapping"], on_top, terms["contained"],
        tuple(levels), chosen, levels_in_turn, np.where(parallel, plan.threads, 1.0), slowdown, fork_join,
        time.total * slowdown + fork_join,
    )  # fmt: skip


def _traffic_terms(
    sketch: Sketch, work: PartWork, machine: Machine, footprints: LoopFootprints | None = None
) -> list[Terms]:
    """Per level from L2 outwards the bytes on one thread, by their causes."""
    hierarchy, problem = CacheHierarchy.of(machine), work.batch.family.problem
    steady = replace(
        machine.cost, stream_ramp_bytes=0.0, page_ramp_bytes=0.0, split_store_ramp_bytes=0.0, unprefetched_penalty=0.0,
        interleaved_store_penalty=0.0, alternating_store_penalty=0.0, same_page_store_penalty=0.0,
        single_stream_penalty=1.0,
    )  # fmt: skip
    aliased, even = (
        cache_traffic(problem, sketch, work.batch, replace(hierarchy, cost=steady, set_counts=sets), footprints)[0]
        for sets in (hierarchy.set_counts, ())
    )
    result: list[Terms] = []
    for k, moved in enumerate(work.moved):
        misses = work.miss_ratios[k]
        untracked = work.stream_penalty - 1.0 if k else 0.0
        causes = {
            "traffic": even[k], "conflict_misses": aliased[k] - even[k], "ramp_up": moved - aliased[k],
            "untracked_streams": moved * untracked,
        }  # fmt: skip
        result.append({cause: x * misses for cause, x in causes.items()})
    return result


def _map_terms(terms: Terms, function: Callable[[Numbers], Numbers]) -> dict[str, Numbers]:
    return {name: function(x) for name, x in terms.items()}


def _to_nanoseconds(terms: Terms, ns_per_cycle: Numbers) -> dict[str, Numbers]:
    return {name: x * ns_per_cycle for name, x in terms.items()}


def _select(mask: Mask, first: Time, second: Time) -> Time:
    """The times of the first where a mask is set, else those of the second."""
    memory = tuple(np.where(mask, a, b) for a, b in zip(first.memory, second.memory, strict=True))
    return Time(
        np.where(mask, first.compute, second.compute),
        memory,
        np.zeros_like(first.total),
        np.where(mask, first.total, second.total),
    )


def _scatter(x: Numbers, positions: np.ndarray, count: int) -> Numbers:
    """An array of `count` numbers, with those given at their positions and 0 elsewhere."""
    result = np.zeros(count)
    result[positions] = x
    return result
