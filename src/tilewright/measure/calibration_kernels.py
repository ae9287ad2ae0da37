"""Kernels that calibration times, written in the loop IR."""

from tilewright.expr.dtype import float32, int64
from tilewright.expr.nodes import Load, MemoryScope, const
from tilewright.expr.operations import maximum, minimum
from tilewright.loops.builder import Builder
from tilewright.loops.ir import Func, LoopKind
from tilewright.machine import Target

ROWS = 4
"""Rows of the multiply-add kernel's register tile."""

ACCUMULATORS = 8
"""Independent accumulators of the stream-read kernel."""

PART_DISTANCE = 32
"""Elements from one part of the fork-join kernel to the next, so that threads write to different cache lines."""


def multiply_add(target: Target) -> Func:
    """`steps` times R[r, c] = R[r, c] * Y[r] + X[c] on a register tile, with everything else outside of the loop.

    The recurrence keeps the multiplication in the loop; LLVM would hoist X[c] * Y[r] out of it.

    Parameters: X float32[columns], Y float32[ROWS], OUT float32[ROWS, columns]; symbol `steps`. Operations:
    2 * ROWS * columns per step, see `columns`.
    """
    width, lanes = tile_columns(target), target.lanes(32)
    b = Builder("multiply_add")
    steps = b.symbol("steps", 1)
    x, y = b.param("X", (width,), float32), b.param("Y", (ROWS,), float32)
    out = b.param("OUT", (ROWS, width), float32)
    r = b.alloc("R", (ROWS, width), float32, MemoryScope.REGISTER)

    def tile(name: str, step: bool) -> None:
        with (
            b.loop(f"{name}_r", ROWS, LoopKind.UNROLLED) as i,
            b.loop(f"{name}_c", width // lanes, LoopKind.UNROLLED) as c,
            b.loop(f"{name}_l", lanes, LoopKind.VECTORIZED) as lane,
            b.block(name) as block,
        ):
            row, column = block.spatial(f"{name}_v", ROWS, i), block.spatial(f"{name}_w", width, c * lanes + lane)
            if name == "start":
                block.store(r, (row, column), 0.0)
            elif step:
                block.reduce("k", steps, k)
                block.store(r, (row, column), r[row, column] * y[row] + x[column])
            else:
                block.store(out, (row, column), r[row, column])

    tile("start", False)
    with b.loop("step", steps) as k:
        tile("multiply", True)
    tile("finish", False)
    return b.func()


def tile_columns(target: Target) -> int:
    """Columns of the multiply-add kernel's tile: as many vectors as leave registers for the operands."""
    return target.lanes(32) * (4 if target.vector_registers >= 32 else 2)


def stream_read(target: Target) -> Func:
    """`parts` threads read one part of A each, `times` times, and sum its elements.

    Parameters: A float32[parts, blocks, ACCUMULATORS * lanes], OUT float32[parts, ACCUMULATORS * lanes]; symbols
    `parts`, `blocks`, `times`.
    """
    lanes = target.lanes(32)
    width = ACCUMULATORS * lanes
    b = Builder("reading")
    parts, blocks, times = b.symbol("parts", 1), b.symbol("blocks", 1), b.symbol("times", 1)
    a, out = b.param("A", (parts, blocks, width), float32), b.param("OUT", (parts, width), float32)
    s = b.alloc("S", (width,), float32, MemoryScope.REGISTER)
    with b.loop("part", parts, LoopKind.PARALLEL) as part:
        with (
            b.loop("start_u", ACCUMULATORS, LoopKind.UNROLLED) as u,
            b.loop("start_l", lanes, LoopKind.VECTORIZED) as lane,
            b.block("start") as block,
        ):
            v = block.spatial("start_v", width, u * lanes + lane)
            block.spatial("start_p", parts, part)
            block.store(s, v, 0.0)
        with (
            b.loop("time", times) as t,
            b.loop("place", blocks) as place,
            b.loop("read_u", ACCUMULATORS, LoopKind.UNROLLED) as u,
            b.loop("read_l", lanes, LoopKind.VECTORIZED) as lane,
            b.block("read") as block,
        ):
            v, p = block.spatial("read_v", width, u * lanes + lane), block.spatial("read_p", parts, part)
            block.reduce("read_t", times, t)
            block.update(s, v, a[p, block.reduce("read_b", blocks, place), v])
        with (
            b.loop("end_u", ACCUMULATORS, LoopKind.UNROLLED) as u,
            b.loop("end_l", lanes, LoopKind.VECTORIZED) as lane,
            b.block("end") as block,
        ):
            v = block.spatial("end_v", width, u * lanes + lane)
            block.store(out, (block.spatial("end_p", parts, part), v), s[v])
    return b.func()


def pointer_chase() -> Func:
    """Pointer chasing: `steps` dependent loads z = P[z].

    Parameters: P int64[size, 8] with a cycle in its first column (one element per cache line), OUT int64[1]; symbols
    `size`, `steps`.
    """
    b = Builder("chasing")
    size, steps = b.symbol("size", 1), b.symbol("steps", 1)
    p, out = b.param("P", (size, 8), int64), b.param("OUT", (1,), int64)
    with b.block("start") as block:
        block.store(out, 0, const(0))
    with b.loop("s", steps) as step, b.block("chase") as block:
        block.reduce("v", steps, step)
        # clamped, because values in memory are not known to be valid indices
        place = minimum(maximum(Load(out, (const(0),)), 0), size - 1)
        block.store(out, 0, p[place, 0])
    return b.func()


def fork_join() -> Func:
    """`times` parallel loops one after the other, in which every part is a dependency chain of `steps` additions.

    Parameter: OUT float32[parts, APART], whose first column is written; symbols `parts`, `steps`, `times`.
    """
    b = Builder("starting")
    parts, steps, times = b.symbol("parts", 1), b.symbol("steps", 1), b.symbol("times", 1)
    out, r = b.param("OUT", (parts, PART_DISTANCE), float32), b.alloc("R", (1,), float32, MemoryScope.REGISTER)
    with b.loop("time", times), b.loop("part", parts, LoopKind.PARALLEL) as part:
        with b.block("start") as block:
            block.store(r, (0,), 0.0)
        with b.loop("step", steps) as step, b.block("add") as block:
            block.reduce("s", steps, step)
            block.store(r, (0,), r[0] * 0.5 + 1.0)
        with b.block("end") as block:
            block.store(out, (block.spatial("v", parts, part), 0), r[0])
    return b.func()
