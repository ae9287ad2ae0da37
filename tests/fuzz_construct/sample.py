"""What a compiled operator is measured by: inputs, right results in double precision, and how far off they may be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from tests.fuzz.check import WrongError, guarded
from tests.fuzz_construct.builder import RandomModel, Rounding, Sizes, random_array

from tilewright.driver.build import MAX_ERROR_GROWTH
from tilewright.driver.compilation import Compilation
from tilewright.driver.diagnostics.float64_reference import evaluate_program
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.expr.computation import Computation
from tilewright.expr.dtype import DType, float32
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Binary, Const, Expr, Var
from tilewright.graph.program import Program
from tilewright.loops.ir import Func
from tilewright.measure.operand_data import reordering_tolerance

Array = np.ndarray[Any, Any]

SLACK = {Rounding.LINEAR: 2, Rounding.RELATIVE: 8, Rounding.SMOOTH: 8}
"""What the bound of a sum's rounding is multiplied by: exponentials, divisions and roots have errors of their own."""

EQUAL = 1e-8
"""By how much two evaluations in double precision may differ, relative to the largest value."""


@dataclass(frozen=True)
class Sample:
    """Inputs of the model with all values between them and the outputs, in double precision.

    Attributes:
        feeds: by name.
        others: other feeds of the same shapes; what a call with them leaves in memory is wrong everywhere.
        values: by buffer.
        sizes: of the symbols.
        limits: by buffer how far a value may be off.
    """

    feeds: Mapping[str, Array]
    others: Mapping[str, Array]
    values: Mapping[str, Array]
    sizes: Mapping[Var, int]
    limits: Mapping[str, Array]

    @staticmethod
    def of(model: RandomModel, compilation: Compilation, seed: int, which: Sizes) -> "Sample":
        """Evaluates the program, as it was compiled and as the operators define it."""
        feeds, program = model.feeds(seed, which), compilation.program
        shapes = {name: a.shape for name, a in feeds.items()}
        rng = np.random.default_rng((seed, 2))
        second_feeds = {n: random_array(shapes[n], model.inputs[n][1], rng, model.whole) for n in feeds}
        kernels = [u for u in compilation.units if isinstance(u, BoundKernel)]
        arguments = {b.name for u in kernels for b in u.kernel.arguments}
        with np.errstate(all="ignore"):
            values = guarded("oracle", lambda: evaluate_program(program, feeds, arguments))
            defined = guarded("oracle", lambda: evaluate_program(compilation.lowered, feeds))
            limits = limits_of(model, compilation, kernels, feeds, values)
            same_meaning(compilation, values, defined, limits)
        values |= {k: np.asarray(v) for k, v in program.constants.items()}
        return Sample(feeds, second_feeds, values, sizes_of(program, feeds), limits)


def same_meaning(
    compilation: Compilation,
    values: Mapping[str, Array],
    defined: Mapping[str, Array],
    limits: Mapping[str, Array],
) -> None:
    """Raises a failure where what was compiled is another function than what the operators define.

    Both are evaluated in double precision; but the weights of minimal filtering were rounded to the model's type.
    """
    fast = is_fast(compilation)
    for (name, b), (_, definition) in zip(compilation.program.outputs, compilation.lowered.outputs, strict=True):
        actual, right = values[b.name], defined[definition.name]
        finite = np.abs(right[np.isfinite(right)])
        allowed = EQUAL * float(finite.max(initial=0)) if right.dtype.kind == "f" else 0.0
        if fast:
            allowed = limits[b.name] + allowed
        same = actual.shape == right.shape and np.isclose(actual, right, rtol=0, atol=allowed, equal_nan=True).all()
        if not same:
            raise WrongError("meaning", f"{name}: the program that is compiled computes something else")


def sizes_of(program: Program, feeds: Mapping[str, Array]) -> dict[Var, int]:
    """The sizes of the symbols."""
    pairs = ((b, feeds[n]) for n, b in zip(program.input_names, program.inputs, strict=True))
    return {v: n for b, x in pairs for v, n in zip(b.shape, x.shape, strict=True) if isinstance(v, Var)}


def evaluated(size: Any, sizes: Mapping[Var, int]) -> int:
    """A size in numbers."""
    return int(evaluate_expr(size, Environment({v: np.int64(n) for v, n in sizes.items()}, {})))


