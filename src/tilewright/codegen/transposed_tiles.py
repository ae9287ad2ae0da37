"""Transposition in registers: lanes that read a column of a matrix, in an unrolled loop over its columns.

Lane r of iteration c reads row r, column c. Element by element that takes a load and an insertion each. Instead, the
first iteration loads the rows, contiguous vectors along the columns, and shuffles transpose them: 64 for 16 x 16
elements. The other iterations find their column in a register.

Rows are first transposed in blocks of 128 bits, by interleaving elements of two rows, then the blocks are, by
separating even blocks of two vectors from odd ones: on x86 and AArch64 each of these shuffles is one instruction.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from llvmlite import ir

from tilewright.codegen.address import ActiveLanes, Address, offset_pointer
from tilewright.codegen.arith import Arith
from tilewright.codegen.emit_memory import zero_block
from tilewright.codegen.emit_scope import EmitScope
from tilewright.codegen.llvm_types import I32, Splat, constant, memory_type, shuffle
from tilewright.codegen.subvectors import concat_vectors
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Expr, Load, Var
from tilewright.loops.ir import For, LoopKind, blocks, walk
from tilewright.lower.lane_access import LaneAccesses, column_lane
from tilewright.lower.nested_blocks import NestedBlock
from tilewright.tile.transposed_columns import MIN_COLUMNS

BLOCK_BITS = 128
"""Part of a vector register within which elements of two registers are interleaved by one instruction."""


def transpose_blocks(builder: ir.IRBuilder, rows: Sequence[ir.Value], lanes: int, bits: int) -> list[ir.Value]:
    """The transposed blocks of vectors: element r of block p of result c is element c of block p of row r.

    Args:
        builder: where the instructions go.
        rows: n vectors, each of blocks of n elements.
        lanes: of each vector.
        bits: of an element; the number of rows is a power of two.
    """
    count, vectors = len(rows), list(rows)
    near = min(count, BLOCK_BITS // bits)
    step = 1
    while step < near:
        vectors = [
            interleaved
            for group in range(0, count, near)
            for k in range(near // 2)
            for interleaved in _interleave(builder, vectors[group + k], vectors[group + k + near // 2], lanes, near)
        ]
        step *= 2
    # now element r of a block is of row group * near + r; blocks are single elements from here on
    groups = count // near
    columns = [[vectors[group * near + k] for group in range(groups)] for k in range(near)]
    step = 1
    while step < groups:
        columns = [_separate_pairs(builder, column, lanes, near) for column in columns]
        step *= 2
    return [columns[c % near][c // near] for c in range(count)]


def _interleave(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, lanes: int, block: int) -> tuple[ir.Value, ir.Value]:
    """The first and the second halves of all blocks of two vectors, element by element in turns."""
    half = block // 2
    first = [x for p in range(0, lanes, block) for k in range(half) for x in (p + k, lanes + p + k)]
    return shuffle(builder, a, b, first), shuffle(builder, a, b, [x + half for x in first])


def _separate_pairs(builder: ir.IRBuilder, vectors: Sequence[ir.Value], lanes: int, block: int) -> list[ir.Value]:
    """Of each pair of vectors the even blocks, then of each the odd ones, within tiles of as many blocks as there are
    vectors."""
    tile = len(vectors) * block
    even = [
        source + p + b + k
        for p in range(0, lanes, tile)
        for source in (0, lanes)
        for b in range(0, tile, 2 * block)
        for k in range(block)
    ]
    pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
    return [shuffle(builder, a, b, [x + odd for x in even]) for odd in (0, block) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class _UnrolledLoop:
    """A loop whose iterations read columns.

    Attributes:
        var: its variable.
        columns: iterations that read a column, the first ones, by load.
        depth: number of the scope's frames around it.
        found: columns that were transposed, by load, first column and whatever else their values depend on.
    """

    var: Var
    columns: dict[Load, int]
    depth: int
    found: dict[tuple[object, ...], list[ir.Value]] = field(default_factory=dict[tuple[object, ...], list[ir.Value]])


class TransposedTiles:
    """The tiles of one function that are transposed in registers.

    Args:
        arith: emits values at a builder's position.
        scope: variables and cached values.
        accesses: what is known of accesses before they are emitted.
    """

    def __init__(self, arith: Arith, scope: EmitScope, accesses: LaneAccesses) -> None:
        self.arith, self.builder, self.scope, self.accesses = arith, arith.builder, scope, accesses
        self._unrolled_loops: list[_UnrolledLoop] = []

    @contextmanager
    def in_unrolled_loop(self, loop: For, size: int, nested_blocks: Iterable[NestedBlock]) -> Generator[None]:
        """The iterations of an unrolled loop, of constant extent `size`, around these blocks."""
        columns = dict(self._column_loads(loop, size, nested_blocks))
        self._unrolled_loops.append(_UnrolledLoop(loop.var, columns, len(self.scope.frames)))
        try:
            yield
        finally:
            self._unrolled_loops.pop()

    def _column_loads(self, loop: For, size: int, nested_blocks: Iterable[NestedBlock]) -> Iterator[tuple[Load, int]]:
        """The loads in a loop that read a column in each iteration, and the number of these iterations."""
        inner = [s for s, _ in walk(loop.body) if isinstance(s, For)]
        if size < MIN_COLUMNS or not all(s.kind in (LoopKind.UNROLLED, LoopKind.VECTORIZED) for s in inner):
            return
        written = {s.buffer.name for b in blocks(loop.body) for s in (b.body, b.init) if s is not None}
        for nested in nested_blocks:
            lane, columns = column_lane(nested), self._active_iterations(loop.var, size, nested.block.conditions)
            if lane is None or columns < MIN_COLUMNS:
                continue
            for load in self.accesses.loads_of_all_iterations(nested, loop.var):
                if load.buffer.name not in written and self.accesses.is_column(load, loop.var, lane, nested.bounds):
                    yield load, columns

    def _active_iterations(self, var: Var, size: int, conditions: Iterable[Expr]) -> int:
        """The number of iterations, the first ones, in which conditions hold that depend on the loop; 0 where that is
        not known here."""
        unknown = [c for c in conditions if var in self.scope.dependencies(c).variables]
        holds: list[bool] = []
        for k in range(size if unknown else 0):
            with self.scope.with_constant(var, k):
                values = [self.scope.fold(c) for c in unknown]
            if None in values:
                return 0
            holds.append(all(values))
        active = holds.index(False) if False in holds else size
        return active if not any(holds[active:]) else 0

    def _loop_of(self, load: Load) -> _UnrolledLoop | None:
        """The loop over the columns that a load reads, where values of its first iteration are valid here."""
        loop = next((x for x in self._unrolled_loops if load in x.columns), None)
        if loop is None or any(frame.is_control_flow for frame in self.scope.frames[loop.depth :]):
            return None
        return loop

    def is_transposed(self, load: Load) -> bool:
        """Whether a load's lanes are read as a column of a tile here, under any mask."""
        return self._loop_of(load) is not None

    def column(self, load: Load, address: Address, active: ActiveLanes) -> ir.Value | None:
        """The value of a load in this iteration, as its type in memory; None for other loads.

        Args:
            load: a load, in a vectorized loop.
            address: its address.
            active: the lanes that may be accessed; the others are 0 or undefined.
        """
        loop = self._loop_of(load)
        if loop is None or address.offsets is None or active.guard is not None:
            return None
        lanes, columns, iteration = len(address.offsets), loop.columns[load], self.scope.constants[loop.var]
        if iteration >= columns:
            return None
        width = 1 << min(lanes, columns, self.arith.target.lanes(load.buffer.dtype.bits)).bit_length() - 1
        # the last tile begins so early that it ends with the last column
        first = min(iteration // width * width, columns - width)
        variables = self.scope.dependencies(load).variables - {loop.var}
        others = tuple(sorted((v.name, self.scope.constants[v]) for v in variables & self.scope.constants.keys()))
        mask = active.mask
        key = (load, first, others, str(mask) if isinstance(mask, ir.Constant) else mask)
        if key not in loop.found:
            rows = [offset + first - iteration for offset in address.offsets]
            loop.found[key] = self._transpose(load.buffer.dtype, address.base, rows, width, active)
        return loop.found[key][iteration - first]

    def _transpose(
        self, dtype: DType, base: ir.Value, offsets: Sequence[int], width: int, active: ActiveLanes
    ) -> list[ir.Value]:
        """The columns of rows of `width` elements that begin at offsets from `base`, one per lane."""
        rows = [self._load_row(dtype, base, offset, width, active, lane) for lane, offset in enumerate(offsets)]
        register_lanes = min(len(rows), self.arith.target.lanes(dtype.bits))
        parts: list[list[ir.Value]] = []
        for start in range(0, len(rows), register_lanes):
            # row k, k + width, ... are blocks of one vector
            vectors = [concat_vectors(self.builder, rows[start + k : start + register_lanes : width])
                       for k in range(width)]  # fmt: skip
            parts.append(transpose_blocks(self.builder, vectors, register_lanes, dtype.bits))
        return [concat_vectors(self.builder, column) for column in zip(*parts, strict=True)]

    def _load_row(
        self, dtype: DType, base: ir.Value, offset: int, width: int, active: ActiveLanes, lane: int
    ) -> ir.Value:
        """`width` elements from an offset; 0 where the lane is inactive."""
        kind = ir.VectorType(memory_type(dtype), width)
        pointer = offset_pointer(self.builder, dtype, base, offset)
        if isinstance(active.mask, ir.Constant):
            if not _is_set(active.mask, lane):
                return constant(kind, 0)
        elif active.mask is not None:
            is_active = self.builder.extract_element(active.mask, I32(lane))
            pointer = self.builder.select(is_active, pointer, zero_block(self.builder.module))
        return self.builder.load(pointer, align=dtype.bytes, typ=kind)


def _is_set(mask: ir.Constant, lane: int) -> bool:
    """Whether a lane of a constant mask is set."""
    return bool(mask.number if isinstance(mask, Splat) else mask.constant[lane].constant)
