"""Elements at a small stride: the vectors that hold all between are loaded, and those in question picked out of them.

The windows of a strided convolution or pool read a row of elements several times: taps 0, 1 and 2 at stride 2 read
elements 0, 2, 4, ..., then 1, 3, 5, ..., then 2, 4, 6, ... All of them load the same vectors from the same addresses,
so that LLVM keeps one load of each. The first two pick every second element out of them, from the first or from the
second on: the row's *phases*. The third is the first phase, one element later, which takes one shuffle of what is there
already.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.codegen.llvm_types import shuffle

MAX_STRIDE = 4
"""The largest stride at which vectors are picked out of loaded ones; at most as many are loaded for each."""


@dataclass(frozen=True, slots=True)
class ReadMargin:
    """What may be read around the lanes of a strided access, in elements; all lanes have work.

    Attributes:
        index: constant part of the index in the dimension along the lanes, by which accesses to one row differ.
        before: how many elements before that of the first lane are known to be elements of the buffer.
        behind: how many behind that of the last lane are, or room behind it.
    """

    index: int
    before: int
    after: int


NO_MARGIN = ReadMargin(0, 0, 0)


def constant_stride(offsets: Sequence[int]) -> int:
    """The stride of lanes at equal distances that are picked out of loaded vectors; 0 where they are none."""
    if len(offsets) < 2:
        return 0
    step = offsets[1] - offsets[0]
    equal = 1 < step <= MAX_STRIDE and all(o == offsets[0] + step * i for i, o in enumerate(offsets))
    return step if equal else 0


def load_start(stride: int, lanes: int, margin: ReadMargin) -> int:
    """How far before the first lane's element the vectors begin that are loaded.

    A whole number of vectors from the row's beginning, where the first lane lies in the first half of them; else where
    its phase begins, and where that may not be read, at the element itself.
    """
    whole = margin.index % (stride * lanes)
    for start in (whole, margin.index % stride):
        if start <= margin.before and 2 * start < stride * lanes:
            return start
    return 0


@dataclass(frozen=True, slots=True)
class RegisterStream:
    """Consecutive elements in vector registers.

    Attributes:
        registers: equally long, each with the number of its first element; together they hold all elements, and one
            that begins later than its place says ends with the last element.
    """

    registers: tuple[tuple[int, ir.Value], ...]
    register_lanes: int

    def every_nth(self, builder: ir.IRBuilder, step: int, first: int, count: int) -> "RegisterStream":
        """A stream of `count` elements of this one: `first`, `first + step`, ..."""
        found: list[tuple[int, ir.Value]] = []
        for start in range(0, count, self.register_lanes):
            wanted = [first + step * i for i in range(start, min(start + self.register_lanes, count))]
            found.append((start, self._select_elements(builder, wanted)))
        return RegisterStream(tuple(found), self.register_lanes)

    def phase(self, builder: ir.IRBuilder, stride: int, first: int, count: int) -> "RegisterStream":
        """Every `stride`-th element; by two steps where that is even, of which phases share the first."""
        if stride % 2 or stride == 2:
            return self.every_nth(builder, stride, first, count)
        halves = self.every_nth(builder, 2, first % 2, first // 2 + (count - 1) * (stride // 2) + 1)
        return halves.phase(builder, stride // 2, first // 2, count)

    def _select_elements(self, builder: ir.IRBuilder, wanted: Sequence[int]) -> ir.Value:
        """One register of the elements with these numbers, in rising order; lanes behind them hold anything."""
        places: dict[int, list[int]] = {}
        for e in wanted:
            k = min(e // self.register_lanes, len(self.registers) - 1)
            places.setdefault(k, []).append(e - self.registers[k][0])
        (first, taken), *others = places.items()
        result = self.registers[first][1]
        if not others:
            whole = taken == list(range(len(taken)))
            return result if whole else shuffle(builder, result, result, self._pad_lanes(taken))
        for k, lanes in others:
            # what was taken before stays, what comes from the next register joins it
            taken = [*taken, *(self.register_lanes + lane for lane in lanes)]
            result = shuffle(builder, result, self.registers[k][1], self._pad_lanes(taken))
            taken = list(range(len(taken)))
        return result

    def _pad_lanes(self, lanes: list[int]) -> list[int]:
        return lanes + lanes[-1:] * (self.register_lanes - len(lanes))
