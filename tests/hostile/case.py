"""What a hostile case is: a function that does something unreasonable, and what must come of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Run = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        run: gets an empty folder with `model` (the model's own) and `elsewhere` (the working directory) in it.
        outcome: "works", or the name of the error that must be raised.
        message: what the error's text must contain.
    """

    run: Run
    outcome: str
    message: str


CASES: dict[str, Case] = {}


def works(run: Run) -> Run:
    """Registers a case that must pass."""
    return _registered(run, "works", "")


def raises(outcome: str, message: str) -> Callable[[Run], Run]:
    """Registers a case that must raise this error with this text."""
    return lambda run: _registered(run, outcome, message)


def _registered(run: Run, outcome: str, message: str) -> Run:
    name = run.__name__  # type: ignore[attr-defined]
    assert name not in CASES
    CASES[name] = Case(run, outcome, message)
    return run
