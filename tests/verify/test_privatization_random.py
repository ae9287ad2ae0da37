"""Privatisation of random programs: accepted iterations compute the same in any order and from poisoned buffers."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.verify.privatized import differs, iterations_of, result

from tilewright.errors import ScheduleError, VerifyError
from tilewright.expr.nodes import MemoryScope
from tilewright.loops.ir import Func, LoopKind
from tilewright.loops.parser import parse
from tilewright.schedule.loop_transforms import split
from tilewright.schedule.rewrite_tree import find_alloc, with_buffer_replaced
from tilewright.verify.verifier import verify

SIZE = 6
"""Elements of a buffer."""


@dataclass
class Text:
    """Draws the lines of a program in which `i` is the loop in question."""

    draw: st.DrawFn
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def pick(self, *values):
        return self.draw(st.sampled_from(values))

    def index(self, loops: dict[str, int]) -> str:
        """An index into a buffer, mostly what schedules make."""
        if not loops:
            return str(self.draw(st.integers(0, SIZE - 1)))
        v, w = self.pick(*loops), self.pick(*loops)
        e = self.pick(
            v, v, v, v, v, v, str(self.draw(st.integers(0, 2))), f"{v} + {self.draw(st.integers(1, 2))}", f"{v} * 2",
            f"{v} // 2", f"{v} % 2", f"{v} * {loops[w]} + {w}", f"{SIZE - 1} - {v}",
            f"min({v} * 2, {SIZE - 2}) + {w} % 2",
        )  # fmt: skip
        return e if self.draw(st.booleans()) else f"min({e}, {SIZE - 1})"

    def read(self, loops: dict[str, int]) -> str:
        where = f"{self.pick('T', 'T', 'W')}[{self.index(loops)}]"
        if loops and self.pick(False, False, True):
            return f"select({self.pick(*loops)} < {self.draw(st.integers(1, 4))}, {where}, 0.0)"
        return where

    def block(self, depth: int, loops: dict[str, int]) -> None:
        name, pad = self.fresh("B"), "    " * depth
        where = ""
        if self.pick(False, False, False, True):
            where = f" where {self.pick('i', *loops)} < {self.draw(st.integers(1, 4))}"
        terms = [f"A[i{name}, {self.draw(st.integers(0, SIZE - 1))}]"]
        terms += [self.read(loops) for _ in range(self.pick(0, 0, 1, 2))]
        self.lines.append(f"{pad}block {name}(i{name}: n = i){where}:")
        self.lines.append(f"{pad}    {self.pick('T', 'T', 'W')}[{self.index(loops)}] = {' + '.join(terms)}")

    def sum(self, depth: int, loops: dict[str, int]) -> None:
        """A reduction, with its init inside, or with none."""
        name, pad = self.fresh("S"), "    " * depth
        b, c = self.fresh("b"), self.fresh("c")
        order = [(b, SIZE - self.pick(0, 0, 1)), (c, self.pick("m", "2"))]
        loops = {**loops, b: order[0][1]}
        for k, (v, n) in enumerate(order if self.draw(st.booleans()) else order[::-1]):
            self.lines.append(f"{pad}{'    ' * k}for {v} in serial({n}):")
        pad += "        "
        self.lines.append(f"{pad}block {name}(i{name}: n = i, reduce r{name}: {order[1][1]} = {c}):")
        target = f"T[{b}]"
        if self.draw(st.booleans()):
            self.lines.append(f"{pad}    init {target} = 0.0")
        self.lines.append(f"{pad}    {target} = {target} + A[i{name}, r{name}]")

    def some(self, depth: int, loops: dict[str, int]) -> None:
        for _ in range(self.draw(st.integers(1, 3 if depth < 4 else 2))):
            kind = self.pick("block", "loop", "loop", "sum") if depth < 4 else "block"
            if kind == "block":
                self.block(depth, loops)
            elif kind == "sum":
                self.sum(depth, loops)
            else:
                v, n = self.fresh("a"), self.pick(2, 3, SIZE, SIZE, "m")
                self.lines.append(f"{'    ' * depth}for {v} in serial({n}):")
                self.some(depth + 1, {**loops, v: 3 if n == "m" else n})


@st.composite
def programs(draw: st.DrawFn) -> Func:
    """A loop `i` with blocks that use the buffers T and W, and at the end U, which takes from them."""
    text = Text(draw)
    text.some(2, {})
    used = " + ".join(text.read({"u": SIZE}) for _ in range(draw(st.integers(1, 2))))
    head = f"func f(A: float32[n, {SIZE}], U: float32[n, {SIZE}]; n: 4..9, m: 0..3):"
    allocs = [f"    alloc {b}: float32[{SIZE}] in stack" for b in "TW"]
    last = [
        f"        for u in serial({SIZE}):", f"            block U(vu: n = i, wu: {SIZE} = u):",
        f"                U[vu, wu] = A[vu, wu] + {used.replace('u ', 'wu ').replace('[u', '[wu')}",
    ]  # fmt: skip
    text.lines += last
    # Both buffers are written somewhere, so that the order of first uses does not decide.
    first: list[str] = []
    for b in "TW":
        count = draw(st.sampled_from((1, SIZE - 1, SIZE, SIZE, SIZE)))
        first += [f"        for z{b} in serial({count}):", f"            block {b}0(i{b}: n = i):"]
        first += [f"                {b}[z{b}] = 1.0"]
    after = [f"        block {b}9(j{b}: n = i):\n            {b}[{draw(st.integers(0, 5))}] = A[j{b}, 0]" for b in "TW"]
    return parse("\n".join([head, *allocs, "    for i in parallel(n):", *first, *text.lines, *after, ""]))


SIZES = ({"n": 5, "m": 0}, {"n": 4, "m": 2}, {"n": 5, "m": 3})


@given(programs())
@settings(max_examples=80)
def test_accepted_iterations_are_independent(func: Func) -> None:
    try:
        verify(func)
    except VerifyError as error:
        event("refused: private" if "private buffer" in str(error) else f"refused: {str(error)[:60]}")
        return
    event("accepted")
    for sizes in SIZES:
        assert not differs(func, "i", sizes)


@given(programs())
@settings(max_examples=40)
def test_accepted_iterations_may_run_twice(func: Func) -> None:
    serial = iterations_of(func, "i", LoopKind.SERIAL)
    for name in ("T", "W"):
        old = find_alloc(serial, name)
        serial = with_buffer_replaced(serial, old, type(old)(old.name, old.shape, old.dtype, MemoryScope.MEMORY))
    try:
        tiled = split(serial, "i", 3, tail="shift_inwards")
        verify(tiled)
    except (ScheduleError, VerifyError):
        return
    event("accepted")
    for sizes in SIZES:
        assert np.array_equal(result(serial, sizes), result(tiled, sizes), equal_nan=True)
