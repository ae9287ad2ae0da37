"""Lanes of the vectors in which a tree's statement is computed, by the loops around it."""

from tilewright.cost.features import MAX_SHUFFLE_STRIDE
from tilewright.cost.trees.boxes import StatementNest, is_tile_loop
from tilewright.machine.target import register_lanes
from tilewright.tile.tree_sizes import LoopStep


def vector_lanes(nest: StatementNest, lane: int, vector_bits: int) -> int:
    """Elements of a vector: of the narrowest register that holds a tile of the vectorized axis, or the whole axis where
    it has no loop over tiles. Vectors of small elements that are gathered are assembled as of 32 bits.

    Args:
        nest: the statement in its place.
        lane: the vectorized axis, by its position.
        vector_bits: width of a vector register.
    """
    problem = nest.statement.problem
    is_gathered = any(abs(o.strides[lane]) > MAX_SHUFFLE_STRIDE for o in problem.operands)
    bits = max(32, problem.bits) if is_gathered and not problem.reduce else problem.bits
    if lane in problem.reduce:
        return register_lanes(vector_bits, bits)
    axis = nest.statement.axes[lane]
    steps = [x.loop.step for x in nest.path.nodes if isinstance(x, LoopStep) and is_tile_loop(x) and x.axis == axis]
    return register_lanes(vector_bits, bits, steps[-1] if steps else problem.axes[lane].literal_extent)
