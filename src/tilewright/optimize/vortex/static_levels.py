"""Libraries whose lower levels are fixed, to measure what the choice on each level is worth.

Vortex' variants Static1 and Static2 (section 7.4) fix the register tile, and the register tile with its cache buffer.
There the fixed tiling strategy is the one that was most often the best over the test cases; here, without test cases,
it is the register tile of the highest rate, and of its cache buffers the one of the highest arithmetic intensity.
"""

import numpy as np

from tilewright.optimize.vortex.library import Library
from tilewright.optimize.vortex.register_tiles import RegisterTileTimes


def fix_register_tile(library: Library, times: RegisterTileTimes) -> Library:
    """The strategies of one register tile: Static1."""
    return library.with_links(library.links[:, 1] == _fastest_tile(library, times))


def fix_cache_buffer(library: Library, times: RegisterTileTimes) -> Library:
    """The strategies of one register tile and one cache buffer: Static2."""
    fixed = fix_register_tile(library, times)
    rows, columns, terms = fixed.cache_buffers[fixed.links[:, 0]].T.astype(np.float64)
    intensity = rows * columns * terms / (rows * terms + terms * columns + rows * columns)
    kept = np.zeros(len(fixed.links), np.bool_)
    kept[int(intensity.argmax())] = True
    return fixed.with_links(kept)


def _fastest_tile(library: Library, times: RegisterTileTimes) -> int:
    """The position of the linked register tile with the most multiply-adds per cycle."""
    rows, vectors, unroll = library.register_tiles.T
    rate = rows * vectors / times.at(rows, vectors, unroll)
    linked = np.unique(library.links[:, 1])
    return int(linked[rate[linked].argmax()])
