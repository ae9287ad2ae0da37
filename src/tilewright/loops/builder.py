"""Builder of loop IR functions, with `with` statements in place of indentation.

b = Builder("scale")
n = b.symbol("N", 1, 64)
x, y = b.param("X", (n,), float32), b.param("Y", (n,), float32)
with b.loop("i", n, LoopKind.PARALLEL) as i, b.block("Y") as block:
    v = block.spatial("v", n, i)
    block.store(y, v, x[v] * 2.0)
func = b.func()
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from tilewright.errors import InternalError
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import TRUE, Buffer, Expr, Load, MemoryScope, Symbol, Var, as_expr
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, Stmt, Store, seq

Index = Expr | int | Sequence[Expr | int]


def _indices(index: Index) -> tuple[Expr, ...]:
    listed = (index,) if isinstance(index, Expr | int) else index
    return tuple(as_expr(i) for i in listed)


class BlockBuilder:
    """A block under construction."""

    def __init__(self, name: str, predicate: Expr) -> None:
        self.name, self.predicate = name, predicate
        self.iters: list[BlockIter] = []
        self._body: Store | None = None
        self._init: Store | None = None

    def spatial(self, name: str, extent: Expr | int, binding: Expr | int) -> Var:
        """Adds a spatial iteration variable, 0 <= v < extent, with its binding over loop variables."""
        return self._iter(name, extent, IterKind.SPATIAL, binding)

    def reduce(self, name: str, extent: Expr | int, binding: Expr | int) -> Var:
        """Adds a reduction variable."""
        return self._iter(name, extent, IterKind.REDUCE, binding)

    def _iter(self, name: str, extent: Expr | int, kind: IterKind, binding: Expr | int) -> Var:
        var = Var(name)
        self.iters.append(BlockIter(var, as_expr(extent), kind, as_expr(binding)))
        return var

    def init(self, buffer: Buffer, index: Index, value: Expr | float) -> None:
        """Sets the value of the element before the first reduction iteration."""
        self._init = Store(buffer, _indices(index), as_expr(value, buffer.dtype))

    def store(self, buffer: Buffer, index: Index, value: Expr | float) -> None:
        """Sets the block's statement."""
        self._body = Store(buffer, _indices(index), as_expr(value, buffer.dtype))

    def update(self, buffer: Buffer, index: Index, value: Expr) -> None:
        """Sets the block's statement to `buffer[index] = buffer[index] + value`."""
        indices = _indices(index)
        self.store(buffer, indices, Load(buffer, indices) + value)

    def build(self) -> Block:
        """The block.

        Raises:
            InternalError: it stores nothing.
        """
        if self._body is None:
            raise InternalError("a block needs one store", where=f"block {self.name!r}")
        return Block(self.name, tuple(self.iters), self._body, self._init, self.predicate)


class Builder:
    """A function under construction; statements are added to the innermost open `with`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._params: list[Buffer] = []
        self._allocs: list[Buffer] = []
        self._symbols: list[Var] = []
        self._open: list[list[Stmt]] = [[]]

    def symbol(self, name: str, lo: int | None = None, hi: int | None = None) -> Var:
        """Adds a size that the caller passes, with its inclusive range."""
        self._symbols.append(Symbol(name, lo, hi))
        return self._symbols[-1]

    def param(self, name: str, shape: Sequence[Expr | int], dtype: DType) -> Buffer:
        """Adds a buffer that the caller passes."""
        self._params.append(Buffer(name, tuple(as_expr(s) for s in shape), dtype))
        return self._params[-1]

    def alloc(
        self, name: str, shape: Sequence[Expr | int], dtype: DType, scope: MemoryScope = MemoryScope.MEMORY
    ) -> Buffer:
        """Adds an internal buffer."""
        self._allocs.append(Buffer(name, tuple(as_expr(s) for s in shape), dtype, scope))
        return self._allocs[-1]

    @contextmanager
    def loop(self, name: str, extent: Expr | int, kind: LoopKind = LoopKind.SERIAL) -> Generator[Var, None, None]:
        """Adds a loop around the statements of the `with`.

        Raises:
            InternalError: it has no statements.
        """
        var = Var(name)
        self._open.append([])
        yield var
        body = self._open.pop()
        if not body:
            raise InternalError("a loop needs a body", where=f"loop {name!r}")
        self._open[-1].append(For(var, as_expr(extent), kind, seq(*body)))

    @contextmanager
    def block(self, name: str, where: Expr = TRUE) -> Generator[BlockBuilder, None, None]:
        """Adds a block; `where` is its predicate over loop variables."""
        builder = BlockBuilder(name, where)
        yield builder
        self._open[-1].append(builder.build())

    def func(self) -> Func:
        """The function.

        Raises:
            InternalError: it has no statement.
        """
        if not self._open[0]:
            raise InternalError("a function needs a statement", where=f"func {self.name!r}")
        return Func(self.name, tuple(self._params), tuple(self._symbols), tuple(self._allocs), seq(*self._open[0]))
