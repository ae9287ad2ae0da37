"""Tile trees of chains of convolutions.

parallel batches and tiles of rows
  blocks of channels, where a depthwise convolution follows
    the first convolution: register tiles accumulated in registers, bias and activation, to the stack
    padding, copied
    the depthwise convolution, likewise
  the next convolution, likewise
  the result, transposed where vectors run along channels

What a tile needs of an intermediate follows from its readers: rows of the halo are computed by both neighbours.
"""

from tilewright.errors import ScheduleError
from tilewright.loops.ir import LoopKind
from tilewright.machine.model import Machine
from tilewright.optimize.conv_chains.register_nests import TiledConvolutions, convolution_nest, padding_nest, store_nest
from tilewright.optimize.conv_chains.stages import PLACE, ConvolutionChain, ConvolutionStage
from tilewright.optimize.conv_chains.tiling import ConvolutionTiling, LaneAxis, groups_of
from tilewright.tile.tree import CacheRead, Compute, Loop, Node, Staging, TileTree, nest


def convolution_tree(
    chain: ConvolutionChain, tiling: ConvolutionTiling, vector: int, machine: Machine, parallel: bool = True
) -> TileTree:
    """The tree of a chain.

    Args:
        chain: the chain.
        tiling: its tiles.
        vector: elements of a hardware vector.
        machine: the machine, by whose model register tiles are chosen.
        parallel: whether threads share batches and tiles of rows.

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
        inner: list[Node] = []
        for stage in group:
            inner += () if stage.padding is None else padding_nest(tiled, *stage.padding)
            nest_, added = convolution_nest(tiled, stage)
            inner += nest_
            staging += added
        channels = group[0].axes.channels
        blocked = tiled.block_of(group[0]) < chain.points(channels)
        nodes += nest([Loop(channels, tiling.channels, ())], *inner) if blocked else inner
    nodes += store_nest(tiled)
    copies = [_weights_copy(x) for x in chain.stages] if tiling.lanes is LaneAxis.CHANNELS else []
    kind = LoopKind.PARALLEL if parallel else LoopKind.SERIAL
    last = chain.stages[-1].axes
    around = [*(Loop(a, 1, (), kind) for a in chain.batch), Loop(last.rows, tiling.rows, (), kind)]
    body = nest(around, *nodes)
    return TileTree((*(n for x in copies for n in x[0]), *body), (*staging, *(x[1] for x in copies)))


def _weights_copy(stage: ConvolutionStage) -> tuple[tuple[Node, ...], Staging]:
    """The copy of a convolution's weights with the result's channels innermost; of constants it is made when the model
    is compiled."""
    buffer, order = stage.weights
    name = f"{stage.name}.weights"
    return nest([Loop(f"{name}.{d}", 1, ()) for d in order], Compute(name)), CacheRead(stage.name, name, buffer, order)
