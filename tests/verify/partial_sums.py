"""Split reductions as text: sums of four rows of eight columns in a buffer T, and of eight rows of four in U."""

import numpy as np

from tilewright.loops.interpreter import interpret
from tilewright.loops.parser import parse

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


ZEROS = """{0}for z in serial({1}):
{0}    block Z(vz: 8 = z{2}):
{0}        U[vz] = 0.0
"""
SUMS = """{0}for i{1} in serial({2}):
{0}    for k{1} in serial(4):
{0}        block C{1}(v{1}: 8 = {3}, reduce r{1}: 4 = k{1}):
{0}            {4}U[v{1}] = U[v{1}] + A[v{1}, r{1}]
"""
INNER = "        "


def some_rows(n: int, size: int, row: str, indent: str = "    ", init: str = "") -> str:
    """Sums of some of eight rows."""
    return SUMS.format(indent, n, size, row, init)


def eight(*parts: str) -> str:
    """Sums of eight rows of four, in a parameter."""
    return "func f(A: float32[8, 4], U: float32[8]):\n" + "".join(parts)


def wrong_by(text: str) -> bool:
    """Whether a program of `eight` computes something else."""
    a = np.arange(32, dtype=np.float32).reshape(8, 4) + 1
    u = np.full(8, np.nan, np.float32)
    interpret(parse(text), {"A": a, "U": u}, {})
    return not np.array_equal(u, a.sum(1))


def zeros(name: str, size: str, offset: str = "", indent: str = "    ") -> str:
    """First values for some of eight rows."""
    text = ZEROS.format(indent, size, offset).replace("vz", f"v_{name}").replace("block Z", f"block {name}")
    return text.replace("for z", f"for z_{name}").replace("= z", f"= z_{name}")


def begun_at(number: int, deeper: str = "") -> str:
    """An init for `some_rows`."""
    return f"init U[v{number}] = 0.0\n                {deeper}"


def columns(number: int, size: str, offset: str = "", init: str = "") -> str:
    """Sums of some of four columns, for all rows."""
    text = some_rows(number, 8, f"i{number}", init=init)
    return text.replace("in serial(4)", f"in serial({size})").replace(f"4 = k{number}", f"4 = k{number}{offset}")
