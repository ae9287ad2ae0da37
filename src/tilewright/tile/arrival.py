"""While how much of its work a program still brings data from far memory: the rest of the work hides nothing of it.

A panel that is used by one row of register tiles after the other comes during the first row; while the others run,
memory is idle. A program that uses each byte up as it comes computes all the time that memory is busy.
"""

from collections.abc import Sequence

import numpy as np

from tilewright.tile.columns import Columns, sum_of
from tilewright.tile.footprint import Numbers
from tilewright.tile.problem import Problem
from tilewright.tile.program import REGISTER, Form, Mask
from tilewright.tile.traffic import USABLE, Feet, innermost


def arriving(
    problem: Problem, form: Form, columns: Columns, capacity: float, line: int, known: Feet | None = None
) -> Numbers:
    """The part of all register tiles, each over one chunk of the reduction, during which data come from beyond a cache
    of `capacity` bytes; the average over bytes, between 0 and 1.

    Of an operand that is loaded once in all iterations of a loop, and that the loop does not move, it is one iteration.
    `known` saves counting what is touched.
    """
    known = known or Feet.of(problem, form, columns, line)
    # the loops of a register tile are the innermost ones
    tiles = sum(x.level != REGISTER or x.axis not in problem.reduce for x in known.loops)
    feet, there = known.operands[:, : tiles + 1], known.there[:tiles]
    stays = ((sum_of(feet) <= capacity * USABLE) | innermost(there))[1:] & there
    # all operands at once: formulas cost as much for few numbers as for many
    loaded, anew = _loaded(feet, known.counts[:tiles], stays)
    weights = loaded * loaded / anew
    bytes_in_all: Numbers = np.zeros_like(columns.whole[0])
    weighted = bytes_in_all
    for k, o in enumerate(columns.family.accesses):
        # every line that is written comes and goes, as results are finished one after the other
        moved, weight = (2.0 * feet[k, 0], 2.0 * feet[k, 0]) if o.written else (loaded[k], weights[k])
        bytes_in_all, weighted = bytes_in_all + moved, weighted + weight
    return np.clip(weighted / np.maximum(bytes_in_all, 1.0), 0.0, 1.0)


def _loaded(feet: Numbers, counts: Sequence[Numbers], stays: Mask) -> tuple[Numbers, Numbers]:
    """Bytes that operands load in the whole program, and if every register tile loaded its own anew.

    Args:
        feet: their bytes [operand, depth, candidate].
        counts: iterations of the loops, outermost first.
        stays: whether all that the bodies of loops touch fits [loop, candidate].
    """
    loaded = anew = feet[:, -1]
    for d in range(len(counts) - 1, -1, -1):
        loaded = np.where(stays[d], feet[:, d], loaded * counts[d])
        anew = anew * counts[d]
    return loaded, anew
