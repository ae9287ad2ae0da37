"""Named terms of the core model: what each resource of a core takes for the register tiles of candidates.

Scoring computes every term anyway; here they keep their names. A term is a list of factors, which are multiplied where
somebody asks for it (`TileCycles.cycles`), so that names cost scoring nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.tile.program import Mask

Term = tuple[float | Numbers, ...]
"""Factors of the cycles per register tile."""


@dataclass(frozen=True, slots=True)
class CoreTerms:
    """Cycles of one register tile, with or without a reduction loop.

    Attributes:
        overlapping: resources that work at the same time, so that the slowest one counts.
        exposed: what comes on top of the slowest.
        contained: parts of the overlapping terms, for information.
        total: the longest of the overlapping terms and the sum of the exposed ones.
    """

    overlapping: Mapping[str, Term]
    exposed: Mapping[str, Term]
    contained: Mapping[str, Term]
    total: Numbers

    def group(self, name: str) -> Mapping[str, Term]:
        """The terms of one attribute."""
        return {"overlapping": self.overlapping, "exposed": self.exposed, "contained": self.contained}[name]


@dataclass(frozen=True, slots=True)
class TileCycles:
    """Cycles of all register tiles of candidates on one core.

    Attributes:
        looped: of register tiles with reduction loops.
        unrolled: of fully unrolled ones; None where no candidate has any.
        has_loop: which candidates have reduction loops.
        tiles: how many register tiles a candidate has; a partial one at the end of the lane axis counts as a whole one.
        total: of all tiles.
    """

    looped: CoreTerms
    unrolled: CoreTerms | None
    has_loop: Mask
    tiles: Numbers
    total: Numbers

    def cycles(self, group: str) -> dict[str, Numbers]:
        """The cycles of the terms of a group of `CoreTerms`, of all tiles; 0 where a candidate's tiles have no such
        term."""
        result: dict[str, Numbers] = {}
        for terms, mask in ((self.looped, self.has_loop), (self.unrolled, ~self.has_loop)):
            for name, factors in terms.group(group).items() if terms is not None else ():
                cycles = np.where(mask, self.tiles, 0.0)
                for factor in factors:
                    cycles = cycles * factor
                result[name] = result[name] + cycles if name in result else cycles
        return result
