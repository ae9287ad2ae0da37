"""Samples of sizes that are symbols, scored as one batch: every candidate has at every size the time that it has there
alone, to the last bit."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tilewright.cost import analytical
from tilewright.cost.analytical import mean_time, program_times
from tilewright.cost.footprint import Numbers
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.elementwise_sketches import elementwise_sketches
from tilewright.optimize.construct.local_search import neighbours
from tilewright.optimize.construct.reduction_sketches import reduction_sketches
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem, ProblemAxis
from tilewright.tile.program import L1, REGISTER, Sizes, Sketch

MACHINE = machine_named("zen5").with_cores(2)
TARGET = Target.parse("x86-64-v4")
SIZES = (1, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 56, 64, 100, 128, 512, 1000, 1024)

Index = tuple[tuple[int, ...], ...]


def operand(name: str, shape: tuple[int, ...], *index: tuple[int, ...], written: bool = False) -> Operand:
    return Operand(name, 4, name == "w", shape, index, written)


def axes(sizes: tuple[int, ...], symbols: frozenset[int], reduced: int) -> tuple[ProblemAxis, ...]:
    return tuple(ProblemAxis(f"a{k}", n, k not in symbols, k >= len(sizes) - reduced) for k, n in enumerate(sizes))


def unit(count: int, *moved: int) -> Index:
    return tuple(tuple(int(a == k) for a in range(count)) for k in moved)


def product(sizes: tuple[int, ...], symbols: frozenset[int]) -> Problem:
    """y[b, i, j] = sum over k of x[b, i, k] * w[k, j], and something added to it."""
    b, i, j, k = sizes
    x, w = operand("x", (b, i, k), *unit(4, 0, 1, 3)), operand("w", (k, j), *unit(4, 3, 2))
    written = (operand("z", (b, j, i), *unit(4, 0, 2, 1)), operand("y", (b, i, j), *unit(4, 0, 1, 2), written=True))
    return Problem("y", "y", axes(sizes, symbols, 1), (x, w), written, 1, 32)


def attention(sizes: tuple[int, ...], symbols: frozenset[int]) -> Problem:
    """y[b, i, j] = sum over k of x[b, i, k] * v[b, j, k], all of them results of other kernels."""
    b, i, j, k = sizes
    x, v = operand("x", (b, i, k), *unit(4, 0, 1, 3)), operand("v", (b, j, k), *unit(4, 0, 2, 3))
    written = (operand("y", (b, i, j), *unit(4, 0, 1, 2), written=True),)
    return Problem("y", "y", axes(sizes, symbols, 1), (x, v), written, 1, 32)


def windows(sizes: tuple[int, ...], symbols: frozenset[int]) -> Problem:
    """A depthwise convolution: y[c, i, j] = sum over a 3 by 3 window."""
    c, i, j, _ = sizes
    extents = (c, i, j, 3, 3)
    x = operand("x", (c, i + 2, j + 2), (1, 0, 0, 0, 0), (0, 1, 0, 1, 0), (0, 0, 1, 0, 1))
    w = operand("w", (c, 3, 3), *unit(5, 0, 3, 4))
    written = (operand("y", (c, i, j), *unit(5, 0, 1, 2), written=True),)
    return Problem("y", "y", axes(extents, symbols, 2), (x, w), written, 1, 32)


def columns(sizes: tuple[int, ...], symbols: frozenset[int]) -> Problem:
    """y[b, j] = sum over k of x[b, k, j], which uses nothing again."""
    b, _, j, k = sizes
    x = operand("x", (b, k, j), *unit(3, 0, 2, 1))
    written = (operand("y", (b, j), *unit(3, 0, 1), written=True),)
    return Problem("y", "y", axes((b, j, k), symbols, 1), (x,), written, 1, 32, is_plain_sum=True)


def turned(sizes: tuple[int, ...], symbols: frozenset[int]) -> Problem:
    """y[b, i, j, k] = x[b, j, i, k], whose rows may be single elements."""
    b, i, j, k = sizes
    x = operand("x", (b, j, i, k), *unit(4, 0, 2, 1, 3))
    return Problem("y", "y", axes(sizes, symbols, 0), (x, operand("y", sizes, *unit(4, 0, 1, 2, 3), written=True)),
                   (), 1, 32)  # fmt: skip


KINDS: tuple[Callable[[tuple[int, ...], frozenset[int]], Problem], ...] = (
    product, attention, windows, columns, turned
)  # fmt: skip


def drawn(kind: Callable[[tuple[int, ...], frozenset[int]], Problem], rng: np.random.Generator) -> Problem:
    """A problem with samples: some of its sizes are symbols."""
    symbols = frozenset(k for k in range(len(kind((1, 1, 1, 1), frozenset()).axes)) if rng.random() < 0.5)
    moved = [k for k in range(4) if k in symbols]
    if kind is columns:
        # the axes are b, j, k
        moved = [(0, 2, 3)[k] for k in moved if k < 3]

    def at(representative: list[int]) -> Problem:
        sizes = list(representative)
        for k in moved:
            sizes[k] = int(rng.choice(SIZES))
        return kind(tuple(sizes), symbols)

    representative = [int(n) for n in rng.choice(SIZES, 4)]
    return replace(at(representative), samples=tuple(at(representative) for _ in range(rng.integers(1, 6))))


def some_forms(problem: Problem) -> list[Sketch]:
    return reduction_sketches(problem, TARGET, MACHINE) if problem.reduce else elementwise_sketches(problem, TARGET)


def alone(problem: Problem, sketch: Sketch, sizes: Sizes) -> Numbers:
    """What candidates take, each size by itself."""
    logs: list[Numbers] = []
    for p in problem.samples:
        fitted = sizes.copy()
        for k in problem.reduce:
            if not problem.axes[k].is_static:
                step = sizes[:, REGISTER, k]
                fitted[:, L1:, k] = (-(-p.axes[k].extent // step) * step)[:, None]
        logs.append(np.log(program_times(p, sketch, fitted, MACHINE).total + MACHINE.cost.call_ns))
    total = logs[0]
    for more in logs[1:]:
        total = total + more
    return np.exp(total / len(logs)) - MACHINE.cost.call_ns


def some_sizes(space: SearchSpace, rng: np.random.Generator) -> Sizes:
    """Those of a few states near the start."""
    states = space.initial_state()[None]
    for _ in range(int(rng.integers(1, 6))):
        targets, exists = neighbours(space, states)
        successors = np.unique(targets[exists], axis=0)
        states = rng.permutation(successors)[: rng.integers(1, 9)] if len(successors) else states
    return space.sizes(states)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_batched_shape_samples_equal_single_ones(kind: Callable[..., Problem]) -> None:
    together = 0
    for seed in range(20):
        rng = np.random.default_rng([seed])
        problem = drawn(kind, rng)
        sketches = some_forms(problem)
        for k in rng.permutation(len(sketches))[:3]:
            sizes = some_sizes(SearchSpace.of(replace(problem, samples=()), sketches[k], MACHINE), rng)
            np.testing.assert_array_equal(
                mean_time(problem, sketches[k], sizes, MACHINE), alone(problem, sketches[k], sizes)
            )
            together += len({p.axes for p in problem.samples}) > 1
    assert together >= 8


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_batched_candidates_equal_single_ones(kind: Callable[..., Problem]) -> None:
    for seed in range(6):
        rng = np.random.default_rng([seed])
        # a power of two everywhere: rows alias to few sets, and even a register tile may not fit
        problem = replace(kind(tuple(int(n) for n in rng.choice((4, 32, 64, 512), 4)), frozenset()), samples=())
        sketch = some_forms(problem)[0]
        sizes = some_sizes(SearchSpace.of(problem, sketch, MACHINE), rng)
        each = [mean_time(problem, sketch, sizes[k : k + 1], MACHINE)[0] for k in range(len(sizes))]
        np.testing.assert_array_equal(mean_time(problem, sketch, sizes, MACHINE), each)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_batches_of_any_size_give_the_same_times(kind: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    for seed in range(8):
        rng = np.random.default_rng([3, seed])
        problem = drawn(kind, rng)
        sketch = some_forms(problem)[0]
        sizes = some_sizes(SearchSpace.of(replace(problem, samples=()), sketch, MACHINE), rng)
        largest = max(largest, len(sizes) * len(problem.samples))
        at_once = mean_time(problem, sketch, sizes, MACHINE)
        with monkeypatch.context() as patch:
            patch.setattr(analytical, "MAX_BATCH_SIZE", int(rng.integers(1, 8)))
            np.testing.assert_array_equal(mean_time(problem, sketch, sizes, MACHINE), at_once)
    assert largest > 8


@pytest.mark.parametrize(("kind", "lane", "tile"), [(columns, 1, (1, 64, 1)), (turned, 1, (1, 4, 2032, 1))])
def test_conflicts_of_one_shape_do_not_affect_others(
    kind: Callable[..., Problem], lane: int, tile: tuple[int, ...]
) -> None:
    """Rows of 1024 elements alias to few sets, those of 1000 and 1040 do not, whatever else is in the batch."""
    symbols = frozenset({lane})

    def at(n: int) -> Problem:
        return kind((1, n, n, 1023) if kind is columns else (1, n, 2047, 1), symbols)

    problem = replace(at(1024), samples=tuple(map(at, (1000, 1024, 1040))))
    for sketch in some_forms(problem):
        whole = [a.extent if a.is_reduction else t for a, t in zip(problem.axes, tile, strict=True)]
        sizes = np.array([[tile, whole, whole]])
        np.testing.assert_array_equal(mean_time(problem, sketch, sizes, MACHINE), alone(problem, sketch, sizes))


def test_loops_of_other_candidates_do_not_count() -> None:
    # results of 32 planes alias to few sets, so that not even a register tile's stay; one of two has a loop in it
    sizes_of = axes((64, 112, 112, 3, 7, 7), frozenset(), 3)
    x = operand("x", (3, 230, 230), unit(6, 3)[0], (0, 2, 0, 0, 1, 0), (0, 0, 2, 0, 0, 1))
    w = operand("w", (64, 3, 7, 7), *unit(6, 0, 3, 4, 5))
    y = operand("y", (64, 112, 112), *unit(6, 0, 1, 2), written=True)
    problem, sketch = Problem("y", "y", sizes_of, (x, w), (y,), 1, 32), Sketch(0, 16, (1, 2, 0), 4, ((1, 0),), True)
    sizes = np.array([[[32, 2, 4, 1, 1, k], [32, 2, 56, 3, 7, 7], [32, 8, 112, 3, 7, 7]] for k in (1, 7)])
    each = [mean_time(problem, sketch, sizes[k : k + 1], MACHINE)[0] for k in (0, 1)]
    np.testing.assert_array_equal(mean_time(problem, sketch, sizes, MACHINE), each)


def crowded(taps: int) -> Problem:
    """y[i, j] = sum over p and q of x[i, p, q, j] * w[p, q], with rows of x a power of two apart."""
    x, w = operand("x", (56, 32, taps, 1024), *unit(4, 0, 2, 3, 1)), operand("w", (32, taps), *unit(4, 2, 3))
    written = (operand("y", (56, 1024), *unit(4, 0, 1), written=True),)
    return Problem("y", "y", axes((56, 1024, 32, taps), frozenset({3}), 2), (x, w), written, 1, 32)


def test_loops_of_other_shapes_do_not_count() -> None:
    # a register tile has too many rows in one set: around it, more moves than inside of it
    sizes = np.array([[[14, 16, 1, 1], [14, 16, 32, 1], [14, 1024, 32, 1]]])
    problem, sketch = crowded(1), Sketch(1, 16, (0, 1), None)
    problem = replace(problem, samples=(problem, crowded(4)))
    np.testing.assert_array_equal(mean_time(problem, sketch, sizes, MACHINE), alone(problem, sketch, sizes))
