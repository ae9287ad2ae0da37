"""Routines of operators as native code and run by Python, on the same random arrays."""

import numpy as np
import pytest
from tests.codegen.native_routine import run_native

from tilewright.codegen import routine_exprs
from tilewright.codegen.emit_routine import OUT_OF_BOUNDS
from tilewright.codegen.llvm_types import I64
from tilewright.errors import InternalError
from tilewright.ops.routines.bits import copy_elements
from tilewright.ops.routines.deform_conv import corner_table
from tilewright.ops.routines.fourier import chirp_transforms, fourier_transforms
from tilewright.ops.routines.linear_attention import linear_attention_steps
from tilewright.ops.routines.matrix import determinants
from tilewright.ops.routines.random import choose_by_weight, random_words
from tilewright.ops.routines.resize import filter_table, scales_by_sizes, sizes_by_scales
from tilewright.ops.routines.shapes import split_at_axis

RNG = np.random.default_rng()


def check_both_ways(routine, reads, writes, scalars):
    """Asserts that native code and Python write the same to arrays of the given types and sizes; returns these."""
    natively, by_python = ([np.zeros(n, t) for n, t in writes] for _ in range(2))
    statuses = run_native((routine, reads, natively, scalars)), routine.run([*reads, *by_python], scalars)
    assert statuses[0] == statuses[1]
    for a, b in zip(natively, by_python, strict=True):
        np.testing.assert_array_equal(a, b)
    return natively


def test_sizes_and_scales():
    axes, dims = np.array([0, 1]), np.array([7, 640])
    for scale in (*RNG.uniform(0.01, 9, 4), 2 / 3, 1e-30, 3e9, np.nan, 0.0, -1.0, 1 / 640):
        scales = np.array([1.5, scale], np.float32)
        regions = np.array([0, 1, *RNG.uniform(-1, 2, 2)])
        writes = [(4, np.int64), (2, np.int64), (2, np.float32)]
        check_both_ways(sizes_by_scales, [scales, axes, dims, regions], writes, [int(RNG.integers(2))])
    for sizes in RNG.integers(-1, 900, (3, 2)):
        for policy in range(3):
            check_both_ways(scales_by_sizes, [sizes, axes, dims], [(4, np.int64), (2, np.int64)], [policy])
    # the fraction that a scale was rounded from
    reads = [np.array([1 / 3, 0.7], np.float32), axes, np.array([9, 10]), regions]
    ratios, new_sizes, _ = check_both_ways(sizes_by_scales, reads, writes, [0])
    assert (ratios.tolist(), new_sizes.tolist()) == ([1, 3, 7, 10], [3, 7])


@pytest.mark.parametrize("kernel", [0, 1, 2, 3, 4, 10, 11])
def test_filter_tables(kernel):
    for transformation in range(7):
        size, output, taps = (int(n) for n in RNG.integers(1, 9, 3))
        taps = 2 * taps if kernel >= 10 else 1
        ratios = np.array([1, 1, *RNG.integers(1, 9, 2)])
        regions, cubic = RNG.uniform(-0.5, 1.5, 4), np.array([-0.75])
        flags = RNG.integers(0, 2, 2).tolist()
        writes = [(output, np.int64), (output * taps, np.float64), (output, np.bool_), (2, np.int64)]
        scalars = [1, size, output, taps, transformation, kernel, *flags]
        check_both_ways(filter_table, [ratios, regions, cubic], writes, scalars)


def test_corners_of_taps():
    sizes, kernel, outputs, steps = np.array([5, 6]), np.array([2, 3]), np.array([4, 3]), np.array([1, 2, 2, 1, 1, 0])
    offset, mask = RNG.normal(size=6 * 2 * 12).astype(np.float32) * 3, RNG.normal(size=72).astype(np.float32)
    offset[:4] = np.inf, -np.inf, np.nan, 1e30
    reads = [offset, mask, sizes, kernel, outputs, steps]
    writes = [(288, np.int64), (288, np.float32), (24, np.int64), (12, np.int64), (24, np.float32)]
    for has_mask in (0, 1):
        places, weights, *_ = check_both_ways(corner_table, reads, writes, [6, 2, 4, has_mask])
        assert (places.min(), places.max()) >= (0, 0)
        assert places.max() < 30
        assert np.isfinite(weights).all()


