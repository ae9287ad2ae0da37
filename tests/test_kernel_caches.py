"""Caches of kernels: emptied where kernels have added much, and nothing changes by that."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from tilewright import kernel_caches
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove_le, can_prove_non_negative
from tilewright.expr.nodes import Symbol, Var, const
from tilewright.kernel_caches import forget_derived, kernel_cache

MANY_BLOCKS = 10**12


class _Node:
    """An object that can refer to itself."""

    own: "_Node"


@pytest.fixture(autouse=True)
def _restored_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begins with nothing to forget, and leaves no function of a test behind."""
    monkeypatch.setattr(kernel_caches, "_clear_functions", list(vars(kernel_caches)["_clear_functions"]))
    forget_derived(0)
    is_enabled = gc.isenabled()
    yield
    (gc.enable if is_enabled else gc.disable)()


def test_results_are_kept_until_kernels_are_forgotten() -> None:
    calls: list[int] = []

    @kernel_cache(maxsize=8)
    def square(x: int) -> int:
        calls.append(x)
        return x * x

    assert [square(3), square(3), square(-2)] == [9, 9, 4]
    assert calls == [3, -2]
    forget_derived(MANY_BLOCKS)
    assert square(3) == 9
    assert calls == [3, -2]
    forget_derived(0)
    assert [square(3), square(3)] == [9, 9]
    assert calls == [3, -2, 3]


def test_few_new_objects_are_not_worth_it() -> None:
    calls: list[int] = []

    @kernel_cache(maxsize=8)
    def negated(x: int) -> int:
        calls.append(x)
        return -x

    negated(7)
    kept = [object() for _ in range(2_000)]
    forget_derived(1_000_000)
    negated(7)
    assert calls == [7]
    kept += [object() for _ in range(20_000)]
    forget_derived(10_000)
    negated(7)
    assert calls == [7, 7]
    # from now on only what is new counts
    forget_derived(10_000)
    negated(7)
    assert calls == [7, 7]
    assert len(kept) == 22_000


@pytest.mark.parametrize("is_collecting", [True, False])
def test_cycles_are_collected_unless_the_user_has_disabled_that(is_collecting: bool) -> None:
    node = _Node()
    node.own = node
    alive = weakref.ref(node)
    del node
    (gc.enable if is_collecting else gc.disable)()
    forget_derived(0)
    assert (alive() is None) is is_collecting


def test_proofs_are_the_same_afterwards() -> None:
    rows, row = Symbol("rows", 1, 512), Var("row")
    bounds = Bounds().with_loop(row, rows)
    goals = [rows - 1 - row, row - 1, row * 4 % 8 + 1, rows * 3 - row * 3 - 3]
    before = [can_prove_non_negative(g, bounds) for g in goals]
    assert before == [True, False, True, True]
    forget_derived(0)
    again = Bounds().with_loop(row, rows)
    assert [can_prove_non_negative(g, again) for g in goals] == before
    # bounds from before are still good, though they are other objects now
    assert [can_prove_non_negative(g, bounds) for g in goals] == before
    assert can_prove_le(row, rows - 1, bounds)
    assert not can_prove_le(row, const(510), bounds)
