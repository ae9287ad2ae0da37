"""The blocks inside a statement, over loop variables, with the expanded loops around each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.polynomial import constant_value, polynomial
from tilewright.expr.nodes import Var
from tilewright.loops.ir import Block, For, If, LoopKind, Seq, Stmt
from tilewright.lower.resolve_block import ResolvedBlock, resolve_block


@dataclass(frozen=True, slots=True)
class NestedBlock:
    """A block inside a statement.

    Attributes:
        block: the block over loop variables.
        expanded: extents of the expanded (unrolled or vectorized) loops around it, by variable.
        lanes: those of them that are vectorized.
        bounds: that hold at the block.
    """

    block: ResolvedBlock
    expanded: Mapping[Var, int]
    lanes: tuple[Var, ...]
    bounds: Bounds


class ResolvedBlocks:
    """Blocks over loop variables, cached by name: a block has one place in a function."""

    def __init__(self) -> None:
        self._blocks: dict[str, ResolvedBlock] = {}

    def __call__(self, block: Block, bounds: Bounds) -> ResolvedBlock:
        """The block over loop variables, simplified with the bounds of the enclosing loops."""
        resolved = self._blocks.get(block.name)
        if resolved is None:
            resolved = self._blocks[block.name] = resolve_block(block, bounds)
        return resolved

    def inside(self, s: Stmt, bounds: Bounds, expanded: Mapping[Var, int] | None = None,
               lanes: tuple[Var, ...] = ()) -> Iterator[NestedBlock]:  # fmt: skip
        """The blocks inside a statement, in the order of execution.

        Args:
            s: the statement.
            bounds: that hold at it.
            expanded, lanes: the expanded loops around it that count, those that are vectorized.
        """
        expanded = {} if expanded is None else expanded
        match s:
            case Seq(stmts):
                for inner in stmts:
                    yield from self.inside(inner, bounds, expanded, lanes)
            case If(condition, then, otherwise):
                yield from self.inside(then, bounds.where(condition, True), expanded, lanes)
                yield from self.inside(otherwise, bounds.where(condition, False), expanded, lanes)
            case Block():
                yield NestedBlock(self(s, bounds), expanded, lanes, bounds)
            case For():
                size = constant_value(polynomial(s.extent))
                if s.kind is LoopKind.VECTORIZED:
                    lanes = (*lanes, s.var)
                if size is not None and s.kind in (LoopKind.VECTORIZED, LoopKind.UNROLLED):
                    expanded = {**expanded, s.var: size}
                yield from self.inside(s.body, bounds.with_loop(s.var, s.extent), expanded, lanes)
