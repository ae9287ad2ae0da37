"""Random int64 expressions over loaded values, each next to the NumPy program that says what it is worth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tilewright.expr.dtype import int64
from tilewright.expr.nodes import BinaryOp, Expr, const
from tilewright.expr.operations import binary, cast, select
from tilewright.expr.traversal import free_vars, has_loads

EXTREMES = (-(2**63), -(2**63) + 1, -(2**62), -9, -1, 0, 1, 3, 2**31, 2**62, 2**63 - 2, 2**63 - 1)
"""Values at which int64 arithmetic wraps, and small ones."""

Values = dict[str, np.ndarray[Any, Any]]

_NUMPY: dict[str, Callable[..., np.ndarray[Any, Any]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.mod,
    "min": np.minimum, "max": np.maximum, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """An expression, and what NumPy makes of the same operations one after the other."""

    e: Expr
    value: Callable[[Values], np.ndarray[Any, Any]]


def values() -> Values:
    """Elements of `I`, `J` (int64) and `K` (int8) at every position, and the position `i` modulo 3."""
    points = list(product(EXTREMES, EXTREMES, (-128, -1, 3, 127)))
    i, j, k = (np.array([p[axis] for p in points], t) for axis, t in enumerate(("int64", "int64", "int8")))
    return {"I": i, "J": j, "K": k, "i": np.arange(len(points)) % 3}


def leaves(i: Expr, j: Expr, k: Expr, position: Expr) -> list[Pair]:
    """The loaded elements, and a small number that is not loaded."""
    wide = Pair(cast(int64, k), lambda v: v["K"].astype(np.int64))
    return [Pair(i, lambda v: v["I"]), Pair(j, lambda v: v["J"]), Pair(position, lambda v: v["i"]), wide]


def literal(n: int) -> Pair:
    """A number."""
    return Pair(const(n), lambda v: np.full_like(v["i"], n))


def applied(op: BinaryOp, a: Pair, b: Pair) -> Pair:
    """An operation; numbers without loads are as sizes: not multiplied with each other, and no zero that divides."""
    if not has_loads(b.e) and ((op == "mul" and not has_loads(a.e)) or (op in ("floordiv", "mod") and free_vars(b.e))):
        op = "add"
    return Pair(binary(op, a.e, b.e), lambda v: _NUMPY[op](a.value(v), b.value(v)))


def chosen(op: BinaryOp, a: Pair, b: Pair, x: Pair, y: Pair) -> Pair:
    """`x` where a comparison holds, else `y`."""
    c = applied(op, a, b)
    return Pair(select(c.e, x.e, y.e), lambda v: np.where(c.value(v), x.value(v), y.value(v)))


Step = tuple[str, int, int, int]

_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "min", "max")
_SIGNS = ("lt", "le", "gt", "ge", "eq", "ne")
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from((*_ARITHMETIC, *(f"{op} n" for op in _ARITHMETIC), "extreme", *_SIGNS, "again")),
        st.integers(0, 9),
        st.integers(0, 9),
        st.integers(-8, 16),
    ),
    min_size=1,
    max_size=6,
)
"""Operations on what was made before, counted from the last."""


def followed(steps: Sequence[Step], start: Sequence[Pair]) -> list[Pair]:
    """What every step makes."""
    pairs = list(start)
    for op, one, other, n in steps:
        a, b = pairs[-1 - one % len(pairs)], pairs[-1 - other % len(pairs)]
        if op == "extreme":
            new = applied("min" if n % 2 else "mul", pairs[n % 2], literal(EXTREMES[one % len(EXTREMES)]))
        elif op == "again":
            new = applied("floordiv", applied("mul", a, literal(abs(n) + 1)), literal(abs(n) + 1))
        elif op in _SIGNS:
            new = chosen(op, a, b, a if n % 2 else literal(n), b)  # pyright: ignore[reportArgumentType]
        elif op.endswith(" n"):
            new = applied(op[:-2], a, literal(n))  # pyright: ignore[reportArgumentType]
        else:
            new = applied(op, a, b)  # pyright: ignore[reportArgumentType]
        pairs.append(new)
    return pairs[len(start) :]
