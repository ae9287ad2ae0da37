"""Features of row-wise programs: a row per stage."""

from dataclasses import replace

import numpy as np

from tilewright.cost.learned.program_rows import ProgramRows
from tilewright.cost.learned.tile_rows import geometry_rows, least_time, rows_of_breakdown
from tilewright.cost.rowwise_breakdown import rowwise_breakdown
from tilewright.machine.model import Machine
from tilewright.tile.rowwise import RowwiseProgram


def rowwise_rows(program: RowwiseProgram, machine: Machine) -> ProgramRows:
    """The features of one program."""
    breakdown = rowwise_breakdown(program, machine)
    blocks = program.blocking.block_count
    least = sum(least_time(p.problem, machine) for p in program.stages) * blocks
    stages: list[np.ndarray] = []
    for part, stage in zip(breakdown.parts, program.stages, strict=True):
        geometry = geometry_rows(stage.problem, stage.sketch, stage.array[None], machine)
        stages.append(rows_of_breakdown(replace(breakdown, parts=(part,)), geometry, least).rows)
    rows = np.concatenate(stages)
    shares = np.concatenate([part.total for part in breakdown.parts])
    return ProgramRows.of(rows, np.zeros(len(rows), np.int64), shares, breakdown.total)
