"""Fourier transforms of signals anywhere in a tensor, as DFT and STFT need them, by routines for any length."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.expr.dtype import DType, float64
from tilewright.expr.nodes import Const, Expr, const
from tilewright.expr.operations import cast, maximum, minimum, unary
from tilewright.ops.definition import Definition, OpValue
from tilewright.ops.routine_call import call_routine, shape_tensor
from tilewright.ops.routines.fourier import chirp_transforms, fourier_transforms

MAX_TRANSFORM_LENGTH = 1 << 20
"""The longest transform of literal length."""
MAX_SYMBOLIC_LENGTH = 4096
"""The longest transform of symbolic length: one with a large prime factor takes time that grows with its square."""
_BLOCK_ELEMENTS = 1 << 13
"""Elements of the signals that are transformed at once: what stays in the caches near the core."""
_LARGEST_DIRECT_FACTOR = 31
"""Lengths with larger prime factors become convolutions, where they are known."""


@dataclass(frozen=True, slots=True)
class FourierTask:
    """Which signals are transformed.

    Attributes:
        signals: their number.
        size: length of the transform.
        geometry: where signals and results are, as `fourier_transforms` explains.
        is_inverse: whether the transform is the inverse one.
        is_real: whether the signals are halves of conjugate symmetric spectra, and the results real.
    """

    signals: Expr
    size: Expr
    geometry: Sequence[Expr | int]
    is_inverse: bool
    is_real: bool


def fourier(d: Definition, x: OpValue, window: OpValue | None, task: FourierTask, shape: Sequence[Expr]) -> OpValue:
    """The spectra of signals.

    Args:
        d: the definition.
        x: float32 or float64, its last dimension the parts of the signals, of literal size 1 or 2.
        window: factors of a signal's elements, as many as the transform is long, of the type of x.
        task: which signals.
        shape: of the result.
    """
    parts, size, dtype = x.shape[-1], task.size, x.dtype
    factors = d.compute((const(1),), lambda *_: const(1, dtype)) if window is None else window
    operands = [x, factors, shape_tensor(d, task.geometry)]
    length = _convolution_length(int(size.value)) if isinstance(size, Const) else None
    block = _block(task.signals, size if length is None else const(length), dtype)
    flags = [block, parts, int(task.is_inverse), int(task.is_real)]
    if length is None:
        scratch = [(size * block, dtype)] * 4
        operands += roots_of_unity(d, size, dtype)
        return call_routine(d, fourier_transforms, operands, [(shape, dtype)], [task.signals, size, *flags], scratch)[0]
    operands += [*roots_of_unity(d, const(length), dtype), *_chirp(d, size, dtype)]
    scratch = [(block * length, dtype)] * 4 + [(const(length), dtype)] * 2
    scalars = [task.signals, size, length, *flags]
    return call_routine(d, chirp_transforms, operands, [(shape, dtype)], scalars, scratch)[0]


def _block(signals: Expr, size: Expr, dtype: DType) -> Expr:
    """How many signals are transformed at once."""
    most = minimum(maximum(const(_BLOCK_ELEMENTS) // size, 1), 64 // dtype.bytes)
    # the transform of the chirp takes the room of a signal, even where there is none
    return maximum(minimum(signals, most), 1)


def _convolution_length(size: int) -> int | None:
    """The length of convolutions that stand for a transform; None for one without large prime factors."""
    if largest_prime_factor(size) <= _LARGEST_DIRECT_FACTOR:
        return None
    powers = (2**a * odd for a in range(size.bit_length() + 2) for odd in (1, 3, 5, 9))
    return min(n for n in powers if n >= 2 * size - 1)


def largest_prime_factor(n: int) -> int:
    """The largest prime factor of a positive number; 1 for 1."""
    largest, factor = 1, 2
    while factor * factor <= n:
        while n % factor == 0:
            largest, n = factor, n // factor
        factor += 1
    return max(largest, n)


def roots_of_unity(d: Definition, size: Expr, dtype: DType) -> tuple[OpValue, OpValue]:
    """cos(2 pi k / size) and sin(2 pi k / size) of all k from 0 to size - 1."""
    return _circle(d, size, dtype, lambda k: cast(float64, k) * (2 * math.pi) / cast(float64, size))


def _chirp(d: Definition, size: Expr, dtype: DType) -> tuple[OpValue, OpValue]:
    """cos(pi k^2 / size) and sin(pi k^2 / size) of all k from 0 to size - 1."""
    return _circle(d, size, dtype, lambda k: cast(float64, k * k % (size * 2)) * math.pi / cast(float64, size))


def _circle(d: Definition, size: Expr, dtype: DType, angle: Callable[[Expr], Expr]) -> tuple[OpValue, OpValue]:
    def body(op: Literal["cos", "sin"]) -> Callable[[Expr], Expr]:
        return lambda k: cast(dtype, unary(op, angle(k)))

    return d.compute((size,), body("cos")), d.compute((size,), body("sin"))