def test_determinants():
    for size in (4, 9, 12):
        x = RNG.normal(size=(5, size, size))
        x[1, 2] = x[1, 3]
        x[2, 0, 0], x[3, :, 1] = np.nan, 0
        writes = [(5, np.float64), (size * size, np.float64), (4 * size, np.float64)]
        y, *_ = check_both_ways(determinants, [x.reshape(-1)], writes, [5, size])
        np.testing.assert_allclose(y[[0, 1, 4]], np.linalg.det(x[[0, 1, 4]]), rtol=1e-9, atol=1e-9)
        assert np.isnan(y[2])
        assert y[3] == 0


def circle(angles, dtype):
    return [f(angles).astype(dtype) for f in (np.cos, np.sin)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [20, 21, 64, 90])
def test_fourier_transforms(size, dtype):
    signals, block, flags = 5, 3, [2, int(RNG.integers(2)), 0]
    reads = [RNG.normal(size=signals * size * 2).astype(dtype), np.ones(1, dtype)]
    reads += [np.array([1, size, 1, 1, size, size, 1, 1, size])]
    turns = circle(2 * np.pi / size * np.arange(size), dtype)
    writes = [(signals * size * 2, dtype)] + [(size * block, dtype)] * 4
    y, *_ = check_both_ways(fourier_transforms, [*reads, *turns], writes, [signals, size, block, *flags])
    length = 128 if size < 65 else 240
    turns = circle(2 * np.pi / length * np.arange(length), dtype)
    chirp = circle(np.pi / size * (np.arange(size) ** 2 % (2 * size)), dtype)
    writes = [writes[0]] + [(length * block, dtype)] * 4 + [(length, dtype)] * 2
    scalars = [signals, size, length, block, *flags]
    z, *_ = check_both_ways(chirp_transforms, [*reads, *turns, *chirp], writes, scalars)
    np.testing.assert_allclose(y, z, rtol=0, atol=1e-4 if dtype is np.float32 else 1e-12)


def test_random_numbers():
    check_both_ways(random_words, [], [(37, np.int64), (4, np.int64)], [37, int(RNG.integers(2**32)), 1])
    first, second = np.zeros(8, np.int64), np.zeros(8, np.int64)
    for out in (first, second):
        assert run_native((random_words, [], [out, np.zeros(4, np.int64)], [8, 0, 0])) == 0
    assert (first != second).all()
    weights = np.array([0.5, 0, 2, 0, 0, 0], np.float32)
    for rows in (1, 2):
        check_both_ways(choose_by_weight, [weights, RNG.random(8)], [(8, np.int32)], [rows, 3, 4])


def test_keys_within_one_tick_of_the_clock_differ(monkeypatch):
    monkeypatch.setattr(routine_exprs, "read_clock", lambda b: I64(7))
    drawn = [np.zeros(4, np.int64) for _ in range(3)]
    assert run_native(*((random_words, [], [out, np.zeros(4, np.int64)], [4, 0, 0]) for out in drawn)) == 0
    assert len({tuple(out) for out in drawn}) == 3


def test_steps_of_linear_attention():
    batches, steps, heads, group, depth, size = 2, 3, 2, 2, 3, 4
    rows = batches * steps * heads
    numbers = (rows * group * depth, rows * depth, rows * size, rows * depth, rows, batches * heads * depth * size)
    reads = [RNG.normal(size=n).astype(np.float32) for n in numbers]
    writes = [(rows * group * size, np.float32), (batches * heads * depth * size, np.float32), (size, np.float32)]
    for corrects in (0, 1):
        scalars = [batches, steps, heads, group, depth, size, corrects]
        check_both_ways(linear_attention_steps, reads, writes, scalars)


def test_parts_around_an_axis():
    for axis in (-5, -4, -1, 0, 2, 3):
        reads = [np.array([axis]), np.array([2, 5, 3, 2])]
        for flags in ((0, 0), (1, 1), (0, 1)):
            for length in (-1, 6):
                check_both_ways(split_at_axis, reads, [(6, np.int64)], [length, *flags])


def test_bits():
    x = RNG.integers(0, 2**32, 9, dtype=np.uint32)
    check_both_ways(copy_elements, [x], [(9, np.float32)], [9])
    assert run_native((copy_elements, [x], [np.zeros(8, np.float32)], [9])) == OUT_OF_BOUNDS
    with pytest.raises(InternalError, match="expected types of equal width, got uint32 and float64"):
        run_native((copy_elements, [x], [np.zeros(9)], [9]))