def limits_of(
    model: RandomModel,
    compilation: Compilation,
    kernels: Sequence[BoundKernel],
    feeds: Mapping[str, Array],
    values: Mapping[str, Array],
) -> dict[str, Array]:
    """By buffer how far a result may be off: the roundings of all sums before it, measured as `Rounding` says.

    What minimal filtering rounds is bounded by the direct sum's roundings, times what the driver allows. Its own
    intermediate values have both signs, and are measured by the largest.
    """
    program, fast = compilation.program, is_fast(compilation)
    rounding = Rounding.LINEAR if fast and model.rounding is Rounding.NONE else model.rounding
    written = [*(b for u in kernels for b in u.kernel.writes), *(b for _, b in program.outputs)]
    if rounding is Rounding.NONE:
        return {b.name: rounded_whole(values[b.name], b.dtype) for b in written}
    sizes = sizes_of(program, feeds)
    unit = sum(unit_of(u, sizes) for u in kernels) * SLACK[rounding]
    unit *= MAX_ERROR_GROWTH[compilation.build.convolutions] if fast else 1
    outputs = {
        b.name: definition.name
        for (_, b), (_, definition) in zip(program.outputs, compilation.lowered.outputs, strict=True)
    }
    sums: Mapping[str, Array] = {}
    if rounding is Rounding.LINEAR:
        meant = compilation.lowered if fast else program
        names = outputs.values() if fast else values
        sums = evaluate_program(*absolute(meant, feeds), set(names))
    limits: dict[str, Array] = {}
    for b in written:
        definition = sums.get(outputs.get(b.name, "") if fast else b.name)
        each = np.abs(values[b.name])
        size = np.full_like(each, each.max(initial=0)) if rounding is not Rounding.RELATIVE else each
        limits[b.name] = unit * (size if definition is None else np.abs(definition)) + tiniest(b.dtype)
    return limits


def absolute(program: Program, feeds: Mapping[str, Array]) -> tuple[Program, dict[str, Array]]:
    """A program and its inputs without signs: it adds up how large the terms are."""
    fixed = {n: a if a.dtype.kind in "iub" else np.abs(a) for n, a in program.constants.items()}
    steps = tuple(replace(x, body=unsigned(x.body)) if isinstance(x, Computation) else x for x in program.steps)
    return replace(program, constants=fixed, steps=steps), {n: np.abs(a) for n, a in feeds.items()}


def unsigned(e: Expr) -> Expr:
    """An expression in which the numbers that are added have no sign: constants of one element stand in it as such."""
    parts = tuple(unsigned(x) for x in e.children())
    if isinstance(e, Binary) and e.op == "add":
        parts = tuple(Const(abs(x.value), x.dtype) if isinstance(x, Const) and x.dtype.is_float else x for x in parts)
    return e.rebuild(parts) if parts else e


def is_fast(compilation: Compilation) -> bool:
    """Whether a convolution is computed by minimal filtering: then there are weights that the model does not have."""
    return not compilation.program.constants.keys() <= compilation.lowered.constants.keys()


NARROW = ("float16", "bfloat16")
"""Types whose sums are float32."""

FEW = 4
"""Roundings to a narrow type around a sum: of operands, and of what an epilogue makes of it."""


def unit_of(unit: BoundKernel, sizes: Mapping[Var, int]) -> float:
    """What one kernel's roundings may amount to, relative to the sum of its terms' absolute values."""
    kernel_sizes = {s: evaluated(e, sizes) for s, e in unit.sizes.items()}
    symbols = {v.name: n for v, n in (kernel_sizes | dict(sizes)).items()}
    return max(_unit_of_type(unit.compiled.origin, b.dtype, symbols) for b in unit.kernel.writes)


def _unit_of_type(origin: Func, dtype: DType, sizes: Mapping[str, int]) -> float:
    if dtype.name not in NARROW:
        return reordering_tolerance(origin, dtype, sizes)
    return FEW * float(ml_dtypes.finfo(dtype.numpy).eps) + reordering_tolerance(origin, float32, sizes)


def rounded_whole(values: Array, dtype: DType) -> Array:
    """How far whole numbers may be off: not at all while the type holds all of about that size."""
    if not dtype.is_float:
        return np.zeros(values.shape)
    eps = float(ml_dtypes.finfo(dtype.numpy).eps)
    return np.where(np.abs(values) < 0.5 / eps, 0.0, FEW * eps * np.abs(values))


def tiniest(dtype: DType) -> float:
    """The distance of the numbers nearest to zero, or what is nothing in double precision."""
    return max(1e-30, float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal)) if dtype.is_float else 0.0
