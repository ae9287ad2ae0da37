"""set_scope, clone_producer, pad_storage: semantics, printed result, refusals."""

import numpy as np
import pytest
from tests.codegen.native import check
from tests.schedule.functions import CHAIN, MATMUL, OVERWRITTEN, ROWS, STENCIL, applied, check_same, refuses

from tilewright.expr.nodes import MemoryScope, Symbol
from tilewright.loops.printer import show
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loop_transforms import peel, split
from tilewright.schedule.staging import clone_producer, pad_storage, set_scope

M = Symbol("M", 1, 64)


# set_scope


@pytest.mark.parametrize("scope", list(MemoryScope))
def test_set_scope_preserves_semantics(scope: MemoryScope) -> None:
    func = set_scope(ROWS, "T", scope)
    assert f"alloc T: float32[8]{'' if scope is MemoryScope.MEMORY else f' in {scope}'}\n" in show(func)
    check_same(ROWS, func)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: set_scope(CHAIN, "T", MemoryScope.REGISTER),
            "set_scope of 'T' to register: its shape (M, 9) is not literal; use 'stack', which takes any "
            "size, or `split` the loops of its size and compute it per tile",
        ),
        (lambda: set_scope(CHAIN, "A", MemoryScope.STACK), "chain: there is no internal buffer 'A'; there are: T"),
        (lambda: set_scope(MATMUL, "C", MemoryScope.STACK), "matmul: there is no internal buffer 'C'; there are: none"),
    ],
)
def test_set_scope_refuses(make, message: str) -> None:
    refuses(make, message)


# clone_producer


def test_clone_producer(golden) -> None:
    func = clone_producer(peel(ROWS, "i_1", 5), "T", "Y_2")
    golden(show(func))
    check_same(ROWS, func)


def test_clones_are_computed_at_their_consumers() -> None:
    func = peel(CHAIN, "i_1", M // 4 * 4)
    func = clone_producer(func, "T", "Y_2")
    func = split(func, "i_1", 4)
    func = compute_at(compute_at(func, "T", "i_1_o"), "T_3", "i_1_2")
    check_same(CHAIN, func)


"""T can't be computed again for Y: what it reads is no longer there."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: clone_producer(OVERWRITTEN, "T", "Y"),
            "clone_producer of 'T' for 'Y': block 'S_again' writes 'S', which it reads",
        ),
        (
            lambda: clone_producer(OVERWRITTEN, "T", "Z"),
            "clone_producer of 'T' for 'Z': the consumer does not read 'T'",
        ),
        (
            lambda: clone_producer(OVERWRITTEN, "S", "T"),
            "clone_producer of 'S' for 'T': block 'S_again' writes 'S' too",
        ),
        (lambda: clone_producer(MATMUL, "C", "C"), "matmul: there is no internal buffer 'C'; there are: none"),
        (
            lambda: clone_producer(compute_at(ROWS, "T", "i_1"), "T", "Y"),
            "clone_producer of block 'T': other blocks share its loops",
        ),
    ],
)
def test_clone_producer_refuses(make, message: str) -> None:
    refuses(make, message)


# pad_storage


def test_pad_storage(golden) -> None:
    golden(show(applied(CHAIN, "pad_storage", "T", 1, 8, 1)))


@pytest.mark.parametrize("args", [("T", 0, 4), ("T", 1, 16), ("T", 1, 1, 3), ("T", 0, 3, 2)])
def test_pad_storage_preserves_semantics(args) -> None:
    applied(CHAIN, "pad_storage", *args)


def test_pad_storage_of_one_dimension() -> None:
    func = applied(STENCIL, "pad_storage", "T", 0, 16)
    assert "alloc T: float32[(N + 15) // 16 * 16]\n" in show(func)


def test_padded_storage_on_the_stack_in_native_code() -> None:
    func = pad_storage(set_scope(ROWS, "T", MemoryScope.STACK), "T", 0, 16, 16)
    assert "alloc T: float32[32] in stack\n" in show(func)
    check(func, {"A": np.random.default_rng(1).standard_normal((8, 6), np.float32), "Y": np.zeros(8, np.float32)})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("T", 2, 4), "pad_storage of 'T': expected a dimension in 0..1, got 2"),
        (
            ("T", 0, 1),
            "pad_storage of 'T': expected a multiple of at least 2 or extra elements, got multiple 1 and 0 extra",
        ),
        (
            ("T", 0, 4, -1),
            "pad_storage of 'T': expected a multiple of at least 2 or extra elements, got multiple 4 and -1 extra",
        ),
        (("A", 0, 4), "chain: there is no internal buffer 'A'; there are: T"),
    ],
)
def test_pad_storage_refuses(args, message: str) -> None:
    refuses(lambda: pad_storage(CHAIN, *args), message)
