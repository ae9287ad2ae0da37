"""The programs of a tuned dynamic kernel: at every measured size runs the one that was best there."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driver.tune.fakes import planned, program

from tilewright.driver.tune.choose_variants import choose_programs
from tilewright.expr.nodes import const
from tilewright.expr.operations import select
from tilewright.optimize.measurer import Candidate
from tilewright.tile.shape_samples import value_of

SIZES = (1, 3, 8, 20, 90, 200)


def served(best: Sequence[Candidate], sizes: Sequence[int], limit: int = 8) -> dict[int, Candidate]:
    """The program that runs at each size, for a kernel with two constructed programs, the second one from 50 on."""
    symbol = planned("matmul_of_symbolic_rows", sizes=sizes).task.func.symbols[0]
    selector = select(symbol >= 50, const(1), const(0))
    kernel = planned("matmul_of_symbolic_rows", sizes=sizes, programs=2, selector=selector)
    chosen = choose_programs(kernel, best, [0.5] * len(sizes), limit)
    assert len(chosen.programs) <= limit
    selector = const(0) if chosen.selector is None else chosen.selector
    result = {n: chosen.programs[value_of(selector, {symbol: n})] for n in sizes}
    assert tuple(result.values()) == chosen.served
    return result


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1, 3), min_size=len(SIZES), max_size=len(SIZES)), st.permutations(SIZES))
def test_every_measured_size_gets_its_best_program(numbers: list[int], sizes: list[int]) -> None:
    """-1 stands for the constructed one of the size."""
    constructed = {n: program(-2 if n >= 50 else -1) for n in sizes}
    best = [constructed[n] if k < 0 else program(k) for n, k in zip(sizes, numbers, strict=True)]
    assert served(best, sizes) == dict(zip(sizes, best, strict=True))


def test_a_program_that_is_best_everywhere_is_the_only_one() -> None:
    kernel = planned("matmul_of_symbolic_rows", sizes=SIZES, programs=2, selector=const(0))
    chosen = choose_programs(kernel, [program(4)] * len(SIZES), [0.5] * len(SIZES), 8)
    assert (chosen.programs, chosen.selector) == ((program(4),), None)


def test_where_there_are_too_many_programs_those_that_gain_least_are_left_out() -> None:
    kernel = planned("matmul_of_symbolic_rows", sizes=SIZES, programs=2, selector=const(0))
    best = [program(k) for k in (1, 1, 2, 3, 3, 4)]
    chosen = choose_programs(kernel, best, [0.5, 0.9, 0.95, 0.6, 0.8, 0.7], 4)
    assert chosen.served == (program(1), program(1), program(-1), program(3), program(3), program(-1))


@given(st.lists(st.integers(-1, 3), min_size=len(SIZES), max_size=len(SIZES)), st.integers(2, 6))
def test_the_limit_is_kept(numbers: list[int], limit: int) -> None:
    constructed = [program(-2 if n >= 50 else -1) for n in SIZES]
    best = [own if k < 0 else program(k) for own, k in zip(constructed, numbers, strict=True)]
    result = served(best, SIZES, limit)
    assert all(result[n] in (b, own) for n, b, own in zip(SIZES, best, constructed, strict=True))


@pytest.mark.parametrize(("size", "number"), [(2, 5), (8, 5), (9, -1), (1000, -1)])
def test_between_measured_sizes_the_same_program_runs(size: int, number: int) -> None:
    best = [program(5)] * 3 + [program(-1)] * 3
    kernel = planned("matmul_of_symbolic_rows", sizes=SIZES)
    chosen = choose_programs(kernel, best, [0.5] * len(SIZES), 8)
    assert chosen.selector is not None
    (symbol,) = kernel.task.func.symbols
    assert chosen.programs[value_of(chosen.selector, {symbol: size})] == program(number)
