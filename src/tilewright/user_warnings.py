"""Warnings that name the user's line: the first one outside of this package that led to them."""

import inspect
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from tilewright.errors import CacheWarning

_SKIPPED = ("tilewright", "contextlib")
"""Packages whose lines are no user's; functions of this one are decorated by context managers."""

_noted: ContextVar[list[str] | None] = ContextVar("noted_warnings", default=None)


@contextmanager
def noted_warnings() -> Generator[list[str]]:
    """The messages of the warnings that this thread issues inside of it, but for those of the cache, which do not
    concern what is compiled; they are issued as well."""
    noted: list[str] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def warn_user(message: str, category: type[Warning]) -> None:
    """Issues a warning at the line of the user's program that called the package.

    Args:
        message: for people.
        category: a warning of `tilewright.errors`.
    """
    noted = _noted.get()
    if noted is not None and not issubclass(category, CacheWarning):
        noted.append(message)
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _SKIPPED:
        frame, level = frame.f_back, level + 1
    # level 1 is this function
    warnings.warn(message, category, stacklevel=max(2, level))
