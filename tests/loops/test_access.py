"""Accesses and regions of blocks."""

from itertools import product

import pytest
from tests.loops.programs import conv, matmul_relu

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.nodes import TRUE, Binary, Select, Unary, Var
from tilewright.expr.operations import conjunction
from tilewright.loops.access import accesses, negation, read_buffers, regions, written_buffers
from tilewright.loops.ir import Block, For, blocks, walk
from tilewright.loops.parser import parse

X, Y = Var("x"), Var("y")


def nest(func, name: str) -> tuple[Block, tuple[For, ...]]:
    return next((s, loops) for s, loops in walk(func.body) if isinstance(s, Block) and s.name == name)


def test_reads_and_writes() -> None:
    product_, relu = blocks(matmul_relu().body)
    assert [b.name for b in read_buffers(product_)] == ["C", "A", "B"]
    assert [b.name for b in written_buffers(product_)] == ["C"]
    assert [b.name for b in read_buffers(relu)] == ["C"]


def test_accesses_in_select_arms_have_conditions() -> None:
    (block,) = blocks(conv().body)
    inside = {a.buffer.name: a.condition for a in accesses(block) if not a.is_write}
    assert inside["W"] is TRUE
    assert str(inside["X"]).startswith("0 <= v_kh + v_oh * 2 - 1 and")


def test_the_else_arm_has_the_negated_condition() -> None:
    func = parse("""
func concat(A: float32[5], B: float32[3], C: float32[8]):
    for i in serial(8):
        block C(v: 8 = i):
            C[v] = select(v < 5, A[v], B[v - 5])
""")
    conditions = {a.buffer.name: str(a.condition) for a in accesses(blocks(func.body)[0])}
    assert conditions == {"A": "v < 5", "B": "5 <= v", "C": "True"}


@pytest.mark.parametrize("condition", [
    X < Y, X <= 3, X > Y, X >= 2, X.equals(Y), Binary("ne", X, Y), Binary("or", X < Y, X > 3), Unary("not", X < Y),
    conjunction(X < Y, Y < 3), TRUE,
])  # fmt: skip
def test_negation_holds_where_the_condition_does_not(condition) -> None:
    from tests.expr.strategies import value

    opposite = negation(condition)
    for x, y in product(range(-1, 5), range(-1, 5)):
        if not value(condition, {X: x, Y: y}):
            assert value(opposite, {X: x, Y: y})


def regions_of(func, name: str, inner: int) -> dict[str, list[str]]:
    """Regions while the `inner` innermost loops run."""
    block, loops = nest(func, name)
    bounds = Bounds()
    cut = len(loops) - inner
    for loop in loops[:cut]:
        bounds = bounds.with_loop(loop.var, loop.extent)
    texts: dict[str, list[str]] = {}
    for region in regions(accesses(block), block, loops[cut:], bounds):
        texts[region.buffer.name] = [f"{lo}..{hi}" for lo, hi in region.ranges]
    return texts


def touched(block, *, write: bool):
    """The accesses of a block that write, or those that read."""
    return [a for a in accesses(block) if a.is_write is write]


def test_regions_of_a_matmul() -> None:
    func = matmul_relu()
    assert regions_of(func, "C", 0) == {"C": ["i..i", "j..j"], "A": ["i..i", "k..k"], "B": ["k..k", "j..j"]}
    assert regions_of(func, "C", 2) == {"C": ["i..i", "0..31"], "A": ["i..i", "0..63"], "B": ["0..63", "0..31"]}
    assert regions_of(func, "C", 3)["A"] == ["0..M - 1", "0..63"]


def test_regions_of_a_window() -> None:
    assert regions_of(conv(), "Y", 2)["X"] == ["n..n", "ic..ic", "oh * 2 - 1..oh * 2 + 1", "ow * 2 - 1..ow * 2 + 1"]
    assert regions_of(conv(), "Y", 7)["X"] == ["0..N - 1", "0..7", "-1..15", "-1..15"]


def test_non_monotonic_regions_span_the_dimension() -> None:
    func = parse("""
func f(A: float32[8], I: int64[8], B: float32[8]):
    for i in serial(8):
        block B(v: 8 = i):
            B[7 - v] = A[v % 3] + A[min(max(I[v], 0), 7)]
""")
    block, loops = nest(func, "B")
    ranges = [(r.buffer.name, str(r.ranges)) for r in regions(touched(block, write=False), block, loops, Bounds())]
    assert ranges == [("A", "((0, 7),)"), ("I", "((0, 7),)")]
    assert [str(r.ranges) for r in regions(touched(block, write=True), block, loops, Bounds())] == ["((0, 7),)"]


def test_a_select_is_listed_once_per_condition() -> None:
    store = "B[v] = select(v < 2, A[v], A[v])"
    head = "func f(A: float32[4], B: float32[4]):\n  for i in serial(4):\n    block B(v: 4 = i):\n"
    a = parse(f"{head}      {store}\n")
    assert len(accesses(blocks(a.body)[0])) == 3
    assert isinstance(blocks(a.body)[0].body.value, Select)
