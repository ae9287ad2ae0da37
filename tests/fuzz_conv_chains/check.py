"""A random chain of convolutions: refused for a reason, or verified and computed natively like untransformed loops."""

from dataclasses import dataclass

import numpy as np
from tests.fuzz_conv_chains.draw import draw, fused

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.loops.lowering import lower_to_loops
from tilewright.machine.shipped import machine_named
from tilewright.optimize.conv_chains.stages import ConvolutionChain, has_windows
from tilewright.optimize.conv_chains.tiling import CHANNEL_BLOCKS, ConvolutionTiling, LaneAxis, groups_of
from tilewright.optimize.conv_chains.tree import convolution_tree

MACHINE = machine_named("x86-64-v4")


@dataclass(frozen=True)
class Outcome:
    """What became of a random chain.

    Attributes:
        text: what was drawn.
        kind: of chain.
        tiling: of its tree; None where it was refused.
        refusal: why; empty where it was not.
    """

    text: str
    kind: str
    tiling: ConvolutionTiling | None
    refusal: str = ""


def random_tiling(chain: ConvolutionChain, rng: np.random.Generator) -> ConvolutionTiling:
    """Tiles of random sizes, whether the optimizer considers them or not."""
    rows = int(rng.integers(1, chain.points(chain.stages[-1].axes.rows) + 1))
    if chain.stages[0].is_depthwise:
        return ConvolutionTiling(rows, 1, LaneAxis.COLUMNS)
    counts = [chain.points(g[0].axes.channels) for g in groups_of(chain) if len(g) > 1]
    blocks = [b for b in CHANNEL_BLOCKS if counts and b < min(counts) and all(n % b == 0 for n in counts)]
    return ConvolutionTiling(rows, int(rng.choice([0, *blocks])), LaneAxis.CHANNELS)


def check(seed: int) -> Outcome:
    """Draws a chain and tiles for it; the fused kernel must compute the same.

    Raises:
        VerifyError: the tree gives loops that are not well-formed.
        MismatchError: it computes something else.
    """
    rng = np.random.default_rng([seed])
    drawn = draw(rng)
    kernel = fused(drawn)
    func = lower_to_loops("chain", kernel.stages, kernel.params, ())
    try:
        assert has_windows(func)
        chain = ConvolutionChain.of(func)
        tiling = random_tiling(chain, rng)
        vector = int(rng.choice([8, 16]))
        tree = convolution_tree(chain, tiling, vector, MACHINE)
        s = tw.create_schedule(func)
        s.apply_tree(tree)
    except ScheduleError as error:
        return Outcome(drawn.text, drawn.kind, None, str(error))
    s.check(seed=seed, threads=2)
    return Outcome(drawn.text, drawn.kind, tiling)
