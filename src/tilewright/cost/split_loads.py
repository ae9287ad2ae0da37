"""Vector loads that touch two cache lines, because the rows of an operand do not begin at a line."""

import numpy as np

from tilewright.cost.candidate_batch import is_packed
from tilewright.cost.features import Features
from tilewright.cost.footprint import Numbers, sum_arrays
from tilewright.cost.load_phase import loaded_bytes
from tilewright.cost.loop_footprints import LoopFootprints, innermost_depths
from tilewright.machine.cost_parameters import CostParameters
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER, Sketch


def split_miss_cycles(
    problem: Problem,
    sketch: Sketch,
    features: Features,
    footprints: LoopFootprints,
    l1_bytes: float,
    cost: CostParameters,
) -> Numbers:
    """Cycles that candidates wait for vectors in two lines from beyond L1, on one core.

    Args:
        problem, sketch, features: the candidates.
        footprints: of the candidates.
        l1_bytes: capacity of L1.
        cost: parameters of the machine.
    """
    split_loads = features.register_tiles * features.steps * features.split_loads
    if not split_loads.any():
        return split_loads
    rows = [k for k, o in enumerate(problem.operands) if o.strides[sketch.lane] == 1 and not is_packed(sketch, k)]
    missed = _missed_fraction(problem, footprints, rows, l1_bytes * cost.usable_cache_fraction)
    return split_loads * missed * cost.split_miss_cycles


def _missed_fraction(problem: Problem, footprints: LoopFootprints, operands: list[int], l1_bytes: float) -> Numbers:
    """Share of the bytes that register tiles load of some operands, by position, that come from beyond L1, of which a
    program can rely on so many bytes: what stays there between the tiles is loaded once."""
    # the loops of a register tile are the innermost ones
    tile_loops = sum(x.level != REGISTER or x.axis not in problem.reduce for x in footprints.loops)
    operand_bytes, present = footprints.operand_bytes[:, : tile_loops + 1], footprints.present[:tile_loops]
    fits_l1 = footprints.touched_bytes(tile_loops + 1) <= l1_bytes
    fits = (fits_l1 | innermost_depths(present))[1:] & present
    loaded, reloaded = loaded_bytes(operand_bytes, footprints.counts[:tile_loops], fits)
    return sum_arrays(loaded[operands]) / np.maximum(sum_arrays(reloaded[operands]), 1.0)
