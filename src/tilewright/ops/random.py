"""RandomNormal, RandomUniform, Bernoulli and Multinomial: numbers of the generator Philox4x32-10.

A node with a `seed` is a function of the seed, the type and the number of elements alone: element i has the words 2i
and 2i + 1 of the generator's counters under the seed's key, in every call, on every machine, whatever the threads.
Without a seed the key is another one in every call. The numbers are not those of other runtimes. Normal numbers may
differ in their last bits between machines, as logarithms and cosines do.
"""

import math
import struct
from collections.abc import Sequence

from tilewright.errors import ShapeError
from tilewright.expr.computation import Reducer
from tilewright.expr.dtype import DType, float32, float64, int32, int64
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, unary
from tilewright.ops.axes import num_elements
from tilewright.ops.cast import attribute_dtype
from tilewright.ops.checks import expect_rank
from tilewright.ops.contraction import accumulator_dtype
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.routine_call import call_routine
from tilewright.ops.routines.random import choose_by_weight, random_words


@operator("RandomUniform", "RandomUniformLike")
def random_uniform(d: Definition) -> OpValue:
    """Numbers from `low` to `high`, which rounding may give, in the shape of an attribute or of the input"""
    shape, dtype = _shape_and_dtype(d)
    low, high = d.attr_float("low", 0.0), d.attr_float("high", 1.0)
    numbers = _uniform(d, shape, accumulator_dtype(dtype))
    return d.compute(shape, lambda *i: cast(dtype, numbers[i] * (high - low) + low))


@operator("RandomNormal", "RandomNormalLike")
def random_normal(d: Definition) -> OpValue:
    """Numbers of a normal distribution, by the Box-Muller transform, in the shape of an attribute or of the input"""
    shape, dtype = _shape_and_dtype(d)
    mean, scale = d.attr_float("mean", 0.0), d.attr_float("scale", 1.0)
    wide = accumulator_dtype(dtype)
    words = _words(d, shape)

    def body(*i: Expr) -> Expr:
        # 0 to 1, without 0
        first = cast(wide, words[(*i, const(0))] + 1) * 2.0**-32
        angle = cast(wide, words[(*i, const(1))]) * (2.0**-32 * 2 * math.pi)
        value = unary("sqrt", unary("log", first) * -2.0) * unary("cos", angle)
        return cast(dtype, value * scale + mean)

    return d.compute(shape, body)


@operator("Bernoulli")
def bernoulli(d: Definition) -> OpValue:
    """1 with the probability of the input's element, else 0"""
    x = d.input(0)
    dtype = attribute_dtype(d, "dtype", x.dtype)
    wide = accumulator_dtype(x.dtype)
    numbers = _uniform(d, x.shape, wide)
    return d.compute(x.shape, lambda *i: cast(dtype, numbers[i] < cast(wide, x[i])))


@operator("Multinomial")
def multinomial(d: Definition) -> OpValue:
    """Classes of each row, drawn with the probabilities whose logarithms, up to a constant, the input has

    Raises:
        ShapeError: the input is no matrix, `sample_size` is negative, or the type is neither int32 nor int64.
    """
    x, samples = d.input(0), d.attr_int("sample_size", 1)
    dtype = attribute_dtype(d, "dtype", int32)
    expect_rank(d, x, 2, "input")
    if samples < 0 or dtype not in (int32, int64):
        what = f"expected a sample_size of at least 0 and int32 or int64, got {samples} and {dtype}"
        raise ShapeError(what, where=f"node {d.label}")
    rows, classes = x.shape
    wide = accumulator_dtype(x.dtype)
    largest = d.reduce((rows,), (classes,), lambda i, r: cast(wide, x[i[0], r[0]]), Reducer.MAX)
    weights = d.compute(x.shape, lambda *i: unary("exp", cast(wide, x[i]) - largest[i[0]]))
    numbers = _uniform(d, (rows, const(samples)), wide)
    outputs = [((rows, samples), dtype)]
    (result,) = call_routine(d, choose_by_weight, [weights, numbers], outputs, (rows, classes, samples))
    return result


def _shape_and_dtype(d: Definition) -> tuple[tuple[Expr, ...], DType]:
    if d.op_type.endswith("Like"):
        x = d.input(0)
        shape, dtype = x.shape, attribute_dtype(d, "dtype", x.dtype)
    else:
        sizes = d.attr_ints("shape") or ()
        if any(n < 0 for n in sizes):
            raise ShapeError(f"shape: expected sizes of 0 or more, got {list(sizes)}", where=f"node {d.label}")
        shape, dtype = tuple(map(const, sizes)), attribute_dtype(d, "dtype", float32)
    if not dtype.is_float:
        raise d.unsupported(f"random numbers of type {dtype}")
    return shape, dtype


def _words(d: Definition, shape: Sequence[Expr]) -> OpValue:
    """Two random words of 32 bits for each element, as int64, along another dimension."""
    has_seed = "seed" in d.attributes
    # the bits of a float32 are a different key for each seed
    (key,) = struct.unpack("<I", struct.pack("<f", d.attr_float("seed", 0.0)))
    outputs = [((*shape, 2), int64)]
    scalars = [num_elements(shape) * 2, key, int(has_seed)]
    (words,) = call_routine(d, random_words, [], outputs, scalars, [(4, int64)])
    return words


def _uniform(d: Definition, shape: Sequence[Expr], dtype: DType) -> OpValue:
    """Numbers from 0 to below 1: multiples of 2**-24 in float32, of 2**-53 in float64."""
    words = _words(d, shape)

    def body(*i: Expr) -> Expr:
        first = words[(*i, const(0))]
        if dtype is not float64:
            return cast(dtype, first // 256) * 2.0**-24
        return cast(dtype, first * 2**21 + words[(*i, const(1))] // 2**11) * 2.0**-53

    return d.compute(shape, body)
