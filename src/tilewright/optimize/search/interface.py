"""The interface of searches: what to measure next is asked for, and what became of it is told."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from tilewright.optimize.measurer import Candidate, Measurement


class SearchVariant(StrEnum):
    """How candidates are chosen.

    Attributes:
        SEARCH: the analytical cost model, and a model learned from the measurements that corrects it, rank what
            evolution makes of constructed programs and the best ones measured.
        ANSOR: the same from nothing: neither constructed programs nor others are known at first.
        EVOLUTION: the analytical cost model ranks; nothing is learned but which programs were fast.
        RANDOM_DRAWS: programs are drawn at random.
    """

    SEARCH = "search"
    ANSOR = "ansor"
    EVOLUTION = "evolution"
    RANDOM_DRAWS = "random"


class Search(Protocol):
    """A search for the fastest program of one task. It measures nothing itself, and equal calls get equal answers."""

    def ask(self, count: int) -> Sequence[Candidate]:
        """The next candidates to be measured, at most `count`; none of them was asked or told before, and every one can
        be lowered and verified. An empty sequence says that no program is left."""
        ...

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """What became of candidates, of this search or of an earlier one of the same task, in any order and number."""
        ...
