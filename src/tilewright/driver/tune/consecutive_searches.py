"""Two searches of one kernel in a row, of which the second learns what the first one was told."""

from collections.abc import Callable, Sequence

from tilewright.optimize.measurer import Candidate, Measurement
from tilewright.optimize.search.interface import Search


class ConsecutiveSearches:
    """A search, and another one after it is exhausted, which learns what the first one was told.

    Args:
        first: the first one.
        following: starts the other one, given what was told.
        history: what the first one was told already.
    """

    def __init__(
        self, first: Search, following: Callable[[Sequence[Measurement]], Search], history: Sequence[Measurement] = ()
    ) -> None:
        self._current, self._following = first, following
        self._measurements = list(history)
        self._is_second = False

    def ask(self, count: int) -> Sequence[Candidate]:
        """The next candidates of the first search that has some."""
        candidates = self._current.ask(count)
        if not candidates and not self._is_second:
            self._current, self._is_second = self._following(self._measurements), True
            candidates = self._current.ask(count)
        return candidates

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """What became of candidates."""
        self._measurements += measurements
        self._current.tell(measurements)
