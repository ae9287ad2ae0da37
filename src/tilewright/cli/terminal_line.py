"""A line on standard error about how far a verb is: it changes on a terminal, elsewhere one follows now and then."""

import shutil
import sys
import time

PROGRESS_INTERVAL = 5.0
"""Seconds between lines on a standard error that is no terminal."""


CLEAR_LINE = "\r\x1b[K"
"""What empties the line that a terminal's cursor is in."""


class TerminalLine:
    """The line."""

    def __init__(self) -> None:
        self._is_terminal, self._is_shown = sys.stderr.isatty(), False
        self._start = self._last_report = time.monotonic()

    def show(self, text: str, is_new: bool = False, report: str = "") -> None:
        """Shows as much of a text as fits on a terminal, in place of what was shown.

        Args:
            text: what is shown.
            is_new: whether it is worth a line of its own at once, where there is no terminal.
            report: what is printed there, by default the text.
        """
        now = time.monotonic()
        if self._is_terminal:
            sys.stderr.write(f"{CLEAR_LINE}{text[: shutil.get_terminal_size().columns - 1]}")
            sys.stderr.flush()
            self._is_shown = True
        elif now - (self._start if is_new else self._last_report) > PROGRESS_INTERVAL:
            self._last_report = now
            print(report or text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clears what was shown."""
        if self._is_shown:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()
            self._is_shown = False
