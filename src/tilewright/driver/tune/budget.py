"""Budgets of a tuning: wall-clock seconds, trials, or a speedup to reach."""

import re
from dataclasses import dataclass, replace
from math import isfinite

from tilewright.errors import OptionError

DEFAULT_SECONDS = 300.0
"""Budget where neither a time nor a number of trials is given."""

END_FRACTION, MIN_END_SECONDS, MAX_END_SECONDS = 0.15, 1.0, 20.0
"""The part of a budget of time, within limits in seconds, that is kept for the last measurements of the best
programs and the comparison of the whole model."""

MAX_COMPILE_FRACTION = 0.25
"""The largest part of a budget of time that is kept for the compilation with the tuned programs."""

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Budget:
    """When a tuning ends: at the first of these.

    Attributes:
        seconds: wall-clock time, the untuned compilation and the end included; None without a limit.
        trials: candidates that are measured; None without a limit.
        speedup: of the model over the untuned one, as its kernels' times predict it; None without an aim.
    """

    seconds: float | None = None
    trials: int | None = None
    speedup: float | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not (isfinite(self.seconds) and self.seconds > 0):
            raise OptionError(f"expected a time of more than 0, got {self.seconds}", where="budget", hint="such as 5m")
        if self.trials is not None and (type(self.trials) is not int or self.trials < 1):
            raise OptionError(f"expected at least 1, got {self.trials!r}", where="trials")
        if self.speedup is not None and not (isfinite(self.speedup) and self.speedup > 1):
            raise OptionError(f"expected a factor of more than 1, got {self.speedup}", where="target speedup")

    @property
    def with_default_time(self) -> "Budget":
        """The budget, with the default time where it has neither a time nor a number of trials."""
        if self.seconds is not None or self.trials is not None:
            return self
        return Budget(DEFAULT_SECONDS, None, self.speedup)

    @property
    def end_seconds(self) -> float:
        """Time that is kept for the end; 0 without a limit of time."""
        if self.seconds is None:
            return 0.0
        return min(MAX_END_SECONDS, max(MIN_END_SECONDS, END_FRACTION * self.seconds))

    def without_compilation(self, seconds: float) -> "Budget":
        """The budget of what is between two compilations, where the first one took so many seconds and the second one
        is expected to take no more."""
        if self.seconds is None:
            return self
        return replace(self, seconds=self.seconds - min(seconds, MAX_COMPILE_FRACTION * self.seconds))


def parse_seconds(text: str) -> float:
    """The seconds of a time such as `90`, `90s`, `5m`, `1.5h` or `1h30m`.

    Raises:
        OptionError: it is no time.
    """
    parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)\s*(min|[smh]?)", text)
    rest = re.sub(r"(\d+(?:\.\d*)?|\.\d+)\s*(min|[smh]?)", "", text).strip()
    if not parts or rest or (len(parts) > 1 and any(not unit for _, unit in parts)):
        raise OptionError(f"expected a time, got {text!r}", where="budget", hint="such as 90s, 5m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
