"""The library of a machine: candidates of every level, enumerated bottom-up from its limits, for no shape.

Three levels, as in Vortex (section 5.1): register tiles that the instruction set has room for; cache buffers, integer
multiples of a register tile that use neither very little nor nearly all of L2; and thread grids. A table links every
cache buffer to the register tiles that it is a multiple of: a link and a grid are one tiling strategy.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tilewright.cost.caches import caches
from tilewright.machine.model import Machine
from tilewright.optimize.construct.tile_lattice import Indices
from tilewright.optimize.vortex.register_tiles import filter_by_isa

MULTIPLES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Register tiles of a cache buffer along rows, and along columns."""

TERMS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Terms of a cache buffer, where they are multiples of those of a step."""

CAPACITY_WINDOW = (0.125, 0.75)
"""Least and largest share of L2 that a cache buffer takes."""

PANEL_SHARE = 0.5
"""Largest share of L1 that the vectors of one register tile take, which all of its rows read."""

MAX_SUM_BYTES = 64 << 10
"""Bytes of a thread's stack for the partial sums of a cache buffer."""

TASKS_PER_CORE = (1, 2, 4)
"""Parts that threads share, per core: more than one balances cores of different speed."""


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """The candidates of a machine for elements of one width.

    Attributes:
        lanes: elements of a vector.
        register_tiles: level 0 (rows, vectors, terms of a step) [candidate, 3].
        cache_buffers: level 1 (rows, columns, terms) [candidate, 3], in elements.
        links: (level 1, level 0) [link, 2]: cache buffers with the register tiles that they are multiples of.
        grids: level 2 (parts of the rows, parts of the columns) [candidate, 2]; (0, 0) is a task per cache buffer.
    """

    lanes: int
    register_tiles: Indices
    cache_buffers: Indices
    links: Indices
    grids: Indices

    @property
    def tiling_strategies(self) -> int:
        """Number of combinations of the levels."""
        return len(self.links) * len(self.grids)

    def with_links(self, kept: npt.NDArray[np.bool_]) -> "Library":
        """The library with some of its links alone [link]."""
        return replace(self, links=self.links[kept])


@lru_cache(maxsize=8)
def library(machine: Machine, element_bits: int) -> Library:
    """The library of a machine.

    Args:
        machine: the machine.
        element_bits: width of the elements.

    Raises:
        MachineError: the machine has no caches.
    """
    lanes = max(1, machine.vector_bits // element_bits)
    tiles = filter_by_isa(machine)
    parents, children = _filter_by_multiples(tiles, lanes, element_bits // 8, machine)
    buffers, position = np.unique(parents, axis=0, return_inverse=True)
    links = np.stack((position.reshape(-1), children), axis=1)
    return Library(lanes, tiles, buffers, links, thread_grids(machine.cores))


def _filter_by_multiples(tiles: Indices, lanes: int, element_bytes: int, machine: Machine) -> tuple[Indices, Indices]:
    """Cache buffers (rows, columns, terms) [link, 3] and the register tile of each [link].

    Integer multiples of every tile, sieved by the window of the capacity.
    """
    a, b, terms = (x.reshape(-1) for x in np.meshgrid(MULTIPLES, MULTIPLES, TERMS, indexing="ij"))
    rows, columns = a * tiles[:, :1], b * tiles[:, 1:2] * lanes
    first, *farther = caches(machine)
    capacity = (farther[0] if farther else first).share
    low, high = CAPACITY_WINDOW
    used = (rows * terms + terms * columns + rows * columns) * element_bytes
    fits = (used >= low * capacity) & (used <= high * capacity) & (terms % tiles[:, 2:] == 0)
    fits &= terms * tiles[:, 1:2] * lanes * element_bytes <= PANEL_SHARE * first.share
    fits &= rows * columns * element_bytes <= MAX_SUM_BYTES
    child, multiple = np.nonzero(fits)
    sizes = np.stack((rows[child, multiple], columns[child, multiple], terms[multiple]), axis=1)
    return sizes, child


def thread_grids(cores: int) -> Indices:
    """Grids of tasks (parts of the rows, parts of the columns) [grid, 2]: one task, a few per core, or one per cache
    buffer, which is (0, 0)."""
    counts = {1} if cores == 1 else {1, *(cores * n for n in TASKS_PER_CORE)}
    grids = {(p, n // p) for n in counts for p in range(1, n + 1) if n % p == 0}
    return np.array(sorted({(0, 0), *grids}), np.int64)
