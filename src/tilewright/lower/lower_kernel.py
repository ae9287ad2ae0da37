"""The loops that code generation emits: scheduled loops after the passes that depend on the target.

Every decision about a kernel's loops is taken when these passes are done. Code generation translates what they leave:
their result prints, parses, is verified and interpreted like any other function.
"""

from dataclasses import dataclass

from tilewright.loops.empty_reductions import initialize_empty_reductions
from tilewright.loops.ir import Func
from tilewright.lower.dead_lanes import dead_lane_buffers
from tilewright.lower.legalize_vectors import legalize_vectors
from tilewright.lower.lower_vthreads import lower_vthreads
from tilewright.lower.promote_sums import promote_sums
from tilewright.lower.skip_masked_tiles import skip_masked_tiles
from tilewright.lower.specialize import specialize_loops
from tilewright.lower.trim_loops import trim_loops
from tilewright.machine import Target


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A kernel ready to be emitted.

    Attributes:
        func: its loops.
        dead_lane_buffers: names of the buffers whose masked-off lanes are never read (`dead_lanes.py`).
    """

    func: Func
    dead_lane_buffers: frozenset[str]


def lower_kernel(func: Func, target: Target) -> LoweredKernel:
    """The loops of a scheduled function that code generation emits for a target.

    Raises:
        TargetError: a loop is bound to a GPU axis.
    """
    func = lower_vthreads(initialize_empty_reductions(skip_masked_tiles(trim_loops(func))), target)
    # before legalisation: a vectorized loop has one mask, the vectors that it is split into differ in theirs
    dead_lanes = dead_lane_buffers(func)
    return LoweredKernel(promote_sums(specialize_loops(legalize_vectors(func, target), target), target), dead_lanes)
