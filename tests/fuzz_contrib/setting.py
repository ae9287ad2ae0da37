"""A random setting of an operator: a node, what is constant, and how close results must be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from tests.ops.harness import Array, NodeCase, Tolerance

DOMAIN = "com.microsoft"
Option = TypeVar("Option")
Rng = np.random.Generator

DEFAULT_TOLERANCE = Tolerance(2e-5, 2e-5)


@dataclass(frozen=True, slots=True)
class Setting:
    """A node with inputs.

    Attributes:
        case: the node.
        initializers: positions of inputs that are constants of the model.
        tolerance: of floating-point results.
        steps: largest difference of integer results, in steps of the quantization.
        literal: whether sizes are literal in every check, as those that attributes state.
    """

    case: NodeCase
    initializers: Sequence[int] = ()
    tolerance: Tolerance = DEFAULT_TOLERANCE
    steps: int = 0
    literal: bool = False


Draw = Callable[[Rng], Setting]
"""Draws a setting."""


def node(op_type: str, inputs: Sequence[Array | None], outputs: int = 1, **attributes: object) -> NodeCase:
    """A node of the domain."""
    return NodeCase(op_type, inputs, attributes, opset=20, outputs=outputs, domain=DOMAIN)


def normal(rng: Rng, *shape: int, scale: float = 1.0) -> Array:
    """Float32 numbers around 0."""
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def sizes(rng: Rng, rank: int, largest: int = 7) -> tuple[int, ...]:
    """Sizes of 1 to `largest`."""
    return tuple(int(n) for n in rng.integers(1, largest + 1, rank))


def is_true(rng: Rng, probability: float = 0.5) -> bool:
    """Whether a biased coin shows heads."""
    return bool(rng.random() < probability)


def choice(rng: Rng, *options: Option) -> Option:
    """One of the options."""
    return options[int(rng.integers(len(options)))]


def whole(rng: Rng, dtype: type, *shape: int) -> Array:
    """Integers over the whole range of a type."""
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def broadcast_partner(rng: Rng, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts to another: some sizes are 1, leading ones may be absent."""
    kept = tuple(1 if is_true(rng, 0.3) else n for n in shape)
    return kept[int(rng.integers(0, len(shape) + 1)) :]


def window_attributes(rng: Rng, rank: int, kernel: Sequence[int], dilated: bool = True) -> dict[str, object]:
    """Strides, dilations and padding of a window."""
    attributes: dict[str, object] = {"strides": [int(s) for s in rng.integers(1, 3, rank)]}
    if dilated and is_true(rng, 0.3):
        attributes["dilations"] = [int(s) for s in rng.integers(1, 3, rank)]
    if is_true(rng, 0.6):
        pads = [int(min(rng.integers(0, 3), k - 1)) for k in (*kernel, *kernel)]
        attributes["pads"] = pads
    elif is_true(rng, 0.5):
        padding = choice(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
        # ONNX Runtime refuses dilations of windows whose result it pads to the size of the input
        attributes["auto_pad"] = "VALID" if "dilations" in attributes else padding
    return attributes
