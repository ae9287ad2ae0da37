"""Loads at a small stride: contiguous vectors are loaded, and the elements shuffled out of them.

The windows of a strided convolution or pool read a row several times: at stride 2, taps 0, 1 and 2 read elements
0, 2, 4, ..., then 1, 3, 5, ..., then 2, 4, 6, ... All load the same vectors from the same addresses, of which LLVM
keeps one load each. The first two taps deinterleave them, from the first or the second element on: the row's *phases*.
The third is the first phase, one element later, which takes one more shuffle.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.codegen.llvm_types import shuffle
from tilewright.tile.transposed_columns import MIN_STRIDE

MAX_STRIDE = MIN_STRIDE - 1
"""Largest stride that is deinterleaved; at most as many vectors are loaded per result."""


@dataclass(frozen=True, slots=True)
class ReadMargin:
    """Elements around a strided access that may be read; all lanes are active.

    Attributes:
        index: constant part of the index along the lanes, by which accesses to one row differ.
        before: elements before that of the first lane that are known to be in the buffer.
        after: elements after that of the last lane that are known to be in the buffer or its padding.
    """

    index: int
    before: int
    after: int


NO_MARGIN = ReadMargin(0, 0, 0)


def constant_stride(offsets: Sequence[int]) -> int:
    """The stride of equidistant lanes that are to be deinterleaved; 0 for other offsets."""
    if len(offsets) < 2:
        return 0
    step = offsets[1] - offsets[0]
    equal = 1 < step <= MAX_STRIDE and all(o == offsets[0] + step * i for i, o in enumerate(offsets))
    return step if equal else 0


def load_start(stride: int, lanes: int, margin: ReadMargin) -> int:
    """Elements by which the loads begin before the first lane.

    They begin a whole number of vectors after the start of the row where the first lane lies in the first half of them;
    otherwise where its phase begins; and where that may not be read, at the first lane.
    """
    to_vector = margin.index % (stride * lanes)
    for start in (to_vector, margin.index % stride):
        if start <= margin.before and 2 * start < stride * lanes:
            return start
    return 0


@dataclass(frozen=True, slots=True)
class RegisterStream:
    """Consecutive elements in vector registers.

    Attributes:
        registers: number of the first element and value of each register. They cover all elements; one whose first
            element is less than its position implies ends with the last element.
        register_lanes: lanes of each register.
    """

    registers: tuple[tuple[int, ir.Value], ...]
    register_lanes: int

    def every_nth(self, builder: ir.IRBuilder, step: int, first: int, count: int) -> "RegisterStream":
        """The stream of elements `first`, `first + step`, ..., `count` of them."""
        registers: list[tuple[int, ir.Value]] = []
        for start in range(0, count, self.register_lanes):
            elements = [first + step * i for i in range(start, min(start + self.register_lanes, count))]
            registers.append((start, self._select_elements(builder, elements)))
        return RegisterStream(tuple(registers), self.register_lanes)

    def phase(self, builder: ir.IRBuilder, stride: int, first: int, count: int) -> "RegisterStream":
        """Every `stride`-th element; in two steps where the stride is even, of which phases share the first."""
        if stride % 2 or stride == 2:
            return self.every_nth(builder, stride, first, count)
        halves = self.every_nth(builder, 2, first % 2, first // 2 + (count - 1) * (stride // 2) + 1)
        return halves.phase(builder, stride // 2, first // 2, count)

    def _select_elements(self, builder: ir.IRBuilder, elements: Sequence[int]) -> ir.Value:
        """One register of the elements with these ascending numbers; lanes after them are undefined."""
        lanes_by_register: dict[int, list[int]] = {}
        for e in elements:
            k = min(e // self.register_lanes, len(self.registers) - 1)
            lanes_by_register.setdefault(k, []).append(e - self.registers[k][0])
        (first, selected), *others = lanes_by_register.items()
        result = self.registers[first][1]
        if not others:
            is_prefix = selected == list(range(len(selected)))
            return result if is_prefix else shuffle(builder, result, result, self._pad_lanes(selected))
        for k, lanes in others:
            # keep the elements selected so far and append those of the next register
            selected = [*selected, *(self.register_lanes + lane for lane in lanes)]
            result = shuffle(builder, result, self.registers[k][1], self._pad_lanes(selected))
            selected = list(range(len(selected)))
        return result

    def _pad_lanes(self, lanes: list[int]) -> list[int]:
        return lanes + lanes[-1:] * (self.register_lanes - len(lanes))
