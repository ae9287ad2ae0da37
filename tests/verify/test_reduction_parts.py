"""Split reductions: programs that lose or repeat terms are rejected, however loops are split, and are wrong if run."""

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.verify.partial_sums import HEAD, ZERO, each, part, results, rows

from tilewright.errors import VerifyError
from tilewright.loops.block_context import BlockContext
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Block, walk
from tilewright.loops.parser import parse
from tilewright.verify.store_aliasing import stores_same_elements
from tilewright.verify.verifier import verify

RIGHT = {
    "two parts": rows(ZERO, part("one", 4, 0), part("two", 4, 4)),
    "two parts in the other order": rows(ZERO, part("one", 4, 4), part("two", 4, 0)),
    "the first part initialises": rows(part("one", 4, 0, True), part("two", 4, 4)),
    "three parts": rows(ZERO, part("one", 1, 0), part("two", 4, 4), part("three", 3, 1)),
    "initialised twice before": rows(ZERO, each("again", "T[v] = 0.0"), part("one", 4, 0), part("two", 4, 4)),
    "used and overwritten afterwards": rows(
        ZERO, part("one", 4, 0), part("two", 4, 4),
        each("half", "T[v] = T[v] * 0.5"), each("twice", "T[v] = T[v] * 2.0"),
    ),
}  # fmt: skip

