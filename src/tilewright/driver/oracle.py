"""A scheduled kernel against its untransformed loops: both run on random inputs, the latter in NumPy."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.driver.kernel_signature import KernelSignature
from tilewright.errors import MismatchError, OptionError
from tilewright.expr.dtype import DType
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func, IterKind, blocks

Array = np.ndarray[Any, Any]
RunKernel = Callable[[Mapping[str, Array], Mapping[str, int]], Sequence[Array]]
"""Computes the outputs from inputs by name and sizes by name."""

_MAX_SAMPLE_SPREAD = 100
"""Sizes that are drawn lie at most so far above the smallest one."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a comparison found.

    Attributes:
        sizes: the sizes of the symbols in every run.
        error: the largest difference, relative to the largest value of its output.
    """

    sizes: tuple[Mapping[str, int], ...]
    error: float

    def __str__(self) -> str:
        runs = "1 run" if len(self.sizes) == 1 else f"{len(self.sizes)} runs"
        return f"equal in {runs}, largest error {self.error:.1e} of the largest value"


def compare(
    origin: Func,
    run: RunKernel,
    sizes: Mapping[str, int] | None,
    inputs: Mapping[str, Array] | None,
    seed: int,
    tolerance: float | None,
) -> CheckResult:
    """Compares a kernel with its untransformed loops.

    Args:
        origin: the untransformed loops.
        run: the kernel.
        sizes: of the symbols; None draws three combinations of those that `inputs` leave open.
        inputs: arrays by name; those that are not given are drawn.
        seed: of what is drawn.
        tolerance: how large an error may be, relative to the largest value; None takes what reordered sums need.

    Raises:
        MismatchError: an element differs by more; names it.
    """
    rng, known_as, given = np.random.default_rng(seed), KernelSignature(origin), inputs or {}
    drawn = sample_sizes(origin.symbols, rng)
    told = {**_sizes_from_inputs(known_as, given), **(sizes or {})}
    combinations = [{**c, **told} for c in (drawn if sizes is None else drawn[:1])]
    combinations = [c for k, c in enumerate(combinations) if c not in combinations[:k]]
    worst = 0.0
    for known in combinations:
        feeds = known_as.bind_inputs((), random_inputs(known_as, known, rng, given))
        for name, size in known_as.bind_sizes(feeds, known).items():
            if size != known[name]:
                raise OptionError(f"{name} is {known[name]}, but the inputs tell {size}", where="sizes")
        expected = interpret_outputs(origin, feeds, known)
        for b, want, got in zip(known_as.outputs, expected, run(feeds, known), strict=True):
            allowed = reordering_tolerance(origin, b.dtype, known) if tolerance is None else tolerance
            worst = max(worst, _max_error(b, want, got, allowed, known))
    return CheckResult(tuple(combinations), worst)


def _sizes_from_inputs(signature: KernelSignature, arrays: Mapping[str, Array]) -> dict[str, int]:
    """The sizes that given arrays tell."""
    shapes = ((b.shape, np.shape(arrays[b.name])) for b in signature.inputs if b.name in arrays)
    return {n.name: size for dims, shape in shapes for n, size in zip(dims, shape, strict=False) if isinstance(n, Var)}


def interpret_outputs(
    func: Func, feeds: Mapping[str, Array], sizes: Mapping[str, int], seed: int | None = None
) -> tuple[Array, ...]:
    """The outputs of loops, computed in NumPy."""
    known = KernelSignature(func)
    outputs = {b.name: np.zeros(known.shape(b, sizes), b.dtype.numpy) for b in known.outputs}
    interpret(func, {**feeds, **outputs}, {s.name: sizes[s.name] for s in func.symbols}, seed=seed)
    return tuple(outputs.values())


def random_inputs(
    signature: KernelSignature, sizes: Mapping[str, int], rng: np.random.Generator, fixed: Mapping[str, Array]
) -> dict[str, Array]:
    """An array for every input: those given, the others drawn; floats are normally distributed, integers small."""
    names = [b.name for b in signature.inputs]
    for name in fixed:
        if name not in names:
            raise OptionError(f"there is no input {name!r}", where="inputs", hint=f"there are {', '.join(names)}")
    drawn = {b.name: _random_array(b, signature.shape(b, sizes), rng) for b in signature.inputs if b.name not in fixed}
    return {name: fixed[name] if name in fixed else drawn[name] for name in names}


def _random_array(b: Buffer, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if b.dtype.is_float:
        return rng.standard_normal(shape).astype(b.dtype.numpy)
    low, high = {"i": (-8, 9), "u": (0, 9), "b": (0, 2)}[b.dtype.kind]
    return rng.integers(low, high, shape).astype(b.dtype.numpy)


def sample_sizes(symbols: Sequence[Var], rng: np.random.Generator) -> tuple[dict[str, int], ...]:
    """The smallest sizes, and two more combinations."""
    if not symbols:
        return ({},)

    def size(v: Var, spread: int) -> int:
        low = v.lo or 0
        return int(rng.integers(low, min(low + spread, low + spread if v.hi is None else v.hi) + 1))

    return tuple(
        {v.name: size(v, spread) for v in symbols} for spread in (0, _MAX_SAMPLE_SPREAD // 4, _MAX_SAMPLE_SPREAD)
    )


def reordering_tolerance(func: Func, dtype: DType, sizes: Mapping[str, int]) -> float:
    """What sums in another order may differ by, relative to the largest value: the rounding error times the length."""
    if not dtype.is_float:
        return 0.0
    length = 0
    for b in blocks(func.body):
        points: Expr = const(1)
        for i in b.iters:
            points = points * i.extent if i.kind is IterKind.REDUCE else points
        env = Environment({s: np.int64(sizes[s.name]) for s in func.symbols}, {})
        length += int(evaluate_expr(points, env))
    digits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[dtype.name]
    return 2.0**-digits * (16 + length)


def _max_error(b: Buffer, expected: Array, actual: Array, allowed: float, sizes: Mapping[str, int]) -> float:
    """The largest difference, relative to the largest value."""
    if not expected.size:
        return 0.0
    wide, found = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    scale = float(finite.max()) if finite.size and finite.max() else 1.0
    same = (wide == found) | (np.isnan(wide) & np.isnan(found))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(wide - found) / scale)
    error = np.where(np.isnan(error), math.inf, error)
    worst = np.unravel_index(int(np.argmax(error)), error.shape)
    if error[worst] > allowed:
        at = f"[{', '.join(str(int(i)) for i in worst)}]" if worst else "[]"
        known = f" for {', '.join(f'{k}={n}' for k, n in sizes.items())}" if sizes else ""
        many = f"{int(np.count_nonzero(error > allowed))} of {expected.size} elements"
        raise MismatchError(
            f"expected {expected[worst]}, got {actual[worst]}; {many} differ "
            f"by more than {allowed:.1e} of the largest value",
            where=f"output '{b.name}' at {at}{known}",
        )
    return float(error[worst])
