"""Kernels from whose times calibration fits parameters of the cost model, written in the loop IR.

Each exposes one parameter: it differs from another one, or from the peak, by what that parameter stands for.
"""

from dataclasses import dataclass

from tilewright.expr.dtype import float32
from tilewright.expr.nodes import MemoryScope
from tilewright.loops.builder import Builder
from tilewright.loops.ir import Func, LoopKind
from tilewright.machine import Target

STREAMS = 8
"""Rows of `segment_read` with sums of their own, so that no addition waits for another row's."""

UNROLLED_TERMS = 4
"""Terms of one step of `register_tile`."""

TILE_TERMS = 128
"""Terms of the product of `register_tile`: both operands stay in L1."""

SIDE = 48
"""Rows and columns of the matrices that are turned: 9 KiB each, and rows that alias to no sets."""


def tile_rows(target: Target) -> int:
    """Rows of `register_tile`: with two vectors each, as many as leave registers for the operands."""
    return 12 if target.vector_registers >= 32 else 6


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """The sizes of a register tile: rows, vectors of a row, terms of one step of its loop, terms of a product, whose
    operands fit L1."""

    rows: int
    vectors: int = 2
    unroll: int = UNROLLED_TERMS
    terms: int = TILE_TERMS


def register_tile(target: Target, tile: RegisterTile, name: str = "register_tile") -> Func:
    """`times` products of packed operands in one register tile: a load per vector and a broadcast per row beside as
    many multiply-adds as both together make, per term.

    Parameters: A float32[terms, rows], B float32[terms, vectors * lanes], OUT float32[rows, vectors * lanes].
    """
    lanes = target.lanes(32)
    rows, columns = tile.rows, tile.vectors * lanes
    b = Builder(name)
    times = b.symbol("times", 1)
    a, w = b.param("A", (tile.terms, rows), float32), b.param("B", (tile.terms, columns), float32)
    out, r = b.param("OUT", (rows, columns), float32), b.alloc("R", (rows, columns), float32, MemoryScope.REGISTER)

    def visit(part: str) -> None:
        with (
            b.loop(f"{part}_r", rows, LoopKind.UNROLLED) as i,
            b.loop(f"{part}_c", tile.vectors, LoopKind.UNROLLED) as c,
            b.loop(f"{part}_l", lanes, LoopKind.VECTORIZED) as lane,
            b.block(part) as block,
        ):
            row, column = block.spatial(f"{part}_v", rows, i), block.spatial(f"{part}_w", columns, c * lanes + lane)
            if part == "start":
                block.store(r, (row, column), 0.0)
            elif part == "finish":
                block.store(out, (row, column), r[row, column])
            else:
                block.reduce("t", times, time)
                k = block.reduce("k", tile.terms, step * tile.unroll + term)
                block.update(r, (row, column), a[k, row] * w[k, column])

    visit("start")
    with (
        b.loop("time", times) as time,
        b.loop("step", tile.terms // tile.unroll) as step,
        b.loop("term", tile.unroll, LoopKind.UNROLLED) as term,
    ):
        visit("multiply")
    visit("finish")
    return b.func()


def segment_read(name: str, target: Target, segment: int, pitch: int) -> Func:
    """`times` sums of the first `segment` elements of rows that are `pitch` elements apart, one row after the other.

    Parameters: A float32[blocks, STREAMS, pitch], OUT float32[STREAMS, lanes]; symbols `blocks`, `times`.
    """
    lanes = target.lanes(32)
    b = Builder(name)
    blocks, times = b.symbol("blocks", 1), b.symbol("times", 1)
    a, out = b.param("A", (blocks, STREAMS, pitch), float32), b.param("OUT", (STREAMS, lanes), float32)
    s = b.alloc("S", (STREAMS, lanes), float32, MemoryScope.REGISTER)

    def each(part: str) -> None:
        with (
            b.loop(f"{part}_u", STREAMS, LoopKind.UNROLLED) as u,
            b.loop(f"{part}_l", lanes, LoopKind.VECTORIZED) as lane,
            b.block(part) as block,
        ):
            at = block.spatial(f"{part}_v", STREAMS, u), block.spatial(f"{part}_w", lanes, lane)
            block.store(s if part == "start" else out, at, 0.0 if part == "start" else s[at])

    each("start")
    with (
        b.loop("time", times) as t,
        b.loop("place", blocks) as place,
        b.loop("read_u", STREAMS, LoopKind.UNROLLED) as u,
        b.loop("group", segment // lanes) as g,
        b.loop("read_l", lanes, LoopKind.VECTORIZED) as lane,
        b.block("read") as block,
    ):
        row, column = block.spatial("read_v", STREAMS, u), block.spatial("read_w", lanes, lane)
        block.reduce("read_t", times, t)
        p, q = block.reduce("read_b", blocks, place), block.reduce("read_g", segment // lanes, g)
        block.update(s, (row, column), a[p, row, q * lanes + column])
    each("end")
    return b.func()


def turned_copy(name: str, target: Target, along_rows: bool) -> Func:
    """`times` transpositions Y[i, j] = X[j, i] in a core's first cache: vectors along the rows of Y insert the elements
    that they load one by one; vectors along its columns store them one by one.

    Parameters: X, Y float32[SIDE, SIDE]; symbol `times`.
    """
    lanes = target.lanes(32)
    b = Builder(name)
    times = b.symbol("times", 1)
    x, y = b.param("X", (SIDE, SIDE), float32), b.param("Y", (SIDE, SIDE), float32)
    with (
        b.loop("time", times),
        b.loop("other", SIDE) as other,
        b.loop("vector", SIDE // lanes) as vector,
        b.loop("lane", lanes, LoopKind.VECTORIZED) as lane,
        b.block("copy") as block,
    ):
        place = vector * lanes + lane
        i, j = (other, place) if along_rows else (place, other)
        i, j = block.spatial("i", SIDE, i), block.spatial("j", SIDE, j)
        block.store(y, (i, j), x[j, i])
    return b.func()


def panel_copy(name: str, target: Target, panels: int, rows: int, contiguous: bool) -> Func:
    """`times` packings of a matrix into panels of two vectors by the loops of packing at run time: P[panel, k, c] =
    X[k, panel, c], or X[panel, c, k] where the elements of a panel are not contiguous.

    Parameters: X and P float32, of `panels` x `rows` x 2 * lanes elements; symbol `times`.
    """
    lanes = target.lanes(32)
    width = 2 * lanes
    b = Builder(name)
    times = b.symbol("times", 1)
    shape = (rows, panels, width) if contiguous else (panels, width, rows)
    x, p = b.param("X", shape, float32), b.param("P", (panels, rows, width), float32)
    # vectors run along what is contiguous in X
    inner, outer = (width, rows) if contiguous else (rows, width)
    with (
        b.loop("time", times),
        b.loop("panel", panels) as panel,
        b.loop("outer", outer) as at,
        b.loop("vector", inner // lanes) as vector,
        b.loop("lane", lanes, LoopKind.VECTORIZED) as lane,
        b.block("pack") as block,
    ):
        place = vector * lanes + lane
        k, c = (at, place) if contiguous else (place, at)
        v, k, c = block.spatial("v", panels, panel), block.spatial("k", rows, k), block.spatial("c", width, c)
        block.store(p, (v, k, c), x[k, v, c] if contiguous else x[v, c, k])
    return b.func()
