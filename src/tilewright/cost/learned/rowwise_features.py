"""Features of row-wise programs: a row per stage."""

from dataclasses import replace

import numpy as np

from tilewright.cost.learned.part_features import FeatureRows
from tilewright.cost.learned.tile_features import breakdown_features, geometry_features, least_time
from tilewright.cost.rowwise_breakdown import rowwise_breakdown
from tilewright.machine.model import Machine
from tilewright.tile.rowwise import RowwiseProgram


def rowwise_features(program: RowwiseProgram, machine: Machine) -> FeatureRows:
    """The features of one program."""
    breakdown = rowwise_breakdown(program, machine)
    blocks = program.blocking.block_count
    least = sum(least_time(p.problem, machine) for p in program.stages) * blocks
    stages: list[np.ndarray] = []
    for part, stage in zip(breakdown.parts, program.stages, strict=True):
        geometry = geometry_features(stage.problem, stage.sketch, stage.array[None], machine)
        stages.append(breakdown_features(replace(breakdown, parts=(part,)), geometry, least).rows)
    rows = np.concatenate(stages)
    shares = np.concatenate([part.total for part in breakdown.parts])
    return FeatureRows.of(rows, np.zeros(len(rows), np.int64), shares, breakdown.total)
