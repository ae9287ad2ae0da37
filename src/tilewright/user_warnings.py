"""Warnings that name the user's line: the first one outside of this package that led to them."""

import inspect
import warnings

_SKIPPED = ("tilewright", "contextlib")
"""Packages whose lines are no user's; functions of this one are decorated by context managers."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Issues a warning at the line of the user's program that called the package.

    Args:
        message: for people.
        category: a warning of `tilewright.errors`.
    """
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _SKIPPED:
        frame, level = frame.f_back, level + 1
    # level 1 is this function
    warnings.warn(message, category, stacklevel=max(2, level))
