"""Features of tile programs on processors: parallel tasks, micro-tiles, and the fast memory that tasks take.

What blocks, threads and shared memory are on GPUs (ETO, Section 3) are here the tiles of L2, which threads share; the
register tiles; and the bytes of the operands that one task reads per K-block.
"""

from dataclasses import dataclass

import numpy as np

from tilewright.cost.footprint import Numbers, sum_arrays, touched_elements
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Sizes, Sketch, TileProgram, register_tiles, whole_tiles


@dataclass(frozen=True, slots=True)
class ProgramFeatures:
    """Features of programs, one number or one per candidate each.

    Attributes:
        blocks: B, the number of parallel tasks.
        threads: T, the number of register tiles of results in all of them, partial ones included.
        memory: M, the bytes of operands that all tasks read per K-block.
    """

    blocks: Numbers
    threads: Numbers
    memory: Numbers


def features_of(program: TileProgram) -> ProgramFeatures:
    """The features of one program."""
    many = program_features(program.problem, program.sketch, program.array[None])
    return ProgramFeatures(many.blocks[0], many.threads[0], many.memory[0])


def program_features(problem: Problem, sketch: Sketch, sizes: Sizes) -> ProgramFeatures:
    """The features of candidates of one sketch.

    Args:
        problem: what they compute.
        sketch: their loops.
        sizes: tile sizes [candidate, level, axis].
    """
    spatial = list(problem.spatial)
    tiles = np.maximum(whole_tiles(problem, sketch, sizes), 1)
    per_task = np.maximum(sizes[..., L2, :] // np.maximum(sizes[..., REGISTER, :], 1), 1)
    threads = register_tiles(problem, sizes)[..., spatial].prod(axis=-1).astype(np.float64)
    blocks = np.maximum(tiles[..., spatial] // per_task[..., spatial], 1).prod(axis=-1).astype(np.float64)
    box = [np.minimum(sizes[..., L2, k], problem.axes[k].extent).astype(np.float64) for k in range(len(problem.axes))]
    for k in problem.reduce:
        box[k] = np.minimum(sizes[..., L1, k], problem.axes[k].extent).astype(np.float64)
    return ProgramFeatures(blocks, threads, blocks * input_bytes(problem, box))


def input_bytes(problem: Problem, box: list[Numbers]) -> Numbers:
    """Bytes of the operands that the points of boxes read, counted without cache lines.

    Args:
        problem: has the operands.
        box: per axis the points along it.
    """
    return sum_arrays([touched_elements(o, box) * float(o.element_bytes) for o in problem.read_operands])
