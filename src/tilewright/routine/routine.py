"""Routine: a Python function of a small subset that is compiled, and that Python runs as its own reference.

A routine works on flat buffers and integers. What it may contain:

- parameters annotated `Elements` (a flat buffer of any native element type) or `int`, buffers first;
- `for i in range(...)` with a literal step, `while`, `if`, `break`, `continue`, `return`, assignments to names, to
  elements, and to tuples of these; a name keeps the type of its first value;
- integers of 64 bits, bools, and floats of the type of the buffer that they come from; Python's operators with Python's
  meaning (`//` and `%` round down), `and` and `or` evaluated from the left;
- `len(buffer)`, `min`, `max` and `abs` of numbers, `int`, `float`, `bool`, and the functions of `intrinsics`;
- calls of functions of the same subset (not recursive), and names of numbers, of the function's module.

It returns 0, or the number of a failure: k for `failures[k - 1]`. Every index is checked; a wrong one is an internal
error, never an access. Negative indices are wrong ones. Loops must end for all data: nothing interrupts them.

Innermost loops are vectorized where their bodies are assignments only, their indices linear in the loop's variable, and
no iteration reads a name that an earlier one assigned to: choices are written as conditional expressions then.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np

from tilewright.errors import InternalError

Elements = np.ndarray[Any, Any]
"""A flat buffer, as the annotation of a parameter."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Routine:
    """Sequential code over flat buffers.

    Attributes:
        source: its code.
        failures: what is wrong with the data where it returns 1, 2, ...
        buffers: names of the buffers, in the order of its parameters.
        scalars: names of the integers, which follow.
    """

    source: Callable[..., int]
    failures: tuple[str, ...] = ()
    buffers: tuple[str, ...] = field(init=False)
    scalars: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        parameters = inspect.signature(self.source).parameters
        kinds = {name: p.annotation for name, p in parameters.items()}
        buffers = tuple(name for name, kind in kinds.items() if kind is Elements)
        scalars = tuple(name for name, kind in kinds.items() if kind is int)
        if (*buffers, *scalars) != tuple(kinds):
            raise InternalError("expected buffers, then integers", where=f"routine {self.name}")
        object.__setattr__(self, "buffers", buffers)
        object.__setattr__(self, "scalars", scalars)

    @property
    def function(self) -> FunctionType:
        """Its code."""
        if not isinstance(self.source, FunctionType):
            raise InternalError("expected a function", where=f"routine {self.source}")
        return self.source

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    def run(self, arrays: Sequence[Array], scalars: Sequence[int]) -> int:
        """Runs it in Python; returns its status.

        Args:
            arrays: a contiguous array per buffer, of any shape; results are written to them.
            scalars: an integer per scalar.
        """
        with np.errstate(all="ignore"):
            return self.source(*(a.reshape(-1) for a in arrays), *map(int, scalars)) or 0


def routine(*failures: str) -> Callable[[Callable[..., int]], Routine]:
    """Makes a function a routine; `failures` says what the statuses 1, 2, ... mean."""
    return lambda function: Routine(function, failures)


@lru_cache(maxsize=256)
def parse_function(function: FunctionType) -> ast.FunctionDef:
    """The syntax tree of a function, without its decorators."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise InternalError("expected the definition of a function", where=f"routine {function.__name__}")
    return definition


def module_names(function: FunctionType) -> Mapping[str, object]:
    """What the names of a function's module stand for."""
    return function.__globals__
