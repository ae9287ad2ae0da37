"""Counts programs that were constructed and could not be lowered: results stay right, so nothing else shows them."""

import logging
import sys
from types import TracebackType
from typing import Self


class Refusals(logging.Handler):
    """Listens to the construction layer while it is entered, and repeats on stderr why programs were refused.

    Attributes:
        next_taken: programs in whose place another one may have been lowered.
        rule_taken: kernels that were constructed and left to the rule all the same.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.next_taken = self.rule_taken = 0
        self._logger = logging.getLogger("tilewright.construct")
        self._before = self._logger.level, self._logger.propagate

    def emit(self, record: logging.LogRecord) -> None:
        """Counts a message."""
        if record.levelno >= logging.INFO:
            self.rule_taken += 1
        else:
            self.next_taken += 1
        print("refused:", record.getMessage(), file=sys.stderr)

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        self._logger.setLevel(logging.DEBUG)
        self._logger.propagate = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._logger.removeHandler(self)
        self._logger.level, self._logger.propagate = self._before
