"""What runs of a worker share: operands in memory and a prepared incumbent, kept from one request to the next."""

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.measure.build import decode_built
from tilewright.measure.case_operands import CaseData, read_case
from tilewright.measure.incumbent import PreparedIncumbent, prepare_isolated
from tilewright.measure.isolation import Limits


class RunSetup:
    """The operands of the last task that was asked for, and its last incumbent."""

    def __init__(self) -> None:
        self._case_key: Sequence[Mapping[str, Any]] = ()
        self._cases: tuple[CaseData, ...] = ()
        self._incumbent_key: tuple[Mapping[str, Any], int] | None = None
        self._incumbent: PreparedIncumbent | None = None

    def cases(self, described: Sequence[Mapping[str, Any]]) -> Sequence[CaseData]:
        """The operands of a task.

        Args:
            described: what `CaseFiles` gave; files are not changed once they are there.

        Raises:
            MemoryError: they take too much memory.
        """
        if self._case_key != described:
            # the old operands go first, so that there is room for the new ones
            self._case_key, self._cases = (), ()
            self._incumbent_key = self._incumbent = None
            self._cases = tuple(read_case(c) for c in described)
            self._case_key = described
        return self._cases

    def incumbent(self, described: Mapping[str, Any], threads: int, limits: Limits) -> PreparedIncumbent:
        """A prepared incumbent for the operands that were asked for last.

        Args:
            described: what `encode_built` gave.
            threads: per call.
            limits: of its preparation, whose process runs its code.

        Raises:
            IsolatedError: that process crashed, took too long, or needs too much memory.
            TilewrightError: the code can't be linked.
        """
        if self._incumbent is None or self._incumbent_key != (described, threads):
            self._incumbent_key = self._incumbent = None
            self._incumbent = prepare_isolated(decode_built(described), self._cases, threads, limits)
            self._incumbent_key = described, threads
        return self._incumbent