WRONG: dict[str, tuple[str, str]] = {
    "initialised again between the parts": (
        rows(ZERO, part("one", 4, 0), each("again", "T[v] = 0.0"), part("two", 4, 4)),
        "block 'again' overwrites 'T' between parts of a reduction, 'one' and 'two'",
    ),
    "another value between the parts": (
        rows(ZERO, part("one", 4, 0), each("other", "T[v] = A[v, 0]".replace("[v, ", "[v_other, ")), part("two", 4, 4)),
        "block 'other' overwrites 'T' between parts of a reduction, 'one' and 'two'",
    ),
    "changed between the parts": (
        rows(ZERO, part("one", 4, 0), each("twice", "T[v] = T[v] * 2.0"), part("two", 4, 4)),
        "block 'twice' overwrites 'T' between parts of a reduction, 'one' and 'two'",
    ),
    "read between the parts": (
        rows(ZERO, part("one", 4, 0), each("early", "B[v] = T[v]"), part("two", 4, 4)).rsplit("        block B", 1)[0],
        "block 'early' reads 'T' between parts of a reduction, 'one' and 'two'",
    ),
    "the second part initialises": (
        rows(ZERO, part("two", 4, 4), part("one", 4, 0, True)),
        "block 'one' initialises 'T' after another part of the reduction, 'two'",
    ),
    "a part too many": (
        rows(part("one", 8, 0, True), part("two", 4, 4)),
        "block 'two': binding k_two + 4 of 'r_two' covers 4..7, expected 0..7",
    ),
    "initialised at the end of every iteration": (
        rows(ZERO, part("one", 8, 0) + each("again", "T[v] = 0.0").replace("        ", "            ")),
        "block 'one': 'T' is initialised again inside the reduction",
    ),
    "the whole sum twice": (
        rows(ZERO, part("one", 8, 0), part("two", 8, 0)),
        "block 'two': accumulates the same points into 'T' as block 'one'",
    ),
    "all parts twice": (
        rows(ZERO, part("one", 4, 0), part("two", 4, 4), part("three", 4, 0), part("four", 4, 4)),
        "block 'three': accumulates the same points into 'T' as block 'one'",
    ),
    "parts that overlap": (
        rows(ZERO, part("one", 4, 0), part("two", 5, 3)),
        "parts of a reduction overlap: some values of 'r_one' count twice",
    ),
    "parts of different elements": (
        rows(ZERO, part("one", 4, 0), part("two", 4, 4).replace("4 = i", "4 = 3 - i")),
        "parts of a reduction, 'one' and 'two', are not proved to accumulate into the same elements of 'T'",
    ),
    "only some elements have a first value": (
        HEAD + "    for z in serial(2):\n        block zero(v: 2 = z):\n            B[v] = 0.0\n"
        "    for i in serial(4):\n        for k in serial(8):\n            block B(w: 4 = i, reduce r: 8 = k):\n"
        "                B[w] = B[w] + A[w, r]\n",
        "accumulates into elements of 'B' that no block is proved to initialise",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_valid_split_reductions_are_accepted(text: str) -> None:
    verify(parse(text))
    np.testing.assert_array_equal(*results(text))


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("rows", ["4", "N"])
def test_invalid_split_reductions_are_rejected(text: str, message: str, rows: str) -> None:
    """Whether sizes are few enough to look at all iterations or not."""
    for old in ("4 = ", "32[4", "i in serial(4"):
        text = text.replace(old, old.replace("4", rows))
    text = text.replace("N = 3 - i", "N = N - 1 - i")
    actual, right = results(text)
    assert not np.array_equal(actual, right)
    with pytest.raises(VerifyError) as error:
        verify(parse(text))
    assert message in str(error.value)


ROWS = """
func f(A: float32[N, 8], B: float32[N]; N: 4..4096):
    alloc T: float32[N]
    for z in serial(N):
        block zero(u: N = z):
            T[u] = 0.0
"""
ADD = """
{indent}for {i} in serial({size}):
{indent}    for k_{i} in serial(8):
{indent}        block {name}(v_{i}: N = {row}, reduce r_{i}: 8 = k_{i}):
{indent}            T[v_{i}] = T[v_{i}] + A[v_{i}, r_{i}]
"""
STORE = """
    for b in serial({rows}):
        block B(x: N = b):
            B[x] = T[x]
    for rest in serial(N - {rows}):
        block B_2(x_2: N = rest + {rows}):
            B[x_2] = T[x_2]
"""


def added(name: str, i: str, size: str, row: str, indent: str = "    ") -> str:
    """Adds whole rows to their elements of T."""
    return ADD.format(name=name, i=i, size=size, row=row, indent=indent)


APART = {
    "the first and the second half": added("one", "i", "N // 2", "i") + added("two", "j", "N - N // 2", "j + N // 2"),
    "halves of every tile": (
        "    for h in serial(N // 4):" + added("one", "i", "2", "h * 4 + i", "        ")
        + added("two", "j", "2", "h * 4 + 2 + j", "        ") + added("three", "l", "N % 4", "N // 4 * 4 + l")
    ),
}  # fmt: skip
"""Sums of some rows and of the others: whole, although each by itself reaches the whole reduction."""

TWICE = {
    "a row too many": added("one", "i", "N // 2", "i") + added("two", "j", "N - N // 2 + 1", "j + N // 2 - 1"),
    "everything": added("one", "i", "N", "i") + added("two", "j", "N", "j"),
    "tiles that overlap": (
        "    for h in serial(N // 4):" + added("one", "i", "3", "h * 4 + i", "        ")
        + added("two", "j", "2", "h * 4 + 2 + j", "        ") + added("three", "l", "N % 4", "N // 4 * 4 + l")
    ),
    "tiles of the next iteration": (
        "    for h in serial(N // 4):" + added("one", "i", "2", "h * 2 + i", "        ")
        + added("two", "j", "2", "h * 2 + 2 + j", "        ")
    ),
}  # fmt: skip


def sums(text: str) -> tuple[np.ndarray, np.ndarray]:
    """What a program of `ROWS` computes for six rows, and the sums."""
    a = np.arange(48, dtype=np.float32).reshape(6, 8) + 1
    b = np.full(6, np.nan, np.float32)
    interpret(parse(text), {"A": a, "B": b}, {"N": 6})
    return b, a.sum(1)


@pytest.mark.parametrize("parts", APART.values(), ids=APART)
def test_parts_with_different_elements(parts: str) -> None:
    text = ROWS + parts + STORE.format(rows="N")
    verify(parse(text))
    np.testing.assert_array_equal(*sums(text))


@pytest.mark.parametrize("parts", TWICE.values(), ids=TWICE)
def test_parts_with_equal_elements(parts: str) -> None:
    text = ROWS + parts + STORE.format(rows="N")
    actual, right = sums(text)
    assert not np.array_equal(actual, right)
    with pytest.raises(VerifyError, match="'two': accumulates the same points into 'T' as block 'one'"):
        verify(parse(text))


BLOCKS = """
func f(A: float32[M, K], B: float32[M]; M: 8..4096, K: 8..4096):
    for o in serial(M // 4):
        for i in serial(3):
            for k in serial(K - 5):
                block one(v: M = o * 4 + i, reduce r: K = k):
                    {0}B[v] = B[v] + A[v, r]
            for k2 in serial(5):
                block two(v2: M = o * 4 + i, reduce r2: K = k2 + K - 5):
                    B[v2] = B[v2] + A[v2, r2]
        for j in serial(1):
            for l in serial(K - 5):
                block three(w: M = o * 4 + {1} + j, reduce s: K = l):
                    {2}B[w] = B[w] + A[w, s]
            for l2 in serial(5):
                block four(w2: M = o * 4 + {1} + j, reduce s2: K = l2 + K - 5):
                    B[w2] = B[w2] + A[w2, s2]
    for t in serial(M % 4):
        for m in serial(K):
            block rest(x: M = M // 4 * 4 + t, reduce y: K = m):
                init B[x] = 0.0
                B[x] = B[x] + A[x, y]
"""
"""Rows and columns are both cut, so that there are two sums of two parts each."""

FIRST, OTHER = "init B[v] = 0.0\n                    ", "init B[w] = 0.0\n                    "


def test_parts_split_in_two_directions() -> None:
    text = BLOCKS.format(FIRST, 3, OTHER)
    verify(parse(text))
    a = np.arange(90, dtype=np.float32).reshape(9, 10)
    b = np.full(9, np.nan, np.float32)
    interpret(parse(text), {"A": a, "B": b}, {"M": 9, "K": 10})
    np.testing.assert_array_equal(b, a.sum(1))


def test_overlapping_parts_in_two_directions_are_rejected() -> None:
    with pytest.raises(VerifyError, match=r"block 'three': binding o \* 4 \+ 2 \+ j leaves gaps"):
        verify(parse(BLOCKS.format(FIRST, 2, OTHER)))


RELATIVE = """
func f(X: float32[8], Y: float32[{N}]; N: 5..4096):
    alloc T: float32[{N} + 1]
    for io in serial({N}):
        block zero():
            T[{first}] = 0.0
        for k in serial(4):
            block one(reduce r: 8 = k):
                T[io] = T[io] + X[r]
        for l in serial(4):
            block two(reduce s: 8 = l + 4):
                T[{second}] = T[{second}] + X[s]
        block Y(x: {N} = io):
            Y[x] = T[io]
"""


def test_elements_indexed_by_the_iteration() -> None:
    verify(parse(RELATIVE.format(N="N", first="io", second="io")))


@pytest.mark.parametrize("rows", ["N", "6"])
@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ({"first": "io", "second": "io + 1"}, "are not proved to accumulate into the same elements of 'T'"),
        ({"first": "io + 1", "second": "io"}, "accumulates into elements of 'T' that no block is proved to initialise"),
    ],
)
def test_elements_of_different_iterations_are_rejected(elements: dict[str, str], message: str, rows: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(parse(RELATIVE.format(N=rows, **elements)))


def test_parts_of_a_full_reduction() -> None:
    """There is one element; what limits one part does not limit it."""
    verify(
        parse("""
func f(A: float32[n], Y: float32[]; n: 1..4096):
    block zero():
        Y[] = 0.0
    for o in serial(5):
        for i in serial((n // 4 * 4 + 4) // 5):
            block Y(reduce r: n = (n // 4 * 4 + 4) // 5 * o + i) where (n // 4 * 4 + 4) // 5 * o + i < n // 4 * 4:
                Y[] = Y[] + A[r]
    for j in serial(n % 4):
        block Y_2(reduce s: n = n // 4 * 4 + j):
            Y[] = Y[] + A[s]
""")
    )


@st.composite
def histories(draw: st.DrawFn) -> str:
    """Blocks that add columns to T, initialise, change or read it, in a random order; often what is right."""
    cut = draw(st.integers(0, 8))
    other = draw(st.integers(0, 8))
    logs: list[str] = []
    for number in range(draw(st.integers(1, 5))):
        name = f"b{number}"
        begin, end = draw(st.sampled_from(((0, cut), (cut, 8), (0, 8), (0, other), (other, 8), (cut, other))))
        kind = draw(st.sampled_from(("part", "part", "part", "zero", "twice", "early", "swapped")))
        if kind in ("part", "swapped") and begin < end:
            text = part(name, end - begin, begin, draw(st.booleans()))
            logs.append(text.replace("4 = i", "4 = 3 - i") if kind == "swapped" else text)
        elif kind == "zero":
            logs.append(each(name, "T[v] = 0.0"))
        elif kind == "twice":
            logs.append(each(name, "T[v] = T[v] * 2.0"))
        elif kind == "early":
            logs.append(each(name, "B[v] = T[v]"))
    first = [ZERO] if draw(st.booleans()) else []
    if logs and draw(st.integers(0, 3)) == 0:
        # All of it in a loop of its own.
        inner = "".join([*first, *logs]).replace("        ", "            ").lstrip("\n")
        return rows(f"        for again in serial(2):\n{inner}")
    return rows(*first, *logs)


@given(histories())
@settings(max_examples=150)
def test_accepted_event_logs_are_right(text: str) -> None:
    """What is read at the end is a whole sum, which other blocks may have doubled, or a first value.

    Elements that no block has written are NaN in the interpreter; the verifier does not check for those.
    """
    try:
        verify(parse(text))
    except VerifyError:
        return
    event("accepted")
    actual, right = results(text)
    written = ~np.isnan(actual)
    factors = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    assert any(np.array_equal(actual[written], (right * factor)[written]) for factor in factors)


TILES = """
func f(A: float32[N, 8], B: float32[N]; N: 4..4096):
    for i in serial(4):
        for j in serial(N // 8 * 2):
            for k in serial(5):
                block one(v: N = {0}, reduce r: 8 = k):
                    init B[v] = 0.0
                    B[v] = B[v] + A[v, r]
    for io in serial(2):
        for jo in serial(N // 8):
            for ii in serial(2):
                for ji in serial(2):
                    for l in serial(3):
                        block two(w: N = {1}, reduce s: 8 = l + 5):
                            B[w] = B[w] + A[w, s]
    for t in serial(N - N // 8 * 8):
        for m in serial(8):
            block rest(x: N = N // 8 * 8 + t, reduce y: 8 = m):
                init B[x] = 0.0
                B[x] = B[x] + A[x, y]
"""


def combs(first: str, second: str) -> list[object]:
    """Whether two parts of `TILES` store the same elements."""
    nests = [
        BlockContext.of(s, loops) for s, loops in walk(parse(TILES.format(first, second)).body) if isinstance(s, Block)
    ]
    return [stores_same_elements(nests[0], nests[1]), stores_same_elements(nests[1], nests[0])]


def test_equal_strided_elements() -> None:
    """Rows of 4, tiles of 2 by 2: the same elements, although neither is a box of its own."""
    first = "i * (N // 4) + j"
    assert combs(first, "(io * 2 + ii) * (N // 4) + jo * 2 + ji") == [True, True]
    assert combs(first, "(io + ii * 2) * (N // 4) + jo + ji * (N // 8)") == [True, True]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("i * (N // 4) + j", "(io + ii) * (N // 4) + jo * 2 + ji"),
        ("i * (N // 4) + j", "(io * 2 + ii) * (N // 4) + jo + ji"),
        ("i * (N // 4) + j", "(io * 2 + ii) * (N // 4) + jo * 2 + ji + 1"),
        ("i * (N // 4) + j", "(io * 2 + ii) * (N // 4)"),
        ("i * j", "(io * 2 + ii) * (jo * 2 + ji)"),
        ("i * (N // 4) + j", "(io * 2 + ii) * (N // 4) + jo * 2 + ji * l"),
        ("i * (N // 4) + i", "(io * 2 + ii) * (N // 4) + ii"),
    ],
)
def test_elements_not_proved_equal(first: str, second: str) -> None:
    assert combs(first, second) == [False, False]
