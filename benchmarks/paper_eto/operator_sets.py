"""The nine sets of operators of ETO's Table 2, as loop vectors with frequencies."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tilewright.optimize.reuse.loop_vector import Access, LoopVector, OperatorKind

OPERATORS = Path(__file__).parent / "operators.csv"
"""Columns: set, operator type, group of operators with one set of sketches, how often it occurs, extents of the loop
nest, strides, padding, groups."""

CONV_WINDOW: tuple[Access, ...] = (((0,), (4,), (2, 5), (3, 6)), ((1,), (4,), (5,), (6,)))


@dataclass(frozen=True, slots=True)
class OperatorType:
    """The loop nest of a type of operators.

    Attributes:
        num_spatial: loops over results; the others are over the reduction.
        accesses: what a point reads.
        k_block_axis: the reduction axis that is read in chunks.
    """

    num_spatial: int
    accesses: tuple[Access, ...]
    k_block_axis: int | None


TYPES: Mapping[str, OperatorType] = {
    "BMM": OperatorType(3, (((0,), (1,), (3,)), ((0,), (3,), (2,))), 3),
    "C1D": OperatorType(3, (((0,), (3,), (2, 4)), ((1,), (3,), (4,))), 3),
    "C2D": OperatorType(4, CONV_WINDOW, 4),
    "C3D": OperatorType(
        5, (((0,), (5,), (2, 6), (3, 7), (4, 8)), ((1,), (5,), (6,), (7,), (8,))), 5
    ),
    "DEP": OperatorType(4, (((0,), (1,), (2, 4), (3, 5)), ((1,), (4,), (5,))), None),
    "GRP": OperatorType(4, CONV_WINDOW, 4),
    "T2D": OperatorType(4, CONV_WINDOW, 4),
}  # fmt: skip
"""Batched matrix products, convolutions in one to three dimensions, depthwise, grouped and transposed ones."""


@dataclass(frozen=True, slots=True)
class PaperOperator:
    """An operator of a set.

    Attributes:
        vector: its loop nest.
        type: one of `TYPES`.
        frequency: how often it occurs in the model.
        stride: per window axis; empty for matrix products.
        padding: per window axis, at both ends.
        groups: of a convolution.
    """

    vector: LoopVector
    type: str
    frequency: int
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int


def loop_vector(operator: str, loops: str, sketches: str = "") -> LoopVector:
    """A loop vector from a text such as 1x128x768x768, of an operator type."""
    shape = TYPES[operator]
    extents = _extents_in(loops)
    kind = OperatorKind(f"{operator} {sketches}".strip(), shape.accesses, shape.k_block_axis)
    return LoopVector(kind, extents[: shape.num_spatial], extents[shape.num_spatial :])


@lru_cache(maxsize=1)
def operator_sets() -> Mapping[str, tuple[PaperOperator, ...]]:
    """The operators by the name of their set."""
    sets: dict[str, list[PaperOperator]] = {}
    with OPERATORS.open(newline="") as file:
        for row in csv.DictReader(file):
            vector = loop_vector(row["operator"], row["loops"], row["sketches"])
            stride, padding = _extents_in(row["stride"]), _extents_in(row["padding"])
            frequency, groups = int(row["frequency"]), int(row["groups"] or 1)
            operator = PaperOperator(vector, row["operator"], frequency, stride, padding, groups)
            sets.setdefault(row["set"], []).append(operator)
    return {name: tuple(operators) for name, operators in sets.items()}


def vectors_of(name: str) -> tuple[LoopVector, ...]:
    """The loop vectors of a set."""
    return tuple(o.vector for o in operator_sets()[name])


def _extents_in(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split("x")) if text else ()
