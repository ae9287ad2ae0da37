"""Differential check of a scheduled kernel against its untransformed loops, interpreted in NumPy, on random inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.driver.kernel_build.kernel_signature import KernelSignature
from tilewright.errors import MismatchError, OptionError, pluralize
from tilewright.expr.nodes import Buffer, Var
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func
from tilewright.measure.operand_data import random_array, relative_errors, reordering_tolerance

Array = np.ndarray[Any, Any]
RunKernel = Callable[[Mapping[str, Array], Mapping[str, int]], Sequence[Array]]
"""Maps inputs and sizes, both by name, to the outputs."""

_MAX_SAMPLE_SPREAD = 100
"""Largest distance of a random size from the smallest size of its symbol."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        sizes: the sizes of the symbols, per run.
        error: the largest error over all runs, relative to the largest value of its output.
    """

    sizes: tuple[Mapping[str, int], ...]
    error: float

    def __str__(self) -> str:
        return f"equal in {pluralize(len(self.sizes), 'run')}, largest error {self.error:.1e} of the largest value"


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
        sizes: sizes of the symbols; None for three random combinations of those that `inputs` do not determine.
        inputs: arrays by name; the others are random.
        seed: seed of random sizes and inputs.
        tolerance: the largest error, relative to the largest value; None for `reordering_tolerance`.

    Raises:
        MismatchError: an element differs by more; names it.
    """
    rng, signature, fixed_inputs = np.random.default_rng(seed), KernelSignature(origin), inputs or {}
    samples = sample_sizes(origin.symbols, rng)
    fixed_sizes = {**_sizes_from_inputs(signature, fixed_inputs), **(sizes or {})}
    combinations = [{**c, **fixed_sizes} for c in (samples if sizes is None else samples[:1])]
    combinations = [c for k, c in enumerate(combinations) if c not in combinations[:k]]
    max_error = 0.0
    for values in combinations:
        feeds = signature.bind_inputs((), random_inputs(signature, values, rng, fixed_inputs))
        for name, size in signature.bind_sizes(feeds, values).items():
            if size != values[name]:
                raise OptionError(f"{name} is {values[name]}, but the inputs have {size}", where="sizes")
        expected = interpret_outputs(origin, feeds, values)
        for b, reference, result in zip(signature.outputs, expected, run(feeds, values), strict=True):
            limit = reordering_tolerance(origin, b.dtype, values) if tolerance is None else tolerance
            max_error = max(max_error, _max_error(b, reference, result, limit, values))
    return CheckResult(tuple(combinations), max_error)


def _sizes_from_inputs(signature: KernelSignature, arrays: Mapping[str, Array]) -> dict[str, int]:
    """The sizes that the shapes of arrays determine."""
    shapes = ((b.shape, np.shape(arrays[b.name])) for b in signature.inputs if b.name in arrays)
    return {n.name: size for dims, shape in shapes for n, size in zip(dims, shape, strict=False) if isinstance(n, Var)}


def interpret_outputs(
    func: Func, feeds: Mapping[str, Array], sizes: Mapping[str, int], seed: int | None = None
) -> tuple[Array, ...]:
    """The outputs of a function by the interpreter; a seed shuffles concurrent iterations."""
    signature = KernelSignature(func)
    outputs = {b.name: np.zeros(signature.shape(b, sizes), b.dtype.numpy) for b in signature.outputs}
    interpret(func, {**feeds, **outputs}, {s.name: sizes[s.name] for s in func.symbols}, seed=seed)
    return tuple(outputs.values())


def random_inputs(
    signature: KernelSignature, sizes: Mapping[str, int], rng: np.random.Generator, fixed: Mapping[str, Array]
) -> dict[str, Array]:
    """An array for every input: the fixed ones, else normally distributed floats or small integers."""
    names = [b.name for b in signature.inputs]
    for name in fixed:
        if name not in names:
            raise OptionError(f"there is no input {name!r}", where="inputs", hint=f"there are {', '.join(names)}")
    shapes = {b: signature.shape(b, sizes) for b in signature.inputs if b.name not in fixed}
    arrays = {b.name: random_array(b, shape, rng) for b, shape in shapes.items()}
    return {name: fixed[name] if name in fixed else arrays[name] for name in names}


def sample_sizes(symbols: Sequence[Var], rng: np.random.Generator) -> tuple[dict[str, int], ...]:
    """Sizes of the symbols: the smallest ones, and two random combinations."""
    if not symbols:
        return ({},)

    def size(v: Var, spread: int) -> int:
        low = v.lo or 0
        return int(rng.integers(low, min(low + spread, low + spread if v.hi is None else v.hi) + 1))

    return tuple(
        {v.name: size(v, spread) for v in symbols} for spread in (0, _MAX_SAMPLE_SPREAD // 4, _MAX_SAMPLE_SPREAD)
    )


def _max_error(b: Buffer, expected: Array, actual: Array, tolerance: float, sizes: Mapping[str, int]) -> float:
    """The largest error, relative to the largest reference value.

    Raises:
        MismatchError: it exceeds the tolerance; names the worst element.
    """
    if not expected.size:
        return 0.0
    error = relative_errors(expected, actual)
    worst = np.unravel_index(int(np.argmax(error)), error.shape)
    if error[worst] > tolerance:
        index = f"[{', '.join(str(int(i)) for i in worst)}]" if worst else "[]"
        values = f" for {', '.join(f'{k}={n}' for k, n in sizes.items())}" if sizes else ""
        count = f"{int(np.count_nonzero(error > tolerance))} of {expected.size} elements"
        raise MismatchError(
            f"expected {expected[worst]}, got {actual[worst]}; {count} differ "
            f"by more than {tolerance:.1e} of the largest value",
            where=f"output '{b.name}' at {index}{values}",
        )
    return float(error[worst])
