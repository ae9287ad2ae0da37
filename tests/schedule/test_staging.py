"""set_scope, cache_write, clone_producer, permute, pack: meaning, printed result, and what they refuse."""

import pytest
from tests.schedule.functions import CHAIN, MATMUL, ROWS, SCALE, STENCIL, check_same

from tilewright.errors import ScheduleError
from tilewright.expr.buffer import Scope
from tilewright.expr.nodes import Var
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.compute_at import compute_at
from tilewright.schedule.loops import peel, split
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.staging import cache_write, clone_producer, pack, permute, set_scope

M = Var("M", 1, 64)


def refuses(make, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        make()
    assert str(error.value) == f"[schedule] {message}"


# set_scope


@pytest.mark.parametrize("scope", list(Scope))
def test_set_scope_keeps_meaning(scope: Scope) -> None:
    func = set_scope(ROWS, "T", scope)
    assert f"alloc T: float32[8]{'' if scope is Scope.MEMORY else f' in {scope}'}\n" in show(func)
    check_same(ROWS, func)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: set_scope(CHAIN, "T", Scope.REGISTER),
            "set_scope of 'T' to register: its shape (M, 9) is not literal",
        ),
        (lambda: set_scope(CHAIN, "A", Scope.STACK), "chain: there is no internal buffer 'A'; there are: T"),
        (lambda: set_scope(MATMUL, "C", Scope.STACK), "matmul: there is no internal buffer 'C'; there are: none"),
    ],
)
def test_set_scope_refuses(make, message: str) -> None:
    refuses(make, message)


# cache_write


def test_cache_write(golden) -> None:
    func = cache_write(MATMUL, "C")
    golden(show(func))
    check_same(MATMUL, func)


@pytest.mark.parametrize(("func", "block"), [(SCALE, "Y"), (CHAIN, "T"), (CHAIN, "Y"), (ROWS, "T")])
def test_cache_write_keeps_meaning(func: Func, block: str) -> None:
    check_same(func, cache_write(func, block))


def test_cache_write_of_a_scalar() -> None:
    total = parse("""
func total(A: float32[6], Y: float32[]):
    for k in serial(6):
        block Y(reduce v: 6 = k):
            init Y[] = 0.0
            Y[] = Y[] + A[v]
""")
    check_same(total, cache_write(total, "Y"))


UPDATE = parse("""
func update(A: float32[6], Y: float32[6]):
    for i in serial(6):
        block Y(v: 6 = i):
            Y[v] = Y[v] + A[v]
""")

PART = parse("""
func part(A: float32[6], Y: float32[8]):
    for i in serial(6):
        block Y(v: 6 = i):
            Y[v] = A[v]
""")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cache_write(peel(MATMUL, "j", 4), "C"),
            "cache_write of 'C': block 'C_2' writes 'C' too",
        ),
        (
            lambda: cache_write(decompose_reduction(MATMUL, "C", "k"), "C"),
            "cache_write of 'C': block 'C_init' writes 'C' too",
        ),
        (lambda: cache_write(UPDATE, "Y"), "cache_write of 'Y': it adds to what is in 'Y' already"),
        (
            lambda: cache_write(PART, "Y"),
            "cache_write of 'Y': it does not write all of 'Y' at its plain iteration variables",
        ),
        (
            lambda: cache_write(compute_at(ROWS, "T", "i_1"), "T"),
            "cache_write of 'T': block 'Y' uses 'T' there too",
        ),
        (lambda: cache_write(MATMUL, "C", "A"), "cache_write of 'C': name 'A' is already used"),
        (lambda: cache_write(MATMUL, "D"), "matmul: there is no block 'D'; blocks are C"),
    ],
)
def test_cache_write_refuses(make, message: str) -> None:
    refuses(make, message)


# clone_producer


def test_clone_producer(golden) -> None:
    func = clone_producer(peel(ROWS, "i_1", 5), "T", "Y_2")
    golden(show(func))
    check_same(ROWS, func)


def test_clones_are_computed_where_they_are_needed() -> None:
    func = peel(CHAIN, "i_1", M // 4 * 4)
    func = clone_producer(func, "T", "Y_2")
    func = split(func, "i_1", 4)
    func = compute_at(compute_at(func, "T", "i_1_o"), "T_3", "i_1_2")
    check_same(CHAIN, func)


OVERWRITTEN = parse("""
func overwritten(A: float32[6], Y: float32[6], Z: float32[6]):
    alloc S: float32[6]
    alloc T: float32[6]
    for i in serial(6):
        block S(v: 6 = i):
            S[v] = A[v]
    for j in serial(6):
        block T(w: 6 = j):
            T[w] = S[w] * 2.0
    for k in serial(6):
        block S_again(u: 6 = k):
            S[u] = 0.0
    for l in serial(6):
        block Y(x: 6 = l):
            Y[x] = T[x]
    for m in serial(6):
        block Z(z: 6 = m):
            Z[z] = S[z]
""")
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


# permute


def test_permute(golden) -> None:
    func = permute(CHAIN, "T", (1, 0))
    golden(show(func))
    check_same(CHAIN, func)


def test_permute_after_compute_at_keeps_meaning() -> None:
    func = compute_at(split(CHAIN, "i_1", 4), "T", "i_1_o")
    check_same(CHAIN, permute(func, "T", (1, 0)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: permute(CHAIN, "T", (0, 0)), "permute of 'T': [0, 0] is no permutation of 2 dimensions"),
        (lambda: permute(CHAIN, "T", (0,)), "permute of 'T': [0] is no permutation of 2 dimensions"),
        (lambda: permute(CHAIN, "B", (1, 0)), "chain: there is no internal buffer 'B'; there are: T"),
    ],
)
def test_permute_refuses(make, message: str) -> None:
    refuses(make, message)


# pack


@pytest.mark.parametrize(("dim", "factor"), [(1, 4), (1, 3), (0, 2), (0, 5), (1, 16)])
def test_pack_keeps_meaning(dim: int, factor: int) -> None:
    check_same(MATMUL, pack(MATMUL, "C", "B", dim, factor))


def test_pack_of_a_symbolic_dimension_keeps_meaning() -> None:
    check_same(MATMUL, pack(MATMUL, "C", "A", 0, 4))


def test_pack_with_a_padded_tile(golden) -> None:
    golden(show(pack(MATMUL, "C", "B", 1, 4)))


def test_pack_without_padding(golden) -> None:
    golden(show(pack(MATMUL, "C", "B", 1, 3)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: pack(MATMUL, "C", "X", 0, 4),
            "pack of 'X' for block 'C': the block does not read a parameter of that name",
        ),
        (
            lambda: pack(CHAIN, "Y", "T", 0, 4),
            "pack of 'T' for block 'Y': the block does not read a parameter of that name",
        ),
        (lambda: pack(MATMUL, "C", "C", 0, 4), "pack of 'C' for block 'C': it is written in the function"),
        (
            lambda: pack(MATMUL, "C", "B", 2, 4),
            "pack of 'B' for block 'C': dimension 2 with factor 4 does not fit 2 dimensions",
        ),
        (
            lambda: pack(MATMUL, "C", "B", 1, 0),
            "pack of 'B' for block 'C': dimension 1 with factor 0 does not fit 2 dimensions",
        ),
        (lambda: pack(MATMUL, "C", "B", 1, 4, "i"), "pack of 'B' for block 'C': name 'i' is already used"),
    ],
)
def test_pack_refuses(make, message: str) -> None:
    refuses(make, message)


def test_a_stencil_keeps_its_guarded_reads_when_cached() -> None:
    check_same(STENCIL, cache_write(STENCIL, "T"))
