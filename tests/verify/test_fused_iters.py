"""Blocks over fused iteration variables: programs split in the middle of a row, accepted and rejected."""

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tilewright.errors import VerifyError
from tilewright.loops.block_context import BlockContext
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Block, walk
from tilewright.loops.parser import parse
from tilewright.loops.printer import show_stmt
from tilewright.verify.fused_iters import fuse_iters
from tilewright.verify.verifier import verify

HEAD = "func f(A: float32[M, N], B: float32[M, N]; M: 3..4096, N: 3..4096):\n"


def part(name: str, extent: str, index: str) -> str:
    """Copies the elements that `index`, over the loop `f_<name>`, numbers row by row."""
    return (
        f"    for f_{name} in serial({extent}):\n"
        f"        block {name}(v_{name}: M = ({index}) // N, w_{name}: N = ({index}) % N):\n"
        f"            B[v_{name}, w_{name}] = A[v_{name}, w_{name}]\n"
    )


def copied(text: str, rows: int, columns: int) -> bool:
    """Whether the program copies everything, for one size."""
    a = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    b = np.full_like(a, np.nan)
    interpret(parse(text), {"A": a, "B": b}, {"M": rows, "N": columns})
    return np.array_equal(a, b)


def nests(text: str) -> list[BlockContext]:
    return [BlockContext.of(s, loops) for s, loops in walk(parse(text).body) if isinstance(s, Block)]


def test_splits_of_one_index_are_fused() -> None:
    (nest,) = fuse_iters(
        nests("""
func f(A: float32[M, N, 5], B: float32[M, N, 5], S: float32[]; M: 1..9, N: 1..9):
    for f in serial(M * N):
        for g in serial(5):
            block B(u: M = f // N, x: 5 = g, v: N = f % N):
                B[u, v, x] = A[u, v, x] + 1.0
""")
    )
    assert show_stmt(nest.block).splitlines() == [
        "block B('v+u': M * N = f, x: 5 = g):",
        "    B['v+u' // N, 'v+u' % N, x] = A['v+u' // N, 'v+u' % N, x] + 1.0",
    ]


def test_three_splits_and_those_of_a_reduction_are_fused() -> None:
    (nest,) = fuse_iters(
        nests("""
func f(A: float32[2, 3, 4, 6, 7], B: float32[2, 3, 4]):
    for f in serial(24):
        for g in serial(42):
            block B(u: 2 = f // 12, v: 3 = f // 4 % 3, w: 4 = f % 4, reduce a: 6 = g // 7, reduce b: 7 = g % 7):
                init B[u, v, w] = 0.0
                B[u, v, w] = B[u, v, w] + A[u, v, w, a, b]
""")
    )
    assert [(str(i.extent), str(i.binding)) for i in nest.block.iters] == [("24", "f"), ("42", "g")]


@pytest.mark.parametrize(
    ("bindings", "count"),
    [
        ("u: 2 = f // 3 % 2, v: 3 = g % 3", 2),
        ("u: 2 = f % 2, v: 3 = f // 2 % 3", 1),
        ("u: 2 = f % 2, v: 3 = f // 3 % 3", 2),
        ("u: 2 = f % 2, v: 3 = g // 2 % 3", 2),
    ],
)
def test_splits_of_different_indices_are_not_fused(bindings: str, count: int) -> None:
    (nest,) = fuse_iters(
        nests(f"""
func f(A: float32[2, 3], B: float32[2, 3]):
    for f in serial(20):
        for g in serial(30):
            block B({bindings}):
                B[u, v] = A[u, v]
""")
    )
    assert len(nest.block.iters) == count


CUT = part("one", "M * N - N - 1", "f_one") + part("two", "N + 1", "f_two + M * N - N - 1")


def test_parts_of_rows_are_accepted() -> None:
    verify(parse(HEAD + CUT))
    assert copied(HEAD + CUT, 5, 3)


WRONG = {
    "a gap": (part("one", "M * N - N - 2", "f_one") + part("two", "N + 1", "f_two + M * N - N - 1"), "block 'one'"),
    "the end is missing": (part("one", "M * N - 2", "f_one") + part("two", "1", "f_two + M * N - 2"), "block 'one'"),
    "the beginning is missing": (part("one", "M * N - 1", "f_one + 1"), "block 'one'"),
    "every second row": (part("one", "M * N // 2", "f_one * 2"), "block 'one'"),
}


@pytest.mark.parametrize(("body", "where"), WRONG.values(), ids=WRONG)
def test_incomplete_parts_of_rows_are_rejected(body: str, where: str) -> None:
    assert not copied(HEAD + body, 5, 3)
    with pytest.raises(VerifyError, match=where):
        verify(parse(HEAD + body))


def test_bindings_are_simplified_under_loop_bounds() -> None:
    (nest,) = fuse_iters(
        nests("""
func f(A: float32[9, 4], B: float32[9, 4]):
    for i in serial(9):
        for j in serial(4):
            block B(u: 9 = i + j // 4, v: 4 = (j + 4) % 8 % 4) where j < 4:
                B[u, v] = A[u, v]
""")
    )
    assert [str(i.binding) for i in nest.block.iters] == ["i", "j"]


@st.composite
def cuts(draw: st.DrawFn) -> str:
    """A fused loop in up to four parts, in some order, of which one may begin or end where it should not."""
    ends = sorted(draw(st.lists(st.integers(1, 8), max_size=3, unique=True)))
    starts = ["0", *map(str, ends)]
    bounds = [*map(str, ends), "M * N"]
    slip = draw(st.sampled_from((0, 0, 0, -1, 1)))
    parts: list[str] = []
    for k, (low, high) in enumerate(zip(starts, bounds, strict=True)):
        shift = slip if k == len(ends) else 0
        parts.append(part(f"p{k}", f"{high} - {low} - {max(0, shift)}", f"f_p{k} + {low} + {shift}"))
    return HEAD + "".join(draw(st.permutations(parts)))


@given(cuts())
@settings(max_examples=100)
def test_accepted_parts_cover_the_domain(text: str) -> None:
    try:
        verify(parse(text))
    except VerifyError:
        return
    event("accepted")
    assert all(copied(text, *shape) for shape in ((3, 3), (3, 4), (5, 3), (4, 7)))
