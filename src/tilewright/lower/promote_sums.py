"""Register promotion: sums on the stack that a loop adds up are in registers meanwhile.

    for k in serial(6):                                  for i, j: tile[i, j] = C[i0 + i, j]
        for i in unrolled(8):                            for k in serial(6):
            for j in vectorized(48):                         for i in unrolled(8):
                C[i0 + i, j] += A[k, j] * B[i0 + i, k]  ->       for j in vectorized(48):
                                                                     tile[i, j] += A[k, j] * B[i0 + i, k]
                                                         for i, j: C[i0 + i, j] = tile[i, j]

Online sums are on the stack, as they are rescaled between two tiles of their reduction. LLVM promotes them, too, but
only in loops of few memory accesses (250, `licm-mssa-max-acc-promotion`): beyond, every multiply-add loads and stores
its sum. The verifier undoes this pass (`verify/promoted_sums.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.algebra.polynomial import constant_value, expression, polynomial
from tilewright.expr.algebra.prover import can_prove_le, can_prove_non_negative
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Expr, Load, MemoryScope, Var, const
from tilewright.expr.traversal import free_vars, has_loads
from tilewright.loops.access import accesses
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.ir import (
    EXPANDED,
    Block,
    BlockIter,
    For,
    Func,
    IterKind,
    LoopKind,
    Stmt,
    Store,
    map_children,
    seq,
    walk,
)
from tilewright.loops.redirect_accesses import redirect_accesses_in
from tilewright.machine import Target
from tilewright.schedule.rewrite_tree import claim_name, used_names

OTHER_REGISTERS = 2
"""Vector registers besides those of the sums that a multiply-add needs."""


def promote_sums(func: Func, target: Target) -> Func:
    """The function with the tiles of sums on the stack that serial loops add up promoted to registers.

    Args:
        func: a scheduled function, its loops specialized (`specialize.py`).
        target: whose registers must hold a tile.
    """
    promotion = _Promotion(target, used_names(func))
    body = promotion.statement(func.body, NO_BOUNDS)
    return func if body is func.body else replace(func, body=body, allocs=(*func.allocs, *promotion.tiles))


@dataclass(frozen=True, slots=True)
class _Tile:
    """The elements of a buffer that a loop adds to.

    Attributes:
        start: index of the first one, over the loops outside.
        offsets: of an element from the first one, over `loops`.
        shape: number of elements per dimension.
        loops: the expanded loops over the elements, outermost first.
    """

    start: tuple[Expr, ...]
    offsets: tuple[Expr, ...]
    shape: tuple[int, ...]
    loops: tuple[For, ...]

    def vectors(self, bits: int, target: Target) -> int:
        """The vector registers that it takes."""
        lanes = prod(_extent(x) for x in self.loops if x.kind is LoopKind.VECTORIZED)
        return prod(self.shape) // lanes * -(-lanes * bits // target.vector_bits)

    def is_within(self, buffer: Buffer, bounds: Bounds) -> bool:
        """Whether all elements are proved to be elements of the buffer."""
        return all(
            can_prove_non_negative(i, bounds) and can_prove_le(i + n, size, bounds)
            for i, n, size in zip(self.start, self.shape, buffer.shape, strict=True)
        )


@dataclass(slots=True)
class _Promotion:
    """The pass over one function.

    Attributes:
        target: the target.
        used: names of the function.
        tiles: the new register buffers.
    """

    target: Target
    used: set[str]
    tiles: list[Buffer] = field(default_factory=list[Buffer])

    def statement(self, s: Stmt, bounds: Bounds) -> Stmt:
        """A statement outside of vectorized loops."""
        match s:
            case For():
                promoted = self._promoted(s, bounds) if s.kind is LoopKind.SERIAL else None
                if promoted is not None:
                    return promoted
                if s.kind not in (LoopKind.SERIAL, LoopKind.PARALLEL):
                    return s
                body = self.statement(s.body, bounds.with_loop(s.var, s.extent))
                return s if body is s.body else replace(s, body=body)
            case Block():
                return s
            case _:
                return map_children(s, lambda c: self.statement(c, bounds))

    def _promoted(self, loop: For, bounds: Bounds) -> Stmt | None:
        """A loop that adds up a tile of sums, between a copy of the tile to registers and one back; None for others."""
        if constant_value(polynomial(loop.extent)) == 1:
            return None
        inside = [(b, loops) for b, loops in walk(loop) if isinstance(b, Block)]
        buffer = inside[0][0].body.buffer
        if buffer.scope is not MemoryScope.STACK or _is_prefetched(buffer, loop):
            return None
        tiles = [_tile(b, loops, buffer) for b, loops in inside]
        tile = tiles[0]
        if tile is None or any(t is None or (t.start, t.shape) != (tile.start, tile.shape) for t in tiles):
            return None
        is_many = LoopKind.UNROLLED in {x.kind for x in tile.loops} and tile.loops[-1].kind is LoopKind.VECTORIZED
        vectors = tile.vectors(buffer.dtype.bits, self.target)
        is_small = vectors + OTHER_REGISTERS <= self.target.vector_registers
        if not is_many or not is_small or not tile.is_within(buffer, bounds):
            return None
        shape = tuple(const(n) for n in tile.shape)
        register = Buffer(claim_name(f"{buffer.name}_sums", self.used), shape, buffer.dtype, MemoryScope.REGISTER)
        self.tiles.append(register)
        sums = redirect_accesses_in(
            loop, buffer, register, lambda index: tuple(i - j for i, j in zip(index, tile.start, strict=True))
        )
        return seq(self._copy(tile, buffer, register, True), sums, self._copy(tile, buffer, register, False))

    def _copy(self, tile: _Tile, buffer: Buffer, register: Buffer, loads: bool) -> Stmt:
        """The copy of a tile to registers, or back."""
        name = f"{register.name}.{'load' if loads else 'store'}"
        fresh = {x.var: Var(claim_name(f"{name}.{x.var.name}", self.used)) for x in tile.loops}
        iters: list[BlockIter] = []
        points: list[Expr] = []
        for d, (offset, n) in enumerate(zip(tile.offsets, tile.shape, strict=True)):
            if n == 1:
                points.append(const(0))
                continue
            var = Var(claim_name(f"{name}.{d}", self.used))
            iters.append(BlockIter(var, const(n), IterKind.SPATIAL, substitute(offset, fresh)))
            points.append(var)
        elements = tuple(i + p for i, p in zip(tile.start, points, strict=True))
        body = (
            Store(register, tuple(points), Load(buffer, elements))
            if loads
            else Store(buffer, elements, Load(register, tuple(points)))
        )
        copy: Stmt = Block(claim_name(name, self.used), tuple(iters), body)
        for x in reversed(tile.loops):
            copy = For(fresh[x.var], x.extent, x.kind, copy)
        return copy


def _tile(block: Block, loops: Sequence[For], buffer: Buffer) -> _Tile | None:
    """The tile of a buffer that a block in nested loops adds to; None where it is not dense, or where the block does
    something else.

    Args:
        block: the block.
        loops: the loop that adds up the tile, and those inside.
        buffer: the buffer.
    """
    if block.body.buffer != buffer or block.init is not None or match_accumulation(block.body) is None:
        return None
    if any(a.buffer == buffer and a.indices != block.body.indices for a in accesses(block)):
        return None
    if any(x.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED, LoopKind.VECTORIZED) for x in loops):
        return None
    bindings = {i.var: i.binding for i in block.iters}
    expanded = {x.var: x for x in loops if x.kind in EXPANDED}
    inner = {x.var for x in loops}
    start: list[Expr] = []
    offsets: list[Expr] = []
    shape: list[int] = []
    used: list[Var] = []
    for index in block.body.indices:
        terms = polynomial(substitute(index, bindings))
        offset = {m: c for m, c in terms.items() if any(free_vars(a) & inner for a in m)}
        first = expression({m: c for m, c in terms.items() if m not in offset})
        factors = {m[0]: c for m, c in offset.items() if len(m) == 1 and m[0] in expanded}
        size = _dense_size({v: (c, _extent(expanded[v])) for v, c in factors.items() if isinstance(v, Var)})
        if len(factors) < len(offset) or size is None or has_loads(first):
            return None
        start.append(first)
        offsets.append(expression(offset))
        shape.append(size)
        used += [v for v in factors if isinstance(v, Var)]
    if len(set(used)) < len(used):
        return None
    return _Tile(tuple(start), tuple(offsets), tuple(shape), tuple(x for x in loops if x.var in used))


def _dense_size(factors: Mapping[Var, tuple[int, int]]) -> int | None:
    """The number of values of a sum of variables times factors where these are 0, 1, ... without a gap; else None.

    Args:
        factors: by variable its factor, and the number of its values from 0.
    """
    size = 1
    for factor, extent in sorted(factors.values()):
        if factor != size:
            return None
        size *= extent
    return size


def _extent(loop: For) -> int:
    """The iterations of an expanded loop."""
    return constant_value(polynomial(loop.extent)) or 1


def _is_prefetched(buffer: Buffer, loop: For) -> bool:
    """Whether a loop, or one inside, prefetches elements of a buffer."""
    return any(p.buffer == buffer for x, _ in walk(loop) if isinstance(x, For) for p in x.prefetches)
