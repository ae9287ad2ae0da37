"""Accumulators: programs that lose or miss terms are refused, however loops are cut; and they are wrong indeed."""

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tilewright.errors import VerifyError
from tilewright.loops.interpret import interpret
from tilewright.loops.parser import parse
from tilewright.loops.verify import verify

HEAD = "func f(A: float32[4, 8], B: float32[4]; N: 4..4096):\n"
PART = """
        for {k} in serial({size}):
            block {name}({v}: 4 = i, reduce {r}: 8 = {k}{offset}):
                {init}T[{v}] = T[{v}] + A[{v}, {r}]
"""


def part(name: str, size: int, offset: int, init: bool = False) -> str:
    """Adds columns offset .. offset + size - 1 to T[i]."""
    v, r = f"v_{name}", f"r_{name}"
    first = f"init T[{v}] = 0.0\n                " if init else ""
    shift = f" + {offset}" if offset else ""
    return PART.format(k=f"k_{name}", name=name, size=size, offset=shift, v=v, r=r, init=first)


def each(name: str, store: str) -> str:
    """A block in the loop over rows; `v` is its row."""
    return f"        block {name}(v_{name}: 4 = i):\n            {store.replace('v]', f'v_{name}]')}\n"


def rows(*parts: str) -> str:
    """B[i] is what T[i] holds in the end."""
    body = "".join(parts) + each("B", "B[v] = T[v]")
    return HEAD + "    alloc T: float32[4]\n    for i in serial(4):\n" + body


def results(text: str) -> tuple[np.ndarray, np.ndarray]:
    """What the program computes, and the sums."""
    a = np.arange(32, dtype=np.float32).reshape(4, 8) ** 2 + 1
    b = np.full(4, np.nan, np.float32)
    interpret(parse(text), {"A": a, "B": b}, {"N": 4})
    return b, a.sum(1)


ZERO = each("zero", "T[v] = 0.0")
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
        "block 'two': adds the same points to elements of 'T' as block 'one'",
    ),
    "all parts twice": (
        rows(ZERO, part("one", 4, 0), part("two", 4, 4), part("three", 4, 0), part("four", 4, 4)),
        "block 'three': adds the same points to elements of 'T' as block 'one'",
    ),
    "parts that overlap": (
        rows(ZERO, part("one", 4, 0), part("two", 5, 3)),
        "parts of a reduction overlap: some values of 'r_one' count twice",
    ),
    "parts of different elements": (
        rows(ZERO, part("one", 4, 0), part("two", 4, 4).replace("4 = i", "4 = 3 - i")),
        "parts of a reduction, 'one' and 'two', are not proved to collect in the same elements of 'T'",
    ),
    "only some elements have a first value": (
        HEAD + "    for z in serial(2):\n        block zero(v: 2 = z):\n            B[v] = 0.0\n"
        "    for i in serial(4):\n        for k in serial(8):\n            block B(w: 4 = i, reduce r: 8 = k):\n"
        "                B[w] = B[w] + A[w, r]\n",
        "adds to elements of 'B' to which no block is proved to give a first value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_accepts(text: str) -> None:
    verify(parse(text))
    np.testing.assert_array_equal(*results(text))


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("rows", ["4", "N"])
def test_refuses(text: str, message: str, rows: str) -> None:
    """Whether sizes are few enough to look at all iterations or not."""
    for old in ("4 = ", "32[4", "i in serial(4"):
        text = text.replace(old, old.replace("4", rows))
    text = text.replace("N = 3 - i", "N = N - 1 - i")
    found, right = results(text)
    assert not np.array_equal(found, right)
    with pytest.raises(VerifyError) as caught:
        verify(parse(text))
    assert message in str(caught.value)


@st.composite
def histories(draw: st.DrawFn) -> str:
    """Blocks that add columns to T, initialise, change or read it, in a random order; often what is right."""
    cut = draw(st.integers(0, 8))
    other = draw(st.integers(0, 8))
    found: list[str] = []
    for number in range(draw(st.integers(1, 5))):
        name = f"b{number}"
        begin, end = draw(st.sampled_from(((0, cut), (cut, 8), (0, 8), (0, other), (other, 8), (cut, other))))
        kind = draw(st.sampled_from(("part", "part", "part", "zero", "twice", "early", "swapped")))
        if kind in ("part", "swapped") and begin < end:
            text = part(name, end - begin, begin, draw(st.booleans()))
            found.append(text.replace("4 = i", "4 = 3 - i") if kind == "swapped" else text)
        elif kind == "zero":
            found.append(each(name, "T[v] = 0.0"))
        elif kind == "twice":
            found.append(each(name, "T[v] = T[v] * 2.0"))
        elif kind == "early":
            found.append(each(name, "B[v] = T[v]"))
    first = [ZERO] if draw(st.booleans()) else []
    if found and draw(st.integers(0, 3)) == 0:
        # All of it in a loop of its own.
        inner = "".join([*first, *found]).replace("        ", "            ").lstrip("\n")
        return rows(f"        for again in serial(2):\n{inner}")
    return rows(*first, *found)


@given(histories())
@settings(max_examples=150)
def test_histories_that_pass_are_right(text: str) -> None:
    """What is read at the end is a whole sum, which other blocks may have doubled, or a first value."""
    try:
        verify(parse(text))
    except VerifyError:
        return
    event("accepted")
    found, right = results(text)
    assert any(np.array_equal(found, right * factor) for factor in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
