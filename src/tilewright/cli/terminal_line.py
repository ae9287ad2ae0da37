"""A line on standard error that changes while a verb works, where that is a terminal."""

import shutil
import sys


class TerminalLine:
    """The line; `exists` says whether standard error is a terminal, which alone can show it."""

    def __init__(self) -> None:
        self.exists = sys.stderr.isatty()
        self._is_shown = False

    def show(self, text: str) -> None:
        """Shows as much of a text as fits, in place of what was shown."""
        sys.stderr.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()
        self._is_shown = True

    def clear(self) -> None:
        """Clears what was shown."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_shown = False
