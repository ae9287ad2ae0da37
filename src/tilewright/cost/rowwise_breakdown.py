"""Breakdown of the predicted time of a row-wise program, with a part per stage."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.cost.breakdown import CostBreakdown, make_part
from tilewright.cost.parallel_time import thread_plan
from tilewright.cost.rowwise import rowwise_time, stage_cycles, stage_phases
from tilewright.machine.model import Machine
from tilewright.tile.rowwise import RowwiseProgram


def rowwise_breakdown(program: RowwiseProgram, machine: Machine) -> CostBreakdown:
    """The terms of one program, as arrays of one element. Fork and join belong to the first stage."""
    blocking, stages = program.blocking, program.stages
    cycles = [stage_cycles(p.problem, p.sketch, p.array[None], blocking, machine) for p in stages]
    phases = stage_phases(blocking, [p.problem for p in stages], [x.total for x in cycles], machine)
    one = np.ones(1)
    plan = thread_plan(phases, one * blocking.block_count, machine, levels_in_turn=True)
    parts = [
        make_part(
            program.stages[k].problem.block,
            x.features,
            x.tiles,
            {
                "code_size": x.code_size,
                "row_block": one * machine.cost.row_block_cycles,
                "store_forward_stalls": one * x.store_forward_stalls,
                "split_stores": x.split_stores,
            },
            _traffic(phases[k].moved),
            plan,
            (k,),
            machine,
            levels_in_turn=True,
            slowdown=one,
            repetitions=float(blocking.block_count),
        )
        for k, x in enumerate(cycles)
    ]
    blocks = float(blocking.block_count)
    parts = [
        replace(x, counts={**x.counts, "tasks": one * blocks, "register_tiles": x.counts["register_tiles"] * blocks})
        for x in parts
    ]
    return CostBreakdown(tuple(parts), np.zeros(1), rowwise_time(program, machine).total)


def _traffic(moved: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The bytes of a stage: it has no other cause of traffic."""
    return [{"traffic": x} for x in moved]
