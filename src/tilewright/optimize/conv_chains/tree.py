"""Tile trees of chains of convolutions.

parallel batches and tiles of rows
  blocks of channels, where a depthwise convolution follows
    rows of the padded result of the first convolution
      the first convolution: register tiles accumulated in registers, bias and activation, to the stack
      padding, copied
    the depthwise convolution, likewise
  the next convolution, likewise
  the result, transposed where vectors run along channels

What a tile needs of an intermediate follows from its readers: rows of the halo are computed by both neighbours.
"""

from collections.abc import Sequence

from tilewright.errors import ScheduleError
from tilewright.loops.ir import LoopKind
from tilewright.machine.model import Machine
from tilewright.optimize.conv_chains.register_nests import (
    TiledConvolutions,
    convolution_nest,
    padding_nest,
    store_nest,
    weights_copy,
)
from tilewright.optimize.conv_chains.stages import PLACE, ConvolutionChain, ConvolutionStage
from tilewright.optimize.conv_chains.tiling import ConvolutionTiling, LaneAxis, groups_of
from tilewright.tile.tree import Loop, Node, Staging, TileTree, nest


def convolution_tree(chain: ConvolutionChain, tiling: ConvolutionTiling, vector: int, machine: Machine) -> TileTree:
    """The tree of a chain, whose threads share batches and tiles of rows.

    Args:
        chain: the chain.
        tiling: its tiles.
        vector: elements of a hardware vector.
        machine: the machine, by whose model register tiles are chosen.

    Raises:
        ScheduleError: the chain ends with a depthwise convolution, or the tiling is not of this chain.
    """
    tiled = TiledConvolutions(chain, tiling, vector, machine)
    groups = groups_of(chain)
    if chain.stages[-1].is_depthwise:
        raise ScheduleError(f"the last convolution, {chain.stages[-1].name!r}, is depthwise", where=PLACE)
    nodes: list[Node] = []
    staging: list[Staging] = []
    for group in groups:
        channels = group[0].axes.channels
        is_blocked = tiled.block_of(group[0]) < chain.points(channels)
        scope: list[Node] = [] if is_blocked else nodes
        for stage in group:
            convolution, added = convolution_nest(tiled, stage)
            scope[:] = [*_with_padding(tiled, scope, stage), *convolution]
            staging += added
        if is_blocked:
            nodes += nest([Loop(channels, tiling.channels, ())], *scope)
    nodes += store_nest(tiled)
    copies = [weights_copy(tiled, x) for x in chain.stages] if tiling.lanes is LaneAxis.CHANNELS else []
    last = chain.stages[-1].axes
    shared = [*((a, 1) for a in chain.batch), (last.rows, tiling.rows)]
    around = [Loop(axis, step, (), LoopKind.PARALLEL) for axis, step in shared]
    body = nest(around, *nodes)
    return TileTree((*(n for x in copies for n in x[0]), *body), (*staging, *(x[1] for x in copies)))


def _with_padding(tiled: TiledConvolutions, scope: Sequence[Node], stage: ConvolutionStage) -> tuple[Node, ...]:
    """The nodes in front of a convolution with the padding of what it reads. The convolution before, where it is not in
    blocks of channels, runs row by row of the padding, so that a single row of its results is kept."""
    if stage.padding is None:
        return tuple(scope)
    name, axes = stage.padding
    copied = padding_nest(tiled, name, axes)
    last = scope[-1] if scope else None
    in_blocks = isinstance(last, Loop) and last.step == tiled.tiling.channels and last.axis in _blocked_axes(tiled)
    if last is None or in_blocks:
        return (*scope, *nest([Loop(axes.rows, 1, ())], *copied))
    return (*scope[:-1], *nest([Loop(axes.rows, 1, ())], last, *copied))


def _blocked_axes(tiled: TiledConvolutions) -> set[str]:
    """The axes of channels that are computed in blocks."""
    heads = [g[0] for g in groups_of(tiled.chain) if len(g) > 1]
    return {x.axes.channels for x in heads}
